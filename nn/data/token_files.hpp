#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

/// A sequence of token ids that is cut into windows: the ids of a file, or of a part of a packed file. Any number of
/// threads may read.
class TokenIds {
 public:
  virtual ~TokenIds() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;  ///< number of tokens, 1 or more
  /// Reads the out.size() ids from index `begin` on into `out`. The ids must be in the sequence: 0 <= begin and begin +
  /// out.size() <= size(). `vocabulary` must be at most 2^31 - 1. Throws DataError for an id that is not below
  /// `vocabulary`; the error names the file, the index and the id.
  virtual void read(std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const = 0;
  /// Hints that tokens [begin, begin + count) will be read soon (MappedFile::ahead()).
  virtual void ahead(std::int64_t begin, std::int64_t count) const noexcept = 0;
  /// Returns a hash of the size and the contents. A large file may be hashed only in part.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
};

/// Token ids in a file, mapped into memory. The first four bytes decide whether the file is of llm.c or of nanoGPT:
///
///   llm.c    a header of 256 i32 (little-endian), then ids. The header begins with 20240520, 1, number of ids, if the
///            ids are u16, and with 20240801, 7, number of ids, if the ids are u32
///   nanoGPT  ids of u16 from the first byte on. With GPT-2's vocabulary no such file begins like a header of llm.c.
class TokenFile final : public TokenIds {
 public:
  /// Throws DataError if the file has no ids, is shorter or longer than its header says, or has a header of another
  /// version. Throws FileError if the system cannot open the file.
  explicit TokenFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_->path(); }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override;
  /// Returns a hash of the file's size and of 256 pages spread over the file. A hash of all pages would read the whole
  /// file from the disk.
  [[nodiscard]] std::uint64_t fingerprint() const override;

 private:
  std::unique_ptr<MappedFile> file_;
  std::uint64_t offset_ = 0;  ///< byte of the file at which the first id begins
  std::uint64_t width_ = 2;   ///< bytes of an id
  std::int64_t size_ = 0;
};

/// Samples that are windows of token files, or of parts of a packed file (packed/packed_tokens.hpp). A sample has the
/// fields tokens and labels, both i32 (length); the label of a token is the next token. Windows do not overlap, and
/// each window lies in one file. Tokens at the end of a file that fill no window are in no sample.
class TokenWindows final : public Dataset {
 public:
  /// Throws UsageError unless length >= 1 and 1 <= vocabulary < 2^31. Throws DataError if no file has more than
  /// `length` tokens.
  TokenWindows(const std::string& name, std::vector<TokenFile> files, std::int64_t length, std::int64_t vocabulary);
  TokenWindows(const std::string& name, std::vector<std::unique_ptr<const TokenIds>> files, std::int64_t length,
               std::int64_t vocabulary);

  [[nodiscard]] std::span<const std::unique_ptr<const TokenIds>> files() const { return files_; }
  [[nodiscard]] std::int64_t tokens() const;  ///< number of tokens in all files
  /// Throws the errors of TokenIds::read().
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::unique_ptr<const TokenIds>> files_;
  std::vector<std::int64_t> first_;  ///< number of each file's first window, counted through all files; ascending
  std::int64_t length_;
  std::int64_t vocabulary_;
  std::uint64_t fingerprint_;
};

struct TokenFolder {
  std::vector<std::string> train;       ///< sorted paths of the training files
  std::vector<std::string> validation;  ///< sorted paths of the validation files
};
/// Finds the files *.bin of a folder whose names follow nanoGPT and llm.c. The characters '_', '-' and '.' divide a
/// name into words. A training file has the word train; a validation file has val, valid or validation ("train.bin",
/// "fineweb_val_000000.bin"). Other files are ignored. Throws DataError if there is no training file or no validation
/// file, and FileError if the folder cannot be read.
[[nodiscard]] TokenFolder find_token_files(const std::string& folder);

}  // namespace lockstep::nn
