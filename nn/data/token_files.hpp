#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

/// Token ids, one after the other, in which windows lie: a file of them, or a part of a packed file. Any number of
/// threads may read.
class TokenIds {
 public:
  virtual ~TokenIds() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;  ///< in tokens, 1 or more
  /// out[i] = id `begin` + i, for 0 <= begin and begin + out.size() <= size(). DataError that names file, place and id
  /// for one that is not below `vocabulary`, which is at most 2^31 - 1.
  virtual void read(std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const = 0;
  /// These tokens will be read soon (MappedFile::ahead()).
  virtual void ahead(std::int64_t begin, std::int64_t count) const noexcept = 0;
  /// Tells contents apart.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
};

/// Token ids in a file, mapped into memory. Two kinds, by the first four bytes:
///
///   llm.c    a header of 256 i32 (little-endian): 20240520, 1, count, or 20240801, 7, count; then count ids of u16 or,
///            with the second, of u32
///   nanoGPT  ids of u16 from the first byte on. With GPT-2's vocabulary no such file begins like a header.
class TokenFile final : public TokenIds {
 public:
  /// DataError, or FileError where the system is the reason: no file, no id in it, a file shorter or longer than its
  /// header says, another version.
  explicit TokenFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_->path(); }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override;
  /// Of the size and of 256 pages spread over the file: a look at all of it would read it from the disk.
  [[nodiscard]] std::uint64_t fingerprint() const override;

 private:
  std::unique_ptr<MappedFile> file_;
  std::uint64_t offset_ = 0;  ///< of the first id, in bytes
  std::uint64_t width_ = 2;   ///< of an id, in bytes
  std::int64_t size_ = 0;
};

/// Windows of token files, or of parts of a packed file (packed/packed_tokens.hpp), as samples: tokens (length) and
/// labels (length), both i32, the label of a token being the next one. Windows do not overlap and lie in one file each;
/// what is left at a file's end is in none of them.
class TokenWindows final : public Dataset {
 public:
  /// UsageError unless length >= 1 and 1 <= vocabulary < 2^31. DataError when no file has more than `length` tokens.
  TokenWindows(const std::string& name, std::vector<TokenFile> files, std::int64_t length, std::int64_t vocabulary);
  TokenWindows(const std::string& name, std::vector<std::unique_ptr<const TokenIds>> files, std::int64_t length,
               std::int64_t vocabulary);

  [[nodiscard]] std::span<const std::unique_ptr<const TokenIds>> files() const { return files_; }
  [[nodiscard]] std::int64_t tokens() const;  ///< of all files
  /// Errors as of TokenFile::read().
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::unique_ptr<const TokenIds>> files_;
  std::vector<std::int64_t> first_;  ///< window of each file, ascending
  std::int64_t length_;
  std::int64_t vocabulary_;
  std::uint64_t fingerprint_;
};

struct TokenFolder {
  std::vector<std::string> train;       ///< paths in the order of their names
  std::vector<std::string> validation;  ///< likewise
};
/// The files *.bin of a folder, as nanoGPT and llm.c call them: one of the words between '_', '-' and '.' of its name
/// is train, or val, valid or validation ("train.bin", "fineweb_val_000000.bin"). Others are ignored. DataError when
/// one of the two kinds is not there, FileError when the folder cannot be read.
[[nodiscard]] TokenFolder find_token_files(const std::string& folder);

}  // namespace lockstep::nn
