// Tests the data set list:TRAIN,VAL: how a line is parsed, that the samples equal those of a folder, and bad input.
#include <algorithm>
#include <utility>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/detail/folder_list.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/files.hpp"
#include "tests/support/image_files.hpp"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::error_of, testing::expect_holds, testing::pixels;

// ---- Parsing of lines: these tests open no image file

detail::FolderList read_lists(const std::vector<std::string>& texts, double val_fraction = 0) {
  std::vector<detail::PictureList> lists;
  for (const std::string& text : texts) {
    lists.push_back({.path = lists.empty() ? "train.txt" : "val.txt", .text = text, .above = ""});
  }
  return detail::combined_lists(lists, val_fraction, 7, [](const std::string& name) {
    return name.starts_with("none") ? std::string("does not exist") : std::string();
  });
}

std::string refused_lists(const std::vector<std::string>& texts, double val_fraction = 0) {
  const std::string text = error_of<DataError>([&] { (void)read_lists(texts, val_fraction); });
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  return text;
}

std::vector<std::pair<std::string, int>> pictures_of(const std::vector<detail::FolderFile>& files) {
  std::vector<std::pair<std::string, int>> found;
  for (const detail::FolderFile& file : files) {
    found.emplace_back(file.name, file.label);
  }
  return found;
}

using Expected = std::vector<std::pair<std::string, int>>;

TEST(PictureLists, ALineIsDividedAtItsLastTabOrCommaOrSpace) {
  const std::vector<std::pair<std::string, std::string>> lines{
      {"a.jpg cat", "a.jpg"},           {"a.jpg,cat", "a.jpg"},
      {"a.jpg\tcat", "a.jpg"},          {"  \ta.jpg   cat \t", "a.jpg"},
      {"a.jpg , cat", "a.jpg"},         {"a b.jpg cat", "a b.jpg"},
      {"a b.jpg,cat", "a b.jpg"},       {"a,b c.jpg\tcat", "a,b c.jpg"},
      {"a,b,c.jpg,cat", "a,b,c.jpg"},   {"a\tb.jpg\tcat", "a\tb.jpg"},
      {"./a.jpg cat", "a.jpg"},         {".//././a.jpg cat", "a.jpg"},
      {"../a.jpg cat", "../a.jpg"},     {"/data/./a.jpg cat", "/data/a.jpg"},
      {"a//b.jpg cat", "a/b.jpg"},      {"a/.///./b.jpg cat", "a/b.jpg"},
      {"a/../b.jpg cat", "a/../b.jpg"}, {".a./..b cat", ".a./..b"},
      {"//a.jpg cat", "/a.jpg"},        {"\"a.jpg\" cat", "\"a.jpg\""},
      {"a\xff.jpg cat", "a\xff.jpg"}};
  for (const auto& [line, name] : lines) {
    for (const std::string begin : {"", "\n\n", "# a comment, 3\n", "\xEF\xBB\xBF"}) {
      for (const std::string end : {"", "\n", "\r\n", "\n\n \t\r\n#x"}) {
        const std::string text = concat(begin, line, end);
        EXPECT_EQ(pictures_of(read_lists({text, text}).train), (Expected{{name, 0}})) << text;
      }
    }
  }
  EXPECT_EQ(read_lists({"a.jpg,golden retriever", "a.jpg\tgolden retriever"}).names,
            std::vector<std::string>{"golden retriever"});
}

