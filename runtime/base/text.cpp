#include <lockstep/runtime/base/text.hpp>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace lockstep {

std::size_t printable_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return first >= 0x20 && first != 0x7f ? 1 : 0;
  }
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) {
      return 0;
    }
  }
  // Refuses overlong forms, surrogates and numbers above U+10FFFF. Also refuses the control characters U+0080 to
  // U+009F, because terminals interpret them.
  const unsigned second = byte(1);
  const bool refused = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) ||
                       (first == 0xc2 && second < 0xa0);
  return refused ? 0 : length;
}

PrintedCharacter print_character(std::string_view text, char* out) noexcept {
  static constexpr char kHex[] = "0123456789abcdef";
  const std::size_t length = printable_length(text);
  if (length > 0) {
    text.copy(out, length);
    return {length, length};
  }
  const auto byte = static_cast<unsigned char>(text[0]);
  out[0] = '\\';
  out[1] = 'x';
  out[2] = kHex[byte >> 4];
  out[3] = kHex[byte & 15];
  return {1, 4};
}

std::string displayed(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    char character[4];
    const PrintedCharacter printed = print_character(text, character);
    out.append(character, printed.written);
    text.remove_prefix(printed.read);
  }
  return out;
}

std::string utf8_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (static_cast<unsigned char>(text.front()) < 0x80) {
      out += text.front();
      text.remove_prefix(1);
      continue;
    }
    char character[4];
    const PrintedCharacter printed = print_character(text, character);
    out.append(character, printed.written);
    text.remove_prefix(printed.read);
  }
  return out;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 200;
  return "'" + displayed(text.substr(0, kMost)) + (text.size() > kMost ? "...'" : "'");
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t same = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({same, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace lockstep
