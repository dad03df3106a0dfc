#pragma once

#include <string>

namespace lockstep {

/// Writes a folder atomically: at any moment its path leads to the complete old or the complete new folder, even when
/// the writer is killed:
///
///   AtomicFolder folder("run/last");
///   write_file(folder.file("state.json"), text);
///   folder.commit();
///
/// Files are written to PATH.tmp-HOST-PID-rRANDOM in the same parent folder; folders with other names are left alone.
/// commit() makes the files durable and swaps the two names (renameat2 with RENAME_EXCHANGE). On a file system that
/// cannot swap, commit() renames twice; in between the old folder has the name PATH.old-HOST-PID-rRANDOM, which
/// find_folder() knows. A path has one writer at a time (runtime/files/folder_lock.hpp). Every error is a DataError
/// with path and reason, and leaves the old folder unchanged.
class AtomicFolder {
 public:
  enum class Replace : unsigned char { swap, two_renames };

  /// Makes the folder to write to, and missing parents of `path`. First removes the leftovers of killed writers
  /// (recover_folder). two_renames: never swap.
  explicit AtomicFolder(std::string path, Replace replace = Replace::swap);
  ~AtomicFolder();  ///< without commit(): deletes the files written so far
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Returns the path of the folder until commit().
  [[nodiscard]] const std::string& folder() const { return temporary_; }
  /// Returns the path for the file `name` ("state.json"; no '/').
  [[nodiscard]] std::string file(const std::string& name) const;
  /// Puts the folder in place, durable when the call returns. The replaced folders stay as PATH.1, the newest, to
  /// PATH.`keep`; older ones are deleted. A kill during the call loses one of them, or two where names cannot be
  /// swapped; the others are complete. A folder that cannot be deleted stays as PATH.tmp-HOST-PID-rRANDOM. StateError
  /// for a second call.
  void commit(int keep = 0);

 private:
  /// Renames the folder `from` to `to`. Returns the new path of the folder that had the name, or "" when there was
  /// none.
  [[nodiscard]] std::string put_in_place(const std::string& from, const std::string& to) const;
  std::string path_;
  std::string temporary_;
  Replace replace_;
  bool committed_ = false;
};

/// Returns the current path of the complete folder: `path`, or its name between the two renames, or "" when there is
/// none. Changes nothing.
[[nodiscard]] std::string find_folder(const std::string& path);

/// Puts back a folder that a writer left between two renames, and deletes the leftovers of killed writers of this path.
void recover_folder(const std::string& path);

/// Deletes a file, a link, or a folder with its contents; does nothing when the path does not exist. FileError with the
/// path.
void remove_tree(const std::string& path);

/// Deletes the folder of this path, durable when the call returns: a kill leaves it complete, or as a leftover that
/// recover_folder() deletes. Does nothing when there is none. FileError with the path.
void remove_folder(const std::string& path);

}  // namespace lockstep