TEST(PictureLists, LabelsAreNumbersOrNames) {
  const detail::FolderList numbers = read_lists({"a 2\nb 0\nc 01\nd 2", "e 1"});
  EXPECT_EQ(numbers.classes, 3);
  EXPECT_EQ(numbers.names, (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(pictures_of(numbers.train), (Expected{{"a", 2}, {"b", 0}, {"c", 1}, {"d", 2}}));
  EXPECT_EQ(pictures_of(numbers.test), (Expected{{"e", 1}}));
  const detail::FolderList names = read_lists({"a b\nb \xff\nc Z\nd a9", "e Z\nf Z"});
  EXPECT_EQ(names.names, (std::vector<std::string>{"Z", "a9", "b", "\xff"}));
  EXPECT_EQ(pictures_of(names.train), (Expected{{"a", 2}, {"b", 3}, {"c", 0}, {"d", 1}}));
  EXPECT_EQ(pictures_of(names.test), (Expected{{"e", 0}, {"f", 0}}));
  expect_holds(names.about, "test images are those of 'val.txt'");
}

TEST(PictureLists, BadLinesAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"", "a 0"}, "'train.txt': lists no picture, expected PATH LABEL or PATH,LABEL on a line"},
      {{"# a 0\n\n", "a 0"}, "'train.txt': lists no picture"},
      {{"a 0", "\xEF\xBB\xBF\r\n"}, "'val.txt': lists no picture"},
      {{"a 0\n\nb.jpg\n", "a 0"}, "'train.txt', line 3: 'b.jpg' has no label, expected PATH LABEL or PATH,LABEL"},
      {{"a 0\nb.jpg,", "a 0"}, "'train.txt', line 2: 'b.jpg,' has no label"},
      {{"a 0\n,cat", "a 0"}, "'train.txt', line 2: ',cat' has no path"},
      {{"a 0\n./ 0", "a 0"}, "'train.txt', line 2: './ 0' has no path"},
      {{"a 0\nnone.jpg 0", "a 0"},
       "'train.txt', line 2: 'none.jpg' of label '0' does not exist (a line is divided at its last tab, else comma, "
       "else space)"},
      {{"none,label\na 0", "a 0"}, "'train.txt', line 1: 'none' of label 'label' does not exist"},
      {{"a 0", "# first\nnone\x1b 0"}, "'val.txt', line 2: 'none\\x1b' of label '0' does not exist"},
      {{"a 0\nb cat", "a 0"}, "'train.txt', line 2: label 'cat', expected a number as 'train.txt', line 1 has"},
      {{"a cat\nb 3", "a cat"}, "'train.txt', line 2: label '3', expected a name as 'train.txt', line 1 has"},
      {{"\na 0\nb 1", "a cat"}, "'val.txt', line 1: label 'cat', expected a number as 'train.txt', line 2 has"},
      {{"a 0\nb -1", "a 0"}, "'train.txt', line 2: label '-1', expected 0 to 1"},
      {{"a -1", "a 0"}, "'train.txt', line 1: label '-1', expected 0 to 0"},
      {{"a 0\nb +1", "a 0"}, "'train.txt', line 2: label '+1', expected 0 to 1"},
      {{"a 0\nb 2", "a 0"},
       "'train.txt', line 2: label '2', expected 0 to 1, as there are so many pictures and each class has one"},
      {{"a 99999999999999999999", "a 0"}, "label '99999999999999999999', expected 0 to 0"},
      {{"a 1\nb 1", "a 1"}, "'train.txt', line 1: label 1, and class 0 has no picture in the list"},
      {{"a 0\nb 3\nc 1\nd 0", "a 0"}, "'train.txt', line 2: label 3, and class 2 has no picture in the list"},
      {{"a 0\nb 1", "a 0\nc 2"}, "'val.txt', line 2: label '2', expected 0 to 1, as the training list has them"},
      {{"a cat\nb dog", "a cat\nc cow"}, "'val.txt', line 2: label 'cow', expected a class of 'train.txt'"},
      {{"a 0\nb 1\na 1", "a 0"},
       "'train.txt', line 3: 'a' has label '1' and in 'train.txt', line 1 '0', expected the same label in both"},
      {{"a 0\nb 1", "b 0"},
       "'val.txt', line 1: 'b' has label '0' and in 'train.txt', line 2 '1', expected the same label in both"},
      {{std::string("a 0\nb\0 0", 8), "a 0"}, "'train.txt', line 2: holds a byte 0, expected text"},
      {{"a 0\n" + std::string(8193, 'x'), "a 0"}, "'train.txt', line 2: 8193 bytes, expected a line of at most 8192"}};
  for (const auto& [texts, expected] : cases) {
    expect_holds(refused_lists(texts), expected);
  }
  // A line of 8192 bytes is the longest that is allowed.
  EXPECT_EQ(read_lists({std::string(8190, 'x') + " 0\n", "a 0"}).train.size(), 1U);
}

TEST(PictureLists, APictureMayStandInAListTwice) {
  EXPECT_EQ(pictures_of(read_lists({"a 0\nb 0\n./a 0", "a 0"}).train), (Expected{{"a", 0}, {"b", 0}, {"a", 0}}));
  expect_holds(
      refused_lists({"a 0\nb 0\n./a 0"}, 0.5),
      "'train.txt', line 3: 'a' stands in 'train.txt', line 1 too, expected each picture once where a fraction");
  expect_holds(
      refused_lists({"a/b 0\nb 1\na//b 1", "b 1"}),
      "'train.txt', line 3: 'a/b' has label '1' and in 'train.txt', line 1 '0', expected the same label in both");
}

