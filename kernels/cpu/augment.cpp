#include <lockstep/kernels/augment.hpp>

#include <algorithm>
#include <array>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/detail/image_placement.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using placement::reflected;

/// A lookup table with the normalised value of each byte in each channel.
template <class T>
using Table = std::array<std::array<T, 256>, 3>;

template <class T>
Table<T> make_table(const AugmentDesc& desc) {
  Table<T> table;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t value = 0; value < 256; ++value) {
      table[c][value] = element_of<T>((static_cast<double>(value) / 255.0 - static_cast<double>(desc.mean[c])) /
                                      static_cast<double>(desc.std[c]));
    }
  }
  return table;
}

struct Placement {
  std::int64_t row = 0;     ///< row h of out shows row h + `row` of the image
  std::int64_t column = 0;  ///< before the flip, column w of out shows column w + `column` of the image
  bool flip = false;
};

bool alternating_flip(const AugmentDesc& desc, std::int64_t epoch, std::int64_t sample_id) {
  Random random(desc.seed, RandomUse::augment, static_cast<std::uint64_t>(placement::kNoEpoch),
                static_cast<std::uint64_t>(sample_id));
  return placement::alternating(random.below(2) == 1, epoch);
}

Placement draw(const AugmentDesc& desc, std::int64_t epoch, std::int64_t sample_id) {
  Random random(desc.seed, RandomUse::augment, static_cast<std::uint64_t>(epoch),
                static_cast<std::uint64_t>(sample_id));
  Placement at;
  if (desc.pad > 0) {
    const auto offsets = static_cast<std::uint32_t>(2 * desc.pad + 1);
    at.row = static_cast<std::int64_t>(random.below(offsets)) - desc.pad;
    at.column = static_cast<std::int64_t>(random.below(offsets)) - desc.pad;
  }
  at.flip = desc.flip && (desc.alternate ? alternating_flip(desc, epoch, sample_id) : random.below(2) == 1);
  return at;
}

/// Writes one sample in one pass over out. image has shape (H, W, 3), out (H, W, kChannels). Pixels outside the image
/// are bytes of 0, or with kReflect reflected pixels of the image.
template <int kChannels, bool kReflect, class T>
void one_sample(const Table<T>& table, const Placement& at, std::int64_t height, std::int64_t width,
                const std::uint8_t* image, T* out) {
  static constexpr std::array<std::uint8_t, 3> kPadding{};
  for (std::int64_t h = 0; h < height; ++h) {
    const std::int64_t row = kReflect ? reflected(h + at.row, height) : h + at.row;
    const bool row_inside = row >= 0 && row < height;
    for (std::int64_t w = 0; w < width; ++w) {
      const std::int64_t shown = (at.flip ? width - 1 - w : w) + at.column;
      const std::int64_t column = kReflect ? reflected(shown, width) : shown;
      const bool inside = row_inside && column >= 0 && column < width;
      const std::uint8_t* pixel = inside ? image + (row * width + column) * 3 : kPadding.data();
      T* to = out + (h * width + w) * kChannels;
      for (std::size_t c = 0; c < 3; ++c) {
        to[c] = table[c][pixel[c]];
      }
      if constexpr (kChannels == 4) {
        to[3] = T{0};
      }
    }
  }
}

}  // namespace

void augment(CpuContext& context, const AugmentDesc& desc, const TensorView& images, const TensorView& sample_ids,
             const TensorView& epoch, const TensorView& valid, const TensorView& out) {
  const std::int64_t samples = images.shape[0];
  const std::int64_t height = images.shape[1];
  const std::int64_t width = images.shape[2];
  const std::int64_t channels = out.shape[3];
  const std::uint8_t* from = images.as<std::uint8_t>();     // shape (N, H, W, 3)
  const std::int64_t* ids = sample_ids.as<std::int64_t>();  // shape (N)
  const std::int64_t now = *epoch.as<std::int64_t>();
  const std::int64_t filled = valid.data != nullptr ? *valid.as<std::int64_t>() : samples;
  visit_element(out.dtype, "augment", [&]<class T>(std::type_identity<T>) {
    const Table<T> table = make_table<T>(desc);
    T* to = out.as<T>();  // shape (N, H, W, C)
    parallel_ranges(context, samples, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        T* sample = to + n * height * width * channels;
        if (n >= filled) {
          std::fill(sample, sample + height * width * channels, T{0});
          continue;
        }
        const Placement at = draw(desc, now, ids[n]);
        const std::uint8_t* image = from + n * height * width * 3;
        const auto place = desc.reflect ? (channels == 4 ? one_sample<4, true, T> : one_sample<3, true, T>)
                                        : (channels == 4 ? one_sample<4, false, T> : one_sample<3, false, T>);
        place(table, at, height, width, image, sample);
      }
    });
  });
}

}  // namespace lockstep::ops::backend
