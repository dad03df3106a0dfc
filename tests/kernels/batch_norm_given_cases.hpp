#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <lockstep/kernels/batch_norm_given.hpp>

#include "tests/kernels/batch_norm_calls.hpp"

namespace lockstep::testing {

/// Fault in the last channel of the sums that the test gives to the op. good: no fault; cancel: the variance is a small
/// difference of large numbers; infinite, nan: a sum is infinite or NaN.
enum class GivenSums : unsigned char { good, cancel, infinite, nan };

/// Generates sums of shape (2, C): the sum of `rows` deviations and the sum of their squares. The sums are not the sums
/// of x, so an op that ignores them and reads x gives another result.
inline Generator given_sums(std::int64_t channels, std::int64_t rows, GivenSums kind) {
  return [=](GuardedTensor& t) {
    t.normal(8);
    std::vector<double> values = t.values();
    const auto n = static_cast<double>(rows);
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
      const double mean = values[c];
      double& squares = values[static_cast<std::size_t>(channels) + c];
      squares = n * (mean * mean + 0.5 + std::abs(squares));
      values[c] = n * mean;
    }
    const auto last = static_cast<std::size_t>(channels) - 1;
    if (kind == GivenSums::cancel) {
      values[last] = 40 * n;
      values.back() = n * (1600 + 1);
    } else if (kind == GivenSums::infinite) {
      values.back() = std::numeric_limits<double>::infinity();
    } else if (kind == GivenSums::nan) {
      values[last] = std::numeric_limits<double>::quiet_NaN();
    }
    t.assign(values);
  };
}

/// Makes a test case of batch_norm_coefficients_given(). Inputs: x, valid, weight, bias, sums; shift unless p.relu. If
/// p.relu, the op takes running_mean as the shift. Outputs: stats, coefficients, running_mean, running_var. The op
/// updates the running statistics if p.residual or p.relu.
inline OpCase batch_norm_coefficients_given_case(const BatchNormParams& p, GivenSums kind = GivenSums::good) {
  OpCase item = batch_norm_coefficients_case(p);
  item.name = name_of_case("coefficients_given", p) + (kind == GivenSums::good       ? ""
                                                       : kind == GivenSums::cancel   ? " that cancel"
                                                       : kind == GivenSums::infinite ? " infinite"
                                                                                     : " nan");
  const std::int64_t channels = p.shape.back();
  const std::int64_t rows = rows_of(p.shape);
  const bool keeps = p.residual || p.relu;
  item.inputs.push_back({"sums", Shape{2, channels}, parameters_of(p), given_sums(channels, rows, kind)});
  add_if(!p.relu, item.inputs, {"shift", Shape{channels}, parameters_of(p), normal(9)});
  const auto shift = [=](Views in, Views out) { return p.relu ? out[2] : in[5]; };
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::batch_norm_coefficients_given(context, in[0], p.valid >= 0 ? in[1] : TensorView(), in[4], shift(in, out),
                                       in[2], in[3], 1e-1, 0.1, out[0], keeps ? out[2] : TensorView(),
                                       keeps ? out[3] : TensorView(), out[1], workspace);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    if (rows == 0 || (p.valid >= 0 && p.valid != p.shape[0]) || kind != GivenSums::good) {
      plain::batch_norm_stats(in[0], p.valid >= 0 ? in[1] : TensorView(), out[0]);
    } else {
      const std::vector<double> sums = to_doubles(in[4]);
      const std::vector<double> from = to_doubles(shift(in, out));
      std::vector<double> stats(2 * from.size() + 1, static_cast<double>(rows));
      for (std::size_t c = 0; c < from.size(); ++c) {
        const double offset = sums[c] / static_cast<double>(rows);
        stats[c] = from[c] + offset;
        stats[from.size() + c] = sums[from.size() + c] - sums[c] * offset;
      }
      from_doubles(stats, out[0]);
    }
    plain::batch_norm_finalize(out[0], in[2], in[3], 1e-1, 0.1, keeps ? out[2] : TensorView(),
                               keeps ? out[3] : TensorView(), out[1]);
  };
  // With a full batch the op does not read x, so the bytes of x are not counted.
  item.bytes = tensor_bytes(item) - static_cast<double>(p.shape.numel()) * static_cast<double>(size_of(p.dtype));
  item.flops = 20.0 * static_cast<double>(channels);
  return item;
}

