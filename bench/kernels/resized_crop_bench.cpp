#include "tests/kernels/resized_crop_cases.hpp"

namespace lockstep::bench {

/// Batches of one rank: pictures as large as ImageNet's usually are, half of each or all of it; pictures of a camera.
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
