// Tests that a folder and the file that lockstep-pack makes of it give the same samples, and tests bad input.
#include <algorithm>
#include <cmath>
#include <span>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/files.hpp"
#include "tests/support/image_files.hpp"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::error_of, testing::expect_holds, testing::pixels;

int waves(std::int64_t y, std::int64_t x, int c) {
  return static_cast<int>(128 + 60 * std::sin(0.21 * static_cast<double>(x) + c) +
                          60 * std::cos(0.17 * static_cast<double>(y) - c));
}

class PackedImages : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) const {
    const std::string path = data_ + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    testing::put_file(path, bytes);
  }
  /// Writes images of every kind: turned by EXIF, grey, four channels, sixteen bits, wide and narrow.
  void put_pictures() const {
    for (int turn = 1; turn <= 8; ++turn) {
      const auto value = [&](std::int64_t y, std::int64_t x, int c) { return waves(y + turn, x, c); };
      put(concat("train/a/", turn, ".jpg"),
          jpeg(pixels(20 + turn, 31 - turn, 3, value),
               {.quality = 80, .half_colours = turn % 2 == 0, .exif = testing::exif(turn)}));
      put(concat("train/b/deep/", turn, ".png"), png(pixels(17, 15 + turn, 3, value), {.exif = testing::exif(turn)}));
    }
    put("train/b/grey.jpg", jpeg(pixels(40, 9, 1, waves)));
    put("train/b/cmyk.jpeg", jpeg(pixels(9, 30, 4, waves)));
    put("train/c/alpha.PNG", png(pixels(12, 12, 4, waves)));
    put("val/a/x.jpg", jpeg(pixels(25, 33, 3, waves)));
    put("val/b/x.png", png(pixels(33, 25, 3, waves)));
    put("val/c/x.jpg", jpeg(pixels(16, 16, 3, waves), {.progressive = true}));
  }
  [[nodiscard]] PackOptions options(PackedStore store = PackedStore::files) const {
    return {.folder = data_, .out = out_, .store = store, .overwrite = true, .threads = 3};
  }
  static PackSummary pack(const PackOptions& options) {
    return FolderPack(options).write([](const PackProgress&) {});
  }
  [[nodiscard]] DataOptions folder_options(std::int64_t size = 10) const {
    return {.spec = "folder:" + data_, .seed = 7, .folder = {.image_size = size}};
  }
  [[nodiscard]] DataSplit packed(DataOptions given) const {
    given.spec = "packed:" + out_;
    return open_data(given);
  }
  [[nodiscard]] std::string refused(const PackOptions& given) const {
    return error_of<DataError>([&] { pack(given); });
  }
  [[nodiscard]] std::string usage(const PackOptions& given) const {
    return error_of<UsageError>([&] { pack(given); });
  }

  testing::TemporaryFolder folder_;
  std::string data_ = folder_ / "data";
  std::string out_ = folder_ / "out.pack";
};

/// Expects two sets to have the same labels. Returns the greatest difference between their pixels, without augmentation
/// and in two epochs.
int difference(const ImageDataset& a, const ImageDataset& b) {
  EXPECT_EQ(a.size(), b.size());
  EXPECT_EQ(a.classes(), b.classes());
  int most = 0;
  std::vector<std::uint8_t> one(static_cast<std::size_t>(a.image_bytes()));
  std::vector<std::uint8_t> other(one.size());
  for (std::int64_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a.label(i), b.label(i)) << i;
    for (const int epoch : {-1, 0, 3}) {
      if (epoch < 0) {
        a.read(i, one);
        b.read(i, other);
      } else {
        a.read_in(epoch, i, one);
        b.read_in(epoch, i, other);
      }
      for (std::size_t p = 0; p < one.size(); ++p) {
        most = std::max(most, std::abs(int{one[p]} - int{other[p]}));
      }
    }
  }
  return most;
}

TEST_F(PackedImages, AreThoseOfTheFolder) {
  put_pictures();
  for (const PackedStore store : {PackedStore::files, PackedStore::pixels}) {
    const PackSummary summary = pack(options(store));
    EXPECT_EQ(summary.train, 19);
    EXPECT_EQ(summary.test, 3);
    EXPECT_EQ(summary.bytes, fs::file_size(out_));
    EXPECT_EQ(summary.resized, 0);
    const PackedCheck check = check_packed(PackedFile(out_), 2, 20, [](const PackProgress&) {});
    EXPECT_EQ(check.damaged, 0);
    EXPECT_EQ(check.decoded, store == PackedStore::files);
    for (const bool random : {true, false}) {
      DataOptions given = folder_options();
      given.folder.random_crops = random;
      const DataSplit folder = open_data(given);
      const DataSplit file = packed(given);
      EXPECT_EQ(difference(*folder.train, *file.train), 0);
      EXPECT_EQ(difference(*folder.test, *file.test), 0);
      EXPECT_EQ(folder.train->fingerprint(), file.train->fingerprint());
      EXPECT_EQ(folder.test->fingerprint(), file.test->fingerprint());
      EXPECT_EQ(folder.class_names, file.class_names);
      EXPECT_EQ(folder.statistics.mean, file.statistics.mean);
      EXPECT_EQ(folder.statistics.std, file.statistics.std);
    }
    // The control: another seed gives other random crops, so the images differ.
    DataOptions other = folder_options();
    other.seed = 8;
    EXPECT_GT(difference(*open_data(folder_options()).train, *packed(other).train), 0);
  }
}

