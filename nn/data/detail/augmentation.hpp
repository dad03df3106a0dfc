#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/kernels/images/colour.hpp>
#include <lockstep/kernels/images/mix.hpp>
#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/runtime/base/random.hpp>

/// Random draws for an image of AugmentedImages. Host and device preprocessing use the same draws.
namespace lockstep::nn::detail {

/// Purpose of a random draw for an image. The value is a part of the key of the random numbers, so never change a
/// value.
enum class Draw : std::uint64_t { placement = 0, crop = 1, jitter = 2, erase = 3, mixture = 4, automatic = 5 };
[[nodiscard]] Random random_for(std::uint64_t seed, Draw draw, std::int64_t epoch, std::int64_t index);

/// Draws an image's colour changes into `changes`, at most one of each kind, in the order in which they are applied.
void draw_changes(const JitterOptions& options, Random random, std::vector<ops::images::ColourChange>& changes);

/// Draws the rectangle of torchvision's RandomErasing. The result is empty if no rectangle is erased.
[[nodiscard]] ops::images::Rectangle draw_erased(const images::Extent& size, double probability, Random random);

/// If `mixes` is true, appends the fields other_labels, shares and other_shares to `fields`.
void add_labels_of_mixtures(bool mixes, std::vector<SampleField>& fields);
/// Writes `label` to out[0]. If `out` has more fields, also writes `other` to out[1], `share` to out[2] and 1 - share
/// to out[3]. `label` and `share` belong to the sample itself, `other` and 1 - share to the sample with which it is
/// mixed.
void put_labels(std::int32_t label, std::int32_t other, float share, std::span<const std::span<std::byte>> out);

}  // namespace lockstep::nn::detail
