#pragma once

#include <utility>
#include <vector>

#include <lockstep/kernels/batch_norm_fused.hpp>

#include "tests/kernels/batch_norm_calls.hpp"

namespace lockstep::testing {

/// Whether a fused pass writes each output to memory of its own (apart) or overwrites an input (in_place). In place, y
/// overwrites the residual, dx overwrites dy, and masked overwrites dy2.
enum class FusedPlace : unsigned char { apart, in_place };

/// Makes a test case of batch_norm_fused_forward(). Inputs: x, valid, weight, bias; residual if p.residual, unless y
/// overwrites it. Outputs: y, stats, coefficients, running_mean, running_var; mask if p.relu.
///
/// If there is a mask, y never overwrites the residual. y would start with the residual, rounded to the type of the
/// test case, and so the masks of two types would differ.
inline OpCase batch_norm_fused_forward_case(const BatchNormParams& p, FusedPlace place = FusedPlace::apart) {
  const Shape channels{p.shape.back()};
  const bool in_residual = p.residual && !p.relu && place == FusedPlace::in_place;
  OpCase item;
  item.name = name_of_case("fused_forward", p) + (in_residual ? " y in residual" : "");
  item.dtype = p.dtype;
  item.inputs = {{"x", p.shape, p.dtype, normal(1, 2, 0.5)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))},
                 {"weight", channels, parameters_of(p), normal(2)},
                 {"bias", channels, parameters_of(p), normal(3)}};
  add_if(p.residual && !in_residual, item.inputs, {"residual", p.shape, p.dtype, normal(6)});
  item.outputs = {{"y", p.shape, p.dtype, in_residual ? normal(6) : Generator()},
                  {"stats", Shape{2 * p.shape.back() + 1}, parameters_of(p), {}},
                  {"coefficients", Shape{4, p.shape.back()}, parameters_of(p), {}},
                  {"running_mean", channels, parameters_of(p), normal(4)},
                  {"running_var", channels, parameters_of(p), uniform(5, 0.5, 2)}};
  add_if(p.relu, item.outputs, {"mask", mask_shape(p.shape), DType::u8, {}});
  item.workspace_bytes = workspace_for(ops::batch_norm_workspace_bytes, p.dtype, p.shape);
  const auto residual = [=](Views in, Views out) { return !p.residual ? TensorView() : in_residual ? out[0] : in[4]; };
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::batch_norm_fused_forward(context, in[0], p.valid >= 0 ? in[1] : TensorView(), in[2], in[3], 1e-1, 0.1,
                                  residual(in, out), p.relu, out[1], out[3], out[4], out[2], out[0],
                                  p.relu ? out[5] : TensorView(), workspace);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    plain::batch_norm_stats(in[0], p.valid >= 0 ? in[1] : TensorView(), out[1]);
    plain::batch_norm_finalize(out[1], in[2], in[3], 1e-1, 0.1, out[3], out[4], out[2]);
    plain::batch_norm_apply(in[0], out[2], residual(in, out), p.relu, out[0], p.relu ? out[5] : TensorView());
  };
  item.flops = 6.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_fused_backward(). Inputs: x, coefficients, stats, valid; mask if p.relu; dy, and dy2
