#pragma once

#include <vector>

#include <lockstep/kernels/average_pool2d.hpp>

#include "tests/kernels/pool_params.hpp"

namespace lockstep::testing {

inline std::string name_of_average(const char* op, const PoolParams& p, ops::AverageOver over) {
  return name_of_pool(op, p) + (over == ops::AverageOver::window ? " over the window" : " inside");
}

/// Makes a test case of average_pool2d_forward(). Input: x; output: y.
inline OpCase average_pool2d_forward_case(const PoolParams& p, ops::AverageOver over) {
  return {.name = name_of_average("average_pool2d_forward", p, over),
          .dtype = p.dtype,
          .inputs = {{"x", p.x, p.dtype, normal(1, 1, 0.5)}},
          .outputs = {{"y", ops::pooled_shape(p.desc, p.x), p.dtype, {}}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::average_pool2d_forward(context, p.desc, over, in[0], out[0]); },
          .tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6};
}

/// Makes a test case of average_pool2d_backward(). Input: dy; output: dx.
inline OpCase average_pool2d_backward_case(const PoolParams& p, ops::AverageOver over) {
  return {.name = name_of_average("average_pool2d_backward", p, over),
          .dtype = p.dtype,
          .inputs = {{"dy", ops::pooled_shape(p.desc, p.x), p.dtype, normal(1)}},
          .outputs = {{"dx", p.x, p.dtype, {}}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::average_pool2d_backward(context, p.desc, over, in[0], out[0]); },
          .tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6};
}

/// Makes a test case of global_average_pool_forward(). Input: x; output: y.
inline OpCase global_average_pool_forward_case(const Shape& x, DType dtype) {
  return {.name = concat("global_average_pool_forward ", dtype, ' ', x),
          .dtype = dtype,
          .inputs = {{"x", x, dtype, normal(1, 1, 0.5)}},
          .outputs = {{"y", Shape{x[0], x[3]}, dtype, {}}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::global_average_pool_forward(context, in[0], out[0]); },
          .tolerance = dtype == DType::f64 ? 1e-14 : 1e-6};
}

/// Makes a test case of global_average_pool_backward(). Input: dy; output: dx.
inline OpCase global_average_pool_backward_case(const Shape& x, DType dtype) {
  return {.name = concat("global_average_pool_backward ", dtype, ' ', x),
          .dtype = dtype,
          .inputs = {{"dy", Shape{x[0], x[3]}, dtype, normal(1)}},
          .outputs = {{"dx", x, dtype, {}}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::global_average_pool_backward(context, in[0], out[0]); },
          .tolerance = dtype == DType::f64 ? 1e-15 : 1e-7};
}

inline std::vector<Shape> global_average_pool_shapes() {
  return {{1, 1, 1, 1}, {2, 8, 8, 64}, {3, 7, 7, 129}, {2, 1, 5, 31}, {1, 40, 41, 3}, {0, 2, 2, 4}, {37, 7, 9, 65}};
}

/// Returns test cases of all four ops (forward and backward, windowed and global) in one type.
inline std::vector<OpCase> average_pool2d_cases_in(DType dtype) {
  std::vector<OpCase> items;
  for (const PoolParams& p : pool_params(dtype)) {
    for (const ops::AverageOver over : {ops::AverageOver::window, ops::AverageOver::inside}) {
      items.push_back(average_pool2d_forward_case(p, over));
      items.push_back(average_pool2d_backward_case(p, over));
    }
  }
  for (const Shape& shape : global_average_pool_shapes()) {
    items.push_back(global_average_pool_forward_case(shape, dtype));
    items.push_back(global_average_pool_backward_case(shape, dtype));
  }
  return items;
}

inline std::vector<DeviceCase> average_pool2d_device_cases() {
  std::vector<DeviceCase> items;
  for (std::size_t i = 0; i < average_pool2d_cases_in(DType::f32).size(); ++i) {
    append(items, device_cases([&](DType dtype) { return average_pool2d_cases_in(dtype)[i]; }));
  }
  return items;
}

}  // namespace lockstep::testing
