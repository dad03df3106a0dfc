// Tests packed files, byte by byte: the written bytes, and the files that are refused. Needs no library for images.
#include <cstdio>
#include <tuple>

#include <lockstep/nn/data/device_preprocessing.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

#include "tests/support/damage.hpp"
#include "tests/support/files.hpp"
#include "tests/support/resident.hpp"
#include "tests/support/torch_files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::torch::crc32, testing::torch::little;

/// The contents of a packed file. A test can set every number of the header; text() computes correct checksums.
struct Parts {
  struct Record {
    std::string bytes;
    std::uint64_t label = 0;
    std::uint64_t width = 2;
    std::uint64_t height = 2;
    std::uint64_t orientation = 1;
    std::uint64_t format = 0;
    std::string name;
    std::uint64_t reserved = 0;
    std::uint64_t more_bytes = 0;
    std::uint64_t later = 0;
    std::uint64_t other_crc = 0;
    std::uint64_t longer_name = 0;
  };
  std::uint64_t version = 1;
  std::uint64_t train = 2;
  std::uint64_t test = 1;
  std::uint64_t classes = 2;
  std::uint64_t store = 1;
  std::uint64_t resized = 0;
  std::uint64_t index_before = 0;
  std::uint64_t index_longer = 0;
  std::uint64_t name_longer = 0;
  std::vector<std::string> class_names{"cat", "a dog"};
  std::vector<Record> records;
  std::string behind;  ///< bytes after the records: the names

  Parts() {
    records.push_back({.bytes = "abcdefghijkl", .name = "train/cat/1.jpg"});
    records.push_back({.bytes = "mnopqr", .label = 1, .width = 1, .format = 1, .name = "train/a dog/1.png"});
    records.push_back({.bytes = "stuvwxyz1234", .label = 1, .orientation = 6});
  }
  [[nodiscard]] std::string text() const {
    const std::string begin = "LSPACK\r\n" + little(version, 4) + little(0, 4);
    std::string samples;
    std::string index;
    std::string names;
    for (const std::string& name : class_names) {
      index += little(name.size() + name_longer, 4) + name;
    }
    for (const Record& r : records) {
      index += little(16 + samples.size() + r.later, 8) + little(r.bytes.size() + r.more_bytes, 8) +
               little(crc32(r.bytes) + r.other_crc, 4) + little(r.label, 4) + little(r.width, 4) + little(r.height, 4) +
               little(r.orientation, 1) + little(r.format, 1) + little(r.name.size() + r.longer_name, 2) +
               little(r.reserved, 4);
      samples += r.bytes;
      names += r.name;
    }
    index += names + behind;
    std::string end = little(16 + samples.size() - index_before, 8) + little(index.size() + index_longer, 8) +
                      little(train, 8) + little(test, 8) + little(classes, 4) + little(store, 4) + little(resized, 4) +
                      little(crc32(index), 4) + "LSPACKED" + little(0, 4);
    return begin + samples + index + end + little(crc32(begin + end), 4);
  }
};

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

class PackedFiles : public ::testing::Test {
 protected:
  /// Writes these bytes to a file, opens it and reads all of it.
  void read(const std::string& bytes) const {
    testing::put_file(path_, bytes);
    const PackedFile file(path_);
    for (std::int64_t i = 0; i < file.train_size() + file.test_size(); ++i) {
      (void)file.read(i);
    }
  }
  [[nodiscard]] std::string refused(const std::string& bytes) const {
    const std::string text = error_of<DataError>([&] { read(bytes); });
    expect_holds(text, path_);
    return text;
  }
  [[nodiscard]] std::string refused(const std::function<void(Parts&)>& change) const {
    Parts parts;
    change(parts);
    return refused(parts.text());
  }

  testing::TemporaryFolder folder_;
  std::string path_ = folder_ / "a.pack";
};