TEST(PictureLists, AFractionIsSplitOffEachClass) {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += concat("p", i, i % 2 == 0 ? " even\n" : " odd\n");
  }
  const detail::FolderList list = read_lists({text}, 0.3);
  EXPECT_EQ(list.train.size(), 14U);
  ASSERT_EQ(list.test.size(), 6U);
  EXPECT_EQ(std::count_if(list.test.begin(), list.test.end(), [](const auto& file) { return file.label == 1; }), 3);
  expect_holds(list.about, "30 % of each class");
  expect_holds(refused_lists({"a 0\nb 1"}, 0.3),
               "'train.txt': every class has one image, expected at least two images in a class");
}

// ---- files

class ListedPictures : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    testing::put_file(folder_ / name, bytes);
  }
  void put_picture(const std::string& name, int value) const {
    put(name, png(pixels(9, 8, 3, [&](std::int64_t y, std::int64_t x, int c) {
          return static_cast<int>((value + 5 * y + 3 * x * (c + 1)) % 256);
        })));
  }
  /// Writes two classes, and lists that contain the files in the order of the folder. One class name is not UTF-8, the
  /// other contains a blank.
  void put_folder() const {
    std::string train = "# of the folder\r\n";
    std::string val;
    for (int c = 0; c < 2; ++c) {
      const std::string name = c == 0 ? "big cat" : "\xe9";
      for (int i = 0; i < 9; ++i) {
        const std::string file = concat(i < 6 ? "train/" : "val/", name, '/', i, ".png");
        put_picture("data/" + file, 60 * c + 7 * i);
        (i < 6 ? train : val) += concat(file, '\t', name, "\r\n");
      }
    }
    put("data/train.txt", train);
    put("data/val.txt", val);
  }
  [[nodiscard]] DataOptions options(const std::string& spec) const {
    return {.spec = spec, .seed = 7, .folder = {.image_size = 8}};
  }
  [[nodiscard]] std::string lists(const std::string& train, const std::string& val) const {
    return concat("list:", folder_ / train, ',', folder_ / val);
  }
  testing::TemporaryFolder folder_;
};

using Image = std::vector<std::uint8_t>;

/// Returns the label and the pixels of each sample of `set`. A set to train on gives the pixels as in epoch `epoch`; a
/// test set gives the same pixels in every epoch.
std::vector<std::pair<int, Image>> samples(const ImageDataset& set, std::int64_t epoch) {
  std::vector<std::pair<int, Image>> found;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    Image image(static_cast<std::size_t>(set.image_bytes()));
    set.read_in(epoch, i, image);
    found.emplace_back(set.label(i), std::move(image));
  }
  return found;
}

void expect_same(const DataSplit& a, const DataSplit& b) {
  for (const std::int64_t epoch : {0, 2}) {
    EXPECT_EQ(samples(*a.train, epoch), samples(*b.train, epoch));
    EXPECT_EQ(samples(*a.test, epoch), samples(*b.test, epoch));
  }
  EXPECT_EQ(a.train->fingerprint(), b.train->fingerprint());
  EXPECT_EQ(a.test->fingerprint(), b.test->fingerprint());
  EXPECT_EQ(a.class_names, b.class_names);
}

TEST_F(ListedPictures, AreThoseOfTheFolder) {
  put_folder();
  const DataSplit folder = open_data(options("folder:" + (folder_ / "data")));
  const DataSplit list = open_data(options(lists("data/train.txt", "data/val.txt")));
  EXPECT_EQ(list.train->size(), 12);
  EXPECT_EQ(list.test->size(), 6);
  EXPECT_TRUE(list.files);
  expect_holds(list.about, "test images are those of ");
  expect_holds(list.about, "val.txt', resized to 9 and cropped; random crops to train on");
  EXPECT_EQ(list.statistics.mean, folder.statistics.mean);
  expect_same(folder, list);
  // The control: the same lines in another order give another fingerprint.
  const std::string train = testing::get_file(folder_ / "data/train.txt");
  const std::size_t first = train.find("train/");
  const std::size_t second = train.find("train/", first + 1);
  put("data/turned.txt", train.substr(first));
  EXPECT_EQ(open_data(options(lists("data/turned.txt", "data/val.txt"))).train->fingerprint(),
            folder.train->fingerprint());  // the lists differ only in the comment line
  put("data/turned.txt", train.substr(second) + train.substr(first, second - first));
  EXPECT_NE(open_data(options(lists("data/turned.txt", "data/val.txt"))).train->fingerprint(),
            folder.train->fingerprint());
}

