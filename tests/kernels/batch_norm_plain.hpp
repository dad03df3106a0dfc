#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <lockstep/kernels/batch_norm.hpp>

#include "tests/support/guarded.hpp"

/// The ops of batch_norm.hpp as plain loops over host views of any type. They are the reference for every backend. They
/// compute in double (sums in long double) and round once, without vectors or chunks.
namespace lockstep::testing::plain {

/// The elements of a channels-last tensor, as rows of C channels.
struct Rows {
  std::vector<double> values;
  std::size_t channels;
  std::size_t valid;  ///< number of elements in the valid samples

  Rows(const TensorView& x, const TensorView& valid_samples)
      : values(to_doubles(x)), channels(static_cast<std::size_t>(x.shape.back())), valid(values.size()) {
    if (valid_samples.given() && x.shape[0] > 0) {
      const auto samples = static_cast<std::size_t>(*valid_samples.as<std::int64_t>());
      valid = values.size() / static_cast<std::size_t>(x.shape[0]) * samples;
    }
  }
};

/// Returns the values of a view, or `count` zeros if the view is empty.
inline std::vector<double> or_zeros(const TensorView& view, std::size_t count) {
  return view.given() ? to_doubles(view) : std::vector<double>(count, 0.0);
}

/// Computes the statistics in two passes: first the mean, then the sum of the squared deviations from the mean.
inline void batch_norm_stats(const TensorView& x, const TensorView& valid, const TensorView& stats) {
  const Rows in(x, valid);
  const std::size_t rows = in.valid / in.channels;
  std::vector<double> out(2 * in.channels + 1, 0.0);
  out.back() = static_cast<double>(rows);
  for (std::size_t c = 0; c < in.channels && rows > 0; ++c) {
    long double sum = 0;
    for (std::size_t i = c; i < in.valid; i += in.channels) {
      sum += in.values[i];
    }
    const long double mean = sum / static_cast<long double>(rows);
    long double squares = 0;
    for (std::size_t i = c; i < in.valid; i += in.channels) {
      squares += (in.values[i] - mean) * (in.values[i] - mean);
    }
    out[c] = static_cast<double>(mean);
    out[in.channels + c] = static_cast<double>(squares);
  }
  from_doubles(out, stats);
}

/// Merges the statistics of parts in two passes: first the mean of all rows, then the total M2 (sum of squared
/// deviations). Each part adds its own M2 and its number of rows times the squared distance of its mean from the total
/// mean.
inline void batch_norm_merge_stats(const TensorView& parts, const TensorView& stats) {
  const std::vector<double> in = to_doubles(parts);
  const auto width = static_cast<std::size_t>(parts.shape[1]);
  const std::size_t channels = width / 2;
  std::vector<double> out(width, 0.0);
  for (std::size_t p = 0; p < in.size(); p += width) {
    out.back() += in[p + width - 1];
  }
  for (std::size_t c = 0; c < channels && out.back() > 0; ++c) {
    long double sum = 0;
    for (std::size_t p = 0; p < in.size(); p += width) {
      sum += static_cast<long double>(in[p + width - 1]) * in[p + c];
    }
    const long double mean = sum / out.back();
    long double squares = 0;
    for (std::size_t p = 0; p < in.size(); p += width) {
      const double rows = in[p + width - 1];
      squares += rows > 0 ? in[p + channels + c] + rows * (in[p + c] - mean) * (in[p + c] - mean) : 0;
    }
    out[c] = static_cast<double>(mean);
    out[channels + c] = static_cast<double>(squares);
  }
  from_doubles(out, stats);
}

/// Writes scale, shift, mean and inverse standard deviation of every channel.
inline void write_coefficients(const std::vector<double>& mean, const std::vector<double>& variance,
                               const TensorView& weight, const TensorView& bias, double epsilon,
                               const TensorView& coefficients) {
  const std::vector<double> w = to_doubles(weight);
  const std::vector<double> b = to_doubles(bias);
  const std::size_t channels = w.size();
  std::vector<double> out(4 * channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const double inv_std = 1 / std::sqrt(variance[c] + epsilon);
    out[c] = w[c] * inv_std;
    out[channels + c] = b[c] - mean[c] * w[c] * inv_std;
    out[2 * channels + c] = mean[c];
    out[3 * channels + c] = inv_std;
  }
  from_doubles(out, coefficients);
}

inline void batch_norm_finalize(const TensorView& stats, const TensorView& weight, const TensorView& bias,
                                double epsilon, double momentum, const TensorView& running_mean,
                                const TensorView& running_var, const TensorView& coefficients) {
  const std::vector<double> numbers = to_doubles(stats);
  const auto channels = static_cast<std::size_t>(weight.shape[0]);
  const double count = numbers.back();
  std::vector<double> mean(channels), variance(channels, 0.0);
  std::vector<double> means = or_zeros(running_mean, channels);
  std::vector<double> variances = or_zeros(running_var, channels);
  for (std::size_t c = 0; c < channels; ++c) {
    mean[c] = numbers[c];
    if (count > 0) {
      const double squares = numbers[channels + c];
      variance[c] = squares / count;
      if (!std::isfinite(mean[c]) || !std::isfinite(squares)) {
        continue;
      }
      means[c] = (1 - momentum) * means[c] + momentum * mean[c];
      variances[c] = (1 - momentum) * variances[c] + momentum * squares / (count > 1 ? count - 1 : 1);
    }
  }
  write_coefficients(mean, variance, weight, bias, epsilon, coefficients);
  if (running_mean.given()) {
    from_doubles(means, running_mean);
    from_doubles(variances, running_var);
  }
}

inline void batch_norm_finalize_inference(const TensorView& running_mean, const TensorView& running_var,
                                          const TensorView& weight, const TensorView& bias, double epsilon,
                                          const TensorView& coefficients) {
  write_coefficients(to_doubles(running_mean), to_doubles(running_var), weight, bias, epsilon, coefficients);
}

inline void batch_norm_apply(const TensorView& x, const TensorView& coefficients, const TensorView& residual, bool relu,
                             const TensorView& y, const TensorView& mask) {
  const Rows in(x, {});
  const std::vector<double> k = to_doubles(coefficients);
  const std::vector<double> more = or_zeros(residual, in.values.size());
  std::vector<double> out(in.values.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t c = i % in.channels;
    out[i] = in.values[i] * k[c] + k[in.channels + c] + more[i];
    if (relu && out[i] <= 0) {
      out[i] = 0;
    }
  }
  from_doubles(out, y);
  if (mask.given()) {
    std::vector<double> bytes(static_cast<std::size_t>(mask.numel()), 0.0);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] > 0) {
        bytes[i / 8] += 1 << i % 8;
      }
    }
    from_doubles(bytes, mask);
  }
}

