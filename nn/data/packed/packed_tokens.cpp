#include <lockstep/nn/data/packed/packed_tokens.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include <lockstep/nn/data/detail/packed_frame.hpp>
#include <lockstep/nn/data/detail/token_ids.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep::nn {
namespace {

using detail::crc_text;
using detail::packed_number;
using detail::packed_text;

constexpr std::uint64_t kIdsBegin = detail::PackedFormat::kBeginBytes;
constexpr std::uint64_t kRecordBytes = 32;
constexpr std::uint64_t kWordBits = 64;

/// The token ids of one part of a packed file.
class PackedPartIds final : public TokenIds {
 public:
  PackedPartIds(std::shared_ptr<const PackedTokens> file, std::size_t part) : file_(std::move(file)), part_(part) {}

  [[nodiscard]] std::int64_t size() const override { return file_->parts()[part_].size; }
  void read(std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const override {
    file_->read(part_, begin, vocabulary, out);
  }
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override { file_->ahead(part_, begin, count); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return file_->parts()[part_].fingerprint; }

 private:
  std::shared_ptr<const PackedTokens> file_;
  std::size_t part_;
};

}  // namespace

const char* name_of(PackedIds ids) {
  return ids == PackedIds::text ? "text" : "tokens";
}

std::string detail::packed_parts_problem(PackedIds ids, std::uint64_t train, std::uint64_t validation) {
  if (ids == PackedIds::text ? train == 1 && validation == 1 : train >= 1 && validation >= 1) {
    return {};
  }
  return concat(train, " parts to train on and ", validation, " for validation, expected ",
                ids == PackedIds::text ? "one of each: it is a text" : "at least one of each");
}

PackedTokens::PackedTokens(const std::string& path) : file_(path) {
  const detail::PackedFrame frame = detail::read_packed_frame(file_, detail::PackedContent::tokens);
  const std::string shown = printable(path);
  const auto [train, validation, vocabulary, ids, width] = frame.numbers;
  require<DataError>(ids == 2 || ids == 3, shown, ": ids of kind ", ids,
                     ", expected 2 (bytes of a text) or 3 (tokens)");
  ids_ = ids == 2 ? PackedIds::text : PackedIds::tokens;
  const std::string problem = detail::packed_parts_problem(ids_, train, validation);
  require<DataError>(problem.empty(), shown, ": ", problem);
  const std::uint64_t fit = frame.index.size() / kRecordBytes;
  require<DataError>(train <= fit && validation <= fit - train, shown, ": ", train, " training and ", validation,
                     " validation parts, expected at most ", fit, " in all, as the index has ", frame.index.size(),
                     " bytes");
  require<DataError>(width == 1 || (ids_ == PackedIds::tokens && (width == 2 || width == 4)), shown, ": ids of ", width,
                     " bytes, expected 1", ids_ == PackedIds::tokens ? ", 2 or 4" : ": it is a text");
  width_ = width;
  vocabulary_ = static_cast<std::int64_t>(vocabulary);
  train_ = static_cast<std::size_t>(train);
  id_bytes_ = frame.at - kIdsBegin;
  read_index(frame.index, frame.at, train + validation);
}

void PackedTokens::read_index(std::span<const std::byte> index, std::uint64_t at, std::uint64_t parts) {
  const std::uint64_t blocks = (id_bytes_ + kBlockBytes - 1) / kBlockBytes;
  std::uint64_t names = 0;
  std::uint64_t first = 0;
  std::int64_t largest = 0;
  parts_.reserve(static_cast<std::size_t>(parts));
  std::vector<std::uint64_t> lengths;
  for (std::size_t i = 0; i < parts; ++i) {
    const auto record = index.subspan(i * kRecordBytes, kRecordBytes);
    const std::uint64_t size = packed_number(record, 0, 8);
    const std::uint64_t left = id_bytes_ / width_ - first;
    require<DataError>(size >= 1 && size <= left, printable(path()), ": part ", i, " has ", size,
                       " ids, expected 1 to ", left, ", as ids end at byte ", at);
    const std::uint64_t place = packed_number(record, 16, 8);
    const auto id = static_cast<std::int64_t>(packed_number(record, 24, 4));
    require<DataError>(place < size && id <= detail::kLargestId && id < std::int64_t{1} << 8 * width_,
                       printable(path()), ": part ", i, " has its largest id, ", id, ", at place ", place,
                       ", expected one of ", width_, " bytes, and a place below ", size);
    largest = std::max(largest, id);
    lengths.push_back(packed_number(record, 28, 4));
    names += lengths.back();
    first_.push_back(first);
    first += size;
    parts_.push_back({.size = static_cast<std::int64_t>(size),
                      .fingerprint = packed_number(record, 8, 8),
                      .largest = static_cast<std::int32_t>(id),
                      .largest_at = static_cast<std::int64_t>(place)});
  }
  require<DataError>(first * width_ == id_bytes_, printable(path()), ": ids end at byte ", kIdsBegin + first * width_,
                     ", expected ", at, ", where the index begins");
  require<DataError>(vocabulary_ == largest + 1, printable(path()), ": the vocabulary is ", vocabulary_, ", expected ",
                     largest + 1, ", as the largest id is ", largest);
  const std::uint64_t whole = parts * kRecordBytes + names + blocks * sizeof(std::uint32_t);
  require<DataError>(whole == index.size(), printable(path()), ": the index has ", index.size(), " bytes, expected ",
                     whole, " bytes for ", parts, " parts, ", names, " bytes of names and ", blocks, " checksums");
  std::uint64_t from = parts * kRecordBytes;
  for (std::size_t i = 0; i < parts_.size(); from += lengths[i], ++i) {
    parts_[i].name = packed_text(index.subspan(from, lengths[i]));
  }
  checksums_.reserve(static_cast<std::size_t>(blocks));
  for (; from < index.size(); from += sizeof(std::uint32_t)) {
    checksums_.push_back(static_cast<std::uint32_t>(packed_number(index, from, sizeof(std::uint32_t))));
  }
  right_ = std::make_unique<std::atomic<std::uint64_t>[]>(static_cast<std::size_t>(blocks / kWordBits + 1));
}

void PackedTokens::require_below(std::int64_t vocabulary) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    require<DataError>(parts_[i].largest < vocabulary, text_of(i), ": token ", parts_[i].largest_at, " is ",
                       parts_[i].largest, ", expected one below the vocabulary's ", vocabulary);
  }
}

