#include <lockstep/kernels/layer_norm.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <lockstep/kernels/cpu/column_sums.hpp>
#include <lockstep/kernels/cpu/element.hpp>

namespace lockstep::ops::backend {
namespace {

// All sums in this file are double.

constexpr int64_t kGrain = 16384;  // number of elements that justify another thread

int64_t grain_of(int64_t channels) {
  return std::max(int64_t{1}, kGrain / channels);
}

/// Computes dx of one row. dx may be dy.
template <class T>
void backward_row(const T* dy, const T* x, const Value<T>* weight, double mean, double inv_std, int64_t channels,
                  T* dx) {
  double sum = 0;         // sum of g
  double projection = 0;  // sum of g * xhat
  for (int64_t c = 0; c < channels; ++c) {
    const double g = static_cast<double>(value_of(dy[c])) * static_cast<double>(weight[c]);
    sum += g;
    projection += g * (static_cast<double>(value_of(x[c])) - mean) * inv_std;
  }
  const double per_channel = 1.0 / static_cast<double>(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double g = static_cast<double>(value_of(dy[c])) * static_cast<double>(weight[c]);
    const double xhat = (static_cast<double>(value_of(x[c])) - mean) * inv_std;
    dx[c] = element_of<T>(inv_std * (g - (sum + xhat * projection) * per_channel));
  }
}

}  // namespace

void layer_norm_forward(CpuContext& context, const TensorView& x, const TensorView& weight, const TensorView& bias,
                        double epsilon, const TensorView& y, const TensorView& mean, const TensorView& inv_std) {
  visit_element(x.dtype, "layer_norm_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = x.shape.back();
    const T* px = x.as<T>();  // shape (M, C)
    T* py = y.as<T>();        // shape (M, C)
    const auto* pw = weight.as<Value<T>>();
    const auto* pb = bias.as<Value<T>>();
    auto* pm = mean.given() ? mean.as<Value<T>>() : nullptr;
    auto* ps = mean.given() ? inv_std.as<Value<T>>() : nullptr;
    parallel_ranges(context, x.numel() / channels, grain_of(channels), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = px + row * channels;
        T* to = py + row * channels;
        double sum = 0;
        for (int64_t c = 0; c < channels; ++c) {
          sum += static_cast<double>(value_of(from[c]));
        }
        const double m = sum / static_cast<double>(channels);
        double squares = 0;
        for (int64_t c = 0; c < channels; ++c) {
          const double deviation = static_cast<double>(value_of(from[c])) - m;
          squares += deviation * deviation;
        }
        const double s = 1.0 / std::sqrt(squares / static_cast<double>(channels) + epsilon);
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = element_of<T>((static_cast<double>(value_of(from[c])) - m) * s * static_cast<double>(pw[c]) +
                                static_cast<double>(pb[c]));
        }
        if (pm != nullptr) {
          pm[row] = static_cast<Value<T>>(m);
          ps[row] = static_cast<Value<T>>(s);
        }
      }
    });
  });
}

std::size_t layer_norm_workspace_bytes(const CpuContext& /*context*/, const TensorView& x) {
  return column_sums_bytes(x.numel() / x.shape.back(), x.shape.back(), 2);
}

void layer_norm_backward(CpuContext& context, const TensorView& dy, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& inv_std, GradMode mode, const TensorView& dx,
                         const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  visit_element(x.dtype, "layer_norm_backward", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = x.shape.back();
    const int64_t rows = x.numel() / channels;
    const T* pdy = dy.as<T>();  // shape (M, C)
    const T* px = x.as<T>();    // shape (M, C)
    const auto* pw = weight.as<Value<T>>();
    const auto* pm = mean.as<Value<T>>();
    const auto* ps = inv_std.as<Value<T>>();
    if (mode != GradMode::ignore) {
      const auto take = [=](int64_t row, double* sums) {
        const auto m = static_cast<double>(pm[row]);
        const auto s = static_cast<double>(ps[row]);
        for (int64_t c = 0; c < channels; ++c) {
          const auto g = static_cast<double>(value_of(pdy[row * channels + c]));
          sums[c] += g * (static_cast<double>(value_of(px[row * channels + c])) - m) * s;
          sums[channels + c] += g;
        }
      };
      column_sums(context, rows, channels, mode == GradMode::accumulate, static_cast<double*>(workspace.data),
                  std::array{dweight.as<Value<T>>(), dbias.as<Value<T>>()}, take);
    }
    if (dx.given()) {  // dx is written last: it may be dy, which the sums read
      T* pdx = dx.as<T>();
      parallel_ranges(context, rows, grain_of(channels), [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = row * channels;
          backward_row(pdy + at, px + at, pw, static_cast<double>(pm[row]), static_cast<double>(ps[row]), channels,
                       pdx + at);
        }
      });
    }
  });
}

}  // namespace lockstep::ops::backend
