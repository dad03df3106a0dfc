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

/// What is drawn for an image of AugmentedImages, whoever does it then.
namespace lockstep::nn::detail {

/// Parts of the key of an image's draws. Never renumber.
enum class Draw : std::uint64_t { placement = 0, crop = 1, jitter = 2, erase = 3, mixture = 4, automatic = 5 };
[[nodiscard]] Random random_for(std::uint64_t seed, Draw draw, std::int64_t epoch, std::int64_t index);

/// In the order in which they are made; at most one of each colour.
void draw_changes(const JitterOptions& options, Random random, std::vector<ops::images::ColourChange>& changes);

/// torchvision's RandomErasing; often none.
[[nodiscard]] ops::images::Rectangle draw_erased(const images::Extent& size, double probability, Random random);

/// The fields other_labels, shares and other_shares of a set that mixes.
void add_labels_of_mixtures(bool mixes, std::vector<SampleField>& fields);
/// Writes the label, and behind it the fields above, where there are any. share: of the sample itself.
void put_labels(std::int32_t label, std::int32_t other, float share, std::span<const std::span<std::byte>> out);

}  // namespace lockstep::nn::detail