TEST_F(ListedPictures, AFractionIsThatOfTheFolder) {
  put_folder();
  DataOptions folder = options("folder:" + (folder_ / "data/train"));
  folder.folder.val_fraction = 0.4;
  std::string text = testing::get_file(folder_ / "data/train.txt");
  for (std::size_t at = text.find("train/"); at != text.npos; at = text.find("train/")) {
    text.erase(at, 6);
  }
  put("data/train/all.txt", text);
  DataOptions list = options("list:" + (folder_ / "data/train/all.txt"));
  expect_holds(error_of<UsageError>([&] { (void)open_data(list); }),
               "one list, expected list:TRAIN,VAL, or a fraction to split off (--val-fraction)");
  list.folder.val_fraction = 0.4;
  expect_same(open_data(folder), open_data(list));
  list.spec = lists("data/train.txt", "data/val.txt");
  expect_holds(error_of<UsageError>([&] { (void)open_data(list); }),
               "validation fraction is 0.4, expected 0 (--val-fraction) with two lists");
  list.folder.val_fraction = 1;
  expect_holds(error_of<UsageError>([&] { (void)open_data(list); }), "validation fraction is 1, expected 0 <= value");
}

TEST_F(ListedPictures, PathsAreRelativeToTheirListOrAbsolute) {
  put_folder();
  const std::string names = "train/big cat/0.png\t0\n";
  put("data/one.txt", names + concat(folder_ / "data/val/big cat/7.png", "\t0\n"));
  fs::create_directories(folder_ / "other/deep");
  fs::create_directory_symlink(folder_ / "other/deep", folder_ / "link");
  put("link/val.txt", "../../data/val/big cat/6.png\t0\nx.png\t0\n");
  put_picture("other/deep/x.png", 3);
  for (const std::string val : {"link/val.txt", "other/deep/val.txt"}) {
    const DataSplit data = open_data(options(lists("data/one.txt", val)));
    const DataSplit folder = open_data(options("folder:" + (folder_ / "data")));
    EXPECT_EQ(samples(*data.train, 0)[0].second.size(), samples(*folder.train, 0)[0].second.size());
    Image own(8 * 8 * 3);
    Image of_folder(own.size());
    data.train->read(0, own);
    folder.train->read(0, of_folder);
    EXPECT_EQ(own, of_folder);
    data.train->read(1, own);
    folder.test->read(1, of_folder);
    EXPECT_EQ(own, of_folder);
    data.test->read(0, own);
    folder.test->read(0, of_folder);
    EXPECT_EQ(own, of_folder);
    data.test->read(1, own);
  }
  // The fingerprint does not depend on where the root folder is, or whether a path leads through a link.
  const std::uint64_t before = open_data(options(lists("data/one.txt", "other/deep/val.txt"))).test->fingerprint();
  EXPECT_EQ(open_data(options(lists("data/one.txt", "link/val.txt"))).test->fingerprint(), before);
  // Paths may be relative to the working directory.
  const fs::path here = fs::current_path();
  fs::current_path(folder_ / "data");
  EXPECT_EQ(open_data(options("list:train.txt,val.txt")).train->size(), 12);
  EXPECT_EQ(open_data(options("list:train.txt,./val.txt")).test->size(), 6);
  fs::current_path(here);
}

