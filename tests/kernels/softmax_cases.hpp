#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <lockstep/kernels/softmax.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline constexpr double kSoftmaxScale = 0.375;  // about 1 / sqrt(d) of an attention head, but with few bits

/// Makes a test case of softmax_forward(). Input: x; output: y. The in-place variant has no x, and y starts with the
/// values of x. x holds small integers, which every type represents exactly.
inline OpCase softmax_forward_case(const Shape& shape, DType dtype, ops::SoftmaxMask mask, bool in_place = false) {
  OpCase item;
  item.name = concat("softmax_forward ", dtype, ' ', shape, mask == ops::SoftmaxMask::causal ? " causal" : "",
                     in_place ? " in place" : "");
  item.dtype = dtype;
  if (!in_place) {
    item.inputs = {{"x", shape, dtype, integers(1, -9, 9)}};
  }
  item.outputs = {{"y", shape, dtype, in_place ? integers(1, -9, 9) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::softmax_forward(context, in_place ? out[0] : in[0], kSoftmaxScale, mask, out[0]);
  };
  item.bytes = 2 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  item.tolerance = dtype == DType::f64 ? 1e-13 : 2e-6;
  return item;
}

/// Generates the numbers of `others`, but sets every third element to `value`.
inline Generator every_third(Generator others, double value) {
  return [=](GuardedTensor& tensor) {
    others(tensor);
    std::vector<double> all = tensor.values();
    for (std::size_t i = 0; i < all.size(); i += 3) {
      all[i] = value;
    }
    tensor.assign(all);
  };
}

/// The tensor that dx overwrites: dy or y. apart: dx overwrites neither.
enum class SoftmaxGradient : std::uint8_t { apart, over_dy, over_y };

/// Makes a test case of softmax_backward(). Inputs: y and dy, unless dx overwrites them; output: dx. Every third y is
/// 0, as for a masked key, and its dy is NaN, which must have no effect. The other y are random numbers, not outputs of
/// a softmax.
inline OpCase softmax_backward_case(const Shape& shape, DType dtype, SoftmaxGradient place = SoftmaxGradient::apart) {
  const Generator y = every_third(uniform(2, 0.25, 1), 0);
  const Generator dy = every_third(normal(3), std::numeric_limits<double>::quiet_NaN());
  OpCase item;
  item.name = concat("softmax_backward ", dtype, ' ', shape, place == SoftmaxGradient::over_dy ? " over dy" : "",
                     place == SoftmaxGradient::over_y ? " over y" : "");
  item.dtype = dtype;
  item.outputs = {{"dx", shape, dtype, {}}};
  if (place == SoftmaxGradient::over_y) {
    item.outputs[0].start = y;
  } else {
    item.inputs.push_back({"y", shape, dtype, y});
  }
  if (place == SoftmaxGradient::over_dy) {
    item.outputs[0].start = dy;
  } else {
    item.inputs.push_back({"dy", shape, dtype, dy});
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::softmax_backward(context, place == SoftmaxGradient::over_y ? out[0] : in[0],
                          place == SoftmaxGradient::over_dy ? out[0] : in[in.size() - 1], kSoftmaxScale, out[0]);
  };
  item.bytes = 3 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  item.tolerance = dtype == DType::f64 ? 1e-12 : 5e-6;
  return item;
}

/// Makes a test case whose rows contain infinities and a NaN; softmax_special_values() returns the expected outputs.
/// Without a mask the shape is (5, 4). With the causal mask it is (2, 2, 3), and the NaN of the first row is masked.
inline OpCase softmax_special_case(DType dtype, ops::SoftmaxMask mask) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const bool causal = mask == ops::SoftmaxMask::causal;
  OpCase item = softmax_forward_case(causal ? Shape{2, 2, 3} : Shape{5, 4}, dtype, mask);
  item.inputs[0].start =
      causal ? values({0, 0, kNaN, 0, kNaN, 0, -kInf, -kInf, 1, 1, 1, 1})
             : values({1, -kInf, 1, -kInf, -kInf, -kInf, -kInf, -kInf, 1, kInf, 0, 0, 0, kNaN, 1, 2, 3, 3, 3, 3});
  return item;
}
inline std::vector<double> softmax_special_values(ops::SoftmaxMask mask) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (mask == ops::SoftmaxMask::causal) {
    return {0.5, 0.5, 0, kNaN, kNaN, kNaN, kNaN, kNaN, 0, 1.0 / 3, 1.0 / 3, 1.0 / 3};
  }
  return {0.5,  0,    0.5,  0,    kNaN, kNaN, kNaN, kNaN, kNaN, kNaN,
          kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, 0.25, 0.25, 0.25, 0.25};
}

