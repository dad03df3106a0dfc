#include <array>
#include <numeric>

#include <zlib.h>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::Bytes, testing::error_of, testing::expect_holds, testing::put_file, testing::TemporaryFolder;

DataSplit open(const std::string& spec) {
  return open_data({.spec = spec});
}

std::vector<std::uint8_t> image(const ImageDataset& dataset, std::int64_t index) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(dataset.image_bytes()));
  dataset.read(index, out);
  return out;
}

// ---- CIFAR-10

Bytes record(int label, int first) {
  Bytes bytes(1, static_cast<char>(label));
  for (int i = 0; i < 3072; ++i) {
    bytes += static_cast<char>((first + i) % 256);
  }
  return bytes;
}

class Cifar10 : public ::testing::Test {
 protected:
  void SetUp() override {
    put_file(folder_ / "data_batch_1.bin", record(3, 0) + record(9, 5));
    put_file(folder_ / "test_batch.bin", record(0, 7));
  }
  std::string error() const {
    return error_of<DataError>([&] { (void)open(spec()); });
  }
  std::string spec() const { return "cifar10:" + folder_.path(); }
  TemporaryFolder folder_;
};

TEST_F(Cifar10, PlanesBecomePixels) {
  const DataSplit split = open(spec());
  EXPECT_EQ(split.train->size(), 2);
  EXPECT_EQ(split.test->size(), 1);
  EXPECT_EQ(split.train->classes(), 10);
  EXPECT_EQ(split.train->label(0), 3);
  EXPECT_EQ(split.train->label(1), 9);
  EXPECT_EQ(split.test->label(0), 0);
  const auto pixels = image(*split.train, 1);
  ASSERT_EQ(pixels.size(), 3072U);
  for (std::size_t p = 0; p < 1024; ++p) {
    for (std::size_t c = 0; c < 3; ++c) {
      ASSERT_EQ(pixels[3 * p + c], (5 + c * 1024 + p) % 256);
    }
  }
}

TEST_F(Cifar10, LaterBatchesMayBeMissingButNotInTheMiddle) {
  put_file(folder_ / "data_batch_2.bin", record(1, 1));
  EXPECT_EQ(open(spec()).train->size(), 3);
  EXPECT_EQ(open(spec()).train->label(2), 1);
  put_file(folder_ / "data_batch_4.bin", record(1, 1));
  expect_holds(error(), "data_batch_3.bin: is missing");
}

TEST_F(Cifar10, ClassesHaveTheNamesOfTheirFile) {
  EXPECT_EQ(open(spec()).class_names, std::vector<std::string>());
  const std::string names = folder_ / "batches.meta.txt";
  put_file(names, "airplane\nautomobile\r\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  EXPECT_EQ(open(spec()).class_names, (std::vector<std::string>{"airplane", "automobile", "bird", "cat", "deer", "dog",
                                                                "frog", "horse", "ship", "truck"}));
  put_file(names, "airplane\n");
  expect_holds(error(), names + ": 1 names of classes, expected 10, one a line");
}

TEST_F(Cifar10, FingerprintsSeeEveryByte) {
  const auto reference = open(spec());
  EXPECT_NE(reference.train->fingerprint(), reference.test->fingerprint());
  EXPECT_EQ(open(spec()).train->fingerprint(), reference.train->fingerprint());
  Bytes changed = record(3, 0) + record(9, 5);
  changed.back() = static_cast<char>(changed.back() + 1);
  put_file(folder_ / "data_batch_1.bin", changed);
  EXPECT_NE(open(spec()).train->fingerprint(), reference.train->fingerprint());
  put_file(folder_ / "data_batch_1.bin", record(4, 0) + record(9, 5));
  EXPECT_NE(open(spec()).train->fingerprint(), reference.train->fingerprint());
}

