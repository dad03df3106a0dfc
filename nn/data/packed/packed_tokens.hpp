#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/nn/data/token_files.hpp>
#include <lockstep/runtime/files/file.hpp>

/// Format of a file of text or token ids, which lockstep-pack writes for train_text. Header and footer have the layout
/// and checksums of packed files of pictures (packed_file.hpp). Only the entries whose meaning differs are listed here.
/// Each entry of the header, the footer and an index record is listed as: offset; type; meaning. Numbers are little
/// endian, and there is no padding.
///
///   header   16   12 u32 content: 1
///   ids           the ids of the parts for training, then of the parts for validation: 1, 2 or 4 bytes each. A window
///                 of TokenWindows lies in one part
///   index         a record of 32 bytes for each part, in the same order:
///                    0 u64 number of ids         8 u64 fingerprint of the source of the part (TokenIds)
///                   16 u64 index in the part of the first occurrence of the largest id
///                   24 u32 largest id           28 u32 length of the name
///                 the names, one after the other: names of the source files; "train" and "val" for a text
///                 the CRC-32, u32, of each block of 65536 bytes of ids (the last block may be shorter)
///   footer   64   16 u64 number of parts for training   24 u64 number of parts for validation
///                 32 u32 vocabulary: the largest id + 1
///                 36 u32 kind of the ids: 2 bytes of a text, 3 tokens (0 and 1: pictures)   40 u32 bytes of an id
///
/// A flipped bit is always detected. Opening the file detects a flip in header, index or footer. The first read of a
/// block of ids detects a flip in the block.
namespace lockstep::nn {
namespace detail {
class PackedOutput;  // defined in nn/data/detail/packed_frame.hpp
}

enum class PackedIds : unsigned char { text, tokens };
[[nodiscard]] const char* name_of(PackedIds ids);  ///< returns "text" or "tokens"

/// Properties of a part that the index holds.
struct PackedPart {
  std::string name{};
  std::int64_t size = 0;          ///< number of ids
  std::uint64_t fingerprint = 0;  ///< TokenIds::fingerprint() of the part's source
  std::int32_t largest = 0;       ///< largest id of the part
  std::int64_t largest_at = 0;    ///< index within the part of the first occurrence of `largest`
};

/// A packed file of ids, opened for reading. The file is mapped into memory, so the ranks of a node share the pages of
/// the file. Any number of threads may read. If the file is cut off, damaged, of another version, of pictures, or not a
/// packed file, the constructor throws a DataError of one line with the path. The constructor allocates at most a small
/// multiple of the file's size, whatever the file's numbers state.
class PackedTokens {
 public:
  explicit PackedTokens(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }  ///< size of the file in bytes
  [[nodiscard]] PackedIds ids() const { return ids_; }
  [[nodiscard]] int width() const { return static_cast<int>(width_); }  ///< number of bytes of an id
  [[nodiscard]] std::int64_t vocabulary() const { return vocabulary_; }
  /// Returns the parts for training, then the parts for validation. There is at least one part of each kind; a text has
  /// exactly one of each kind.
  [[nodiscard]] std::span<const PackedPart> parts() const { return parts_; }
  [[nodiscard]] std::size_t train_parts() const { return train_; }
  /// Throws DataError, with the part and the id's index, if the file's index states a largest id that is not below
  /// `vocabulary`. This check also covers ids that no window contains and that read() therefore never checks.
  void require_below(std::int64_t vocabulary) const;

  /// Reads ids of part `part` as TokenIds::read() does. The first call in this process that reads from a block of ids
  /// computes the block's checksum, and throws DataError if the checksum is wrong.
  void read(std::size_t part, std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const;
  /// Hints that ids [begin, begin + count) of part `part` will be read soon (MappedFile::ahead()).
  void ahead(std::size_t part, std::int64_t begin, std::int64_t count) const noexcept;
  /// Returns all bytes of part `part` of a file with PackedIds::text, after a check of their checksums. The bytes stay
  /// valid as long as this object exists.
  [[nodiscard]] std::string_view text(std::size_t part) const;

  static constexpr std::uint64_t kBlockBytes = 65536;
  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(checksums_.size()); }
  /// Returns the bytes of block `block`. Every call computes the block's checksum, and throws DataError if the checksum
  /// is wrong.
  std::span<const std::byte> read_block(std::int64_t block) const;
  /// Returns the name of part `part` for error texts, like "'out.pack': part 1 ('a_val.bin')".
  [[nodiscard]] std::string text_of(std::size_t part) const;

