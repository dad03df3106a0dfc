#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

/// Text of unknown origin on a terminal, which obeys control characters: names in files, what stands on a command line.
namespace lockstep {

/// The number of bytes of the first character of a UTF-8 text; 0 for a control character and for invalid UTF-8.
[[nodiscard]] std::size_t printable_length(std::string_view text) noexcept;

/// Writes the first character of a text, as \xNN where printable_length() is 0, to `out`, which has room for 4 bytes.
struct PrintedCharacter {
  std::size_t read;     ///< bytes of the text
  std::size_t written;  ///< bytes of `out`
};
PrintedCharacter print_character(std::string_view text, char* out) noexcept;

/// All of a text, without quotes, with what a terminal would obey as \xNN.
[[nodiscard]] std::string displayed(std::string_view text);

/// All of a text as UTF-8, for a reader that is no terminal (JSON, CSV): what displayed() writes as \xNN, but ASCII,
/// control characters too, is as it was.
[[nodiscard]] std::string utf8_text(std::string_view text);

/// Text in single quotes for an error message: one line whatever is in it, cut after 200 bytes.
[[nodiscard]] std::string printable(std::string_view text);

/// How many characters are added, left out or changed from one to the other (Levenshtein 1966).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// What `of` makes of each element of a range, with a text between them: "1, 2, 3".
template <class Range, class Of = std::identity>
[[nodiscard]] std::string joined(const Range& range, std::string_view between, Of of = {}) {
  std::string text;
  for (const auto& each : range) {
    text += concat(text.empty() ? "" : between, std::invoke(of, each));
  }
  return text;
}

}  // namespace lockstep
