#pragma once

#include <string>

namespace lockstep {

/// The right to write results to a folder: an flock() on FOLDER/run.lock, which ends with this object or with the
/// process, however that ends. The file stays. Two runs with one folder would overwrite each other's checkpoints.
class FolderLock {
 public:
  /// The folder exists. UsageError that names the holder ("pid 4711 on node3, user 1000") when there is one; DataError
  /// when the file cannot be made. On file systems without flock() nothing is locked, and nothing refused.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether a run has ever locked this folder. Changes nothing.
  [[nodiscard]] static bool known(const std::string& folder);

 private:
  int file_;
};

}  // namespace lockstep
