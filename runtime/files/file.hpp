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
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }        ///< when it was opened
  [[nodiscard]] std::uint64_t current_size() const;                 ///< now
  void read(std::uint64_t offset, std::span<std::byte> out) const;  ///< all of out, or an error

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// A new file, written front to back. finish() makes it durable: it calls fsync and close and checks both, because a
/// full disk or a quota may show only there. The destructor of an unfinished file closes and deletes it.
class OutputFile {
 public:
  explicit OutputFile(std::string path);  ///< DataError when it exists already or cannot be made
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

[[nodiscard]] bool file_exists(const std::string& path);
/// A whole file of at most `limit` bytes.
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t limit);
/// A new file, durable when the call returns.
void write_file(const std::string& path, std::string_view text);
/// Replaces a file atomically: readers see the old text or the new. Durable when the call returns.
void replace_file(const std::string& path, std::string_view text);
/// Makes the entries of a folder durable (fsync).
void sync_folder(const std::string& path);

}  // namespace lockstep
