#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <lockstep/kernels/pool2d.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct PoolParams {
  Shape x;  ///< (N, H, W, C)
  ops::PoolDesc desc;
  DType dtype = DType::f32;
};

inline std::string name_of_pool(const char* op, const PoolParams& p) {
  const ops::PoolDesc& d = p.desc;
  return concat(op, ' ', p.dtype, ' ', p.x, " kernel ", d.kernel[0], 'x', d.kernel[1], " stride ", d.stride[0], 'x',
                d.stride[1], " pad ", d.pad_before[0], ' ', d.pad_before[1], ' ', d.pad_after[0], ' ', d.pad_after[1]);
}

/// inputs: x, of small integers, so that there are ties; outputs: y, index (unless inference).
inline OpCase max_pool2d_forward_case(const PoolParams& p, bool inference = false) {
  OpCase item;
  item.name = name_of_pool("max_pool2d_forward", p) + (inference ? " inference" : "");
  item.dtype = p.dtype;
  item.inputs = {{"x", p.x, p.dtype, integers(1, -4, 4)}};
  item.outputs = {{"y", ops::pooled_shape(p.desc, p.x), p.dtype, {}}};
  if (!inference) {
    item.outputs.push_back({"index", ops::pooled_shape(p.desc, p.x), DType::i32, {}});
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::max_pool2d_forward(context, p.desc, in[0], out[0], inference ? TensorView() : out[1]);
  };
  item.bytes = tensor_bytes(item);
  return item;
}

/// A winner for each output: some pixel of its window.
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

/// inputs: dy, index; outputs: dx.
inline OpCase max_pool2d_backward_case(const PoolParams& p) {
  OpCase item;
  item.name = name_of_pool("max_pool2d_backward", p);
  item.dtype = p.dtype;
  item.inputs = {{"dy", ops::pooled_shape(p.desc, p.x), p.dtype, normal(2)},
                 {"index", ops::pooled_shape(p.desc, p.x), DType::i32, winners(p)}};
  item.outputs = {{"dx", p.x, p.dtype, {}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::max_pool2d_backward(context, p.desc, in[0], in[1], out[0]);
  };
  item.bytes = tensor_bytes(item);
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// inputs: x; outputs: y.
inline OpCase global_average_pool_forward_case(const Shape& x, DType dtype) {
  OpCase item;
  item.name = concat("global_average_pool_forward ", dtype, ' ', x);
  item.dtype = dtype;
  item.inputs = {{"x", x, dtype, normal(1, 1, 0.5)}};
  item.outputs = {{"y", Shape{x[0], x[3]}, dtype, {}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::global_average_pool_forward(context, in[0], out[0]);
  };
  item.bytes = tensor_bytes(item);
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// inputs: dy; outputs: dx.
inline OpCase global_average_pool_backward_case(const Shape& x, DType dtype) {
  OpCase item;
  item.name = concat("global_average_pool_backward ", dtype, ' ', x);
  item.dtype = dtype;
  item.inputs = {{"dy", Shape{x[0], x[3]}, dtype, normal(1)}};
  item.outputs = {{"dx", x, dtype, {}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::global_average_pool_backward(context, in[0], out[0]);
  };
  item.bytes = tensor_bytes(item);
  item.tolerance = dtype == DType::f64 ? 1e-15 : 1e-7;
  return item;
}

/// The pool of ResNet-50's stem, windows that overlap, leave gaps, are padded on one side, are the whole image, and
/// odd numbers of channels below and above a block.
inline std::vector<PoolParams> max_pool2d_params() {
  std::vector<PoolParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    all.push_back({{1, 1, 1, 1}, {}, dtype});
    all.push_back({{2, 12, 12, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype});
    all.push_back({{2, 11, 9, 17}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype});
    all.push_back({{3, 8, 8, 7}, {{2, 2}, {2, 2}, {0, 0}, {0, 0}}, dtype});
    all.push_back({{2, 7, 10, 33}, {{3, 2}, {1, 1}, {2, 0}, {0, 1}}, dtype});
    all.push_back({{2, 9, 7, 3}, {{2, 1}, {3, 4}, {0, 0}, {1, 0}}, dtype});
    all.push_back({{1, 5, 6, 129}, {{5, 6}, {1, 1}, {0, 0}, {0, 0}}, dtype});
    all.push_back({{2, 5, 5, 2}, {{4, 4}, {3, 3}, {3, 3}, {3, 3}}, dtype});
    all.push_back({{0, 5, 5, 2}, {{2, 2}, {1, 1}, {0, 0}, {0, 0}}, dtype});
    all.push_back({{4, 30, 31, 67}, {{3, 3}, {2, 2}, {0, 0}, {1, 1}}, dtype});
  }
  return all;
}

inline std::vector<Shape> global_average_pool_shapes() {
  return {{1, 1, 1, 1}, {2, 8, 8, 64}, {3, 7, 7, 129}, {2, 1, 5, 31}, {1, 40, 41, 3}, {0, 2, 2, 4}, {37, 7, 9, 65}};
}

inline std::vector<OpCase> pool2d_cases() {
  std::vector<OpCase> items;
  for (const PoolParams& p : max_pool2d_params()) {
    items.push_back(max_pool2d_forward_case(p));
    items.push_back(max_pool2d_forward_case(p, true));
    items.push_back(max_pool2d_backward_case(p));
  }
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : global_average_pool_shapes()) {
      items.push_back(global_average_pool_forward_case(shape, dtype));
      items.push_back(global_average_pool_backward_case(shape, dtype));
    }
  }
  return items;
}

inline std::vector<DeviceCase> pool2d_device_cases() {
  std::vector<DeviceCase> items;
  for (PoolParams p : max_pool2d_params()) {
    if (p.dtype == DType::f32) {
      const auto with = [&](DType dtype) {
        p.dtype = dtype;
        return p;
      };
      append(items, device_cases([&](DType dtype) { return max_pool2d_forward_case(with(dtype)); }));
      append(items, device_cases([&](DType dtype) { return max_pool2d_forward_case(with(dtype), true); }));
      append(items, device_cases([&](DType dtype) { return max_pool2d_backward_case(with(dtype)); }));
    }
  }
  for (const Shape& shape : global_average_pool_shapes()) {
    append(items, device_cases([&](DType dtype) { return global_average_pool_forward_case(shape, dtype); }));
    append(items, device_cases([&](DType dtype) { return global_average_pool_backward_case(shape, dtype); }));
  }
  return items;
}

}  // namespace lockstep::testing
