#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep::nn {

/// What is fixed for a data set. Images have three channels; a set with one channel repeats it.
struct DatasetInfo {
  std::string name;  ///< for people and error texts: "cifar10:DIR test"
  std::int64_t size = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  int classes = 0;
};

/// Labelled images by index. Immutable; any number of threads may read at once. Derive from it to bring your own
/// data; read() and label() are called with 0 <= index < size() and nothing else.
class Dataset {
 public:
  explicit Dataset(DatasetInfo info);  ///< UsageError unless all numbers are positive
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  [[nodiscard]] const std::string& name() const { return info_.name; }
  [[nodiscard]] std::int64_t size() const { return info_.size; }
  [[nodiscard]] std::int64_t height() const { return info_.height; }
  [[nodiscard]] std::int64_t width() const { return info_.width; }
  [[nodiscard]] int classes() const { return info_.classes; }
  [[nodiscard]] std::int64_t image_bytes() const { return info_.height * info_.width * 3; }

  /// In [0, classes()).
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// Writes image `index`; `image` (H, W, 3) holds image_bytes() bytes. Allocates nothing.
  virtual void read(std::int64_t index, std::span<std::uint8_t> image) const = 0;
  /// Hash of sizes, labels and pixels (every one, for sets that are held in memory). Ranks that see the same data have
  /// the same value; the name is not part of it.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;

 private:
  DatasetInfo info_;
};

/// Mean and standard deviation of value / 255 per channel.
struct ChannelStatistics {
  std::array<float, 3> mean{};
  std::array<float, 3> std{1, 1, 1};
};

/// Over `samples` images spread evenly over the set (all, if there are fewer). Summed in integers, so it has the same
/// bits everywhere. A channel that is constant has std 1.
[[nodiscard]] ChannelStatistics channel_statistics(const Dataset& dataset, std::int64_t samples);

struct SyntheticOptions {
  std::int64_t train_size = 8192;
  std::int64_t test_size = 2048;
  std::int64_t height = 32;
  std::int64_t width = 32;
  int classes = 10;  ///< 2 to 1120
};

struct DataOptions {
  std::string spec = "synthetic";  ///< "synthetic", "cifar10:DIR" or "idx:DIR"
  std::uint64_t seed = 0;          ///< of synthetic images
  SyntheticOptions synthetic;
};

struct DataSplit {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;
  ChannelStatistics statistics;  ///< of the training set: what images of both sets are normalised with
};

/// Opens what spec names. UsageError: unknown spec or bad synthetic options. DataError: a file is missing or damaged;
/// the text names file, record or offset, and what was expected.
///
///   cifar10:DIR  the binary version: data_batch_1.bin to data_batch_5.bin (those after the first may be missing) and
///                test_batch.bin, any number of records of 1 + 3072 bytes each. 10 classes.
///   idx:DIR      train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte;
///                each plain or with .gz added (plain is taken when both are there). Classes: 10, or more when the
///                training labels go on beyond 9 without a gap; every label has to be one of them.
///   synthetic    drawn from (seed, split, index) alone, see synthetic.cpp; no files.
[[nodiscard]] DataSplit open_data(const DataOptions& options);

}  // namespace lockstep::nn
