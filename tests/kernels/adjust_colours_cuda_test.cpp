// Tests colour changes on a GPU: a grid of all colours, factors out of range, and two calls in a row with the same
// workspace. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>
#include <limits>

#include "tests/kernels/adjust_colours_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaAdjustColours = CudaTest;

/// Compares GPU and host on every combination of 16 values per channel. The colours include hues at the borders of the
/// sixths of the colour circle.
TEST_F(CudaAdjustColours, AGridOfColoursIsThatOfTheHost) {
  std::vector<double> grid;
  for (int color = 0; color < 16 * 16 * 16; ++color) {
    for (const int value : {color % 16, color / 16 % 16, color / 256}) {
      grid.push_back(value * 17);
    }
  }
  AdjustColoursParams p{Shape{0, 64, 64, 3}, {}, 0, "grid"};
  for (const double turn : {-0.5, -0.37, -1.0 / 6, -1e-9, 0.0, 0.01, 1.0 / 3, 0.5}) {
    p.lists.push_back({{4, turn}, {3, 1.7}});
  }
  p.images[0] = static_cast<std::int64_t>(p.lists.size());
  std::vector<double> images;
  for (std::size_t n = 0; n < p.lists.size(); ++n) {
    images.insert(images.end(), grid.begin(), grid.end());
  }
  OpCase item = adjust_colours_case(p);
  item.outputs[0].start = values(images);
  compare(item, cpu(), item, cuda(), 0);
}

/// Compares GPU and host on all 256 byte values, as grey pixels and in the red channel alone. The factors are very
/// small, large, and multiples of a half. With multiples of a half, products are halfway between two bytes.
TEST_F(CudaAdjustColours, AllBytesAreThoseOfTheHost) {
  std::vector<double> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.insert(bytes.end(), {static_cast<double>(byte), static_cast<double>(byte), static_cast<double>(byte)});
    bytes.insert(bytes.end(), {static_cast<double>(byte), 40.0, 200.0});
  }
  for (const double factor : {1e-30, 1e-3, 0.25, 0.5, 1.5, 1.0 - 1e-7, 1.0, 1.3, 100.0, 1e30}) {
    for (const double kind : {1.0, 2.0, 3.0}) {
      OpCase item = adjust_colours_case({Shape{1, 2, 256, 3}, {{{kind, factor}, {4, 0.1}}}, 0, "all bytes"});
      item.outputs[0].start = values(bytes);
      compare(item, cpu(), item, cuda(), 0);
    }
  }
}

TEST_F(CudaAdjustColours, WhatIsNoKindCountsAsNone) {
  const double infinity = std::numeric_limits<double>::infinity();
  AdjustColoursParams p{Shape{11, 5, 7, 3}, {}, 0, "no kinds"};
  for (const double kind : {-0.0, -1.0, 5.0, 1.5, 3.9999, 1e300, std::nan(""), infinity, -infinity, 4294967297.0}) {
    p.lists.push_back({{kind, 0.3}, {2, 0.4}, {kind, std::nan("")}, {2, 0.1}});
  }
  compare(adjust_colours_case(p), cpu(), adjust_colours_case(p), cuda(), 0);
}

TEST_F(CudaAdjustColours, FactorsOutOfRangeChangeNoOtherImage) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double factor : {std::nan(""), infinity, -infinity, -3.0, 1e300}) {
    for (const double kind : {1.0, 2.0, 3.0, 4.0}) {
      AdjustColoursParams p{Shape{3, 3, 7, 3}, {{{1, 0.5}}, {{kind, factor}, {2, factor}}, {{2, 0.5}}}, 0, "any bytes"};
      const CheckedRun bad(adjust_colours_case(p), cuda());
      p.lists[1] = {};
      const CheckedRun good(adjust_colours_case(p), cuda());
      for (const std::int64_t n : {0, 2}) {
        expect_same_bits(bad.output(0).view().slice(0, n, n + 1), good.output(0).view().slice(0, n, n + 1));
      }
    }
  }
}

/// Each call must set its sums of grey values in the workspace to 0 first, so a second call with the same workspace
/// gives the host's result.
TEST_F(CudaAdjustColours, TwoCallsWithOneWorkspaceAreThoseOfTheHost) {
  OpCase item = adjust_colours_case({Shape{24, 9, 7, 3}, colour_orders(0.7), 0, "twice"});
  item.run = [run = item.run](Context& context, Views in, Views out, const TensorView& workspace) {
    run(context, in, out, workspace);
    run(context, in, out, workspace);
  };
  compare(item, cpu(), item, cuda(), 0);
}

TEST_F(CudaAdjustColours, HasTheSameBitsEachTime) {
  expect_repeatable(adjust_colours_case({Shape{5, 47, 45, 3}, colour_orders(0.7), 0, "again"}), cuda());
}

}  // namespace
}  // namespace lockstep::testing
