#include <lockstep/runtime/base/units.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

/// Formats `value` in the largest of `units` that keeps the number at least 1. A unit is `step` times the unit before.
std::string with_unit(double value, double step, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && std::abs(value) >= step * (1 - 5e-4)) {
    value /= step;
    ++unit;
  }
  const double size = std::abs(value);
  const bool whole = value == std::round(value) && step == 1024;
  const int decimals = whole || size >= 99.95 ? 0 : (size >= 9.995 ? 1 : 2);
  return digits(value, decimals) + " " + units[unit];
}

}  // namespace

std::string counted(std::int64_t count, std::string_view what) {
  return concat(count, ' ', what, count == 1 ? "" : "s");
}

std::string digits(double value, int decimals) {
  if (std::isnan(value)) {
    return "-";
  }
  std::array<char, 400> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, decimals);
  return error == std::errc() ? std::string(text.data(), end) : "?";
}

std::string exact_text(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  return with_unit(bytes, 1024, kUnits);
}

std::string seconds_text(double seconds) {
  constexpr const char* kUnits[] = {"ns", "us", "ms", "s"};
  return with_unit(seconds * 1e9, 1000, kUnits);
}

std::string rate_text(double bytes_per_second) {
  constexpr const char* kUnits[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  return with_unit(bytes_per_second, 1000, kUnits);
}

std::string percent_text(double share) {
  return digits(100 * share, share < 0.0995 ? 1 : 0) + " %";
}

}  // namespace lockstep
