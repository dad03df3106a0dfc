#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <lockstep/kernels/images/mix.hpp>
#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/images/colour.hpp>
#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/runtime/base/random.hpp>

/// What is drawn for an image of AugmentedImages, whoever does it then.
namespace lockstep::nn::detail {

/// Parts of the key of an image's draws. Never renumber.
enum class Draw : std::uint64_t { placement = 0, crop = 1, jitter = 2, erase = 3, mixture = 4, automatic = 5 };
[[nodiscard]] Random random_for(std::uint64_t seed, Draw draw, std::int64_t epoch, std::int64_t index);

/// In the order in which they are made; at most one of each colour.
void draw_changes(const JitterOptions& options, Random random, std::vector<images::ColourChange>& changes);

/// torchvision's RandomErasing; often none.
[[nodiscard]] ops::images::Rectangle draw_erased(const images::Extent& size, double probability, Random random);

}  // namespace lockstep::nn::detail
