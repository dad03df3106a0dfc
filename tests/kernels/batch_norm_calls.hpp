#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include <lockstep/kernels/batch_norm.hpp>

#include "tests/kernels/batch_norm_plain.hpp"
#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// This file makes a test case for each batch norm op. Statistics, parameters and sums have the type
/// accumulation_dtype(dtype).

/// Shape and type of a call, and which optional tensors the call gets.
struct BatchNormParams {
  Shape shape;
  DType dtype = DType::f32;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
  /// The meaning depends on the op. batch_norm_apply adds a residual. batch_norm_coefficients updates the running
  /// statistics. batch_norm_backward_apply writes dresidual. batch_norm_backward_reduce writes masked.
  bool residual = false;
  bool relu = false;    ///< applies ReLU, with a mask
  bool second = false;  ///< passes a second incoming gradient, dy2
};

inline std::string name_of_case(const char* op, const BatchNormParams& p) {
  return concat("batch_norm_", op, ' ', p.dtype, ' ', p.shape,
                p.valid >= 0 ? concat(" valid ", p.valid) : std::string(), p.residual ? " residual" : "",
                p.relu ? " relu" : "", p.second ? " dy2" : "");
}

/// Returns the type of every tensor that holds one value for each channel.
inline DType parameters_of(const BatchNormParams& p) {
  return ops::accumulation_dtype(p.dtype);
}

inline Shape mask_shape(const Shape& shape) {
  return {static_cast<std::int64_t>(ops::relu_mask_bytes(shape.numel()))};
}

inline std::int64_t rows_of(const Shape& shape) {
  return shape.numel() / shape.back();
}

/// Generates coefficients of shape (4, C): scale, shift, mean and inv_std. inv_std is positive, as after a forward
/// pass.
inline Generator batch_norm_coefficients(std::int64_t channels) {
  return [=](GuardedTensor& t) {
    t.normal(11);
    std::vector<double> values = t.values();
    for (std::int64_t c = 0; c < channels; ++c) {
      double& inv_std = values[static_cast<std::size_t>(3 * channels + c)];
      inv_std = 0.5 + (inv_std < 0 ? -inv_std : inv_std);
    }
    t.assign(values);
  };
}

/// Generates statistics of shape (2C + 1): random numbers, and the count `rows` at the end.
inline Generator batch_norm_stats_values(std::int64_t rows) {
  return [=](GuardedTensor& t) {
    t.uniform(12, 1, 2);
    std::vector<double> values = t.values();
    values.back() = static_cast<double>(rows);
    t.assign(values);
  };
}

inline std::int64_t valid_rows_of(const BatchNormParams& p) {
  return p.valid < 0 || p.shape[0] == 0 ? rows_of(p.shape) : rows_of(p.shape) / p.shape[0] * p.valid;
}

/// Sets item.run to the op and item.plain to the same computation in plain loops. `call(f, in, out)` must call f with
/// the arguments that `op` and `plain_loops` share. Calls of `op` also get the context and the workspace.
template <class Op, class Plain, class Call>
void set_runs(OpCase& item, Op op, Plain plain_loops, Call call) {
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    const auto bound = [&](const auto&... arguments) {
      if constexpr (std::is_invocable_v<Op, Context&, decltype(arguments)...>) {
        op(context, arguments...);
      } else {
        op(context, arguments..., workspace);
      }
    };
    call(bound, in, out);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) { call(plain_loops, in, out); };
}

