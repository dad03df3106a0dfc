#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

/// Formats numbers for people. Bytes, seconds, rates and percentages have three significant digits and a unit: bytes in
/// powers of 1024, rates in powers of 1000. The decimal separator is a point in every locale.
namespace lockstep {

[[nodiscard]] std::string bytes_text(double bytes);                            ///< returns "64 KiB", "8 B"
[[nodiscard]] std::string seconds_text(double seconds);                        ///< returns "1.42 us", "12.0 ms"
[[nodiscard]] std::string rate_text(double bytes_per_second);                  ///< returns "10.4 GB/s"
[[nodiscard]] std::string percent_text(double share);                          ///< 0.123 gives "12.3 %"
[[nodiscard]] std::string counted(std::int64_t count, std::string_view what);  ///< returns "1 step", "3 steps"
[[nodiscard]] std::string digits(double value, int decimals);  ///< returns `value` in fixed point; "-" for NaN
[[nodiscard]] std::string exact_text(double value);            ///< returns the shortest text that reads back as `value`

/// Parses the whole text as a number. Returns nullopt if the text is not a number or out of the type's range.
template <class Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace lockstep