 private:
  void read_index(std::span<const std::byte> index, std::uint64_t at, std::uint64_t parts);
  /// Returns bytes [begin, begin + count), counted from the first id of the file, after a check of the blocks that hold
  /// these bytes.
  [[nodiscard]] std::span<const std::byte> checked_bytes(std::uint64_t begin, std::uint64_t count) const;

  MappedFile file_;
  PackedIds ids_ = PackedIds::tokens;
  std::uint64_t width_ = 1;
  std::int64_t vocabulary_ = 0;
  std::size_t train_ = 0;
  std::uint64_t id_bytes_ = 0;  ///< number of bytes of all ids
  std::vector<PackedPart> parts_;
  std::vector<std::uint64_t> first_;      ///< index of each part's first id among the ids of all parts
  std::vector<std::uint32_t> checksums_;  ///< expected CRC-32 of each block
  /// One bit for each block, which is 1 after the block's checksum was computed and found right. Two threads may
  /// compute the checksum of one block, which is harmless.
  std::unique_ptr<std::atomic<std::uint64_t>[]> right_;
};

/// Returns true if the file begins like a packed file of text or tokens. Throws the errors of InputFile.
[[nodiscard]] bool is_packed_tokens(const std::string& path);

/// Returns the token ids for a TokenWindows, with one element for each part of the file. The parts are those for
/// validation if `validation` is true, otherwise those for training.
[[nodiscard]] std::vector<std::unique_ptr<const TokenIds>> token_ids_of(const std::shared_ptr<const PackedTokens>& file,
                                                                        bool validation);

/// Writes a packed file of ids. commit() makes the complete file appear at its path, where it replaces an older file.
/// Throws FileError if the file cannot be made, and WriteError if the disk is full.
class PackedTokensWriter {
 public:
  /// `width` is the number of bytes of an id: 1 for a text; 1, 2 or 4 for tokens. Throws UsageError for another width.
  PackedTokensWriter(std::string path, PackedIds ids, int width);
  ~PackedTokensWriter();
  PackedTokensWriter(const PackedTokensWriter&) = delete;
  PackedTokensWriter& operator=(const PackedTokensWriter&) = delete;

  /// Begins a new part; the ids of later calls of add() belong to this part. Throws StateError if a training part comes
  /// after a validation part.
  void begin_part(bool validation, std::string name, std::uint64_t fingerprint);
  /// Appends ids to the last part. Throws UsageError if an id is below 0 or needs more bytes than `width`.
  void add(std::span<const std::int32_t> ids);
  /// Writes index and footer, and makes the complete file appear at its path. Throws UsageError if a part has no ids,
  /// if training or validation has no part, or if training or validation of a text has more than one part.
  void commit();
  [[nodiscard]] std::uint64_t bytes() const;      ///< bytes written so far
  [[nodiscard]] std::int64_t vocabulary() const;  ///< largest id so far + 1

 private:
  void end_block();

  std::unique_ptr<detail::PackedOutput> file_;
  PackedIds ids_;
  std::size_t width_;
  std::vector<PackedPart> parts_;
  std::size_t train_ = 0;
  std::string block_;
  std::string checksums_;
};

namespace detail {

/// Returns the reason why PackedTokens refuses a file with `train` and `validation` parts. Returns an empty text if
/// both numbers are valid.
[[nodiscard]] std::string packed_parts_problem(PackedIds ids, std::uint64_t train, std::uint64_t validation);
/// Largest id that is allowed, because a vocabulary has at most 2^31 - 1 ids.
inline constexpr std::int64_t kLargestId = (std::int64_t{1} << 31) - 2;

}  // namespace detail
}  // namespace lockstep::nn
