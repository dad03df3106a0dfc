#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/batch_norm_pool.hpp>

#include "tests/kernels/batch_norm_calls.hpp"
#include "tests/kernels/pool_params.hpp"

namespace lockstep::testing {

struct StemParams {
  PoolParams pool;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
};

inline std::string name_of_stem(const char* op, const StemParams& p) {
  return name_of_pool(concat("batch_norm_pool_", op).c_str(), p.pool) +
         (p.valid >= 0 ? concat(" valid ", p.valid) : std::string());
}

inline DType parameters_of(const StemParams& p) {
  return ops::accumulation_dtype(p.pool.dtype);
}

namespace plain {

/// Returns the position 3 * r + s of a pixel in the pooling window of output element `out`. pixel: h * W + w.
inline double place_in_window(const PoolParams& p, const Shape& pooled, std::size_t out, std::int64_t pixel) {
  const std::int64_t window = static_cast<std::int64_t>(out) / pooled[3];
  const std::int64_t r = pixel / p.x[2] - (window / pooled[2] % pooled[1] * 2 - p.desc.pad_before[0]);
  const std::int64_t s = pixel % p.x[2] - (window % pooled[2] * 2 - p.desc.pad_before[1]);
  return static_cast<double>(3 * r + s);
}

/// Computes batch norm and ReLU into a tensor of x's type, then the maximum of each window.
inline void batch_norm_pool_forward(const PoolParams& p, const TensorView& x, const TensorView& coefficients,
                                    const TensorView& y, const TensorView& index) {
  const GuardedTensor activated(x.shape, x.dtype);
  batch_norm_apply(x, coefficients, {}, true, activated, {});
  const std::vector<double> values = to_doubles(activated);
  std::vector<double> best(static_cast<std::size_t>(y.numel()), 0.0);
  std::vector<double> winner(best.size(), ops::kNoWinner);
  for_each_pair(p, [&](std::size_t out, std::size_t in, std::int64_t pixel) {
    if (!std::isnan(best[out]) && !(values[in] <= best[out])) {
      best[out] = values[in];
      winner[out] = std::isnan(best[out]) ? ops::kNoWinner : place_in_window(p, y.shape, out, pixel);
    }
  });
  from_doubles(best, y);
  from_doubles(winner, index);
}

/// Returns the gradient of the pooling's input: each element of dy is added to the element that was its window's
/// maximum.
inline std::vector<double> pooled_gradient(const PoolParams& p, const TensorView& dy, const TensorView& index) {
  std::vector<double> g(static_cast<std::size_t>(p.x.numel()), 0.0);
  const std::vector<double> gradients = to_doubles(dy);
  const std::vector<double> winners = to_doubles(index);
  for_each_pair(p, [&](std::size_t out, std::size_t in, std::int64_t pixel) {
    g[in] += winners[out] == place_in_window(p, dy.shape, out, pixel) ? gradients[out] : 0.0;
  });
  return g;
}

}  // namespace plain

/// Generates multiples of 1/8 from -2 to 2. Products with small integers, and sums of these products, are exact in f32.
inline Generator small_eighths(std::uint64_t seed) {
  return mapped(integers(seed, -16, 16), [](double value) { return value / 8; });
}

/// Makes a test case of batch_norm_pool_forward(). Inputs: x, coefficients; outputs: y, index. The numbers are small
/// integers and eighths, so windows have ties. Rounding to bf16 makes more ties.
inline OpCase batch_norm_pool_forward_case(const StemParams& p) {
  const Shape pooled = ops::pooled_shape(p.pool.desc, p.pool.x);
  return {.name = name_of_stem("forward", p),
          .dtype = p.pool.dtype,
          .inputs = {{"x", p.pool.x, p.pool.dtype, integers(1, -40, 40)},
                     {"coefficients", Shape{4, p.pool.x[3]}, parameters_of(p), small_eighths(2)}},
          .outputs = {{"y", pooled, p.pool.dtype, {}}, {"index", pooled, DType::u8, {}}},
          .run =
              [=](Context& context, Views in, Views out, const TensorView&) {
                ops::batch_norm_pool_forward(context, p.pool.desc, in[0], in[1], out[0], out[1]);
              },
          .plain = [=](Context&, Views in, Views out,
                       const TensorView&) { plain::batch_norm_pool_forward(p.pool, in[0], in[1], out[0], out[1]); }};
}

/// Generates the index: the position of the maximum in each window. One window in ten has no maximum (kNoWinner). Some
/// positions are in the padding.
inline Generator stem_winners() {
  return mapped(integers(3, 0, 9), [](double value) { return value > 8 ? ops::kNoWinner : value; });
}

/// Makes a test case of batch_norm_pool_backward_reduce(). Inputs: dy, index, x, coefficients, valid; outputs: sums;
/// dweight and dbias unless `mode` ignores them.
inline OpCase batch_norm_pool_backward_reduce_case(const StemParams& p, ops::GradMode mode) {
  const Shape pooled = ops::pooled_shape(p.pool.desc, p.pool.x);
  const std::int64_t channels = p.pool.x[3];
  const bool wanted = mode != ops::GradMode::ignore;
  OpCase item;
  item.name = name_of_stem("backward_reduce", p) + concat(" mode ", static_cast<int>(mode));
  item.dtype = p.pool.dtype;
  item.inputs = {{"dy", pooled, p.pool.dtype, normal(1, 1, 0.5)},
                 {"index", pooled, DType::u8, stem_winners()},
                 {"x", p.pool.x, p.pool.dtype, normal(2)},
                 {"coefficients", Shape{4, channels}, parameters_of(p), batch_norm_coefficients(channels)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  item.outputs = {{"sums", Shape{2, channels}, parameters_of(p), {}}};
  if (wanted) {
    const Generator start = mode == ops::GradMode::accumulate ? normal(5) : Generator();
    item.outputs.push_back({"dweight", Shape{channels}, parameters_of(p), start});
    item.outputs.push_back({"dbias", Shape{channels}, parameters_of(p), start});
  }
  item.workspace_bytes = workspace_for(ops::batch_norm_workspace_bytes, p.pool.dtype, p.pool.x);
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::batch_norm_pool_backward_reduce(context, p.pool.desc, in[0], in[1], in[2], in[3],
                                         p.valid >= 0 ? in[4] : TensorView(), mode, out[0],
                                         wanted ? out[1] : TensorView(), wanted ? out[2] : TensorView(), workspace);
  };
  item.plain = [=](Context&, Views in, Views out, const TensorView&) {
    const GuardedTensor g(p.pool.x, DType::f64);
    from_doubles(plain::pooled_gradient(p.pool, in[0], in[1]), g);
    plain::batch_norm_backward_reduce(g, {}, {}, in[2], in[3], p.valid >= 0 ? in[4] : TensorView(), mode, out[0],
                                      wanted ? out[1] : TensorView(), wanted ? out[2] : TensorView());
  };
  item.flops = 4.0 * static_cast<double>(p.pool.x.numel());
  item.tolerance = p.pool.dtype == DType::f64 ? 1e-13 : 1e-5;
  return item;
}

/// Makes a test case of batch_norm_pool_backward_apply(). Inputs: dy, index, x, coefficients, sums, stats, valid;
/// output: dx.
inline OpCase batch_norm_pool_backward_apply_case(const StemParams& p) {
  const Shape pooled = ops::pooled_shape(p.pool.desc, p.pool.x);
  const std::int64_t channels = p.pool.x[3];
  const std::int64_t samples = p.valid >= 0 ? p.valid : p.pool.x[0];
  return {.name = name_of_stem("backward_apply", p),
          .dtype = p.pool.dtype,
          .inputs = {{"dy", pooled, p.pool.dtype, normal(1)},
                     {"index", pooled, DType::u8, stem_winners()},
                     {"x", p.pool.x, p.pool.dtype, normal(2)},
                     {"coefficients", Shape{4, channels}, parameters_of(p), batch_norm_coefficients(channels)},
                     {"sums", Shape{2, channels}, parameters_of(p), normal(6, 3)},
                     {"stats", Shape{2 * channels + 1}, parameters_of(p),
                      batch_norm_stats_values(samples * p.pool.x[1] * p.pool.x[2])},
                     {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}},
          .outputs = {{"dx", p.pool.x, p.pool.dtype, {}}},
          .run =
              [=](Context& context, Views in, Views out, const TensorView&) {
                ops::batch_norm_pool_backward_apply(context, p.pool.desc, in[0], in[1], in[2], in[3], in[4], in[5],
                                                    p.valid >= 0 ? in[6] : TensorView(), out[0]);
              },
          .plain =
              [=](Context&, Views in, Views out, const TensorView&) {
                const GuardedTensor g(p.pool.x, DType::f64);
                from_doubles(plain::pooled_gradient(p.pool, in[0], in[1]), g);
                plain::batch_norm_backward_apply(g, {}, {}, in[2], in[3], in[4], in[5],
                                                 p.valid >= 0 ? in[6] : TensorView(), out[0], {});
              },
          .flops = 5.0 * static_cast<double>(p.pool.x.numel()),
          .tolerance = p.pool.dtype == DType::f64 ? 1e-13 : 1e-6};
}

/// Returns parameters of test cases: a small version of ResNet-50's stem; odd sizes and channels; padding on one side,
/// no padding, and padding of two pixels; images of one window, one pixel, and one row; no image; more channels than
/// one tile of a sum.
inline std::vector<StemParams> stem_params(DType dtype) {
  const auto pool = [=](const Shape& x, std::array<std::int64_t, 2> before, std::array<std::int64_t, 2> after) {
    return PoolParams{x, {{3, 3}, {2, 2}, before, after}, dtype};
  };
  return {{pool({2, 12, 12, 64}, {1, 1}, {1, 1})},    {pool({3, 11, 9, 17}, {1, 1}, {1, 1}), 2},
          {pool({4, 30, 31, 16}, {0, 0}, {1, 1}), 3}, {pool({1, 3, 3, 8}, {0, 0}, {0, 0})},
          {pool({2, 1, 1, 24}, {1, 1}, {1, 1}), 0},   {pool({2, 1, 33, 5}, {1, 2}, {1, 0})},
          {pool({0, 5, 5, 2}, {1, 1}, {1, 1})},       {pool({3, 6, 7, 136}, {2, 0}, {0, 2}), 1},
          {pool({2, 5, 4, 67}, {2, 2}, {2, 2})},      {pool({7, 40, 41, 8}, {1, 1}, {1, 1}), 5}};
}

/// Returns one test case for each of the three ops. `turn` chooses the gradient mode.
inline std::vector<OpCase> batch_norm_pool_calls(const StemParams& p, std::size_t turn) {
  return {batch_norm_pool_forward_case(p),
          batch_norm_pool_backward_reduce_case(p, static_cast<ops::GradMode>(turn % 3)),
          batch_norm_pool_backward_apply_case(p)};
}

inline std::vector<DeviceCase> batch_norm_pool_device_cases() {
  std::vector<DeviceCase> items;
  std::size_t turn = 0;
  for (StemParams p : stem_params(DType::f32)) {
    for (const std::size_t which : {0, 1, 2}) {
      append(items, device_cases([&](DType dtype) {
               p.pool.dtype = dtype;
               return batch_norm_pool_calls(p, turn)[which];
             }));
    }
    ++turn;
  }
  return items;
}

}  // namespace lockstep::testing