/// Makes a test case of batch_norm_stats(). Inputs: x, valid; output: stats.
inline OpCase batch_norm_stats_case(const BatchNormParams& p, double mean = 0.5, double deviation = 2) {
  OpCase item;
  item.name = name_of_case("stats", p);
  item.dtype = p.dtype;
  item.inputs = {{"x", p.shape, p.dtype, normal(1, deviation, mean)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  item.outputs = {{"stats", Shape{2 * p.shape.back() + 1}, parameters_of(p), {}}};
  item.workspace_bytes = workspace_for(ops::batch_norm_workspace_bytes, p.dtype, p.shape);
  set_runs(item, ops::batch_norm_stats, plain::batch_norm_stats,
           [=](auto op, Views in, Views out) { op(in[0], p.valid >= 0 ? in[1] : TensorView(), out[0]); });
  item.flops = 4.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_merge_stats(). Input: parts, the statistics of each part of a batch; output: stats.
/// rows: number of rows of each part. A part without rows has zeros as statistics, as batch_norm_stats() would write.
inline OpCase batch_norm_merge_stats_case(std::int64_t channels, DType dtype, const std::vector<std::int64_t>& rows) {
  OpCase item;
  item.name = concat("batch_norm_merge_stats ", dtype, " (", channels, ") of");
  for (const std::int64_t count : rows) {
    item.name += concat(' ', count);
  }
  item.dtype = dtype;
  const std::int64_t width = 2 * channels + 1;
  item.inputs = {{"parts", Shape{static_cast<std::int64_t>(rows.size()), width}, dtype, [=](GuardedTensor& t) {
                    t.uniform(12, 1, 2);
                    std::vector<double> values = t.values();
                    for (std::size_t p = 0; p < rows.size(); ++p) {
                      const auto part = values.begin() + static_cast<std::ptrdiff_t>(p) * width;
                      part[width - 1] = static_cast<double>(rows[p]);
                      if (rows[p] == 0) {
                        std::fill_n(part, width, 0.0);
                      }
                    }
                    t.assign(values);
                  }}};
  item.outputs = {{"stats", Shape{width}, dtype, {}}};
  set_runs(item, ops::batch_norm_merge_stats, plain::batch_norm_merge_stats,
           [](auto op, Views in, Views out) { op(in[0], out[0]); });
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_coefficients(). Inputs: x, valid, weight, bias; outputs: stats, coefficients,
/// running_mean, running_var.
inline OpCase batch_norm_coefficients_case(const BatchNormParams& p) {
  OpCase item = batch_norm_stats_case(p);
  item.name = name_of_case("coefficients", p);
  const Shape channels{p.shape.back()};
  item.inputs.push_back({"weight", channels, parameters_of(p), normal(2)});
  item.inputs.push_back({"bias", channels, parameters_of(p), normal(3)});
  item.outputs.push_back({"coefficients", Shape{4, p.shape.back()}, parameters_of(p), {}});
  item.outputs.push_back({"running_mean", channels, parameters_of(p), normal(4)});
  item.outputs.push_back({"running_var", channels, parameters_of(p), uniform(5, 0.5, 2)});
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::batch_norm_coefficients(context, in[0], p.valid >= 0 ? in[1] : TensorView(), in[2], in[3], 1e-1, 0.1, out[0],
                                 p.residual ? out[2] : TensorView(), p.residual ? out[3] : TensorView(), out[1],
                                 workspace);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    plain::batch_norm_stats(in[0], p.valid >= 0 ? in[1] : TensorView(), out[0]);
    plain::batch_norm_finalize(out[0], in[2], in[3], 1e-1, 0.1, p.residual ? out[2] : TensorView(),
                               p.residual ? out[3] : TensorView(), out[1]);
  };
  return item;
}

/// Makes a test case of batch_norm_finalize(). Inputs: stats, weight, bias; outputs: running_mean, running_var,
/// coefficients.
inline OpCase batch_norm_finalize_case(std::int64_t channels, DType dtype, std::int64_t rows, bool running) {
  OpCase item;
  item.name = concat("batch_norm_finalize ", dtype, " (", channels, ") count ", rows, running ? "" : " stateless");
  item.dtype = dtype;
  const Shape shape{channels};
  item.inputs = {{"stats", Shape{2 * channels + 1}, dtype, batch_norm_stats_values(rows)},
                 {"weight", shape, dtype, normal(2)},
                 {"bias", shape, dtype, normal(3)}};
  item.outputs = {{"running_mean", shape, dtype, normal(4)},
                  {"running_var", shape, dtype, uniform(5, 0.5, 2)},
                  {"coefficients", Shape{4, channels}, dtype, {}}};
  set_runs(item, ops::batch_norm_finalize, plain::batch_norm_finalize, [=](auto op, Views in, Views out) {
    op(in[0], in[1], in[2], 1e-5, 0.1, running ? out[0] : TensorView(), running ? out[1] : TensorView(), out[2]);
  });
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_finalize_inference(). Inputs: running_mean, running_var, weight, bias; output:
/// coefficients.
inline OpCase batch_norm_finalize_inference_case(std::int64_t channels, DType dtype) {
  OpCase item;
  item.name = concat("batch_norm_finalize_inference ", dtype, " (", channels, ')');
  item.dtype = dtype;
  const Shape shape{channels};
  item.inputs = {{"running_mean", shape, dtype, normal(4)},
                 {"running_var", shape, dtype, uniform(5, 0, 2)},
                 {"weight", shape, dtype, normal(2)},
                 {"bias", shape, dtype, normal(3)}};
  item.outputs = {{"coefficients", Shape{4, channels}, dtype, {}}};
  set_runs(item, ops::batch_norm_finalize_inference, plain::batch_norm_finalize_inference,
           [](auto op, Views in, Views out) { op(in[0], in[1], in[2], in[3], 1e-5, out[0]); });
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_apply(). Inputs: x, coefficients, and residual if p.residual; outputs: y, and mask
/// if p.relu.
inline OpCase batch_norm_apply_case(const BatchNormParams& p) {
  OpCase item;
  item.name = name_of_case("apply", p);
  item.dtype = p.dtype;
  item.inputs = {{"x", p.shape, p.dtype, normal(1)},
                 {"coefficients", Shape{4, p.shape.back()}, parameters_of(p), batch_norm_coefficients(p.shape.back())}};
  add_if(p.residual, item.inputs, {"residual", p.shape, p.dtype, normal(2)});
  item.outputs = {{"y", p.shape, p.dtype, {}}};
  add_if(p.relu, item.outputs, {"mask", mask_shape(p.shape), DType::u8, {}});
  set_runs(item, ops::batch_norm_apply, plain::batch_norm_apply, [=](auto op, Views in, Views out) {
    op(in[0], in[1], p.residual ? in[2] : TensorView(), p.relu, out[0], p.relu ? out[1] : TensorView());
  });
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_apply_pair(). Inputs: x, coefficients, residual, residual coefficients; outputs: y,
/// and mask if p.relu.
inline OpCase batch_norm_apply_pair_case(const BatchNormParams& p) {
  BatchNormParams with_residual = p;
  with_residual.residual = true;
  OpCase item = batch_norm_apply_case(with_residual);
  item.name = name_of_case("apply_pair", p);
  item.inputs.push_back({"residual coefficients", Shape{4, p.shape.back()}, parameters_of(p), normal(5)});
  set_runs(item, ops::batch_norm_apply_pair, plain::batch_norm_apply_pair, [=](auto op, Views in, Views out) {
    op(in[0], in[1], in[2], in[3], p.relu, out[0], p.relu ? out[1] : TensorView());
  });
  return item;
}

/// Whether a backward op writes each result to memory of its own, or overwrites dy with dx or with dresidual.
enum class GradientPlace : unsigned char { apart, dx_in_dy, dresidual_in_dy };

/// Makes a test case of batch_norm_backward_reduce(). Inputs: dy, x, coefficients, valid; mask if p.relu; dy2 if
/// p.second. Outputs: sums; dweight and dbias unless they are ignored; masked if p.residual. With dresidual_in_dy, the
/// output masked starts with the values of dy and the op reads dy there.
inline OpCase batch_norm_backward_reduce_case(const BatchNormParams& p, ops::GradMode mode,
                                              GradientPlace place = GradientPlace::apart) {
  const std::int64_t channels = p.shape.back();
  OpCase item;
  item.name = name_of_case("backward_reduce", p) +
              (mode == ops::GradMode::accumulate ? " accumulate"
               : mode == ops::GradMode::ignore   ? " ignore"
                                                 : "") +
              (place == GradientPlace::dresidual_in_dy ? " masked in dy" : "");
  item.dtype = p.dtype;
  item.inputs = {{"dy", p.shape, p.dtype, normal(1, 1, 0.5)},
                 {"x", p.shape, p.dtype, normal(2)},
                 {"coefficients", Shape{4, channels}, parameters_of(p), batch_norm_coefficients(channels)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  add_if(p.relu, item.inputs, {"mask", mask_shape(p.shape), DType::u8, integers(3, 0, 255)});
  add_if(p.second, item.inputs, {"dy2", p.shape, p.dtype, normal(4)});
  item.outputs = {{"sums", Shape{2, channels}, parameters_of(p), {}}};
  if (mode != ops::GradMode::ignore) {
    const Generator start = mode == ops::GradMode::accumulate ? normal(5) : Generator();
    item.outputs.push_back({"dweight", Shape{channels}, parameters_of(p), start});
    item.outputs.push_back({"dbias", Shape{channels}, parameters_of(p), start});
  }
  const bool in_place = place == GradientPlace::dresidual_in_dy;
  add_if(p.residual, item.outputs, {"masked", p.shape, p.dtype, in_place ? normal(1, 1, 0.5) : Generator()});
  item.workspace_bytes = workspace_for(ops::batch_norm_workspace_bytes, p.dtype, p.shape);
  set_runs(item, ops::batch_norm_backward_reduce, plain::batch_norm_backward_reduce, [=](auto op, Views in, Views out) {
    const bool wanted = mode != ops::GradMode::ignore;
    op(in_place ? out.back() : in[0], p.second ? in.back() : TensorView(), p.relu ? in[4] : TensorView(), in[1], in[2],
       p.valid >= 0 ? in[3] : TensorView(), mode, out[0], wanted ? out[1] : TensorView(),
       wanted ? out[2] : TensorView(), p.residual ? out.back() : TensorView());
  });
  item.flops = 4.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-5;
  return item;
}

/// Makes a test case of batch_norm_backward_apply(). Inputs: x, coefficients, sums, stats, valid; mask if p.relu; dy2
/// if p.second; dy unless an output overwrites it. Outputs: dx; dresidual if p.residual. The output that overwrites dy
/// starts with the values of dy.
inline OpCase batch_norm_backward_apply_case(const BatchNormParams& p, GradientPlace place = GradientPlace::apart) {
  const std::int64_t channels = p.shape.back();
  OpCase item;
  item.name = name_of_case("backward_apply", p) + (place == GradientPlace::dx_in_dy          ? " dx in dy"
                                                   : place == GradientPlace::dresidual_in_dy ? " dresidual in dy"
                                                                                             : "");
  item.dtype = p.dtype;
  item.inputs = {{"x", p.shape, p.dtype, normal(2)},
                 {"coefficients", Shape{4, channels}, parameters_of(p), batch_norm_coefficients(channels)},
                 {"sums", Shape{2, channels}, parameters_of(p), normal(6, 3)},
                 {"stats", Shape{2 * channels + 1}, parameters_of(p), batch_norm_stats_values(valid_rows_of(p))},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  add_if(p.relu, item.inputs, {"mask", mask_shape(p.shape), DType::u8, integers(3, 0, 255)});
  add_if(p.second, item.inputs, {"dy2", p.shape, p.dtype, normal(4)});
  add_if(place == GradientPlace::apart, item.inputs, {"dy", p.shape, p.dtype, normal(1)});
  item.outputs = {{"dx", p.shape, p.dtype, place == GradientPlace::dx_in_dy ? normal(1) : Generator()}};
  add_if(p.residual, item.outputs,
         {"dresidual", p.shape, p.dtype, place == GradientPlace::dresidual_in_dy ? normal(1) : Generator()});
  set_runs(item, ops::batch_norm_backward_apply, plain::batch_norm_backward_apply, [=](auto op, Views in, Views out) {
    const TensorView dy = place == GradientPlace::apart ? in.back() : out[place == GradientPlace::dx_in_dy ? 0 : 1];
    op(dy, p.second ? in[p.relu ? 6 : 5] : TensorView(), p.relu ? in[5] : TensorView(), in[0], in[1], in[2], in[3],
       p.valid >= 0 ? in[4] : TensorView(), out[0], p.residual ? out[1] : TensorView());
  });
  item.flops = 5.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-6;
  return item;
}

/// Makes a test case of batch_norm_backward_reduce_pair(). Inputs: dy, mask, valid, dy2; x and coefficients of each of
/// the two norms. Outputs: masked; sums of each norm; dweight and dbias of each norm whose mode does not ignore them.
/// With in_place, masked starts with the values of dy and the op reads dy there.
inline OpCase batch_norm_backward_reduce_pair_case(const BatchNormParams& p, ops::GradMode mode, ops::GradMode mode2,
                                                   bool in_place = false) {
  const std::int64_t channels = p.shape.back();
  const DType parameters = parameters_of(p);
  OpCase item;
  item.name = concat(name_of_case("backward_reduce_pair", p), " modes ", static_cast<int>(mode), ' ',
                     static_cast<int>(mode2), in_place ? " masked in dy" : "");
  item.dtype = p.dtype;
  item.inputs = {{"dy", p.shape, p.dtype, normal(1, 1, 0.5)},
                 {"mask", mask_shape(p.shape), DType::u8, integers(3, 0, 255)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))},
                 {"dy2", p.shape, p.dtype, normal(4)}};
  item.outputs = {{"masked", p.shape, p.dtype, in_place ? normal(1, 1, 0.5) : Generator()}};
  for (const ops::GradMode of : {mode, mode2}) {
    const auto seed = static_cast<std::uint64_t>(item.inputs.size());
    const bool starts = of == ops::GradMode::accumulate;
    item.inputs.push_back({concat("x ", seed), p.shape, p.dtype, normal(seed)});
    item.inputs.push_back({concat("coefficients ", seed), Shape{4, channels}, parameters,
                           seed == 4 ? batch_norm_coefficients(channels) : uniform(seed, 0.5, 2)});
    item.outputs.push_back({concat("sums ", seed), Shape{2, channels}, parameters, {}});
    item.outputs.push_back({concat("dweight ", seed), Shape{channels}, parameters, starts ? normal(5) : Generator()});
    item.outputs.push_back({concat("dbias ", seed), Shape{channels}, parameters, starts ? normal(7) : Generator()});
  }
  for (const std::size_t first : {5, 2}) {  // removes dweight and dbias of a norm that ignores them
    if ((first == 2 ? mode : mode2) == ops::GradMode::ignore) {
      item.outputs.erase(item.outputs.begin() + static_cast<std::ptrdiff_t>(first),
                         item.outputs.begin() + static_cast<std::ptrdiff_t>(first) + 2);
    }
  }
  const auto norms = [=](Views in, Views out) {
    std::vector<ops::NormBackward> both;
    std::size_t o = 1;
    for (const ops::GradMode of : {mode, mode2}) {
      const std::size_t i = 4 + 2 * both.size();
      ops::NormBackward norm{in[i], in[i + 1], out[o++]};
      norm.mode = of;
      if (of != ops::GradMode::ignore) {
        norm.dweight = out[o++];
        norm.dbias = out[o++];
      }
      both.push_back(norm);
    }
    return both;
  };
  item.workspace_bytes = workspace_for(ops::batch_norm_workspace_bytes, p.dtype, p.shape);
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    const std::vector<ops::NormBackward> both = norms(in, out);
    ops::batch_norm_backward_reduce_pair(context, in_place ? out[0] : in[0], p.second ? in[3] : TensorView(), in[1],
                                         both[0], both[1], p.valid >= 0 ? in[2] : TensorView(), out[0], workspace);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    const std::vector<ops::NormBackward> both = norms(in, out);
    const TensorView valid = p.valid >= 0 ? in[2] : TensorView();
    plain::batch_norm_backward_reduce(in_place ? out[0] : in[0], p.second ? in[3] : TensorView(), in[1], both[0].x,
                                      both[0].coefficients, valid, mode, both[0].sums, both[0].dweight, both[0].dbias,
                                      out[0]);
    plain::batch_norm_backward_reduce(out[0], {}, {}, both[1].x, both[1].coefficients, valid, mode2, both[1].sums,
                                      both[1].dweight, both[1].dbias);
  };
  item.flops = 6.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-5;
  return item;
}

/// The norm whose dx overwrites the incoming gradient g. apart: neither dx overwrites g.
enum class PairPlace : unsigned char { apart, first_in_g, second_in_g };

/// Makes a test case of batch_norm_backward_apply_pair(). Inputs: stats, valid; x, coefficients and sums of each of the
/// two norms; g unless an output overwrites it. Outputs: dx of the first norm and dx of the second.
inline OpCase batch_norm_backward_apply_pair_case(const BatchNormParams& p, PairPlace place = PairPlace::apart) {
  const std::int64_t channels = p.shape.back();
  OpCase item;
  item.name = name_of_case("backward_apply_pair", p) + (place == PairPlace::first_in_g    ? " first in g"
                                                        : place == PairPlace::second_in_g ? " second in g"
                                                                                          : "");
  item.dtype = p.dtype;
  item.inputs = {{"stats", Shape{2 * channels + 1}, parameters_of(p), batch_norm_stats_values(valid_rows_of(p))},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  for (const std::uint64_t seed : {2, 20}) {
    item.inputs.push_back({concat("x ", seed), p.shape, p.dtype, normal(seed)});
    item.inputs.push_back({concat("coefficients ", seed), Shape{4, channels}, parameters_of(p),
                           seed == 2 ? batch_norm_coefficients(channels) : uniform(seed, 0.5, 2)});
    item.inputs.push_back({concat("sums ", seed), Shape{2, channels}, parameters_of(p), normal(seed + 1, 3)});
  }
  add_if(place == PairPlace::apart, item.inputs, {"g", p.shape, p.dtype, normal(1)});
  item.outputs = {{"dx", p.shape, p.dtype, place == PairPlace::first_in_g ? normal(1) : Generator()},
                  {"dx of the second", p.shape, p.dtype, place == PairPlace::second_in_g ? normal(1) : Generator()}};
  const auto norm = [](Views in, std::size_t first, const TensorView& dx) {
    ops::NormBackward one{in[first], in[first + 1], in[first + 2]};
    one.dx = dx;
    return one;
  };
  const auto gradient = [=](Views in, Views out) {
    return place == PairPlace::apart ? in.back() : out[place == PairPlace::first_in_g ? 0 : 1];
  };
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::batch_norm_backward_apply_pair(context, gradient(in, out), norm(in, 2, out[0]), norm(in, 5, out[1]), in[0],
                                        p.valid >= 0 ? in[1] : TensorView());
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    GuardedTensor g(p.shape, p.dtype);
    g.assign(to_doubles(gradient(in, out)));
    for (const std::size_t which : {0, 1}) {
      const std::size_t first = 2 + 3 * which;
      plain::batch_norm_backward_apply(g, {}, {}, in[first], in[first + 1], in[first + 2], in[0],
                                       p.valid >= 0 ? in[1] : TensorView(), out[which], {});
    }
  };
  item.flops = 10.0 * static_cast<double>(p.shape.numel());
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-6;
  return item;
}

}  // namespace lockstep::testing
