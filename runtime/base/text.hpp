#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

/// Makes text of unknown origin (names in files, arguments of a command line) safe for a terminal, because a terminal
/// interprets control characters.
namespace lockstep {

/// Returns the length in bytes of the first character of a UTF-8 text; 0 for a control character or invalid UTF-8.
[[nodiscard]] std::size_t printable_length(std::string_view text) noexcept;

/// Result of print_character(), which writes the first character of a text to `out`, or the first byte as \xNN if
/// printable_length() is 0. `out` must have room for 4 bytes.
struct PrintedCharacter {
  std::size_t read;     ///< bytes read from the text
  std::size_t written;  ///< bytes written to `out`
};
PrintedCharacter print_character(std::string_view text, char* out) noexcept;

/// Returns the text at full length and without quotes, unlike printable(). Bytes that a terminal would interpret become
/// \xNN.
[[nodiscard]] std::string displayed(std::string_view text);

/// Returns the whole text as valid UTF-8 for JSON or CSV, not for a terminal. Differs from displayed() in one point:
/// all ASCII characters stay, control characters included.
[[nodiscard]] std::string utf8_text(std::string_view text);

/// Returns the text in single quotes for an error message: one line, cut after 200 bytes.
[[nodiscard]] std::string printable(std::string_view text);

/// Returns how many characters must at least be added, left out or changed to turn `a` into `b` (Levenshtein 1966).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// Joins the texts `of(element)` of all elements of a range, with the text `between` between them: "1, 2, 3".
template <class Range, class Of = std::identity>
[[nodiscard]] std::string joined(const Range& range, std::string_view between, Of of = {}) {
  std::string text;
  for (const auto& each : range) {
    text += concat(text.empty() ? "" : between, std::invoke(of, each));
  }
  return text;
}

}  // namespace lockstep
