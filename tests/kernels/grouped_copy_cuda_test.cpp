// Tests grouped copies on a GPU: sources and targets that begin at different distances from a 16-byte boundary, and
// more than 2^31 bytes. cuda_cases_test.cpp runs the test cases that every op has.
#include <lockstep/kernels/fill.hpp>

#include "tests/kernels/grouped_copy_cases.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using CudaGroupedCopy = CudaTest;

TEST_F(CudaGroupedCopy, SidesAtAnyDistanceFromABoundary) {
  constexpr std::int64_t kCount = 1200;
  std::vector<std::uint8_t> values(kCount);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
  }
  const Tensor src = Tensor::zeros(cuda(), Shape{kCount}, DType::u8);
  const Tensor dst = Tensor::zeros(cuda(), Shape{kCount}, DType::u8);
  copy_now(cuda(), TensorView(std::span(values), Shape{kCount}), src);
  std::vector<double> expected(kCount, 0);
  std::vector<ops::CopyPair> pairs;
  std::int64_t at = 0;
  for (const std::int64_t from : {0, 1, 2, 4, 8, 6}) {
    for (const std::int64_t to : {0, 4, 8, 3}) {
      for (const std::int64_t bytes : {16, 7}) {
        const std::int64_t end = at / 16 * 16 + 16 + to;  // end of the previous pair, rounded up to 16 bytes
        pairs.push_back({src.view().slice(0, 32 + from, 32 + from + bytes), dst.view().slice(0, end, end + bytes)});
        for (std::int64_t i = 0; i < bytes; ++i) {
          expected[static_cast<std::size_t>(end + i)] = values[static_cast<std::size_t>(32 + from + i)];
        }
        at = end + bytes;
      }
    }
  }
  ASSERT_LT(at, kCount);
  ops::grouped_copy(cuda(), pairs);
  EXPECT_EQ(fetch(dst), expected);
}

TEST_F(CudaGroupedCopy, Beyond2To31Bytes) {
  run_large([&] {
    const std::int64_t count = kLarge + 48;
    const Tensor src = Tensor::empty(cuda(), Shape{count}, DType::u8);
    const Tensor dst = Tensor::empty(cuda(), Shape{count}, DType::u8);
    ops::fill(cuda(), 1, src);
    ops::fill(cuda(), 2, dst);
    ops::fill(cuda(), 9, src.view().slice(0, count - 1, count));
    const std::vector<ops::CopyPair> pairs{{src.view().slice(0, 16, count), dst.view().slice(0, 16, count)},
                                           {src.view().slice(0, 0, 3), dst.view().slice(0, 0, 3)}};
    ops::grouped_copy(cuda(), pairs);
    std::vector<double> end(16, 1);
    end.back() = 9;
    EXPECT_EQ(fetch(dst.view().slice(0, count - 16, count)), end);
    EXPECT_EQ(fetch(dst.view().slice(0, 0, 5)), (std::vector<double>{1, 1, 1, 2, 2}));
  });
}

}  // namespace
}  // namespace lockstep::testing
