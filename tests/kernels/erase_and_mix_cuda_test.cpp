// Tests erasing and mixing on a GPU: values out of range, all pairs of bytes, and output and pictures at different
// distances from a 16-byte boundary. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>
#include <limits>

#include "tests/kernels/erase_and_mix_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaEraseAndMix = CudaTest;

TEST_F(CudaEraseAndMix, ValuesOutOfRangeAreThoseOfTheHost) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers{std::nan(""), infinity, -infinity, 1e300, -1e300, -0.5, 1.5, 3e9, -3e9, 0.9, 4};
  for (std::size_t first = 0; first < numbers.size(); ++first) {
    OpCase item = erase_and_mix_case({Shape{11, 2, 5, 7, 3}});
    const auto fill = [&](std::int64_t count, std::size_t step) {
      std::vector<double> table;
      for (std::int64_t i = 0; i < count; ++i) {
        table.push_back(i % 3 == 0 ? 1 : numbers[(first + static_cast<std::size_t>(i) * step) % numbers.size()]);
      }
      return values(table);
    };
    item.inputs[0].start = fill(item.inputs[0].shape.numel(), 3);
    item.inputs[1].start = fill(item.inputs[1].shape.numel(), 5);
    compare(item, cpu(), item, cuda(), 0);
  }
}

/// Mixes each byte of picture 0 with every eighth byte of picture 1. The GPU must give the bytes of the host.
TEST_F(CudaEraseAndMix, PairsOfBytesAreThoseOfTheHost) {
  for (const double share : {1e-8, 0.1, 1.0 / 3, 0.5, 0.7, 0.999999999}) {
    OpCase item = erase_and_mix_case({Shape{1, 2, 32, 256, 3}});
    item.inputs[0].start = constant(0);
    item.inputs[1].start = values({0, share, 0, 0, 0, 0});
    std::vector<double> pixels;
    for (int picture = 0; picture < 2; ++picture) {
      for (int i = 0; i < 32 * 256; ++i) {
        const int byte = picture == 0 ? i % 256 : i / 256 * 8;
        for (int c = 0; c < 3; ++c) {
          pixels.push_back((byte + c) % 256);
        }
      }
    }
    item.inputs[2].start = values(pixels);
    compare(item, cpu(), item, cuda(), 0);
  }
}

TEST_F(CudaEraseAndMix, TheOutputMayBeginAnywhere) {
  for (const std::int64_t begin : {1, 3, 5, 16}) {
    for (const std::int64_t pictures : {1, 2}) {
      const EraseAndMixParams p{Shape{3, pictures, 8, 6, 3}};
      OpCase item = erase_and_mix_case(p);
      const Shape shape = item.outputs[0].shape;
      item.outputs[0].shape = Shape{shape.numel() + begin};
      item.outputs[0].start = constant(7);
      item.run = [=, run = item.run](Context& context, Views in, Views out, const TensorView& none) {
        const std::vector<TensorView> part{out[0].slice(0, begin, shape.numel() + begin).reshape(shape)};
        run(context, in, part, none);
      };
      compare(item, cpu(), item, cuda(), 0);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
