#include <lockstep/kernels/adjust_colours.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <lockstep/kernels/images/colour.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

/// The colour changes of one image, without the changes of kind `none`.
struct Changes {
  std::array<images::ColourChange, kColourChanges> all;
  std::size_t count = 0;
};

/// Returns the changes of an image from its row of the table, which has kColourColumns numbers.
Changes changes_of(const double* row) {
  Changes changes;
  bool contrast = false;
  const auto add = [&](images::Colour colour, double factor) { changes.all[changes.count++] = {colour, factor}; };
  for (std::int64_t i = 0; i < kColourColumns; i += 2) {
    const double kind = row[i];
    const double factor = row[i + 1];
    const auto is = [kind](ColourKind other) { return kind == static_cast<double>(other); };
    if (is(ColourKind::brightness)) {
      add(images::Colour::brightness, factor);
    } else if (is(ColourKind::contrast) && !contrast) {
      add(images::Colour::contrast, factor);
      contrast = true;
    } else if (is(ColourKind::saturation)) {
      add(images::Colour::saturation, factor);
    } else if (is(ColourKind::hue)) {
      add(images::Colour::hue, factor);
    }
  }
  return changes;
}

}  // namespace

void adjust_colours(CpuContext& context, const TensorView& images, const TensorView& changes, const TensorView&) {
  const std::int64_t bytes = images.shape[1] * images.shape[2] * 3;  // bytes of an image
  auto* const pixels = images.as<std::uint8_t>();                    // shape (N, H, W, 3)
  const double* const table = changes.as<double>();                  // shape (N, kColourColumns), rows `stride` apart
  const std::int64_t stride = changes.strides[0];
  parallel_ranges(context, bytes == 0 ? 0 : images.shape[0], 1, [=](std::int64_t begin, std::int64_t end) {
    // Each thread keeps its memory: allocating memory in each call would be slower, and a context always uses the same
    // threads.
    thread_local std::vector<float> memory;
    for (std::int64_t n = begin; n < end; ++n) {
      const Changes list = changes_of(table + n * stride);
      if (list.count > 0) {
        images::adjust_colours(std::span(list.all.data(), list.count),
                               std::span(pixels + n * bytes, static_cast<std::size_t>(bytes)), memory);
      }
    }
  });
}

}  // namespace lockstep::ops::backend
