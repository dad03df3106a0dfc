#pragma once

#include <string>

namespace lockstep {

/// Writes a folder atomically: at any moment the path leads to the complete old folder or the complete new folder, even
/// if the writer is killed:
///
///   AtomicFolder folder("run/last");
///   write_file(folder.file("state.json"), text);
///   folder.commit();
///
/// The files are written to a temporary folder, PATH.tmp-HOST-PID-rRANDOM in the same parent folder. commit() makes the
/// files durable and swaps the names of the two folders (renameat2 with RENAME_EXCHANGE). On a file system that cannot
/// swap names, commit() renames twice. Between the two renames, the old folder has the name PATH.old-HOST-PID-rRANDOM,
/// under which find_folder() finds it.
///
/// A path must have only one writer at a time (runtime/files/folder_lock.hpp). Every error is a DataError with path and
/// reason, and leaves the old folder unchanged.
class AtomicFolder {
 public:
  enum class Replace : unsigned char { swap, two_renames };

  /// Makes the temporary folder, and missing parents of `path`. First removes the leftovers of killed writers
  /// (recover_folder). With Replace::two_renames, commit() never swaps.
  explicit AtomicFolder(std::string path, Replace replace = Replace::swap);
  ~AtomicFolder();  ///< deletes the files that were written, unless commit() was called
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Returns the path of the temporary folder, which holds the files until commit().
  [[nodiscard]] const std::string& folder() const { return temporary_; }
  /// Returns the path for writing the file `name` ("state.json"; without '/').
  [[nodiscard]] std::string file(const std::string& name) const;
  /// Puts the folder in place; the change is durable when the call returns. The replaced folders stay as PATH.1 (the
  /// newest) to PATH.`keep`; older folders are deleted. If the process is killed during the call, one of the replaced
  /// folders may be lost; two may be lost if the file system cannot swap names. All other folders stay complete. A
  /// folder that cannot be deleted stays as PATH.tmp-HOST-PID-rRANDOM. Throws StateError for a second call.
  void commit(int keep = 0);

 private:
  /// Renames the folder `from` to `to`. Returns the new path of the folder that was at `to`, or "" if there was none.
  [[nodiscard]] std::string put_in_place(const std::string& from, const std::string& to) const;
  std::string path_;
  std::string temporary_;
  Replace replace_;
  bool committed_ = false;
};

/// Returns the current path of the complete folder: `path`, or the temporary name that commit() gives the old folder
/// between its two renames. Returns "" if there is no complete folder. Changes nothing.
[[nodiscard]] std::string find_folder(const std::string& path);

/// If a writer of `path` was killed between its two renames, renames the old folder back to `path`. Deletes the
/// temporary folders of killed writers.
void recover_folder(const std::string& path);

/// Deletes a file, a link, or a folder with its contents. Does nothing if nothing is there. Throws FileError with the
/// path on failure.
void remove_tree(const std::string& path);

/// Deletes the folder `path`; the deletion is durable when the call returns. If the process is killed during the call,
/// either the folder stays complete, or a temporary folder stays that recover_folder() deletes. Does nothing if there
/// is no such folder. Throws FileError with the path on failure.
void remove_folder(const std::string& path);

}  // namespace lockstep
