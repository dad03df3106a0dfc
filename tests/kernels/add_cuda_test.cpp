// Tests add on a GPU: in-place calls, and more than 2^31 elements. cuda_cases_test.cpp runs the test cases that every
// op has.
#include <array>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/add_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaAdd = CudaTest;

TEST_F(CudaAdd, InPlace) {
  for (const bool first : {true, false}) {
    OpCase item;
    item.name = first ? "add, out is a" : "add, out is b";
    item.inputs = {{"other", Shape{1031}, DType::f32, normal(1)}};
    item.outputs = {{"out", Shape{1031}, DType::f32, normal(2)}};
    item.run = [=](Context& context, Views in, Views out, const TensorView&) {
      ops::add(context, first ? out[0] : in[0], first ? in[0] : out[0], out[0]);
    };
    compare(item, cpu(), item, cuda(), 0);
  }
}

TEST_F(CudaAdd, Beyond2To31Elements) {
  run_large([&] {
    const std::int64_t count = kLarge + 77;
    const Tensor out = Tensor::empty(cuda(), Shape{count}, DType::bf16);
    ops::fill(cuda(), 1.5, out);
    ops::add(cuda(), out, out, out);
    for (const std::int64_t begin : {std::int64_t{0}, kLarge - 8, count - 16}) {
      EXPECT_EQ(fetch(out.view().slice(0, begin, begin + 16)), std::vector<double>(16, 3)) << begin;
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