TEST_F(Cifar10, DamagedFilesAreNamed) {
  const std::string first = folder_ / "data_batch_1.bin";
  put_file(first, record(3, 0) + record(9, 5).substr(0, 3000));
  expect_holds(error(), first + ": 6073 bytes, expected a multiple of 3073");
  expect_holds(error(), "record 1 is incomplete");
  put_file(first, "");
  expect_holds(error(), first + ": 0 bytes");
  put_file(first, record(3, 0) + record(10, 5));
  expect_holds(error(), first + ": record 1: label 10, expected 0 to 9");
  put_file(first, record(3, 0) + record(255, 5));
  expect_holds(error(), "label 255");
  std::filesystem::remove(first);
  expect_holds(error(), first + ": is missing");
  put_file(first, record(3, 0));
  std::filesystem::remove(folder_ / "test_batch.bin");
  expect_holds(error(), (folder_ / "test_batch.bin") + ": is missing");
  std::filesystem::create_directory(folder_ / "test_batch.bin");
  expect_holds(error(), (folder_ / "test_batch.bin") + ": is not a regular file");
  expect_holds(error_of<DataError>([&] { (void)open("cifar10:" + (folder_ / "none")); }), "is missing");
}

// ---- IDX

Bytes big_endian(std::uint32_t value) {
  Bytes bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift);
  }
  return bytes;
}

Bytes images(std::uint32_t count, std::uint32_t height, std::uint32_t width, int first = 0) {
  Bytes bytes = big_endian(0x803) + big_endian(count) + big_endian(height) + big_endian(width);
  for (std::uint32_t i = 0; i < count * height * width; ++i) {
    bytes += static_cast<char>(first + static_cast<int>(i));
  }
  return bytes;
}

Bytes labels(const std::vector<int>& values) {
  Bytes bytes = big_endian(0x801) + big_endian(static_cast<std::uint32_t>(values.size()));
  for (const int value : values) {
    bytes += static_cast<char>(value);
  }
  return bytes;
}

Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes out(deflateBound(&stream, bytes.size()) + 64, '\0');
  Bytes in = bytes;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class Idx : public ::testing::Test {
 protected:
  void SetUp() override {
    put_file(train_images_, images(3, 2, 4, 10));
    put_file(train_labels_, labels({5, 0, 9}));
    put_file(folder_ / "t10k-images-idx3-ubyte", images(1, 2, 4));
    put_file(folder_ / "t10k-labels-idx1-ubyte", labels({7}));
  }
  std::string error() const {
    return error_of<DataError>([&] { (void)open(spec()); });
  }
  std::string spec() const { return "idx:" + folder_.path(); }
  void only_gzip(const std::string& plain, const Bytes& bytes) {
    std::filesystem::remove(plain);
    put_file(plain + ".gz", bytes);
  }
  TemporaryFolder folder_;
  std::string train_images_ = folder_ / "train-images-idx3-ubyte";
  std::string train_labels_ = folder_ / "train-labels-idx1-ubyte";
};

void check(const DataSplit& split) {
  EXPECT_EQ(split.train->size(), 3);
  EXPECT_EQ(split.train->height(), 2);
  EXPECT_EQ(split.train->width(), 4);
  EXPECT_EQ(split.train->classes(), 10);
  EXPECT_EQ(split.train->label(0), 5);
  EXPECT_EQ(split.train->label(2), 9);
  EXPECT_EQ(split.test->label(0), 7);
  const auto pixels = image(*split.train, 2);
  for (std::size_t p = 0; p < 8; ++p) {
    for (std::size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(pixels[3 * p + c], 10 + 16 + p);
    }
  }
}

TEST_F(Idx, OneChannelIsRepeated) {
  check(open(spec()));
}

TEST_F(Idx, GzipGivesTheSame) {
  const auto plain = open(spec());
  only_gzip(train_images_, gzip(images(3, 2, 4, 10)));
  only_gzip(train_labels_, gzip(labels({5, 0, 9})));
  check(open(spec()));
  EXPECT_EQ(open(spec()).train->fingerprint(), plain.train->fingerprint());
  // A gzip file may have several members. Together they are one stream (RFC 1952).
  only_gzip(train_labels_, gzip(labels({5, 0, 9}).substr(0, 9)) + gzip(labels({5, 0, 9}).substr(9)));
  check(open(spec()));
}

TEST_F(Idx, PlainIsTakenBeforeGzip) {
  put_file(train_labels_ + ".gz", "not gzip");
  check(open(spec()));
}

