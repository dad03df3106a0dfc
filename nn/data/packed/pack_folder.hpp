#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>

/// Packs folder:DIR or list:FILE into one file (packed_file.hpp).
namespace lockstep::nn {

struct PackOptions {
  std::string folder;  ///< DIR of open_data()'s folder:DIR, or a list specification like "list:TRAIN,VAL"
  std::string out;     ///< path of the file to write; must not lie in the folder or be one of the lists
  PackedStore store = PackedStore::files;
  /// Shorter side to which larger pictures are resized, like test images; the longer side is resized in proportion. 0:
  /// no picture is resized. Must be 0 unless pixels are stored (PackedStore::pixels).
  std::int64_t resize = 0;
  double val_fraction = 0;  ///< fraction of each class that becomes the test set (FolderOptions::val_fraction)
  std::uint64_t seed = 0;   ///< seed of the split by val_fraction (DataOptions::seed) and of `shuffle`
  bool skip_damaged = false;
  bool overwrite = false;
  /// True if training samples are stored in a random order instead of class by class. Shuffles in chunks
  /// (SamplerOptions::chunk) then get chunks of mixed classes.
  bool shuffle = false;
  int threads = 1;  ///< number of threads that decode; the caller's thread writes
};

struct PackSummary {
  std::int64_t train = 0;
  std::int64_t test = 0;
  std::int64_t resized = 0;             ///< number of pictures that `resize` made smaller
  std::uint64_t bytes = 0;              ///< size of the file
  std::vector<DamagedImage> damaged{};  ///< damaged images, which were left out of the file
};

/// A folder or list that will be packed. The constructor reads the names of the files and checks the options.
class FolderPack {
 public:
  /// Throws UsageError if an option is out of range; if the output lies in the folder, is a list or one of its
  /// pictures, or exists while `overwrite` is false; and in a build without the JPEG and PNG libraries. Also throws the
  /// DataErrors of open_data().
  explicit FolderPack(PackOptions options);

  [[nodiscard]] const PackOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const { return class_names_; }
  [[nodiscard]] std::int64_t train_size() const { return train_; }
  [[nodiscard]] std::int64_t test_size() const { return static_cast<std::int64_t>(files_.size()) - train_; }
  [[nodiscard]] const std::string& about() const { return about_; }  ///< origin of the test images, for users

  /// Decodes every picture, and writes all pictures, training samples first. Equal folders and options give equal bytes
  /// for any number of threads. The complete file appears at the end; after an error no new file appears. Calls
  /// `report` in the calling thread after each image. A damaged image is left out if skip_damaged is true; otherwise
  /// write() throws DataError with the file's name. Also throws DataError if a class or the test set has no images
  /// left. Holds a few pictures per thread in memory.
  PackSummary write(const std::function<void(const PackProgress&)>& report) const;

 private:
  PackOptions options_;
  std::string root_;    ///< folder to which the names are relative
  std::string source_;  ///< path of the folder, or of the training list, for error texts
  std::vector<std::string> class_names_;
  std::vector<std::pair<std::string, std::int32_t>> files_;  ///< names and labels; the training files come first
  std::int64_t train_ = 0;
  std::string about_;
};

}  // namespace lockstep::nn
