#include "tests/kernels/adjust_colours_cases.hpp"
#include "tests/kernels/augment_cases.hpp"
#include "tests/kernels/erase_and_mix_cases.hpp"
#include "tests/kernels/resized_crop_cases.hpp"

namespace lockstep::bench {

/// Returns cases for batches of one rank: CIFAR-10 with its usual padding, and ImageNet crops.
std::vector<testing::OpCase> augment_bench() {
  return {testing::augment_case({Shape{128, 32, 32, 4}, DType::f32, 4, true, 128}),
          testing::augment_case({Shape{32, 224, 224, 4}, DType::f32, 0, true, 32})};
}

/// Returns cases for ImageNet batches of one rank: torchvision's colour jitter with its changes in all orders, and
/// brightness alone.
std::vector<testing::OpCase> adjust_colours_bench() {
  const Shape images{64, 224, 224, 3};
  return {testing::adjust_colours_case({images, testing::colour_orders(1.2), 0, "jitter"}),
          testing::adjust_colours_case(
              {images, {{testing::colour_change(ops::ColourKind::brightness, 0.8)}}, 0, "brightness"})};
}

/// Returns cases for ImageNet batches of one rank: random erasing in place, and mixup and cutmix of pairs of images.
std::vector<testing::OpCase> erase_and_mix_bench() {
  return {testing::erase_and_mix_case({Shape{64, 1, 224, 224, 3}, 0, true}),
          testing::erase_and_mix_case({Shape{64, 2, 224, 224, 3}})};
}

/// Returns cases for batches of one rank. Three cases use a picture of ImageNet's usual size: a part of the picture,
/// the full picture, and the full picture transposed. The last case uses a full picture of a camera's size.
std::vector<testing::OpCase> resized_crop_bench() {
  constexpr std::int64_t kSize = 224;
  const auto batch = [](const char* name, std::size_t samples, const testing::CropRow& row) {
    return testing::resized_crop_case({name, kSize, kSize, std::vector<testing::CropRow>(samples, row)});
  };
  return {
      batch("part of 500 x 375", 64,
            {500, 375, testing::crop_axis(60, 410, kSize), testing::crop_axis(40, 310, kSize)}),
      batch("500 x 375", 64, {500, 375, testing::crop_axis(0, 500, kSize), testing::crop_axis(0, 375, kSize)}),
      batch("500 x 375 turned", 64,
            {500, 375, testing::crop_axis(0, 500, kSize), testing::crop_axis(0, 375, kSize), true}),
      batch("3000 x 2000", 8, {3000, 2000, testing::crop_axis(0, 3000, kSize), testing::crop_axis(0, 2000, kSize)})};
}

}  // namespace lockstep::bench