/// Makes a test case of batch_norm_gradients_given(). Inputs: sum_g, sum_gx; outputs: sums; dweight and dbias unless
/// `mode` ignores them.
inline OpCase batch_norm_gradients_given_case(std::int64_t channels, DType dtype, ops::GradMode mode) {
  const Shape shape{channels};
  const bool wanted = mode != ops::GradMode::ignore;
  OpCase item;
  item.name = concat("batch_norm_gradients_given ", dtype, " (", channels, ") mode ", static_cast<int>(mode));
  item.dtype = dtype;
  item.inputs = {{"sum_g", shape, dtype, normal(1)}, {"sum_gx", shape, dtype, normal(2)}};
  item.outputs = {{"sums", Shape{2, channels}, dtype, {}}};
  if (wanted) {
    const bool starts = mode == ops::GradMode::accumulate;
    item.outputs.push_back({"dweight", shape, dtype, starts ? normal(3) : Generator()});
    item.outputs.push_back({"dbias", shape, dtype, starts ? normal(4) : Generator()});
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::batch_norm_gradients_given(context, in[0], in[1], mode, out[0], wanted ? out[1] : TensorView(),
                                    wanted ? out[2] : TensorView());
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    const std::vector<double> sums[] = {to_doubles(in[0]), to_doubles(in[1])};
    std::vector<double> both = sums[0];
    both.insert(both.end(), sums[1].begin(), sums[1].end());
    from_doubles(both, out[0]);
    for (std::size_t i = 1; i < out.size(); ++i) {
      std::vector<double> values = sums[i == 1 ? 1 : 0];
      const std::vector<double> before = to_doubles(out[i]);
      for (std::size_t c = 0; c < values.size(); ++c) {
        values[c] += mode == ops::GradMode::accumulate ? before[c] : 0;
      }
      from_doubles(values, out[i]);
    }
  };
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Returns parameters of test cases: full batches, for which the op uses the given sums; partial batches, for which it
/// reads x; tensors of one chunk and of several, with and without 16-byte accesses; empty tensors.
inline std::vector<BatchNormParams> batch_norm_given_params() {
  std::vector<BatchNormParams> all;
  int bits = 0;
  for (const Shape& shape : {Shape{0, 8}, Shape{1, 8}, Shape{7, 31, 16}, Shape{4, 17}, Shape{9, 40, 56}, Shape{2, 1000},
                             Shape{11, 60, 5, 8}}) {
    for (const std::int64_t valid : {std::int64_t{-1}, shape[0], shape[0] / 2}) {
      all.push_back({shape, DType::f32, valid, (bits & 1) != 0, (bits & 2) != 0});
      bits += 3;
    }
  }
  return all;
}

constexpr std::int64_t kGivenChannels[] = {1, 64, 300, 2048};

inline std::vector<DeviceCase> batch_norm_given_device_cases() {
  std::vector<DeviceCase> items = device_cases(
      batch_norm_given_params(), [](const BatchNormParams& p) { return batch_norm_coefficients_given_case(p); });
  for (const GivenSums kind : {GivenSums::cancel, GivenSums::infinite, GivenSums::nan}) {
    // Each thread of a block handles one channel per round. With 56 channels the faulty last channel is in the first
    // round. With 300 channels it is in the second round.
    for (const std::int64_t channels : {56, 300}) {
      append(items, device_cases([&](DType dtype) {
               return batch_norm_coefficients_given_case({{9, 40, channels}, dtype, 9, true}, kind);
             }));
    }
  }
  for (const std::int64_t channels : kGivenChannels) {
    for (const auto mode : {ops::GradMode::ignore, ops::GradMode::overwrite, ops::GradMode::accumulate}) {
      const OpCase item = batch_norm_gradients_given_case(channels, DType::f32, mode);
      items.push_back(device_case(item, item));
    }
  }
  return items;
}

}  // namespace lockstep::testing