TEST_F(PackedImages, PixelsThatDifferHaveAnotherFingerprint) {
  put_pictures();
  pack(options(PackedStore::pixels));
  // A folder decodes a JPEG at a reduced size if its shorter side is at least four times the output's. A file packed as
  // pixels holds full sizes, so its fingerprint then differs. The shorter side of one JPEG is 25: output 7 needs the
  // full size, output 6 allows the reduced size.
  EXPECT_EQ(open_data(folder_options(7)).test->fingerprint(), packed(folder_options(7)).test->fingerprint());
  EXPECT_NE(open_data(folder_options(6)).test->fingerprint(), packed(folder_options(6)).test->fingerprint());
  EXPECT_EQ(difference(*open_data(folder_options(7)).test, *packed(folder_options(7)).test), 0);
  pack(options());
  EXPECT_EQ(open_data(folder_options(6)).test->fingerprint(), packed(folder_options(6)).test->fingerprint());
  EXPECT_EQ(difference(*open_data(folder_options(6)).test, *packed(folder_options(6)).test), 0);
}

TEST_F(PackedImages, ResizedPixelsAreThoseOfEvaluation) {
  put_pictures();
  PackOptions given = options(PackedStore::pixels);
  given.resize = 14;
  const PackSummary summary = pack(given);
  EXPECT_EQ(summary.resized, 19) << "all but those of shorter sides 9, 9 and 12";
  DataOptions how = folder_options(12);
  how.folder.resize = 14;
  const DataSplit folder = open_data(how);
  const DataSplit file = packed(how);
  EXPECT_LE(difference(*folder.test, *file.test), 1) << "rounded twice";
  EXPECT_NE(folder.test->fingerprint(), file.test->fingerprint());
  EXPECT_NE(folder.train->fingerprint(), file.train->fingerprint());
  expect_holds(file.about, "packed pixels of shorter side 14, resized to 14 and cropped; random crops to train on");
  const PackedFile stored(out_);
  for (std::int64_t i = 0; i < stored.train_size() + stored.test_size(); ++i) {
    EXPECT_LE(std::min(stored.sample(i).width, stored.sample(i).height), 14) << stored.text_of(i);
  }
  given.resize = 15;
  pack(given);
  EXPECT_NE(packed(how).test->fingerprint(), file.test->fingerprint());
}

TEST_F(PackedImages, EqualFoldersGiveEqualBytesForAnyThreads) {
  put_pictures();
  PackOptions given = options();
  given.threads = 1;
  std::vector<PackProgress> seen;
  FolderPack(given).write([&](const PackProgress& progress) { seen.push_back(progress); });
  const std::string one = testing::get_file(out_);
  ASSERT_EQ(seen.size(), 22U);
  EXPECT_EQ(seen[4].done, 5);
  EXPECT_EQ(seen[4].all, 22);
  EXPECT_GT(seen[5].bytes, seen[4].bytes);
  for (const int threads : {2, 7}) {
    given.threads = threads;
    pack(given);
    EXPECT_EQ(testing::get_file(out_), one) << threads;
  }
}

TEST_F(PackedImages, AFractionIsSplitOffAsOfTheFolder) {
  put_pictures();
  fs::remove_all(data_ + "/val");
  PackOptions given = options();
  given.val_fraction = 0.3;
  given.seed = 7;
  pack(given);
  DataOptions how = folder_options();
  how.folder.val_fraction = 0.3;
  const DataSplit folder = open_data(how);
  how.folder.val_fraction = 0;
  EXPECT_EQ(difference(*folder.test, *packed(how).test), 0);
  EXPECT_EQ(folder.train->fingerprint(), packed(how).train->fingerprint());
  EXPECT_EQ(folder.test->fingerprint(), packed(how).test->fingerprint());
  given.seed = 8;
  pack(given);
  EXPECT_NE(folder.test->fingerprint(), packed(how).test->fingerprint());
}