TEST_F(PackedFiles, AreWhatTheHeaderSays) {
  const Parts parts;
  PackedWriter writer(path_, PackedStore::pixels, parts.class_names);
  for (std::size_t i = 0; i < 3; ++i) {
    const Parts::Record& r = parts.records[i];
    writer.add(i == 2,
               {static_cast<std::int32_t>(r.label), static_cast<std::int64_t>(r.width),
                static_cast<std::int64_t>(r.height), static_cast<int>(r.orientation), r.format == 0, r.name},
               bytes_of(r.bytes));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  writer.commit();
  EXPECT_EQ(testing::get_file(path_), parts.text());
  EXPECT_EQ(writer.bytes(), parts.text().size());
  EXPECT_EQ(testing::count_entries(folder_.path()), 1U);

  const PackedFile file(path_);
  EXPECT_EQ(file.train_size(), 2);
  EXPECT_EQ(file.test_size(), 1);
  EXPECT_EQ(file.class_names(), parts.class_names);
  EXPECT_EQ(file.store(), PackedStore::pixels);
  EXPECT_EQ(file.resized(), 0);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const Parts::Record& r = parts.records[i];
    const PackedSample& sample = file.sample(index);
    EXPECT_EQ(static_cast<std::uint64_t>(sample.label), r.label);
    EXPECT_EQ(static_cast<std::uint64_t>(sample.width), r.width);
    EXPECT_EQ(static_cast<std::uint64_t>(sample.height), r.height);
    EXPECT_EQ(static_cast<std::uint64_t>(sample.orientation), r.orientation);
    EXPECT_EQ(sample.jpeg, r.format == 0);
    EXPECT_EQ(sample.name, r.name);
    const auto bytes = file.read(index);
    EXPECT_EQ(std::string(bytes.begin(), bytes.end()), r.bytes);
  }
  expect_holds(file.text_of(1), "a.pack': sample 1 of class 'a dog' ('train/a dog/1.png')");
  EXPECT_TRUE(file.text_of(2).ends_with("a.pack': sample 2 of class 'a dog'")) << file.text_of(2);
}

// Expects that ahead() reads the pages of its samples into memory, for PackedFile and for the data sets that
// packed:FILE opens. The file holds the training samples first, then the test samples.
TEST_F(PackedFiles, SamplesAreReadAhead) {
  const PackedSample sample{.width = 100, .height = 100};
  const std::vector<std::uint8_t> pixels(30000, 7);
  {
    PackedWriter writer(path_, PackedStore::pixels, {"all"});
    for (int i = 0; i < 40; ++i) {
      writer.add(i >= 30, sample, pixels);
    }
    writer.commit();
  }
  const auto offset = [](std::uint64_t index) { return 16 + 30000 * index; };
  const PackedFile file(path_);
  const DataSplit data = open_data({.spec = "packed:" + path_, .folder = {.image_size = 8}});
  for (const auto& [ahead, begin, count] :
       {std::tuple<std::function<void()>, int, int>{[&] { file.ahead(20, 5); }, 20, 5},
        {[&] { data.train->ahead(3, 4); }, 3, 4},
        {[&] { data.test->ahead(2, 3); }, 32, 3},
        {[&] { data.test->device_preprocessing(false)->ahead(7, 3); }, 37, 3}}) {
    testing::forget(path_);
    if (!testing::some_absent(path_, offset(begin), offset(begin + count))) {
      GTEST_SKIP() << "the system does not forget files in this folder";
    }
    const std::vector<bool> before = testing::resident(path_);
    file.ahead(10, 0);
    ahead();
    EXPECT_TRUE(testing::becomes_resident(path_, offset(begin), offset(begin + count))) << begin;
    const std::vector<bool> after = testing::resident(path_);
    // Samples far from the requested range must not be read, so their pages must not become resident.
    for (const int other : {12, 28, 36}) {
      const std::size_t page = offset(other) / testing::page_bytes() + 1;
      EXPECT_EQ(after[page], before[page]) << begin << ' ' << other;
    }
  }
}

TEST_F(PackedFiles, EveryBitCounts) {
  const std::string good = Parts().text();
  ASSERT_NO_THROW(read(good));
  testing::for_each_flipped_bit(good, [&](const std::string& bytes) { (void)refused(bytes); });
}

/// Returns the result of check_packed() for the file at this path.
PackedCheck checked(const std::string& path, int threads, std::size_t most) {
  const PackedFile file(path);
  std::int64_t done = 0;
  PackedCheck check = check_packed(file, threads, most, [&](const PackProgress& progress) {
    EXPECT_GT(progress.done, done);
    EXPECT_EQ(progress.all, file.train_size() + file.test_size());
    done = progress.done;
  });
  EXPECT_EQ(done, file.train_size() + file.test_size());
  return check;
}