std::span<const std::byte> PackedTokens::read_block(std::int64_t block) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(block) * kBlockBytes;
  const auto bytes = file_.bytes(kIdsBegin + begin, std::min(kBlockBytes, id_bytes_ - begin));
  const std::uint32_t expected = checksums_[static_cast<std::size_t>(block)];
  if (const std::uint32_t found = crc32_of(bytes); found != expected) {
    // Finds the part that has the block's first id.
    const std::uint64_t id = begin / width_;
    const auto part = static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), id) - first_.begin()) - 1;
    throw DataError(concat(text_of(part), ": CRC-32 ", crc_text(found), " of ", bytes.size(), " bytes from ",
                           ids_ == PackedIds::text ? "byte " : "token ", id - first_[part], " on, expected ",
                           crc_text(expected), ": the file is damaged"));
  }
  return bytes;
}

std::span<const std::byte> PackedTokens::checked_bytes(std::uint64_t begin, std::uint64_t count) const {
  const auto bytes = file_.bytes(kIdsBegin + begin, count);
  for (std::uint64_t block = begin / kBlockBytes; block * kBlockBytes < begin + count; ++block) {
    std::atomic<std::uint64_t>& word = right_[static_cast<std::size_t>(block / kWordBits)];
    const std::uint64_t bit = std::uint64_t{1} << block % kWordBits;
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      (void)read_block(static_cast<std::int64_t>(block));
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  return bytes;
}

void PackedTokens::read(std::size_t part, std::int64_t begin, std::int64_t vocabulary,
                        std::span<std::int32_t> out) const {
  const std::uint64_t first = first_[part] + static_cast<std::uint64_t>(begin);
  const auto bytes = checked_bytes(first * width_, out.size() * width_);
  if (const std::size_t bad = detail::widen_ids(bytes.data(), width_, vocabulary, out); bad < out.size()) {
    throw DataError(concat(text_of(part), ": token ", begin + static_cast<std::int64_t>(bad), " is ",
                           static_cast<std::uint32_t>(out[bad]), ", expected one below the vocabulary's ", vocabulary));
  }
}

void PackedTokens::ahead(std::size_t part, std::int64_t begin, std::int64_t count) const noexcept {
  const std::uint64_t first = first_[part] + static_cast<std::uint64_t>(begin);
  file_.ahead(kIdsBegin + first * width_, static_cast<std::uint64_t>(count) * width_);
}

std::string_view PackedTokens::text(std::size_t part) const {
  return packed_text(checked_bytes(first_[part] * width_, static_cast<std::uint64_t>(parts_[part].size) * width_));
}

std::string PackedTokens::text_of(std::size_t part) const {
  return concat(printable(path()), ": part ", part, " (", printable(parts_[part].name), ")");
}

bool is_packed_tokens(const std::string& path) {
  const InputFile file(path);
  std::array<std::byte, kIdsBegin> begin{};
  if (file.size() < begin.size()) {
    return false;
  }
  file.read(0, begin);
  return packed_text(begin).starts_with(detail::PackedFormat::kBegin) &&
         packed_number(begin, 12, 4) == static_cast<std::uint64_t>(detail::PackedContent::tokens);
}

std::vector<std::unique_ptr<const TokenIds>> token_ids_of(const std::shared_ptr<const PackedTokens>& file,
                                                          bool validation) {
  std::vector<std::unique_ptr<const TokenIds>> parts;
  const std::size_t end = validation ? file->parts().size() : file->train_parts();
  for (std::size_t i = validation ? file->train_parts() : 0; i < end; ++i) {
    parts.push_back(std::make_unique<PackedPartIds>(file, i));
  }
  return parts;
}

PackedTokensWriter::PackedTokensWriter(std::string path, PackedIds ids, int width)
    : ids_(ids), width_(static_cast<std::size_t>(width)) {
  require<UsageError>(width == 1 || (ids == PackedIds::tokens && (width == 2 || width == 4)), "ids have ", width,
                      " bytes, expected 1", ids == PackedIds::tokens ? ", 2 or 4" : " of a text");
  file_ = std::make_unique<detail::PackedOutput>(std::move(path), detail::PackedContent::tokens);
  block_.reserve(PackedTokens::kBlockBytes);
}

PackedTokensWriter::~PackedTokensWriter() = default;

std::uint64_t PackedTokensWriter::bytes() const {
  return file_->at();
}

std::int64_t PackedTokensWriter::vocabulary() const {
  std::int64_t largest = 0;
  for (const PackedPart& part : parts_) {
    largest = std::max<std::int64_t>(largest, part.largest);
  }
  return largest + 1;
}

void PackedTokensWriter::begin_part(bool validation, std::string name, std::uint64_t fingerprint) {
  require<StateError>(validation || train_ == parts_.size(),
                      "a part to train on is begun after one for validation, expected those for validation last");
  train_ += validation ? 0 : 1;
  constexpr std::size_t kMostName = std::numeric_limits<std::uint16_t>::max();
  name.resize(std::min(name.size(), kMostName));
  parts_.push_back({.name = std::move(name), .fingerprint = fingerprint});
}

void PackedTokensWriter::add(std::span<const std::int32_t> ids) {
  require<StateError>(!parts_.empty(), "ids are added before the first part, expected begin_part() first");
  PackedPart& part = parts_.back();
  const std::int64_t most = std::min((std::int64_t{1} << 8 * width_) - 1, detail::kLargestId);
  for (const std::int32_t id : ids) {
    if (id < 0 || id > most) {
      throw UsageError(concat("token ", part.size, " of part ", parts_.size() - 1, " is ", id, ", expected 0 to ", most,
                              " in ", width_, width_ == 1 ? " byte" : " bytes"));
    }
    if (id > part.largest) {
      part.largest = id;
      part.largest_at = part.size;
    }
    ++part.size;
    char bytes[sizeof id];  // little-endian, so the first width_ bytes hold the id
    std::memcpy(bytes, &id, sizeof id);
    block_.append(bytes, width_);
    if (block_.size() == PackedTokens::kBlockBytes) {
      end_block();
    }
  }
}

void PackedTokensWriter::end_block() {
  detail::put_packed_number(checksums_, crc32_of(std::as_bytes(std::span(block_))), sizeof(std::uint32_t));
  file_->write(block_);
  block_.clear();
}

void PackedTokensWriter::commit() {
  const std::string problem = detail::packed_parts_problem(ids_, train_, parts_.size() - train_);
  require<UsageError>(problem.empty(), problem);
  if (!block_.empty()) {
    end_block();
  }
  std::string index;
  std::string names;
  for (const PackedPart& part : parts_) {
    require<UsageError>(part.size >= 1, "part ", printable(part.name), " has no ids, expected one or more");
    detail::put_packed_number(index, static_cast<std::uint64_t>(part.size), 8);
    detail::put_packed_number(index, part.fingerprint, 8);
    detail::put_packed_number(index, static_cast<std::uint64_t>(part.largest_at), 8);
    detail::put_packed_number(index, static_cast<std::uint64_t>(part.largest), 4);
    detail::put_packed_number(index, part.name.size(), 4);
    names += part.name;
  }
  index += names;
  index += checksums_;
  file_->commit(index, {.train = train_,
                        .test = parts_.size() - train_,
                        .at_32 = static_cast<std::uint32_t>(vocabulary()),
                        .at_36 = ids_ == PackedIds::text ? 2U : 3U,
                        .at_40 = static_cast<std::uint32_t>(width_)});
}

}  // namespace lockstep::nn