inline void batch_norm_apply_pair(const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                                  const TensorView& residual_coefficients, bool relu, const TensorView& y,
                                  const TensorView& mask) {
  const GuardedTensor more(x.shape, DType::f64);
  batch_norm_apply(residual, residual_coefficients, {}, false, more, {});
  batch_norm_apply(x, coefficients, more, relu, y, mask);
}

/// Returns dy, plus dy2 if given. Elements whose mask bit is 0 give 0.
inline std::vector<double> incoming(const TensorView& dy, const TensorView& dy2, const TensorView& mask) {
  std::vector<double> g = to_doubles(dy);
  const std::vector<double> second = or_zeros(dy2, g.size());
  const std::vector<double> bytes = mask.given() ? to_doubles(mask) : std::vector<double>();
  for (std::size_t i = 0; i < g.size(); ++i) {
    const bool on = !mask.given() || (static_cast<int>(bytes[i / 8]) >> (i % 8) & 1) != 0;
    g[i] = on ? g[i] + second[i] : 0.0;
  }
  return g;
}

inline void batch_norm_backward_reduce(const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                                       const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                                       ops::GradMode mode, const TensorView& sums, const TensorView& dweight,
                                       const TensorView& dbias, const TensorView& masked = {}) {
  const Rows in(x, valid);
  std::vector<double> g = incoming(dy, dy2, mask);
  if (masked.given()) {
    std::fill(g.begin() + static_cast<std::ptrdiff_t>(in.valid), g.end(), 0.0);
    from_doubles(g, masked);
    g = to_doubles(masked);  // rounds g to the type of masked
  }
  const std::vector<double> k = to_doubles(coefficients);
  std::vector<double> out(2 * in.channels, 0.0);
  for (std::size_t c = 0; c < in.channels; ++c) {
    long double sum = 0;
    long double product = 0;
    for (std::size_t i = c; i < in.valid; i += in.channels) {
      sum += g[i];
      product += g[i] * (in.values[i] - k[2 * in.channels + c]) * k[3 * in.channels + c];
    }
    out[c] = static_cast<double>(sum);
    out[in.channels + c] = static_cast<double>(product);
  }
  from_doubles(out, sums);
  if (mode != ops::GradMode::ignore) {
    for (std::size_t which : {0, 1}) {
      const TensorView& gradient = which == 0 ? dbias : dweight;
      std::vector<double> values = to_doubles(gradient);
      for (std::size_t c = 0; c < in.channels; ++c) {
        values[c] = (mode == ops::GradMode::accumulate ? values[c] : 0.0) + out[which * in.channels + c];
      }
      from_doubles(values, gradient);
    }
  }
}

inline void batch_norm_backward_apply(const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                                      const TensorView& x, const TensorView& coefficients, const TensorView& sums,
                                      const TensorView& stats, const TensorView& valid, const TensorView& dx,
                                      const TensorView& dresidual) {
  const Rows in(x, valid);
  const std::vector<double> g = incoming(dy, dy2, mask);
  const std::vector<double> k = to_doubles(coefficients);
  const std::vector<double> total = to_doubles(sums);
  const double count = to_doubles(stats).back();
  std::vector<double> to_x(g.size(), 0.0), to_residual(g.size(), 0.0);
  for (std::size_t i = 0; i < in.valid; ++i) {
    const std::size_t c = i % in.channels;
    const double xhat = (in.values[i] - k[2 * in.channels + c]) * k[3 * in.channels + c];
    to_x[i] = k[c] * (g[i] - total[c] / count - xhat * total[in.channels + c] / count);
    to_residual[i] = g[i];
  }
  from_doubles(to_x, dx);
  if (dresidual.given()) {
    from_doubles(to_residual, dresidual);
  }
}

}  // namespace lockstep::testing::plain