TEST_F(Idx, MoreClassesOnlyWithoutAGap) {
  std::vector<int> values(12);
  std::iota(values.begin(), values.end(), 0);
  put_file(train_images_, images(12, 2, 4));
  put_file(train_labels_, labels(values));
  EXPECT_EQ(open(spec()).train->classes(), 12);
  EXPECT_EQ(open(spec()).test->classes(), 12);
  for (int& value : values) {
    ++value;
  }
  put_file(train_labels_, labels(values));
  EXPECT_EQ(open(spec()).train->classes(), 13);
  values[4] = 200;
  put_file(train_labels_, labels(values));
  expect_holds(error(), train_labels_ + ": record 4: label 200, expected 0 to 9");
}

TEST_F(Idx, ALabelBehindTheOthersMakesNoClass) {
  std::vector<int> values(200);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int>(i % 10);
  }
  values[33] = 10;
  put_file(train_images_, images(200, 2, 4));
  put_file(train_labels_, labels(values));
  expect_holds(error(), train_labels_ + ": record 33: label 10 is there once, and not in ");
  put_file(folder_ / "t10k-labels-idx1-ubyte", labels({10}));
  EXPECT_EQ(open(spec()).train->classes(), 11) << "the test set has it";
  put_file(folder_ / "t10k-labels-idx1-ubyte", labels({9}));
  values[34] = 10;
  put_file(train_labels_, labels(values));
  EXPECT_EQ(open(spec()).train->classes(), 11) << "two samples";
}

TEST_F(Idx, LabelsOutOfRangeAreNamed) {
  put_file(train_labels_, labels({5, 10, 9}));
  expect_holds(error(), train_labels_ + ": record 1: label 10, expected 0 to 9");
  put_file(train_labels_, labels({5, 1, 9}));
  put_file(folder_ / "t10k-labels-idx1-ubyte", labels({11}));
  expect_holds(error(), "t10k-labels-idx1-ubyte: record 0: label 11, expected 0 to 9");
}

