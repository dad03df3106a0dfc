// The input has eight bytes that are a double, and a byte from which the number of decimals follows. The reader formats
// the double as text for people.
#include <lockstep/runtime/base/units.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

double number_in(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : std::nan("");
}

/// Checks a text such as "12.3 MiB": it must be a number, a space and a unit, and number times unit must equal the
/// value within the digits shown.
void check_unit(const std::string& text, double value, double step, const std::vector<const char*>& units) {
  const std::size_t space = text.find(' ');
  check(space != std::string::npos && space > 0, "no unit in ", text);
  const auto unit =
      std::find_if(units.begin(), units.end(), [&](const char* name) { return text.substr(space + 1) == name; });
  check(unit != units.end(), "unknown unit in ", text);
  const double shown = number_in(text) * std::pow(step, static_cast<double>(unit - units.begin()));
  check(!std::isfinite(value) || std::abs(shown - value) <= 0.0051 * std::abs(value) + 0.0051, text, " for ", value);
}

}  // namespace

void units(Input input) {
  Cursor cursor(input);
  const std::string bytes = text_of(cursor.bytes(8));
  double value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  const double exact = number_in(exact_text(value));
  check(exact == value || (std::isnan(exact) && std::isnan(value)), "exact_text(", exact_text(value), ") is read as ",
        exact);
  const int decimals = cursor.byte() % 20;
  const std::string fixed = digits(value, decimals);
  check(!std::isfinite(value) ||
            std::abs(number_in(fixed) - value) <= 0.51 * std::pow(10, -decimals) + 1e-15 * std::abs(value),
        "digits(): ", fixed, " for ", value);
  check_unit(bytes_text(value), value, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
  check_unit(seconds_text(value / 1e9), value, 1000, {"ns", "us", "ms", "s"});
  check_unit(rate_text(value), value, 1000, {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"});
  check(percent_text(value).ends_with(" %"), "no percent");
}

}  // namespace lockstep::fuzz
