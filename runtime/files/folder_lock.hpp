#pragma once

#include <string>

namespace lockstep {

/// The right to write results to a folder: an flock() on FOLDER/run.lock. The lock ends with this object or with the
/// process, even if the process is killed. The file run.lock stays. Without the lock, two runs in one folder would
/// overwrite each other's checkpoints.
class FolderLock {
 public:
  /// Takes the lock of an existing folder. Throws UsageError if another process holds the lock; the text names the
  /// holder ("pid 4711 on node3, user 1000"). Throws DataError if the file cannot be made, or is a link. On a file
  /// system without flock(), the constructor succeeds without a lock.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Writes this process into the lock file as the holder, for error texts of other processes. Call name_holder() only
  /// after all checks that could still end this program with an error.
  void name_holder() noexcept;

  /// Returns true if a run has ever locked this folder. Changes nothing.
  [[nodiscard]] static bool known(const std::string& folder);

 private:
  int file_;
};

}  // namespace lockstep