TEST_F(PackedFiles, ACheckNamesTheDamagedSamples) {
  PackedWriter writer(path_, PackedStore::pixels, {"cat", "a dog"});
  for (int i = 0; i < 100; ++i) {
    writer.add(i >= 90, {i % 2, 2, 2, 1, true, concat("x/", i, ".jpg")}, bytes_of(concat("sample ", 10000 + i)));
  }
  writer.commit();
  const std::string good = testing::get_file(path_);
  for (const int threads : {1, 3}) {
    const PackedCheck check = checked(path_, threads, 20);
    EXPECT_EQ(check.damaged, 0);
    EXPECT_TRUE(check.texts.empty());
    EXPECT_FALSE(check.decoded) << "they are pixels";
  }
  std::string bytes = good;
  for (const std::size_t i : {0U, 51U, 52U, 99U}) {
    bytes[16 + 12 * i] = static_cast<char>(bytes[16 + 12 * i] ^ 1);
  }
  testing::put_file(path_, bytes);
  for (const int threads : {1, 3}) {
    const PackedCheck check = checked(path_, threads, 20);
    EXPECT_EQ(check.damaged, 4);
    ASSERT_EQ(check.texts.size(), 4U);
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "CRC-32 %08x, expected %08x", static_cast<unsigned>(crc32("rample 10000")),
                  static_cast<unsigned>(crc32("sample 10000")));
    EXPECT_EQ(check.texts[0],
              concat(printable(path_), ": sample 0 of class 'cat' ('x/0.jpg'): ", numbers, ": the file is damaged"));
    expect_holds(check.texts[1], "sample 51 of class 'a dog' ('x/51.jpg')");
    expect_holds(check.texts[3], "sample 99 of class 'a dog' ('x/99.jpg')");
    const PackedCheck some = checked(path_, threads, 3);
    EXPECT_EQ(some.damaged, 4);
    EXPECT_EQ(some.texts, std::vector(check.texts.begin(), check.texts.begin() + 3));
  }
  expect_holds(error_of<UsageError>([&] { (void)checked(path_, 0, 20); }), "threads are 0, expected 1 to 1024");
}

TEST_F(PackedFiles, EveryByteIsThere) {
  const std::string good = Parts().text();
  testing::for_each_other_length(good, [&](const std::string& bytes) { (void)refused(bytes); });
  expect_holds(refused(std::string()), "begins as no packed file does");
  expect_holds(refused(std::string("PK\x03\x04 and so on")),
               "begins as no packed file does, expected one that lockstep-pack wrote");
  expect_holds(refused(good.substr(0, 40)), "ends at byte 40, expected at least 80: it is cut off");
  expect_holds(refused(good.substr(0, good.size() - 3)), "it is cut off or damaged");
}

