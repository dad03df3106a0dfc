#include "tests/kernels/linear_epilogue_cases.hpp"

namespace lockstep::bench {

/// Behind the products of a transformer block of width 768 (GPT-2 small) on 8 sequences of 1024: the hidden layer, and
/// the projection that is added to the stream of the block.
std::vector<testing::OpCase> linear_epilogue_bench() {
  using ops::Activation;
  using testing::LinearEpilogueParams;
  std::vector<testing::OpCase> items;
  for (const LinearEpilogueParams& p :
       {LinearEpilogueParams{.kind = Activation::gelu, .shape = {8192, 3072}, .residual = false},
        LinearEpilogueParams{.kind = Activation::identity, .shape = {8192, 768}}}) {
    items.push_back(testing::linear_epilogue_forward_case(p));
    items.push_back(testing::linear_epilogue_backward_case(p));
  }
  return items;
}

}  // namespace lockstep::bench
