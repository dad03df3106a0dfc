#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>

/// folder:DIR or list:FILE in one file (packed_file.hpp).
namespace lockstep::nn {

struct PackOptions {
  std::string folder;  ///< DIR of open_data()'s folder:DIR, or "list:TRAIN,VAL" as there
  std::string out;     ///< the file to write, outside of the folder; none of the lists
  PackedStore store = PackedStore::files;
  /// Of pixels: larger pictures are resized to this shorter side, the longer one in proportion, as evaluation does;
  /// 0: none.
  std::int64_t resize = 0;
  double val_fraction = 0;  ///< FolderOptions
  std::uint64_t seed = 0;   ///< of that split (DataOptions), and of `shuffle`
  bool skip_damaged = false;
  bool overwrite = false;
  /// Training samples are stored in a random order, where a folder has them class by class: for shuffles in chunks.
  bool shuffle = false;
  int threads = 1;  ///< that decode, beside the caller, which writes
};

struct PackSummary {
  std::int64_t train = 0;
  std::int64_t test = 0;
  std::int64_t resized = 0;             ///< pictures that became smaller
  std::uint64_t bytes = 0;              ///< of the file
  std::vector<DamagedImage> damaged{};  ///< left out
};

/// A folder that will be packed: its names are read, and the options are right.
class FolderPack {
 public:
  /// UsageError: options out of range, an output in the folder or that is a list, or one that exists without
  /// `overwrite`, a build without the libraries. DataError as of open_data().
  explicit FolderPack(PackOptions options);

  [[nodiscard]] const PackOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const { return class_names_; }
  [[nodiscard]] std::int64_t train_size() const { return train_; }
  [[nodiscard]] std::int64_t test_size() const { return static_cast<std::int64_t>(files_.size()) - train_; }
  [[nodiscard]] const std::string& about() const { return about_; }  ///< where the test images come from

  /// Decodes every picture, and writes all in the order of a folder's sets: equal folders and options give equal bytes,
  /// for any number of threads. The file appears at the end, durable, or not at all. `report` is called in this thread
  /// after each image. A damaged image is a DataError with its name, or left out; then it is one when a class or the
  /// test has no more images. Holds a few pictures a thread.
  PackSummary write(const std::function<void(const PackProgress&)>& report) const;

 private:
  PackOptions options_;
  std::string root_;    ///< of the names
  std::string source_;  ///< for errors
  std::vector<std::string> class_names_;
  std::vector<std::pair<std::string, std::int32_t>> files_;  ///< names and labels, those for training first
  std::int64_t train_ = 0;
  std::string about_;
};

}  // namespace lockstep::nn
