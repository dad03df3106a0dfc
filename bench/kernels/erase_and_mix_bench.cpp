#include "tests/kernels/erase_and_mix_cases.hpp"

namespace lockstep::bench {

/// ImageNet batches of one rank: random erasing in place, and mixup and cutmix of pairs.
std::vector<testing::OpCase> erase_and_mix_bench() {
  return {testing::erase_and_mix_case({Shape{64, 1, 224, 224, 3}, 0, true}),
          testing::erase_and_mix_case({Shape{64, 2, 224, 224, 3}})};
}

}  // namespace lockstep::bench
