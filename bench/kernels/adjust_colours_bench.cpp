#include "tests/kernels/adjust_colours_cases.hpp"

namespace lockstep::bench {

/// ImageNet batches of one rank: torchvision's colour jitter in all orders; one change without a contrast.
std::vector<testing::OpCase> adjust_colours_bench() {
  const Shape images{64, 224, 224, 3};
  return {testing::adjust_colours_case({images, testing::colour_orders(1.2), 0, "jitter"}),
          testing::adjust_colours_case(
              {images, {{testing::colour_change(ops::ColourKind::brightness, 0.8)}}, 0, "brightness"})};
}

}  // namespace lockstep::bench
