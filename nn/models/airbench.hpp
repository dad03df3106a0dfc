#pragma once

#include <array>
#include <cstdint>

#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

struct AirbenchOptions {
  std::int64_t classes = 10;
  std::int64_t height = 32;
  std::int64_t width = 32;
  std::array<std::int64_t, 3> widths{64, 256, 256};  ///< channels of the three groups
  double norm_momentum = 0.4;  ///< weight, 0 to 1, of a new batch when the running statistics are updated
  double logit_scale = 1.0 / 9;
};

/// Side in pixels of the patches that airbench94's first convolution whitens, and number of filters of this
/// convolution. Each direction in the space of three-channel patches has two filters of opposite sign.
inline constexpr std::int64_t kWhitenedSide = 2;
inline constexpr std::int64_t kWhiteningFilters = 2 * 3 * kWhitenedSide * kWhitenedSide;

/// The network of airbench94 for small images (H, W, 3), from Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single
/// GPU" (arXiv 2404.00498), sections 3.1 to 3.3:
///
///   whiten       convolution 2 x 2 to 24 channels with a bias, without padding; gelu
///   group1,2,3   conv1 3 x 3, max pool 2 x 2, norm1, gelu, conv2 3 x 3, norm2, gelu
///   pool         max pool 3 x 3 at stride 3
///   head         linear, without a bias; times logit_scale
///
/// The weight of `whiten` is frozen. whitening_filters() computes it from the training images, for
/// Model::with_initial_value("whiten.weight", ..). The norms have scales that are frozen at 1, and epsilon 1e-12. The
/// convolutions of the groups begin with ConvInit::identity. The model has 1,972,792 parameters for ten classes of 32 x
/// 32 images. Throws UsageError for images of less than 25 pixels a side, because the pools would leave no pixels, and
/// for `widths` or `classes` below 1.
[[nodiscard]] Model airbench94(const AirbenchOptions& options = {});

}  // namespace lockstep::nn
