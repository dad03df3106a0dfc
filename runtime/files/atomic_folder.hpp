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
/// The files are written to PATH.tmp-HOST-PID-rRANDOM in the same parent folder; folders with other names stay
/// untouched. commit() makes the files durable and swaps the two names (renameat2 with RENAME_EXCHANGE). On a file
/// system that cannot swap, commit() renames twice. Between the two renames, the old folder has the name
/// PATH.old-HOST-PID-rRANDOM, which find_folder() knows. A path has one writer at a time
/// (runtime/files/folder_lock.hpp). Every error is a DataError with path and reason, and leaves the old folder
/// unchanged.
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
  /// Puts the folder in place; durable when the call returns. The replaced folders stay as PATH.1 (the newest) to
  /// PATH.`keep`; older ones are deleted. If the process is killed during the call, one of them is lost, or two if
  /// names cannot be swapped; all other folders are complete. A folder that cannot be deleted stays as
  /// PATH.tmp-HOST-PID-rRANDOM. Throws StateError for a second call.
  void commit(int keep = 0);

 private:
  /// Renames the folder `from` to `to`. Returns the new path of the folder that was at `to`, or "" if there was none.
  [[nodiscard]] std::string put_in_place(const std::string& from, const std::string& to) const;
  std::string path_;
  std::string temporary_;
  Replace replace_;
  bool committed_ = false;
};

/// Returns the current path of the complete folder: `path`, or the old folder's name between the two renames. Returns
/// "" if there is none. Changes nothing.
[[nodiscard]] std::string find_folder(const std::string& path);

/// Renames to `path` the folder that a killed writer of `path` left between two renames, if there is one. Deletes the
/// leftovers of such writers.
void recover_folder(const std::string& path);

/// Deletes a file, a link, or a folder with its contents. Does nothing if nothing is there. FileError with the path.
void remove_tree(const std::string& path);

/// Deletes the folder of this path; durable when the call returns. If the process is killed meanwhile, the folder is
/// complete, or a leftover that recover_folder() deletes. Does nothing if there is no such folder. FileError with the
/// path.
void remove_folder(const std::string& path);

}  // namespace lockstep
