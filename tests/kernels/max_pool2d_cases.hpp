#pragma once

#include <algorithm>
#include <vector>

#include <lockstep/kernels/max_pool2d.hpp>

#include "tests/kernels/pool_params.hpp"

namespace lockstep::testing {

/// Makes a test case of max_pool2d_forward(). Input: x, of small integers, so that windows have ties; outputs: y, and
/// index unless inference.
inline OpCase max_pool2d_forward_case(const PoolParams& p, bool inference = false) {
  OpCase item;
  item.name = name_of_pool("max_pool2d_forward", p) + (inference ? " inference" : "");
  item.dtype = p.dtype;
  item.inputs = {{"x", p.x, p.dtype, integers(1, -4, 4)}};
  item.outputs = {{"y", ops::pooled_shape(p.desc, p.x), p.dtype, {}}};
  add_if(!inference, item.outputs, {"index", ops::pooled_shape(p.desc, p.x), DType::i32, {}});
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::max_pool2d_forward(context, p.desc, in[0], out[0], inference ? TensorView() : out[1]);
  };
  return item;
}

/// Generates the index: for each output element a random pixel of its window.
inline Generator winners(const PoolParams& p) {
  return [=](GuardedTensor& t) {
    t.integers(3, 0, 1 << 20);
    std::vector<double> values = t.values();
    const Shape y = t.view().shape;
    const auto pick = [&](std::size_t axis, std::int64_t out, std::int64_t extent, std::int64_t random) {
      const std::int64_t begin = out * p.desc.stride[axis] - p.desc.pad_before[axis];
      const std::int64_t first = std::max(std::int64_t{0}, begin);
      const std::int64_t last = std::min(extent, begin + p.desc.kernel[axis]);
      return first + random % (last - first);
    };
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      double& value = values[static_cast<std::size_t>(i)];
      const auto random = static_cast<std::int64_t>(value);
      const std::int64_t h = pick(0, i / y[3] / y[2] % y[1], p.x[1], random);
      const std::int64_t w = pick(1, i / y[3] % y[2], p.x[2], random / 64);
      value = static_cast<double>(h * p.x[2] + w);
    }
    t.assign(values);
  };
}

/// Makes a test case of max_pool2d_backward(). Inputs: dy, index; output: dx.
inline OpCase max_pool2d_backward_case(const PoolParams& p) {
  return {.name = name_of_pool("max_pool2d_backward", p),
          .dtype = p.dtype,
          .inputs = {{"dy", ops::pooled_shape(p.desc, p.x), p.dtype, normal(2)},
                     {"index", ops::pooled_shape(p.desc, p.x), DType::i32, winners(p)}},
          .outputs = {{"dx", p.x, p.dtype, {}}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::max_pool2d_backward(context, p.desc, in[0], in[1], out[0]); },
          .tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6};
}

inline std::vector<DeviceCase> max_pool2d_device_cases() {
  return device_cases(
      pool_params(DType::f32), [](const PoolParams& p) { return max_pool2d_forward_case(p); },
      [](const PoolParams& p) { return max_pool2d_forward_case(p, true); }, max_pool2d_backward_case);
}

}  // namespace lockstep::testing
