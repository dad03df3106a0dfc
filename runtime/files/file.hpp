#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

/// The system cannot open, read, write or make a file or folder. The text has the path and the system's reason.
class FileError : public DataError {
 public:
  using DataError::DataError;
};

/// Results cannot be written, because the disk is full or a limit is reached. The exit code says that the program
/// failed, not that its input was wrong.
class WriteError : public FileError {
 public:
  using FileError::FileError;
  [[nodiscard]] int code() const noexcept override { return exit_code::kFailure; }
};

/// A regular file, opened for reading at any offset. Thread-safe. Every error is a DataError with path and reason, and
/// a FileError if the system gives the reason.
class InputFile {
 public:
  enum class Links { follow, refuse };
  explicit InputFile(std::string path, Links links = Links::follow);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }  ///< size when the file was opened
  [[nodiscard]] std::uint64_t current_size() const;           ///< size at the time of the call
  [[nodiscard]] unsigned permissions() const;  ///< permissions at the time of the call, in the form of chmod()
  /// Fills `out` with the bytes from `offset` on, or throws.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  friend class MappedFile;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// A regular file mapped into memory for reading. The system reads a page when it is touched, and the ranks of a node
/// share the pages. Thread-safe. Throws the errors of InputFile. Two failures end the process by SIGBUS: the disk fails
/// while a page is read, or the file becomes shorter between bytes() and the use of the result. Lockstep's programs
/// print the reason.
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t size() const { return file_.size(); }  ///< size when the file was opened
  /// Returns bytes [offset, offset + count) of the file, and calls ahead() for these bytes. The span is valid as long
  /// as this object. Throws DataError if the file lacks some of the bytes, or if the file has become shorter since it
  /// was opened.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t count) const;
  /// Tells the system to begin to read bytes [offset, offset + count), which are needed soon. The call may return
  /// before all bytes are read. Ignores bytes outside of the file.
  void ahead(std::uint64_t offset, std::uint64_t count) const noexcept;

 private:
  InputFile file_;
  std::byte* begin_ = nullptr;
};

/// Writes all bytes to an open file, pipe or terminal. Waits if a non-blocking descriptor is full. Returns 0, or the
/// errno that prevented a complete write.
[[nodiscard]] int write_all(int descriptor, std::span<const std::byte> bytes) noexcept;

/// A new file, written from front to back. finish() makes the file durable: it calls fsync and close and checks both
/// results. The system may report a full disk or an exceeded quota only in these calls. Without finish(), the
/// destructor closes and deletes the file.
class OutputFile {
 public:
  /// Throws DataError if the file exists or cannot be made. The umask removes some of the `permissions`.
  explicit OutputFile(std::string path, unsigned permissions = 0666);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void finish();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A file to which text is appended, for logs in a folder to which other users may write. Never writes to the target of
/// a link.
class LogFile {
 public:
  /// With `append`, continues an existing file after its last complete line; throws FileError if the file is a symbolic
  /// link, has a second name (a hard link) or is no regular file. Without `append`, makes a new file in place of
  /// anything that is at `path`; throws FileError on failure.
  LogFile(std::string path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  void write(std::string_view text);  ///< gives the text to the system; throws WriteError on failure

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A file that appears completely or not at all, in place of any old file of its name. The text is written to
/// temporary_beside(path). Without commit(), the destructor deletes this temporary file. If `path` is a link, commit()
/// replaces the link and leaves its target unchanged. The constructor throws FileError if a folder, a device or a FIFO
/// is at the path or at the target of a link there. Other errors are those of OutputFile.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  void commit();  ///< puts the file in place; the change is durable on return

 private:
  std::string path_;
  std::string temporary_;
  OutputFile file_;
};

[[nodiscard]] bool file_exists(const std::string& path);
/// Returns "HOST-PID-rRANDOM", a part of the names of temporary files and folders. RANDOM has 16 hexadecimal digits,
/// because two containers may have the same host name and the same process numbers.
[[nodiscard]] std::string unique_suffix();
[[nodiscard]] bool is_unique_suffix(std::string_view text);
/// Returns the name of a new temporary file in the folder of `path`: PATH.tmp-HOST-PID-rRANDOM.
[[nodiscard]] std::string temporary_beside(const std::string& path);
/// Opens a regular file that is not a link, or makes a new file. If something else is at `path`, throws FileError,
/// which says what is there.
[[nodiscard]] int open_no_link(const std::string& path, int flags);
/// Returns true if `path` is the system's name for a file that a process has open (/dev/fd/2), or a link to such a
/// name (/dev/stderr).
[[nodiscard]] bool names_descriptor(const std::string& path);
/// Returns the contents of a file. Throws DataError if the file has more than `limit` bytes.
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t limit);
/// Writes a new file; the file is durable when the call returns.
void write_file(const std::string& path, std::string_view text);
/// Replaces a file atomically: readers see either the old or the new text. The file is durable when the call returns.
/// Throws the errors of AtomicFile.
void replace_file(const std::string& path, std::string_view text);
/// Makes new and changed names of files in a folder durable (fsync).
void sync_folder(const std::string& path);

}  // namespace lockstep
