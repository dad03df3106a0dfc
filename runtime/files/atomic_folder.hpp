#pragma once

#include <string>

namespace lockstep {

/// Writes a folder so that at any moment, whatever is killed, its path leads to a complete old or a complete new one:
///
///   AtomicFolder folder("run/last");
///   write_file(folder.file("state.json"), text);
///   folder.commit();
///
/// Files go to PATH.tmp-HOST-PID-N beside it; folders with other names are left alone. commit() makes them durable and
/// swaps the two names (renameat2 with RENAME_EXCHANGE); where the file system cannot swap, the old folder is called
/// PATH.old-HOST-PID-N for the moment between two renames, and find_folder() knows that name. One writer at a time for
/// one path (runtime/files/folder_lock.hpp). Every error is a DataError that names path and reason, and leaves the old
/// folder as it was.
class AtomicFolder {
 public:
  enum class Replace : unsigned char { swap, two_renames };

  /// Makes the folder to write to, and the parents of `path` where they are missing. Leftovers of writers that were
  /// killed are removed first (recover_folder). two_renames: never use the swap.
  explicit AtomicFolder(std::string path, Replace replace = Replace::swap);
  ~AtomicFolder();  ///< without commit(): deletes what was written
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where the folder is until commit().
  [[nodiscard]] const std::string& folder() const { return temporary_; }
  /// Where to write the file `name` ("state.json"; no '/').
  [[nodiscard]] std::string file(const std::string& name) const;
  /// Puts the folder in place, durable when the call returns. The folders that it replaces stay as PATH.1, the newest,
  /// to PATH.`keep`; older ones are deleted. StateError when called twice.
  void commit(int keep = 0);

 private:
  std::string path_;
  std::string temporary_;
  Replace replace_;
  bool committed_ = false;
};

/// Where the complete folder of this path is now: `path`, or the name it has for the moment between two renames, or ""
/// when there is none. Changes nothing.
[[nodiscard]] std::string find_folder(const std::string& path);

/// Puts a folder that was left between two renames back in place and deletes what killed writers left of this path.
void recover_folder(const std::string& path);

}  // namespace lockstep
