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

/// Text or token ids in one file, as lockstep-pack writes them for train_text. Begin and end lie and are checked as in
/// packed files of pictures (packed_file.hpp), nothing lies between the parts, and numbers are little endian:
///
///   begin    16   12 u32 what it holds: 1
///   ids           of the parts to train on, then of those for validation: 1, 2 or 4 bytes each. Windows lie in one
///                 part each
///   index         a record of 32 bytes for each part, in the same order:
///                    0 u64 how many ids          8 u64 fingerprint of what it was made of (TokenIds)
///                   16 u64 the first place in the part of its largest id   24 u32 that id   28 u32 length of its name
///                 the names, one after the other: of the files in their folder; of a text "train" and "val"
///                 a u32 for each 65536 bytes of ids (the last of these blocks may be shorter): their CRC-32
///   end      64   16 u64 parts to train on   24 u64 parts for validation   32 u32 vocabulary: the largest id + 1
///                 36 u32 what an id is: 2 a byte of a text, 3 a token (0 and 1 are of pictures)   40 u32 its bytes
///
/// So a bit that changes anywhere is noticed: in begin, index and end when the file is opened, in a block of ids when
/// it is read for the first time.
namespace lockstep::nn {
namespace detail {
class PackedOutput;  // nn/data/detail/packed_frame.hpp
}

enum class PackedIds : unsigned char { text, tokens };
[[nodiscard]] const char* name_of(PackedIds ids);  ///< "text", "tokens"

/// What the index says of a part.
struct PackedPart {
  std::string name{};
  std::int64_t size = 0;          ///< in ids
  std::uint64_t fingerprint = 0;  ///< TokenIds::fingerprint() of what it was made of
  std::int32_t largest = 0;       ///< id
  std::int64_t largest_at = 0;    ///< its first place
};

/// A packed file of ids, opened for reading: mapped, so that the ranks of a node share its pages. Any number of
/// threads. DataError, one line with the path, for a file that is cut, damaged, of another version, of pictures, or
/// none of this kind. Takes no more memory than a small multiple of the file's size, whatever its bytes claim.
class PackedTokens {
 public:
  explicit PackedTokens(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }  ///< of the file
  [[nodiscard]] PackedIds ids() const { return ids_; }
  [[nodiscard]] int width() const { return static_cast<int>(width_); }  ///< bytes of an id
  [[nodiscard]] std::int64_t vocabulary() const { return vocabulary_; }
  /// Those to train on, and behind them those for validation, one or more of each; of a text one of each.
  [[nodiscard]] std::span<const PackedPart> parts() const { return parts_; }
  [[nodiscard]] std::size_t train_parts() const { return train_; }
  /// DataError that names part and place of an id that is not below `vocabulary`, as the index has it: also of one in
  /// no window, which a run on the source would not come to.
  void require_below(std::int64_t vocabulary) const;

  /// As TokenIds::read(), of a part. The first call that touches a block of ids in this process computes its checksum,
  /// and DataError says that it is another.
  void read(std::size_t part, std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const;
  /// These ids of a part will be read soon (MappedFile::ahead()).
  void ahead(std::size_t part, std::int64_t begin, std::int64_t count) const noexcept;
  /// All bytes of a part of a text, valid as long as this object, with right checksums.
  [[nodiscard]] std::string_view text(std::size_t part) const;

  static constexpr std::uint64_t kBlockBytes = 65536;
  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(checksums_.size()); }
  /// Computes the checksum of a block, whether it was read or not. DataError when it is another.
  std::span<const std::byte> read_block(std::int64_t block) const;
  /// "'out.pack': part 1 ('a_val.bin')", for error texts.
  [[nodiscard]] std::string text_of(std::size_t part) const;

 private:
  void read_index(std::span<const std::byte> index, std::uint64_t at, std::uint64_t parts);
  /// Bytes of the ids, counted from the first id on, whose blocks are right.
  [[nodiscard]] std::span<const std::byte> checked_bytes(std::uint64_t begin, std::uint64_t count) const;

  MappedFile file_;
  PackedIds ids_ = PackedIds::tokens;
  std::uint64_t width_ = 1;
  std::int64_t vocabulary_ = 0;
  std::size_t train_ = 0;
  std::uint64_t id_bytes_ = 0;  ///< of all ids
  std::vector<PackedPart> parts_;
  std::vector<std::uint64_t> first_;      ///< id of each part, counted over all parts
  std::vector<std::uint32_t> checksums_;  ///< of the blocks
  /// A bit for each block that was found right. Two threads may compute the same checksum; nothing else depends on it.
  std::unique_ptr<std::atomic<std::uint64_t>[]> right_;
};

/// Whether the first bytes of a file say that it is a packed file of text or tokens. Errors as of InputFile.
[[nodiscard]] bool is_packed_tokens(const std::string& path);

/// The parts to train on, or those for validation, for TokenWindows.
[[nodiscard]] std::vector<std::unique_ptr<const TokenIds>> token_ids_of(const std::shared_ptr<const PackedTokens>& file,
                                                                        bool validation);

/// Writes a packed file of ids, which appears with commit(), durable, in place of an older one. Errors as of
/// PackedWriter.
class PackedTokensWriter {
 public:
  PackedTokensWriter(std::string path, PackedIds ids, int width);  ///< UsageError unless 1, 2 or 4; of a text 1
  ~PackedTokensWriter();
  PackedTokensWriter(const PackedTokensWriter&) = delete;
  PackedTokensWriter& operator=(const PackedTokensWriter&) = delete;

  /// What follows belongs to a new part. StateError for one to train on behind one for validation.
  void begin_part(bool validation, std::string name, std::uint64_t fingerprint);
  /// UsageError for an id below 0, or one that needs more bytes.
  void add(std::span<const std::int32_t> ids);
  void commit();  ///< UsageError for a part without ids, and unless there are as many parts as the reader wants
  [[nodiscard]] std::uint64_t bytes() const;      ///< written so far
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

/// What is wrong with these numbers of parts; empty: nothing.
[[nodiscard]] std::string packed_parts_problem(PackedIds ids, std::uint64_t train, std::uint64_t validation);
/// The largest id that can be: a vocabulary is at most 2^31 - 1.
inline constexpr std::int64_t kLargestId = (std::int64_t{1} << 31) - 2;

}  // namespace detail
}  // namespace lockstep::nn