TEST_F(PackedFiles, NumbersThatCannotBeAreNamed) {
  const auto record = [](std::size_t i, const std::function<void(Parts::Record&)>& change) {
    return [=](Parts& parts) { change(parts.records[i]); };
  };
  ASSERT_NO_THROW(read(Parts().text()));
  expect_holds(refused([](Parts& p) { p.version = 2; }), "version 2, expected 1");
  expect_holds(refused([](Parts& p) { p.index_before = 1; }), "expected one that ends at byte");
  expect_holds(refused([](Parts& p) { p.index_longer = ~std::uint64_t{0} - 400; }), "index of");
  expect_holds(refused([](Parts& p) { p.train = 0; }), "0 training and 1 test samples, expected at least one of each");
  expect_holds(refused([](Parts& p) { p.test = 0; }), "2 training and 0 test samples");
  expect_holds(refused([](Parts& p) { p.train = ~std::uint64_t{0}; }), "18446744073709551615 training");
  expect_holds(refused([](Parts& p) { p.test = std::uint64_t{1} << 60; }), "at most 4 in all, as the index has");
  expect_holds(refused([](Parts& p) { p.test = 2; }), "the index ends after");
  expect_holds(refused([](Parts& p) { p.train = 1; }), "the index has");
  expect_holds(refused([](Parts& p) { p.classes = 0; }), "0 classes");
  expect_holds(refused([](Parts& p) { p.classes = 0xFFFFFFFF; }), "4294967295 classes, expected 1 to");
  expect_holds(refused([](Parts& p) { p.name_longer = 0xFFFFFF; }), "the index ends after");
  expect_holds(refused([](Parts& p) { p.store = 2; }), "samples of kind 2, expected 0 (files) or 1 (pixels)");
  expect_holds(refused([](Parts& p) { p.behind = "x"; }), "the index has");
  expect_holds(refused(record(0, [](auto& r) { r.longer_name = 1; })), "the index ends after");
  expect_holds(refused(record(1, [](auto& r) { r.format = 2; })),
               "record 1 of the index has bytes of an unknown meaning");
  expect_holds(refused(record(1, [](auto& r) { r.reserved = 1; })), "record 1 of the index");
  expect_holds(refused(record(1, [](auto& r) { r.label = 2; })),
               "sample 1 ('train/a dog/1.png'): label 2, expected 0 to 1");
  expect_holds(refused(record(1, [](auto& r) { r.label = 0xFFFFFFFF; })), "label -1");
  expect_holds(refused(record(0, [](auto& r) { r.width = 0; })), "0 x 2 pixels, expected 1 to 134217728");
  expect_holds(refused(record(0, [](auto& r) { r.height = 0; })), "2 x 0 pixels");
  expect_holds(refused(record(0, [](auto& r) { r.width = r.height = 0xFFFFFFFF; })), "4294967295 x 4294967295 pixels");
  expect_holds(refused(record(0, [](auto& r) { r.width = 3; })), "12 bytes, expected 18, 3 x 2 pixels");
  expect_holds(refused(record(0, [](auto& r) { r.orientation = 0; })), "orientation 0, expected 1 to 8");
  expect_holds(refused(record(0, [](auto& r) { r.orientation = 9; })), "orientation 9");
  expect_holds(refused(record(1, [](auto& r) { r.later = 1; })),
               "6 bytes from byte 29 on, expected them from byte 28 on");
  expect_holds(refused(record(1, [](auto& r) { r.later = ~std::uint64_t{0}; })), "expected them from byte 28 on");
  expect_holds(refused(record(2, [](auto& r) { r.other_crc = 1; })), "sample 2 of class 'a dog': CRC-32 ");
  expect_holds(refused([](Parts& p) { p.records[2].bytes += "x"; }), "13 bytes, expected 12");
  expect_holds(refused([](Parts& p) {
                 p.store = 0;
                 p.records[2].more_bytes = 1;
               }),
               "13 bytes from byte 34 on, expected them from byte 34 on and before the index at byte 46");
  expect_holds(refused([](Parts& p) {
                 p.store = 0;
                 p.records[2].bytes.clear();
               }),
               "0 bytes, expected 1 to 268435456");
  expect_holds(refused([](Parts& p) {
                 p.store = 0;
                 p.records[2].more_bytes = ~std::uint64_t{0} - 12;
               }),
               "bytes, expected 1 to 268435456");
}

TEST_F(PackedFiles, OneThatBecomesShorterIsNamed) {
  testing::put_file(path_, Parts().text());
  const PackedFile file(path_);
  std::filesystem::resize_file(path_, 30);
  expect_holds(error_of<DataError>([&] { (void)file.read(2); }), "has 30 bytes, expected at least the");
}

TEST_F(PackedFiles, TheWriterTakesWhatTheReaderTakes) {
  const std::string twelve = "abcdefghijkl";
  {
    PackedWriter writer(path_, PackedStore::pixels, {"a"});
    expect_holds(error_of<UsageError>([&] { writer.add(false, {1, 2, 2}, bytes_of(twelve)); }), "sample 0: label 1");
    expect_holds(error_of<UsageError>([&] {
                   writer.add(false, {0, 2, 3}, bytes_of(twelve));
                 }),
                 "12 bytes, expected 18");
    writer.add(false, {0, 2, 2}, bytes_of(twelve));
    expect_holds(error_of<UsageError>([&] { writer.commit(); }), "1 training and 0 test samples");
    writer.add(true, {0, 2, 2}, bytes_of(twelve));
    expect_holds(error_of<StateError>([&] { writer.add(false, {0, 2, 2}, bytes_of(twelve)); }), "after a test sample");
    EXPECT_EQ(writer.samples(), 2);
  }
  EXPECT_EQ(testing::count_entries(folder_.path()), 0U) << "without commit() nothing is left";
  (void)error_of<FileError>([&] { const PackedWriter writer(folder_ / "none/a", PackedStore::files, {"a"}); });
}

