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

/// Results cannot be written: the disk is full, or a limit is reached. The user's input was correct; the run failed.
class WriteError : public FileError {
 public:
  using FileError::FileError;
  [[nodiscard]] int code() const noexcept override { return exit_code::kFailure; }
};

/// A regular file, opened for reading by offset. Thread-safe. Every error is a DataError with path and reason; a
/// FileError if the system gives the reason.
class InputFile {
 public:
  enum class Links { follow, refuse };
  explicit InputFile(std::string path, Links links = Links::follow);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }        ///< size at opening
  [[nodiscard]] std::uint64_t current_size() const;                 ///< now
  [[nodiscard]] unsigned permissions() const;                       ///< now, as for chmod()
  void read(std::uint64_t offset, std::span<std::byte> out) const;  ///< reads exactly out.size() bytes, or throws

 private:
  friend class MappedFile;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// A regular file mapped into memory for reading: pages are read when they are touched, and the ranks of a node share
/// them. Thread-safe. Errors as of InputFile. A disk that fails while a page is read, or a file that becomes shorter
/// between bytes() and the use of its result, ends the process (SIGBUS; programs of lockstep print the reason).
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t size() const { return file_.size(); }  ///< size at opening
  /// Returns bytes of the file, valid as long as this object, and tells the system that they are needed. DataError when
  /// they are outside of the file, or when the file is shorter than before.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t count) const;
  /// Announces bytes that are needed soon: the system begins to read them, and the call may return before all are read.
  /// Bytes outside of the file are ignored.
  void ahead(std::uint64_t offset, std::uint64_t count) const noexcept;

 private:
  InputFile file_;
  std::byte* begin_ = nullptr;
};

/// Writes all bytes to an open file, pipe or terminal; waits when a non-blocking one is full. Returns 0, or the errno
/// that prevented a complete write.
[[nodiscard]] int write_all(int descriptor, std::span<const std::byte> bytes) noexcept;

/// A new file, written from front to back. finish() makes it durable: it calls fsync and close and checks both, because
/// a full disk or a quota may show only there. The destructor of an unfinished file closes and deletes it.
class OutputFile {
 public:
  /// DataError when the file exists or cannot be made. permissions: the umask removes some of them.
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

/// A file to which text is appended, for logs in a folder that others may write to. No link is followed.
class LogFile {
 public:
  /// append: continues an existing file, without an incomplete last line; FileError when it is a link or no regular
  /// file. Otherwise a new file replaces whatever has this name. FileError when neither is possible.
  LogFile(std::string path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  void write(std::string_view text);  ///< the system has the text when the call returns; WriteError otherwise

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A file that appears whole or not at all, and replaces a file of its name. It is written to temporary_beside();
/// without commit() that file is deleted. A link itself is replaced, and its target stays. FileError, before anything
/// is written, when the path, or the target of a link at the path, is no regular file: a folder, a device, a FIFO.
/// Other errors as of OutputFile.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  void commit();  ///< puts the file in place, durable when the call returns

 private:
  std::string path_;
  std::string temporary_;
  OutputFile file_;
};

[[nodiscard]] bool file_exists(const std::string& path);
/// Returns "HOST-PID-rRANDOM", RANDOM of 16 hexadecimal digits: part of the names of temporary files and folders.
/// Random, because two containers may have one host name and the same process numbers.
[[nodiscard]] std::string unique_suffix();
[[nodiscard]] bool is_unique_suffix(std::string_view text);
/// Returns a new name in the folder of `path`: PATH.tmp-HOST-PID-rRANDOM.
[[nodiscard]] std::string temporary_beside(const std::string& path);
/// Opens a regular file that is no link, or makes a new one. FileError otherwise, with what is there.
[[nodiscard]] int open_no_link(const std::string& path, int flags);
/// True for a system name of a file that a process has open, or a link to one: /dev/stderr, /dev/fd/2.
[[nodiscard]] bool names_descriptor(const std::string& path);
/// Reads a whole file of at most `limit` bytes.
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t limit);
/// Writes a new file, durable when the call returns.
void write_file(const std::string& path, std::string_view text);
/// Replaces a file atomically: readers see either the old or the new text. Durable when the call returns. Errors as of
/// AtomicFile.
void replace_file(const std::string& path, std::string_view text);
/// Makes the entries of a folder durable (fsync).
void sync_folder(const std::string& path);

}  // namespace lockstep
