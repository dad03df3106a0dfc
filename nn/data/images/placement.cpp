#include <lockstep/nn/data/images/placement.hpp>

#include <cstddef>
#include <cstring>

#include <lockstep/kernels/detail/image_placement.hpp>

namespace lockstep::nn::images {

namespace {

/// Does the work of show(). kChannels is the number of channels as a compile-time constant, so that the compiler copies
/// a pixel without a call of memcpy. If kChannels is 0, the number of channels is `given`.
template <bool kReflect, int kChannels>
void show_pixels(const Extent& size, std::int64_t given, const Placement& at, const std::uint8_t* from,
                 std::uint8_t* to) {
  using ops::placement::reflected;
  const std::int64_t channels = kChannels > 0 ? kChannels : given;
  const auto bytes = static_cast<std::size_t>(channels);
  for (std::int64_t h = 0; h < size.height; ++h) {
    const std::int64_t y = kReflect ? reflected(h + at.row, size.height) : h + at.row;
    for (std::int64_t w = 0; w < size.width; ++w, to += channels) {
      const std::int64_t shown = (at.mirror ? size.width - 1 - w : w) + at.column;
      const std::int64_t x = kReflect ? reflected(shown, size.width) : shown;
      if (kReflect || (y >= 0 && y < size.height && x >= 0 && x < size.width)) {
        std::memcpy(to, from + (y * size.width + x) * channels, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
}

}  // namespace

void show(const Extent& size, std::int64_t channels, const Placement& at, Outside outside, const std::uint8_t* from,
          std::uint8_t* to) {
  const bool reflects = outside == Outside::reflected;
  const auto run = channels == 3 ? (reflects ? show_pixels<true, 3> : show_pixels<false, 3>)
                                 : (reflects ? show_pixels<true, 0> : show_pixels<false, 0>);
  run(size, channels, at, from, to);
}

}  // namespace lockstep::nn::images
