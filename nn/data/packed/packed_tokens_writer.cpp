#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <lockstep/nn/data/detail/packed_frame.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep::nn {

PackedTokensWriter::PackedTokensWriter(std::string path, PackedIds ids, int width)
    : ids_(ids), width_(static_cast<std::size_t>(width)) {
  require<UsageError>(width == 1 || (ids == PackedIds::tokens && (width == 2 || width == 4)), "ids of ", width,
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
                      "a part to train on after one for validation, expected those for validation last");
  train_ += validation ? 0 : 1;
  constexpr std::size_t kMostName = std::numeric_limits<std::uint16_t>::max();
  name.resize(std::min(name.size(), kMostName));
  parts_.push_back({.name = std::move(name), .fingerprint = fingerprint});
}

void PackedTokensWriter::add(std::span<const std::int32_t> ids) {
  require<StateError>(!parts_.empty(), "ids before the first part, expected begin_part() first");
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
    char bytes[sizeof id];  // hosts are little-endian
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