TEST_F(ListedPictures, DamagedImagesAreFoundNamedAndLeftOut) {
  put_folder();
  const std::string good = testing::get_file(folder_ / "data/train/big cat/1.png");
  put("data/train/big cat/1.png", good.substr(0, good.size() - 7));
  const DataOptions given = options(lists("data/train.txt", "data/val.txt"));
  const std::vector<DamagedImage> damaged = damaged_images(given, 1, 0, 2);
  ASSERT_EQ(damaged.size(), 1U);
  EXPECT_EQ(damaged[0].file, "train/big cat/1.png");
  expect_holds(damaged[0].text, "data/train/big cat/1.png': damaged or unknown PNG data");
  Image image(8 * 8 * 3);
  expect_holds(error_of<DataError>([&] { open_data(given).train->read(1, image); }),
               "data/train/big cat/1.png': damaged or unknown PNG data");
  DataOptions rest = given;
  rest.folder.left_out = {damaged[0].file};
  EXPECT_EQ(open_data(rest).train->size(), 11);
  for (int i = 0; i < 6; ++i) {
    rest.folder.left_out.push_back(concat("train/big cat/", i, ".png"));
  }
  expect_holds(error_of<DataError>([&] { (void)open_data(rest); }), "train.txt': without 7 images that are left out");
}

TEST_F(ListedPictures, WhatIsNoListIsNamed) {
  put_folder();
  const auto refused = [&](const std::string& spec) {
    return error_of<DataError>([&] { (void)open_data(options(spec)); });
  };
  const auto usage = [&](const std::string& spec) {
    return error_of<UsageError>([&] { (void)open_data(options(spec)); });
  };
  expect_holds(refused(lists("data/none.txt", "data/val.txt")), "none.txt: cannot be opened");
  expect_holds(refused(lists("data/train.txt", "data")), "data: is not a regular file");
  expect_holds(usage("list:"), "data is 'list:', expected synthetic");
  for (const std::string paths : {"a,", ",a", "a,b,c", ","}) {
    expect_holds(usage("list:" + paths), "expected list:TRAIN or list:TRAIN,VAL: the names of lists have no comma");
  }
  put("data/a,b.txt", "x 0");
  expect_holds(usage("list:" + (folder_ / "data/a,b.txt")), "a file with a comma in its name");
  put("data/list.txt", "val.txt 0\nnone.png 0\n");
  expect_holds(refused(lists("data/list.txt", "data/val.txt")), "list.txt', line 2: 'none.png' of label '0' does not");
  put("data/list.txt", "\n\nval 0\n");
  expect_holds(refused(lists("data/list.txt", "data/val.txt")), "list.txt', line 3: 'val' of label '0' is no file");
  put("data/list.txt", "val.txt/x.png 0\n");
  expect_holds(refused(lists("data/list.txt", "data/val.txt")), "list.txt', line 1: 'val.txt/x.png' of label '0' ");
  put("data/list.txt", std::string(5000, 'x') + " 0\n");
  expect_holds(refused(lists("data/list.txt", "data/val.txt")), "cannot be read: File name too long");
  // An image given instead of a list must be refused.
  put("data/list.txt", testing::get_file(folder_ / "data/train/big cat/0.png"));
  expect_holds(refused(lists("data/list.txt", "data/val.txt")), "list.txt', line ");
  // A file that is no image gives an error when it is read, as in a folder.
  put("data/list.txt", "val.txt 0\n");
  const DataSplit data = open_data(options(lists("data/list.txt", "data/list.txt")));
  Image image(8 * 8 * 3);
  expect_holds(error_of<DataError>([&] { data.train->read(0, image); }), "val.txt': is no JPEG or PNG file");
}

TEST_F(ListedPictures, ArePackedAsTheFolderIs) {
  put_folder();
  const auto pack = [&](const std::string& from, const std::string& to, double fraction) {
    return FolderPack({.folder = from, .out = folder_ / to, .val_fraction = fraction, .overwrite = true, .threads = 2})
        .write([](const PackProgress&) {});
  };
  const std::string both = lists("data/train.txt", "data/val.txt");
  (void)pack(folder_ / "data", "folder.pack", 0);
  const PackSummary summary = pack(both, "data/list.pack", 0);  // written next to the lists
  EXPECT_EQ(summary.train, 12);
  EXPECT_EQ(summary.test, 6);
  EXPECT_EQ(testing::get_file(folder_ / "data/list.pack"), testing::get_file(folder_ / "folder.pack"));
  expect_same(open_data(options("packed:" + (folder_ / "data/list.pack"))), open_data(options(both)));
  EXPECT_GT(pack("list:" + (folder_ / "data/train.txt"), "part.pack", 0.5).test, 0);
  for (const std::string list : {"data/train.txt", "data/val.txt"}) {
    expect_holds(error_of<UsageError>([&] { (void)pack(both, list, 0); }), "is a list of pictures, expected another");
  }
}

}  // namespace
}  // namespace lockstep::nn