TEST_F(PackedImages, DamagedImagesAreNamedOrLeftOut) {
  put_pictures();
  const std::string whole = testing::get_file(data_ + "/train/a/3.jpg");
  put("train/a/3.jpg", whole.substr(0, whole.size() - 20));
  put("val/a/y.png", "");
  testing::put_file(out_, "old");
  for (const PackedStore store : {PackedStore::files, PackedStore::pixels}) {
    PackOptions given = options(store);
    const std::string text = refused(given);
    expect_holds(text, "train/a/3.jpg': damaged or unknown JPEG data");
    expect_holds(text, "--skip-damaged");
    EXPECT_EQ(testing::get_file(out_), "old");
    EXPECT_EQ(testing::count_entries(folder_.path()), 2U) << "nothing else is left";
    given.skip_damaged = true;
    given.out = folder_ / name_of(store);
    const PackSummary summary = pack(given);
    fs::rename(given.out, folder_ / "kept");
    ASSERT_EQ(summary.damaged.size(), 2U);
    EXPECT_EQ(summary.damaged[0].file, "train/a/3.jpg");
    EXPECT_EQ(summary.damaged[1].file, "val/a/y.png");
    expect_holds(summary.damaged[1].text, "val/a/y.png': is no JPEG or PNG file");
    EXPECT_EQ(summary.train, 18);
    EXPECT_EQ(summary.test, 3);
    DataOptions how = folder_options();
    how.folder.left_out = {"train/a/3.jpg", "val/a/y.png"};
    const DataSplit folder = open_data(how);
    how.folder.left_out.clear();
    how.spec = "packed:" + (folder_ / "kept");
    const DataSplit file = open_data(how);
    EXPECT_EQ(difference(*folder.train, *file.train), 0);
    EXPECT_EQ(folder.train->fingerprint(), file.train->fingerprint());
    fs::remove(folder_ / "kept");
  }
  // No image of class 2 is left after the damaged images are skipped. The packer must refuse this.
  PackOptions given = options();
  given.skip_damaged = true;
  put("train/c/alpha.PNG", "x");
  expect_holds(refused(given), "without 3 images that are left out, nothing remains of class 2");
  EXPECT_EQ(testing::get_file(out_), "old");
}

TEST_F(PackedImages, APictureThatIsNotTheIndexsIsNamed) {
  put_pictures();
  const std::string file = testing::get_file(data_ + "/val/b/x.png");
  PackedWriter writer(out_, PackedStore::files, {"a"});
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  writer.add(false, {0, 33, 26, 1, false, "train/a/x.png"}, bytes);
  writer.add(true, {0, 33, 25, 1, false, "val/a/x.png"}, bytes.first(bytes.size() - 20));
  writer.commit();
  const DataSplit data = packed(folder_options());
  std::vector<std::uint8_t> image(300);
  expect_holds(error_of<DataError>([&] { data.train->read(0, image); }),
               "out.pack': sample 0 of class 'a' ('train/a/x.png'): a picture of 33 x 25, expected 33 x 26, as the "
               "index has it");
  expect_holds(error_of<DataError>([&] { data.test->read(0, image); }),
               "sample 1 of class 'a' ('val/a/x.png'): damaged or unknown PNG data");

  const PackedFile stored(out_);
  const PackedCheck check = check_packed(stored, 2, 20, [](const PackProgress&) {});
  EXPECT_TRUE(check.decoded);
  EXPECT_EQ(check.damaged, 2) << "checksums are right";
  ASSERT_EQ(check.texts.size(), 2U);
  expect_holds(check.texts[0], "('train/a/x.png'): a picture of 33 x 25, expected 33 x 26, as the index has it");
  expect_holds(check.texts[1], "sample 1 of class 'a' ('val/a/x.png'): damaged or unknown PNG data");
}

TEST_F(PackedImages, BadOptionsAreRefused) {
  put_pictures();
  PackOptions given = options();
  given.out = data_ + "/x.pack";
  expect_holds(usage(given), "x.pack': lies in ");
  given.out = data_ + "/train/a/x.pack";
  expect_holds(usage(given), "expected a place outside");
  fs::create_directory_symlink(data_ + "/val", folder_ / "link");
  given.out = folder_ / "link/x.pack";
  expect_holds(usage(given), "expected a place outside");
  given.out = folder_ / "data.pack";  // next to the folder, with a name that begins like the folder's
  EXPECT_EQ(pack(given).train, 19);
  given.overwrite = false;
  expect_holds(usage(given), "exists, expected no such file, or that it may be replaced (--overwrite)");
  given.out = folder_.path();
  expect_holds(usage(given), "is a folder, expected a file to write");
  given.out = folder_.path() + "/";
  expect_holds(usage(given), "is a folder, expected a file to write");
  given.out = "";
  expect_holds(usage(given), "expected a file to write");
  given.out = folder_ / "none/x.pack";
  expect_holds(refused(given), "cannot be made");
  given = options();
  given.resize = 100;
  expect_holds(usage(given), "resize is 100 with stored files");
  given.store = PackedStore::pixels;
  given.resize = -1;
  expect_holds(usage(given), "resize is -1, expected 0 to 8192");
  given.resize = 0;
  given.threads = 0;
  expect_holds(usage(given), "threads are 0, expected 1 to 1024");
  given = options();
  given.val_fraction = 0.5;
  expect_holds(usage(given), "has a folder val");
  given = options();
  given.folder = folder_ / "none";
  expect_holds(refused(given), "none': is no folder");
  EXPECT_FALSE(fs::exists(out_));
}

}  // namespace
}  // namespace lockstep::nn