/// Returns pixels whose values depend on sample, row, column and channel.
std::string pixels_of(int sample, int width, int height) {
  std::string pixels;
  for (int i = 0; i < width * height * 3; ++i) {
    pixels += static_cast<char>((40 * sample + i) % 256);
  }
  return pixels;
}

TEST_F(PackedFiles, PixelsAreImagesInEveryBuild) {
  PackedWriter writer(path_, PackedStore::pixels, {"a", "b"});
  for (int i = 0; i < 3; ++i) {
    writer.add(i == 2, {i % 2, 2, 2, i == 1 ? 6 : 1, true, concat("x/", i)}, bytes_of(pixels_of(i, 2, 2)));
  }
  writer.commit();
  DataOptions options{.spec = "packed:" + path_, .seed = 3};
  options.folder.image_size = options.folder.resize = 2;
  options.folder.random_crops = false;
  const DataSplit data = open_data(options);
  ASSERT_EQ(data.train->size(), 2);
  ASSERT_EQ(data.test->size(), 1);
  EXPECT_EQ(data.train->classes(), 2);
  EXPECT_EQ(data.class_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(data.train->label(1), 1);
  EXPECT_EQ(data.train->name(), "packed:" + path_ + " train");
  expect_holds(data.about, "packed pixels, resized to 2 and cropped; training images likewise");
  EXPECT_EQ(data.statistics.mean[0], 0.485F);
  std::vector<std::uint8_t> image(12);
  data.train->read_in(5, 0, image);
  EXPECT_EQ(std::string(image.begin(), image.end()), pixels_of(0, 2, 2));
  data.test->read(0, image);
  EXPECT_EQ(std::string(image.begin(), image.end()), pixels_of(2, 2, 2));
  // EXIF orientation 6: the first stored row is the right column.
  data.train->read(1, image);
  const std::string stored = pixels_of(1, 2, 2);
  const auto pixel = [&](std::size_t i) { return stored.substr(3 * i, 3); };
  EXPECT_EQ(std::string(image.begin(), image.end()), pixel(2) + pixel(0) + pixel(3) + pixel(1));

  // open_data() refuses options that only lockstep-pack takes.
  options.folder.val_fraction = 0.5;
  expect_holds(error_of<UsageError>([&] { (void)open_data(options); }), "a validation fraction, expected none");
  options.folder.val_fraction = 0;
  options.folder.left_out = {"x"};
  expect_holds(error_of<UsageError>([&] { (void)open_data(options); }), "files to leave out, expected none");
  options.folder.left_out.clear();
  options.folder.image_size = 0;
  expect_holds(error_of<UsageError>([&] { (void)open_data(options); }), "image size is 0");
  options.spec = "packed:" + (folder_ / "none");
  options.folder.image_size = 2;
  expect_holds(error_of<DataError>([&] { (void)open_data(options); }), "none: cannot be opened");
}

TEST_F(PackedFiles, FilesNeedTheLibraries) {
  if (images::available()) {
    GTEST_SKIP() << "this build has them";
  }
  Parts parts;
  parts.store = 0;
  testing::put_file(path_, parts.text());
  const PackedCheck check = checked(path_, 1, 20);
  EXPECT_EQ(check.damaged, 0) << "checksums are compared in every build";
  EXPECT_FALSE(check.decoded);
  expect_holds(error_of<UsageError>([&] { (void)open_data({.spec = "packed:" + path_}); }),
               "this build reads no JPEG and PNG files, expected one that does: install libjpeg-turbo and libpng");
  expect_holds(error_of<UsageError>([&] { const FolderPack pack({.folder = folder_.path(), .out = path_ + "2"}); }),
               "this build reads no JPEG and PNG files");
}

}  // namespace
}  // namespace lockstep::nn
