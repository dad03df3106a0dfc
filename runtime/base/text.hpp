#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

/// Text of unknown origin for a terminal, which interprets control characters: names in files, arguments of a command
/// line.
namespace lockstep {

/// Returns the bytes of the first character of a UTF-8 text; 0 for a control character and for invalid UTF-8.
[[nodiscard]] std::size_t printable_length(std::string_view text) noexcept;

/// Writes the first character of a text to `out` (room for 4 bytes), as \xNN where printable_length() is 0.
struct PrintedCharacter {
  std::size_t read;     ///< bytes of the text
  std::size_t written;  ///< bytes of `out`
};
PrintedCharacter print_character(std::string_view text, char* out) noexcept;

/// Returns the whole text without quotes; bytes that a terminal would interpret become \xNN.
[[nodiscard]] std::string displayed(std::string_view text);

/// Returns the whole text as UTF-8 for a reader that is no terminal (JSON, CSV): as displayed(), but ASCII, including
/// control characters, is unchanged.
[[nodiscard]] std::string utf8_text(std::string_view text);

/// Returns the text in single quotes for an error message: always one line, cut after 200 bytes.
[[nodiscard]] std::string printable(std::string_view text);

/// Returns the number of characters added, left out or changed between the two texts (Levenshtein 1966).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// Joins `of(element)` of all elements of a range, with a text between them: "1, 2, 3".
template <class Range, class Of = std::identity>
[[nodiscard]] std::string joined(const Range& range, std::string_view between, Of of = {}) {
  std::string text;
  for (const auto& each : range) {
    text += concat(text.empty() ? "" : between, std::invoke(of, each));
  }
  return text;
}

}  // namespace lockstep