TEST_F(Idx, WrongHeadersAreNamed) {
  put_file(train_images_, labels({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  expect_holds(error(), train_images_ + ": magic number 0x00000801 at byte 0, expected 0x00000803 (images)");
  put_file(train_images_, "");
  expect_holds(error(), train_images_ + ": ends at byte 0, expected a header of 16");
  put_file(train_images_, images(3, 2, 4).substr(0, 15));
  expect_holds(error(), "ends at byte 15");
  put_file(train_images_, big_endian(0x803) + big_endian(0) + big_endian(2) + big_endian(4));
  expect_holds(error(), "extent 0 at byte 4");
  put_file(train_images_, big_endian(0x803) + big_endian(3) + big_endian(0) + big_endian(4));
  expect_holds(error(), "extent 0 at byte 8");
  put_file(train_images_, big_endian(0x803) + big_endian(0xFFFFFFFF) + big_endian(0xFFFFFFFF) + big_endian(0xFFFFFFFF));
  expect_holds(error(), "extent 4294967295 at byte 8, expected 1 to 4096");
  put_file(train_images_, big_endian(0x803) + big_endian(0xFFFFFFFF) + big_endian(4096) + big_endian(4096));
  expect_holds(error(), "asks for too many bytes, expected at most 17179869184");
  // The header's size is within the limit, but the file is too small to hold that many bytes.
  put_file(train_images_, big_endian(0x803) + big_endian(1U << 31) + big_endian(2) + big_endian(2));
  expect_holds(error(), "asks for 8589934592 bytes, expected at most the 16 that the file can hold");
}

TEST_F(Idx, SizesHaveToAgree) {
  put_file(train_images_, images(3, 2, 4).substr(0, 16 + 20));
  expect_holds(error(), train_images_ + ": ends after 20 bytes of data (record 2), expected 24");
  put_file(train_images_, images(3, 2, 4) + "x");
  expect_holds(error(), train_images_ + ": goes on after 24 bytes of data");
  put_file(train_images_, images(4, 2, 4));
  expect_holds(error(), train_labels_ + ": 3 labels, expected 4 as in " + train_images_);
  put_file(train_images_, images(3, 4, 2));
  expect_holds(error(), "t10k-images-idx3-ubyte: images of 2 x 4, expected 4 x 2");
}

TEST_F(Idx, MissingFilesAreNamed) {
  std::filesystem::remove(train_labels_);
  expect_holds(error(), train_labels_ + ": is missing, with and without .gz");
}

TEST_F(Idx, DamagedGzipIsNamed) {
  const Bytes good = gzip(images(3, 2, 4, 10));
  const std::string path = train_images_ + ".gz";
  only_gzip(train_images_, good.substr(0, good.size() - 4));
  expect_holds(error(), path + ": ends at byte " + std::to_string(good.size() - 4) + " in the middle of gzip data");
  Bytes bad = good;
  bad[bad.size() - 8] = static_cast<char>(bad[bad.size() - 8] ^ 1);  // a byte of the checksum
  only_gzip(train_images_, bad);
  expect_holds(error(), path + ": damaged gzip data");
  expect_holds(error(), "incorrect data check");
  only_gzip(train_images_, "not gzip at all, but some text");
  expect_holds(error(), path + ": damaged gzip data");
  only_gzip(train_images_, good + "trailing");
  expect_holds(error(), path + ": damaged gzip data");
  only_gzip(train_images_, "");
  expect_holds(error(), path + ": ends at byte 0");
  // Every truncation and every changed byte gives an error or the same data; none crashes or hangs.
  for (std::size_t i = 0; i < good.size(); ++i) {
    put_file(path, good.substr(0, i));
    EXPECT_THROW((void)open(spec()), DataError) << i;
    Bytes changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    put_file(path, changed);
    try {
      // Some changes are harmless: the time and the system in the gzip header may have any value.
      check(open(spec()));
    } catch (const DataError&) {
    }
  }
}

TEST_F(Idx, GzipIsReadNoFurtherThanItsHeaderSays) {
  // The header states 24 bytes of data, but 64 MiB of zeros follow. The reader must stop after 24 bytes.
  only_gzip(train_images_, gzip(images(3, 2, 4) + Bytes(std::size_t{64} << 20, '\0')));
  expect_holds(error(), ": goes on after 24 bytes of data");
  // The header states 8 GiB of data, but only 24 bytes follow.
  const Bytes claim = big_endian(0x803) + big_endian(1U << 31) + big_endian(2) + big_endian(2);
  only_gzip(train_images_, gzip(claim + Bytes(24, '\0')));
  expect_holds(error(), "asks for 8589934592 bytes, expected at most the ");
}

// ---- Real files: LOCKSTEP_DATA names a folder with fashion-mnist/ in it.

TEST(FashionMnist, IsReadAsPublished) {
  const char* root = std::getenv("LOCKSTEP_DATA");
  if (root == nullptr || !std::filesystem::is_directory(std::string(root) + "/fashion-mnist")) {
    GTEST_SKIP() << "LOCKSTEP_DATA does not name a folder with fashion-mnist/ in it";
  }
  const DataSplit split = open("idx:" + std::string(root) + "/fashion-mnist");
  EXPECT_EQ(split.train->size(), 60000);
  EXPECT_EQ(split.test->size(), 10000);
  EXPECT_EQ(split.train->height(), 28);
  EXPECT_EQ(split.train->width(), 28);
  EXPECT_EQ(split.train->classes(), 10);
  const std::array<int, 5> first = {9, 0, 0, 3, 0};
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(split.train->label(static_cast<std::int64_t>(i)), first[i]);
  }
  std::array<int, 10> counts{};
  for (std::int64_t i = 0; i < split.train->size(); ++i) {
    ++counts.at(static_cast<std::size_t>(split.train->label(i)));
  }
  for (const int count : counts) {
    EXPECT_EQ(count, 6000);
  }
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(split.statistics.mean[c], 0.2860, 5e-5);
    EXPECT_NEAR(split.statistics.std[c], 0.3530, 5e-5);
  }
}

}  // namespace
}  // namespace lockstep::nn
