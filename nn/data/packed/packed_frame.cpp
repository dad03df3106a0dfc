#include <lockstep/nn/data/detail/packed_frame.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep::nn::detail {
namespace {

using Format = PackedFormat;

/// Describes the content of a packed file for error texts, like "a packed file of pictures (train_resnet reads it)".
std::string described(std::uint64_t content) {
  switch (content) {
    case static_cast<std::uint64_t>(PackedContent::pictures):
      return "a packed file of pictures (train_resnet reads it)";
    case static_cast<std::uint64_t>(PackedContent::tokens):
      return "a packed file of text or tokens (train_text reads it)";
    default:
      return concat("a packed file of content ", content, ", which is unknown");
  }
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

std::uint64_t packed_number(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
  }
  return value;
}

void put_packed_number(std::string& to, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, value >>= 8) {
    to += static_cast<char>(value & 0xFF);
  }
}

std::string_view packed_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string crc_text(std::uint64_t crc32) {
  char digits[2 * sizeof crc32 + 1];
  std::snprintf(digits, sizeof digits, "%08llx", static_cast<unsigned long long>(crc32));
  return digits;
}

PackedFrame read_packed_frame(const MappedFile& file, PackedContent expected) {
  const std::string shown = printable(file.path());
  const std::uint64_t size = file.size();
  const auto begin = file.bytes(0, std::min<std::uint64_t>(size, Format::kBeginBytes));
  require<DataError>(packed_text(begin).starts_with(Format::kBegin), shown,
                     ": begins as no packed file does, expected one that lockstep-pack wrote");
  require<DataError>(size >= Format::kBeginBytes + Format::kEndBytes, shown, ": ends at byte ", size,
                     ", expected at least ", Format::kBeginBytes + Format::kEndBytes, ": it is cut off");
  const std::uint64_t version = packed_number(begin, 8, 4);
  require<DataError>(version == Format::kVersion, shown, ": is of version ", version, ", expected ", Format::kVersion,
                     ": pack it again");

  const auto end = file.bytes(size - Format::kEndBytes, Format::kEndBytes);
  require<DataError>(
      packed_text(end).substr(48, Format::kEnd.size()) == Format::kEnd, shown,
      ": does not end as a packed file does, expected a whole one: it is cut off or damaged, copy or pack it again");
  const std::uint32_t ends_crc = crc32_of(end.first(60), crc32_of(begin));
  require<DataError>(ends_crc == packed_number(end, 60, 4), shown, ": CRC-32 ", crc_text(ends_crc),
                     " of its first and last bytes, expected ", crc_text(packed_number(end, 60, 4)),
                     ": the file is damaged, pack it again");
  const std::uint64_t content = packed_number(begin, 12, 4);
  require<DataError>(content == static_cast<std::uint64_t>(expected), shown, ": is ", described(content), ", expected ",
                     described(static_cast<std::uint64_t>(expected)));
  const std::uint64_t at = packed_number(end, 0, 8);
  const std::uint64_t bytes = packed_number(end, 8, 8);
  const std::uint64_t most = size - Format::kBeginBytes - Format::kEndBytes;
  require<DataError>(bytes <= most && at == size - Format::kEndBytes - bytes, shown, ": has an index of ", bytes,
                     " bytes from byte ", at, " on, expected one that ends at byte ", size - Format::kEndBytes);
  PackedFrame frame{.index = file.bytes(at, bytes), .at = at};
  const std::uint32_t index_crc = crc32_of(frame.index);
  require<DataError>(index_crc == packed_number(end, 44, 4), shown, ": CRC-32 ", crc_text(index_crc),
                     " of the index, expected ", crc_text(packed_number(end, 44, 4)), ": it is damaged");
  const auto word = [&](std::size_t place) { return static_cast<std::uint32_t>(packed_number(end, place, 4)); };
  frame.numbers = {packed_number(end, 16, 8), packed_number(end, 24, 8), word(32), word(36), word(40)};
  return frame;
}

PackedOutput::PackedOutput(std::string path, PackedContent content) : file_(std::move(path)), begin_(Format::kBegin) {
  put_packed_number(begin_, Format::kVersion, 4);
  put_packed_number(begin_, static_cast<std::uint64_t>(content), 4);
  write(begin_);
}

void PackedOutput::write(std::string_view bytes) {
  try {
    file_.write(bytes_of(bytes));
  } catch (const FileError& failure) {
    throw WriteError(failure.what());
  }
  at_ += bytes.size();
}

void PackedOutput::commit(std::string_view index, const PackedNumbers& numbers) {
  std::string end;
  put_packed_number(end, at_, 8);
  put_packed_number(end, index.size(), 8);
  put_packed_number(end, numbers.train, 8);
  put_packed_number(end, numbers.test, 8);
  put_packed_number(end, numbers.at_32, 4);
  put_packed_number(end, numbers.at_36, 4);
  put_packed_number(end, numbers.at_40, 4);
  put_packed_number(end, crc32_of(bytes_of(index)), 4);
  end += Format::kEnd;
  put_packed_number(end, 0, 4);
  put_packed_number(end, crc32_of(bytes_of(end), crc32_of(bytes_of(begin_))), 4);
  write(index);
  write(end);
  try {
    file_.commit();
  } catch (const FileError& failure) {
    throw WriteError(failure.what());
  }
}

}  // namespace lockstep::nn::detail
