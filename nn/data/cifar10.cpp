// CIFAR-10, binary version (Krizhevsky, "Learning multiple layers of features from tiny images", 2009): records of one
// label byte and 1024 red, 1024 green and 1024 blue bytes, rows from top to bottom.

#include <array>
#include <sstream>

#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn::detail {
namespace {

constexpr std::int64_t kSide = 32;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kRecord = 1 + 3 * kPlane;
constexpr int kClasses = 10;
constexpr int kTrainFiles = 5;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 34;

struct Images {
  std::vector<std::uint8_t> pixels;  // u8 pixels, (N, H, W, 3)
  std::vector<std::uint8_t> labels;
};

void append(const std::string& path, Images& images) {
  const InputFile file(path);
  require<DataError>(file.size() > 0 && file.size() % kRecord == 0 && file.size() <= kMaxFileBytes, path, ": ",
                     file.size(), " bytes, expected a multiple of ", kRecord, " (one CIFAR-10 record) above 0; record ",
                     file.size() / kRecord, " is incomplete");
  const auto count = static_cast<std::size_t>(file.size() / kRecord);
  images.pixels.reserve(images.pixels.size() + count * 3 * kPlane);
  images.labels.reserve(images.labels.size() + count);
  std::array<std::uint8_t, kRecord> record;
  for (std::size_t i = 0; i < count; ++i) {
    file.read(i * kRecord, std::as_writable_bytes(std::span(record)));
    require<DataError>(record[0] < kClasses, path, ": record ", i, ": label ", int{record[0]}, ", expected 0 to ",
                       kClasses - 1);
    images.labels.push_back(record[0]);
    for (std::size_t p = 0; p < kPlane; ++p) {
      for (std::size_t c = 0; c < 3; ++c) {
        images.pixels.push_back(record[1 + c * kPlane + p]);
      }
    }
  }
}

/// Reads the lines of batches.meta.txt. Returns an empty list if the file does not exist.
std::vector<std::string> read_class_names(const std::string& path) {
  constexpr std::uint64_t kMostBytes = 1 << 16;
  std::vector<std::string> names;
  if (!file_exists(path)) {
    return names;
  }
  std::istringstream text(read_file(path, kMostBytes));
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!line.empty()) {
      names.push_back(line);
    }
  }
  require<DataError>(names.size() == kClasses, path, ": ", names.size(), " names of classes, expected ", kClasses,
                     ", one a line");
  return names;
}

std::unique_ptr<ImageDataset> make(const std::string& name, Images images) {
  DatasetInfo info{name, static_cast<std::int64_t>(images.labels.size()), kSide, kSide, kClasses};
  return std::make_unique<StoredImages>(std::move(info), 3, std::move(images.pixels), std::move(images.labels));
}

}  // namespace

DataSplit open_cifar10(const std::string& folder) {
  Images train;
  bool complete = true;
  for (int i = 1; i <= kTrainFiles; ++i) {
    const std::string path = concat(folder, "/data_batch_", i, ".bin");
    const bool there = file_exists(path);
    require<DataError>(there || i > 1, path, ": is missing, expected CIFAR-10 in its binary version");
    require<DataError>(!there || complete, folder, "/data_batch_", i - 1, ".bin: is missing, but data_batch_", i,
                       ".bin is there: expected all files before it");
    if (there) {
      append(path, train);
    }
    complete = there;
  }
  const std::string path = folder + "/test_batch.bin";
  require<DataError>(file_exists(path), path, ": is missing, expected CIFAR-10 in its binary version");
  Images test;
  append(path, test);
  DataSplit split;
  split.train = make("cifar10:" + folder + " train", std::move(train));
  split.test = make("cifar10:" + folder + " test", std::move(test));
  split.class_names = read_class_names(folder + "/batches.meta.txt");
  return split;
}

}  // namespace lockstep::nn::detail
