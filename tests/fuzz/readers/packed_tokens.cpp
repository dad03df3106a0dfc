// The input has a byte of flags, a byte (the length of a window less 1) and then a file. Flag 1 makes this reader
// correct the checksums of the file's beginning, index and end. Flag 2 makes it correct the checksums of the blocks,
// too.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>

#include "tests/fuzz/packed_bytes.hpp"
#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

constexpr std::size_t kBlock = 65536;

/// Corrects the checksums of the file's parts, as far as the offsets in the file are valid.
void repair(std::string& bytes, bool blocks) {
  if (bytes.size() < kBegin + kEnd) {
    return;
  }
  const std::size_t end = bytes.size() - kEnd;
  const std::uint64_t at = number(bytes, end, 8);
  if (at >= kBegin && at <= end) {
    const auto index = static_cast<std::size_t>(at);
    const std::size_t count = (index - kBegin + kBlock - 1) / kBlock;
    for (std::size_t i = 0; blocks && i < count && (count - i) * 4 <= end - index; ++i) {
      const std::size_t from = kBegin + i * kBlock;
      put(bytes, end - (count - i) * 4, crc_of(bytes, from, std::min(kBlock, index - from)));
    }
    put(bytes, end + 44, crc_of(bytes, index, end - index));
  }
  put(bytes, end + 60, crc_of(bytes, end, 60, crc_of(bytes, 0, kBegin)));
}

/// Reads the tokens of all parts of the file. Compares each id with the file's bytes.
bool check_ids(const nn::PackedTokens& file, const std::string& bytes) {
  const auto width = static_cast<std::size_t>(file.width());
  std::size_t at = kBegin;
  bool whole = true;
  for (std::size_t part = 0; part < file.parts().size(); ++part) {
    const nn::PackedPart& told = file.parts()[part];
    check(told.size >= 1 && told.largest_at < told.size && told.largest < file.vocabulary(), "part ", part);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(told.size));
    const bool read = accepts<DataError>([&] { file.read(part, 0, 0x7FFFFFFF, ids); });
    for (std::size_t i = 0; read && i < ids.size(); ++i) {
      check(ids[i] >= 0 && static_cast<std::uint64_t>(ids[i]) == number(bytes, at + i * width, width), "id ", i,
            " of part ", part);
    }
    if (read && file.ids() == nn::PackedIds::text) {
      check(file.text(part) == std::string_view(bytes).substr(at, ids.size()), "text of part ", part);
    }
    at += ids.size() * width;
    whole = whole && read;
  }
  check(at + file.blocks() * 4 <= bytes.size(), "ids after the end");
  return whole;
}

}  // namespace

void packed_tokens(Input input) {
  Cursor cursor(input);
  const unsigned flags = cursor.byte();
  const std::int64_t length = 1 + cursor.byte();
  std::string bytes = text_of(cursor.rest());
  if ((flags & 1U) != 0) {
    repair(bytes, (flags & 2U) != 0);
  }
  folder().clear();
  folder().put("a.pack", bytes);
  (void)accepts<DataError>([&] {
    const auto file = std::make_shared<const nn::PackedTokens>(folder() / "a.pack");
    check(nn::is_packed_tokens(file->path()), "it is one, and does not begin like one");
    file->require_below(file->vocabulary());
    check(!accepts<DataError>([&] { file->require_below(file->vocabulary() - 1); }), "its largest id is not there");
    const bool whole = check_ids(*file, bytes);
    std::int64_t damaged = 0;
    const bool checked =
        accepts<DataError>([&] { damaged = nn::check_packed(*file, 1, 20, [](const nn::PackProgress&) {}).damaged; });
    check(whole || !checked || damaged > 0, "a damaged file passes the check");
    check(!whole || damaged == 0, damaged, " blocks of a whole file are damaged");
    for (const bool validation : {false, true}) {
      (void)accepts<DataError>([&] {
        const nn::TokenWindows windows("input", nn::token_ids_of(file, validation), length, file->vocabulary());
        std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
        std::vector<std::int32_t> next(ids.size());
        const std::vector<std::span<std::byte>> out{std::as_writable_bytes(std::span(ids)),
                                                    std::as_writable_bytes(std::span(next))};
        for (std::int64_t window = 0; window < windows.size(); ++window) {
          windows.read_sample(window, out);
          check(std::equal(ids.begin() + 1, ids.end(), next.begin()), "labels of window ", window);
          check(*std::max_element(ids.begin(), ids.end()) < file->vocabulary(), "ids beyond the vocabulary");
        }
      });
    }
  });
}

}  // namespace lockstep::fuzz