/// if p.second and p.residual, unless an output overwrites them. Outputs: dx, sums; dweight and dbias unless `mode`
/// ignores them; masked if p.residual.
inline OpCase batch_norm_fused_backward_case(const BatchNormParams& p, ops::GradMode mode,
                                             FusedPlace place = FusedPlace::apart) {
  const std::int64_t channels = p.shape.back();
  const bool second = p.second && p.residual;
  const bool in_place = place == FusedPlace::in_place;
  const bool wanted = mode != ops::GradMode::ignore;
  OpCase item;
  item.name = concat(name_of_case("fused_backward", p), " mode ", static_cast<int>(mode), in_place ? " in place" : "");
  item.dtype = p.dtype;
  item.inputs = {{"x", p.shape, p.dtype, normal(2)},
                 {"coefficients", Shape{4, channels}, parameters_of(p), batch_norm_coefficients(channels)},
                 {"stats", Shape{2 * channels + 1}, parameters_of(p), batch_norm_stats_values(valid_rows_of(p))},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  const auto add_input = [&](const char* name, const Shape& shape, DType dtype, const Generator& start) {
    item.inputs.push_back({name, shape, dtype, start});
    return item.inputs.size() - 1;
  };
  const std::size_t mask = p.relu ? add_input("mask", mask_shape(p.shape), DType::u8, integers(3, 0, 255)) : 0;
  const std::size_t dy = in_place ? 0 : add_input("dy", p.shape, p.dtype, normal(1, 1, 0.5));
  const std::size_t dy2 = second && !in_place ? add_input("dy2", p.shape, p.dtype, normal(4)) : 0;
  item.outputs = {{"dx", p.shape, p.dtype, in_place ? normal(1, 1, 0.5) : Generator()},
                  {"sums", Shape{2, channels}, parameters_of(p), {}}};
  if (wanted) {
    const Generator start = mode == ops::GradMode::accumulate ? normal(5) : Generator();
    item.outputs.push_back({"dweight", Shape{channels}, parameters_of(p), start});
    item.outputs.push_back({"dbias", Shape{channels}, parameters_of(p), start});
  }
  add_if(p.residual, item.outputs, {"masked", p.shape, p.dtype, in_place && second ? normal(4) : Generator()});
  struct Given {
    TensorView dy, dy2, mask, valid, dweight, dbias, masked;
  };
  const auto given = [=](Views in, Views out) {
    Given views;
    views.dy = in_place ? out[0] : in[dy];
    if (second) {
      views.dy2 = in_place ? out.back() : in[dy2];
    }
    if (p.relu) {
      views.mask = in[mask];
    }
    if (p.valid >= 0) {
      views.valid = in[3];
    }
    if (wanted) {
      views.dweight = out[2];
      views.dbias = out[3];
    }
    if (p.residual) {
      views.masked = out.back();
    }
    return views;
  };
  item.workspace_bytes = workspace_for(ops::batch_norm_workspace_bytes, p.dtype, p.shape);
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    const Given v = given(in, out);
    ops::batch_norm_fused_backward(context, v.dy, v.dy2, v.mask, in[0], in[1], in[2], v.valid, mode, out[1], v.dweight,
                                   v.dbias, v.masked, out[0], workspace);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    const Given v = given(in, out);
    const GuardedTensor g(p.shape, p.dtype);  // receives the masked gradient even if the op does not output it
    plain::batch_norm_backward_reduce(v.dy, v.dy2, v.mask, in[0], in[1], v.valid, mode, out[1], v.dweight, v.dbias, g);
    plain::batch_norm_backward_apply(g, {}, {}, in[0], in[1], out[1], in[2], v.valid, out[0], v.masked);
  };
  item.flops = 9.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-5;
  return item;
}

/// Returns one test case for the forward and one for the backward pass. `turn` chooses the gradient mode and whether
/// outputs overwrite inputs.
inline std::vector<OpCase> batch_norm_fused_calls(const BatchNormParams& p, int turn) {
  const FusedPlace place = turn % 2 == 0 ? FusedPlace::apart : FusedPlace::in_place;
  return {batch_norm_fused_forward_case(p, place),
          batch_norm_fused_backward_case(p, static_cast<ops::GradMode>(turn % 3), place)};
}

/// Returns parameters of test cases. Channels: numbers for which the op can do a pass in one launch, and numbers for
/// which it cannot (17, 12, and in f32 also 56). With 56 channels in f32, a tile would end within a byte of the mask.
/// Rows: none, one chunk, several, and more chunks than there are blocks. Padding: none, part of the chunks, all
/// chunks.
inline std::vector<BatchNormParams> batch_norm_fused_params() {
  const Shape shapes[] = {{0, 8},  {1, 8},   {7, 31, 16}, {5, 3, 64}, {3, 7, 136},    {6, 50, 32},
                          {4, 17}, {33, 12}, {9, 40, 56}, {2, 1000},  {11, 60, 5, 8}, {12, 111, 24}};
  std::vector<BatchNormParams> all;
  int bits = 0;
  for (const Shape& shape : shapes) {
    for (const std::int64_t valid : {std::int64_t{-1}, shape[0] / 2}) {
      all.push_back({shape, DType::f32, valid, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
      bits += 3;
    }
  }
  for (bits = 0; bits < 8; ++bits) {
    all.push_back({{6, 90, 16}, DType::f32, 5, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
  }
  return all;
}

inline std::vector<DeviceCase> batch_norm_fused_device_cases() {
  std::vector<DeviceCase> items;
  int turn = 0;
  for (BatchNormParams p : batch_norm_fused_params()) {
    for (const std::size_t which : {0, 1}) {
      append(items, device_cases([&](DType dtype) {
               p.dtype = dtype;
               return batch_norm_fused_calls(p, turn)[which];
             }));
    }
    ++turn;
  }
  return items;
}

}  // namespace lockstep::testing
