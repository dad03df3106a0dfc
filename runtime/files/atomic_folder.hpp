#pragma once

#include <string>

namespace lockstep {

/// Writes a folder atomically: at any moment its path leads to the complete old folder or the complete new one, even
/// when the writer is killed:
///
///   AtomicFolder folder("run/last");
///   write_file(folder.file("state.json"), text);
///   folder.commit();
///
/// Files are written to PATH.tmp-HOST-PID-rRANDOM beside it; folders with other names are left alone. commit() makes
/// them durable and swaps the two names (renameat2 with RENAME_EXCHANGE). On a file system that cannot swap, commit()
/// renames twice; between the two the old folder is called PATH.old-HOST-PID-rRANDOM, a name that find_folder() knows.
/// A path has one writer at a time (runtime/files/folder_lock.hpp). Every error is a DataError that names path and
/// reason, and leaves the old folder as it was.
class AtomicFolder {
 public:
  enum class Replace : unsigned char { swap, two_renames };

  /// Makes the folder to write to, and missing parents of `path`. First removes what killed writers left behind
  /// (recover_folder). two_renames: never use the swap.
  explicit AtomicFolder(std::string path, Replace replace = Replace::swap);
  ~AtomicFolder();  ///< without commit(): deletes the files written so far
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// The path of the folder until commit().
  [[nodiscard]] const std::string& folder() const { return temporary_; }
  /// The path at which to write the file `name` ("state.json"; no '/').
  [[nodiscard]] std::string file(const std::string& name) const;
  /// Puts the folder in place, durable when the call returns. The folders that it replaces stay as PATH.1, the newest,
  /// to PATH.`keep`; the one that falls out is deleted. A kill in between loses one of them, two where names cannot be
  /// swapped: those that are there are complete. What cannot be deleted stays as PATH.tmp-HOST-PID-rRANDOM. StateError
  /// when called twice.
  void commit(int keep = 0);

 private:
  /// Gives the folder `from` the name `to`; where the folder that had it is now, or "" when there was none.
  [[nodiscard]] std::string put_in_place(const std::string& from, const std::string& to) const;
  std::string path_;
  std::string temporary_;
  Replace replace_;
  bool committed_ = false;
};

/// Where the complete folder of this path is now: `path`, or its name between the two renames, or "" when there is
/// none. Changes nothing.
[[nodiscard]] std::string find_folder(const std::string& path);

/// Puts back a folder that a writer left between two renames, and deletes what killed writers of this path left behind.
void recover_folder(const std::string& path);

/// Deletes a file, a link, or a folder with all that is in it; does nothing where there is none. FileError that names
/// the path.
void remove_tree(const std::string& path);

/// Deletes the folder of this path, durable when the call returns: a kill leaves it complete, or as a leftover that
/// recover_folder() deletes. Does nothing where there is none. FileError that names the path.
void remove_folder(const std::string& path);

}  // namespace lockstep
