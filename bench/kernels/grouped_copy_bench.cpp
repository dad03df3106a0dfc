#include "tests/kernels/grouped_copy_cases.hpp"

namespace lockstep::bench {

/// The parameters of ResNet-50's batch norms (106 of 64 to 2048 numbers), tensors of 4 KiB, and a few large ones.
std::vector<testing::OpCase> grouped_copy_bench() {
  std::vector<testing::GroupedPair> norms;
  const auto stage = [&](int blocks, std::int64_t width) {
    for (int block = 0; block < blocks; ++block) {
      for (const std::int64_t channels : {width, width, 4 * width}) {
        norms.insert(norms.end(), 2, {Shape{channels}, DType::f32});
      }
    }
    norms.insert(norms.end(), 2, {Shape{4 * width}, DType::f32});  // of the skip
  };
  norms.insert(norms.end(), 2, {Shape{64}, DType::f32});
  stage(3, 64);
  stage(4, 128);
  stage(6, 256);
  stage(3, 512);
  return {testing::grouped_copy_case("batch norms", norms),
          testing::grouped_copy_case("4 KiB", {80, {Shape{1024}, DType::f32}}),
          testing::grouped_copy_case("32 MiB", {4, {Shape{8 << 20}, DType::f32}})};
}

}  // namespace lockstep::bench
