#pragma once

#include <vector>

#include <lockstep/kernels/subsample_pad.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct SubsamplePadParams {
  Shape x;                    ///< shape of the input (N, H, W, C)
  std::int64_t out_channels;  ///< number of channels K of the output
  std::int64_t stride = 2;
  DType dtype = DType::f32;
};

inline Shape subsampled(const SubsamplePadParams& p) {
  return {p.x[0], (p.x[1] + p.stride - 1) / p.stride, (p.x[2] + p.stride - 1) / p.stride, p.out_channels};
}

/// Makes a test case of subsample_pad_forward(). Input: x; output: y.
inline OpCase subsample_pad_forward_case(const SubsamplePadParams& p) {
  OpCase item;
  item.name = concat("subsample_pad_forward ", p.dtype, ' ', p.x, " to ", p.out_channels, " stride ", p.stride);
  item.dtype = p.dtype;
  item.inputs = {{"x", p.x, p.dtype, normal(1)}};
  item.outputs = {{"y", subsampled(p), p.dtype, {}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::subsample_pad_forward(context, p.stride, in[0], out[0]);
  };
  Shape read = subsampled(p);
  read[3] = p.x[3];
  item.bytes = static_cast<double>(read.numel() + subsampled(p).numel()) * static_cast<double>(size_of(p.dtype));
  return item;
}

/// Makes a test case of subsample_pad_backward(). Input: dy; output: dx.
inline OpCase subsample_pad_backward_case(const SubsamplePadParams& p, ops::GradMode mode) {
  const bool add = mode == ops::GradMode::accumulate;
  OpCase item;
  item.name = concat("subsample_pad_backward ", p.dtype, ' ', p.x, " to ", p.out_channels, " stride ", p.stride,
                     add ? " accumulate" : "");
  item.dtype = p.dtype;
  item.inputs = {{"dy", subsampled(p), p.dtype, normal(1)}};
  item.outputs = {{"dx", p.x, p.dtype, add ? normal(2) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::subsample_pad_backward(context, p.stride, in[0], mode, out[0]);
  };
  Shape read = subsampled(p);
  read[3] = p.x[3];
  item.bytes = static_cast<double>(read.numel() * (add ? 3 : 1) + (add ? 0 : p.x.numel())) *
               static_cast<double>(size_of(p.dtype));
  item.tolerance = add ? (p.dtype == DType::f64 ? 1e-15 : 1e-7) : 0;
  return item;
}

/// Returns parameters of test cases: odd sizes, an odd number of new channels, no new channels, strides that do not
/// divide the size, a stride larger than the image, and 16-byte pieces that hold both old and new channels.
inline std::vector<SubsamplePadParams> subsample_pad_params() {
  std::vector<SubsamplePadParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    all.push_back({{1, 1, 1, 1}, 1, 1, dtype});
    all.push_back({{1, 1, 1, 1}, 4, 2, dtype});
    all.push_back({{2, 8, 8, 16}, 32, 2, dtype});
    all.push_back({{3, 7, 5, 3}, 8, 2, dtype});
    all.push_back({{2, 5, 9, 7}, 7, 2, dtype});
    all.push_back({{2, 6, 7, 5}, 6, 1, dtype});
    all.push_back({{1, 10, 11, 2}, 5, 3, dtype});
    all.push_back({{2, 3, 4, 3}, 4, 7, dtype});
    all.push_back({{0, 3, 4, 3}, 4, 2, dtype});
    all.push_back({{3, 5, 6, 8}, 12, 2, dtype});
    all.push_back({{13, 31, 33, 17}, 31, 2, dtype});
  }
  return all;
}

inline std::vector<DeviceCase> subsample_pad_device_cases() {
  const auto backward = [](ops::GradMode mode) {
    return [=](const SubsamplePadParams& p) { return subsample_pad_backward_case(p, mode); };
  };
  return device_cases(subsample_pad_params(), subsample_pad_forward_case, backward(ops::GradMode::overwrite),
                      backward(ops::GradMode::accumulate));
}

}  // namespace lockstep::testing
