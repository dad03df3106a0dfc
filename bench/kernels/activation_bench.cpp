#include "tests/kernels/activation_cases.hpp"

namespace lockstep::bench {

/// The hidden layer of a transformer block of width 768 (GPT-2 small), 8 sequences of 1024.
std::vector<testing::OpCase> activation_bench() {
  std::vector<testing::OpCase> items;
  for (const ops::Activation kind : testing::kActivations) {
    items.push_back(testing::activation_forward_case(kind, {8192, 3072}, DType::f32));
    items.push_back(testing::activation_backward_case(kind, {8192, 3072}, DType::f32));
  }
  return items;
}

}  // namespace lockstep::bench