/// Makes a test case of large numbers. Their products with the scale have rounding errors far greater than 1, and
/// overflow in the second row.
inline OpCase softmax_large_case(double scale) {
  OpCase item = softmax_forward_case(Shape{2, 3}, DType::f32, ops::SoftmaxMask::none);
  item.inputs[0].start = values({1e30, -1e30, 1e30, 3e38, -3e38, -3e38});
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::softmax_forward(context, in[0], scale, ops::SoftmaxMask::none, out[0]);
  };
  return item;
}

/// Returns the largest error of y against softmax_special_values(); infinity if only one of two values is NaN.
inline double softmax_special_error(const std::vector<double>& y, ops::SoftmaxMask mask) {
  const std::vector<double> expected = softmax_special_values(mask);
  double worst = y.size() == expected.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(y.size(), expected.size()); ++i) {
    if (std::isnan(y[i]) != std::isnan(expected[i])) {
      return std::numeric_limits<double>::infinity();
    }
    worst = std::isnan(y[i]) ? worst : std::max(worst, std::abs(y[i] - expected[i]));
  }
  return worst;
}

/// Returns shapes: one element, one column, no row, no column, sizes near that of a warp, rows that need a whole block,
/// and more of these rows than a grid has blocks.
inline std::vector<Shape> softmax_shapes() {
  return {Shape{1},     Shape{5, 1},   Shape{7},      Shape{0, 5},    Shape{3, 0},      Shape{3, 5, 31},
          Shape{9, 33}, Shape{59, 64}, Shape{3, 129}, Shape{7, 1025}, Shape{2, 2, 2048}};
}
/// Returns shapes (.., T, K) of T queries and K keys: one query, as many queries as keys, fewer queries than keys,
/// groups of several rows, more rows than a grid handles at once, and rows that need a whole block.
inline std::vector<Shape> softmax_causal_shapes() {
  return {Shape{1, 1},         Shape{1, 5},      Shape{2, 0, 3}, Shape{2, 5, 5},
          Shape{2, 2, 17, 17}, Shape{3, 19, 40}, Shape{3, 1040}, Shape{2, 1027}};
}

inline std::vector<OpCase> softmax_forward_cases(ops::SoftmaxMask mask) {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : mask == ops::SoftmaxMask::causal ? softmax_causal_shapes() : softmax_shapes()) {
      for (const bool in_place : {false, true}) {
        items.push_back(softmax_forward_case(shape, dtype, mask, in_place));
      }
    }
  }
  return items;
}

inline std::vector<OpCase> softmax_backward_cases(SoftmaxGradient place) {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : softmax_shapes()) {
      items.push_back(softmax_backward_case(shape, dtype, place));
    }
  }
  return items;
}

inline std::vector<DeviceCase> softmax_device_cases() {
  using ops::SoftmaxMask;
  std::vector<DeviceCase> items;
  for (const Shape& shape : softmax_shapes()) {
    append(items, device_cases([&](DType dtype) { return softmax_forward_case(shape, dtype, SoftmaxMask::none); }));
    append(items, device_cases([&](DType dtype) { return softmax_backward_case(shape, dtype); }));
  }
  for (const Shape& shape : softmax_causal_shapes()) {
    append(items, device_cases([&](DType dtype) { return softmax_forward_case(shape, dtype, SoftmaxMask::causal); }));
  }
  const Shape square{2, 24, 24};
  for (const SoftmaxMask mask : {SoftmaxMask::none, SoftmaxMask::causal}) {
    append(items, device_cases([&](DType dtype) { return softmax_forward_case(square, dtype, mask, true); }));
  }
  for (const SoftmaxGradient place : {SoftmaxGradient::over_dy, SoftmaxGradient::over_y}) {
    append(items, device_cases([&](DType dtype) { return softmax_backward_case(square, dtype, place); }));
  }
  return items;
}

}  // namespace lockstep::testing
