#include <lockstep/kernels/images/mix.hpp>

#include <algorithm>
#include <cstring>

namespace lockstep::ops::images {

void fill_rectangle(const Rectangle& rectangle, std::int64_t width, const std::array<std::uint8_t, 3>& fill,
                    std::uint8_t* image) {
  for (std::int64_t y = rectangle.top; y < rectangle.bottom; ++y) {
    for (std::int64_t x = rectangle.left; x < rectangle.right; ++x) {
      std::memcpy(image + (y * width + x) * 3, fill.data(), 3);
    }
  }
}

void copy_rectangle(const Rectangle& rectangle, std::int64_t width, const std::uint8_t* from, std::uint8_t* image) {
  if (rectangle.empty()) {
    return;
  }
  const auto bytes = static_cast<std::size_t>((rectangle.right - rectangle.left) * 3);  // size of one row
  for (std::int64_t y = rectangle.top; y < rectangle.bottom; ++y) {
    const std::int64_t begin = (y * width + rectangle.left) * 3;
    std::memcpy(image + begin, from + begin, bytes);
  }
}

void mix(float share, std::span<std::uint8_t> bytes, const std::uint8_t* others) {
  std::transform(bytes.begin(), bytes.end(), others, bytes.begin(), [share](std::uint8_t own, std::uint8_t other) {
    const float shifted = share * static_cast<float>(own) + (1 - share) * static_cast<float>(other) + 0.5F;
    return static_cast<std::uint8_t>(shifted);
  });
}

}  // namespace lockstep::ops::images
