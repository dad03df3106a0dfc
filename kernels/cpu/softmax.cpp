#include <lockstep/kernels/softmax.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int64_t kGrain = 4096;  // number of elements that justify another thread: each element needs an exponential

int64_t grain_of(int64_t columns) {
  return std::max(int64_t{1}, kGrain / columns);
}

/// Computes the softmax of one row over its first `seen` columns. y may be x. The largest value is subtracted before
/// the multiplication by scale, because this multiplication rounds, and the largest exponent must be exactly 0. The sum
/// is double. If T is Value<T>, y temporarily holds the exponentials. Otherwise storing the exponentials in y would
/// round them, so they are computed twice.
template <class T>
void forward_row(const T* x, Value<T> scale, int64_t seen, int64_t columns, T* y) {
  using V = Value<T>;
  const V sign = scale < 0 ? V{-1} : V{1};
  V largest = -std::numeric_limits<V>::infinity();
  for (int64_t k = 0; k < seen; ++k) {
    largest = std::max(largest, sign * value_of(x[k]));  // a NaN is never the largest; it makes the sum NaN
  }
  const auto exponential = [=](int64_t k) { return std::exp(std::abs(scale) * (sign * value_of(x[k]) - largest)); };
  double sum = 0;
  for (int64_t k = 0; k < seen; ++k) {
    const V e = exponential(k);
    sum += static_cast<double>(e);
    if constexpr (std::is_same_v<T, V>) {
      y[k] = e;
    }
  }
  for (int64_t k = 0; k < seen; ++k) {
    const V e = std::is_same_v<T, V> ? value_of(y[k]) : exponential(k);
    y[k] = element_of<T>(static_cast<double>(e) / sum);
  }
  std::fill(y + seen, y + columns, T{0});
}

/// Computes dx of one row. dx may be dy or y.
template <class T>
void backward_row(const T* y, const T* dy, double scale, int64_t columns, T* dx) {
  double sum = 0;
  for (int64_t k = 0; k < columns; ++k) {
    const auto p = static_cast<double>(value_of(y[k]));
    sum += p == 0 ? 0.0 : static_cast<double>(value_of(dy[k])) * p;
  }
  for (int64_t k = 0; k < columns; ++k) {
    const auto p = static_cast<double>(value_of(y[k]));
    dx[k] = p == 0 ? T{0} : element_of<T>(scale * p * (static_cast<double>(value_of(dy[k])) - sum));
  }
}

}  // namespace

void softmax_forward(CpuContext& context, const TensorView& x, double scale, SoftmaxMask mask, const TensorView& y) {
  if (x.numel() == 0) {
    return;
  }
  visit_element(x.dtype, "softmax_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t columns = x.shape.back();
    const bool causal = mask == SoftmaxMask::causal;
    const int64_t queries = causal ? x.shape[x.shape.rank() - 2] : 1;
    const T* px = x.as<T>();  // shape (M, K)
    T* py = y.as<T>();        // shape (M, K)
    parallel_ranges(context, x.numel() / columns, grain_of(columns), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t seen = causal ? columns - queries + row % queries + 1 : columns;
        forward_row(px + row * columns, static_cast<Value<T>>(scale), seen, columns, py + row * columns);
      }
    });
  });
}

void softmax_backward(CpuContext& context, const TensorView& y, const TensorView& dy, double scale,
                      const TensorView& dx) {
  if (y.numel() == 0) {
    return;
  }
  visit_element(y.dtype, "softmax_backward", [&]<class T>(std::type_identity<T>) {
    const int64_t columns = y.shape.back();
    const T* py = y.as<T>();    // shape (M, K)
    const T* pdy = dy.as<T>();  // shape (M, K)
    T* pdx = dx.as<T>();        // shape (M, K)
    parallel_ranges(context, y.numel() / columns, grain_of(columns), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        backward_row(py + row * columns, pdy + row * columns, scale, columns, pdx + row * columns);
      }
    });
  });
}

}  // namespace lockstep::ops::backend
