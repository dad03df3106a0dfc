#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

/// A file or folder that the system cannot open, read, write or make. The text names the path and the system's reason.
class FileError : public DataError {
 public:
  using DataError::DataError;
};

/// Results cannot be written: the disk is full, or a limit is reached. The user's input was right; the run failed.
class WriteError : public FileError {
 public:
  using FileError::FileError;
  [[nodiscard]] int code() const noexcept override { return exit_code::kFailure; }
};

/// A regular file, opened for reading by offset. Thread-safe. Every error is a DataError that names path and reason,
/// and a FileError where the reason is the system's.
class InputFile {
 public:
  enum class Links { follow, refuse };
  explicit InputFile(std::string path, Links links = Links::follow);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }        ///< when it was opened
  [[nodiscard]] std::uint64_t current_size() const;                 ///< now
  [[nodiscard]] unsigned permissions() const;                       ///< now, as of chmod()
  void read(std::uint64_t offset, std::span<std::byte> out) const;  ///< all of out, or an error

 private:
  friend class MappedFile;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// A regular file in memory, for reading: pages come when they are touched, and the ranks of a node share them.
/// Thread-safe. Errors as of InputFile. A disk that fails while a page is read, or a file that becomes
/// shorter between bytes() and the use of its result, ends the process (SIGBUS; programs of lockstep say why).
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t size() const { return file_.size(); }  ///< when it was opened
  /// Bytes of the file, valid as long as this object, after a word to the system that they are wanted. DataError when
  /// they lie outside, or when the file is shorter than it was.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t count) const;
  /// Bytes that will be wanted soon: the system begins to read them, and this need not wait for all. What lies outside
  /// of the file is left out.
  void ahead(std::uint64_t offset, std::uint64_t count) const noexcept;

 private:
  InputFile file_;
  std::byte* begin_ = nullptr;
};

/// Writes to an open file, pipe or terminal; waits where one that does not block is full. 0, or the errno of why not
/// all was written.
[[nodiscard]] int write_all(int descriptor, std::span<const std::byte> bytes) noexcept;

/// A new file, written front to back. finish() makes it durable: it calls fsync and close and checks both, because a
/// full disk or a quota may show only there. The destructor of an unfinished file closes and deletes it.
class OutputFile {
 public:
  /// DataError when it exists already or cannot be made. permissions: at most, the umask takes its part away.
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

/// A file that grows by what is written, for logs in a folder that others may write to. No link is followed.
class LogFile {
 public:
  /// append: continues the file of this name, without an incomplete last line; FileError when that is a link or no
  /// regular file. Else a new file takes the place of what has the name. FileError when neither can be done.
  LogFile(std::string path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  void write(std::string_view text);  ///< with the system when the call returns; WriteError otherwise

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A file that appears whole or not at all, in place of what has its name: it is written to temporary_beside().
/// Without commit() that is deleted. A link is replaced itself, and what it leads to stays. FileError, before anything
/// is written, when what has the name, or what a link of this name leads to, is no regular file: a folder, a device, a
/// FIFO. Other errors as of OutputFile.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  void commit();  ///< puts it in place, durable when the call returns

 private:
  std::string path_;
  std::string temporary_;
  OutputFile file_;
};

[[nodiscard]] bool file_exists(const std::string& path);
/// "HOST-PID-rRANDOM", RANDOM of 16 hexadecimal digits: part of the names of our own temporary files and folders. Two
/// containers may have one host name and the same process numbers.
[[nodiscard]] std::string unique_suffix();
[[nodiscard]] bool is_unique_suffix(std::string_view text);
/// A new name beside `path`: PATH.tmp-HOST-PID-rRANDOM.
[[nodiscard]] std::string temporary_beside(const std::string& path);
/// open() of a regular file that is no link, or of a new one. FileError otherwise, which says what is there.
[[nodiscard]] int open_no_link(const std::string& path, int flags);
/// Whether a name is the system's for a file that a process has open, or a link to one: /dev/stderr, /dev/fd/2.
[[nodiscard]] bool names_descriptor(const std::string& path);
/// A whole file of at most `limit` bytes.
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t limit);
/// A new file, durable when the call returns.
void write_file(const std::string& path, std::string_view text);
/// Replaces a file atomically: readers see the old text or the new. Durable when the call returns. Errors as of
/// AtomicFile.
void replace_file(const std::string& path, std::string_view text);
/// Makes the entries of a folder durable (fsync).
void sync_folder(const std::string& path);

}  // namespace lockstep
