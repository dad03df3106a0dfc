#include <lockstep/kernels/low_rank.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 16384;  // number of elements that justify another thread

/// Returns the scalar product of columns i and j of x, whose shape is (rows, r).
template <class T>
double product_of(const T* x, int64_t rows, int64_t r, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    sum += static_cast<double>(x[row * r + i]) * static_cast<double>(x[row * r + j]);
  }
  return sum;
}

template <class T>
bool all_finite(const T* x, int64_t count) {
  return std::all_of(x, x + count, [](T value) { return std::isfinite(value); });
}

/// Subtracts from column j its components along the columns 0 to j - 1.
template <class T>
void project(T* x, int64_t rows, int64_t r, int64_t j) {
  for (int64_t i = 0; i < j; ++i) {
    const double along = product_of(x, rows, r, i, j);
    for (int64_t row = 0; row < rows; ++row) {
      x[row * r + j] =
          static_cast<T>(static_cast<double>(x[row * r + j]) - along * static_cast<double>(x[row * r + i]));
    }
  }
}

}  // namespace

void orthonormalise(CpuContext& /*context*/, double epsilon, const TensorView& x, const TensorView& columns) {
  visit_compute(x.dtype, "orthonormalise", [&]<class T>(std::type_identity<T>) {
    const int64_t rows = x.shape[0];
    const int64_t r = x.shape[1];
    T* const px = x.as<T>();                          // shape (rows, r)
    auto* const became = columns.as<std::int32_t>();  // shape (r)
    if (!all_finite(px, rows * r)) {
      std::fill(px, px + rows * r, std::numeric_limits<T>::quiet_NaN());
      std::fill(became, became + r, static_cast<std::int32_t>(Column::not_finite));
      return;
    }
    for (int64_t j = 0; j < r; ++j) {
      const double before = std::sqrt(product_of(px, rows, r, j, j));
      project(px, rows, r, j);
      project(px, rows, r, j);  // this second call removes the components that rounding has left
      const double length = std::sqrt(product_of(px, rows, r, j, j));
      const bool kept = length > epsilon * before;
      for (int64_t row = 0; row < rows; ++row) {
        T& value = px[row * r + j];
        value = kept ? static_cast<T>(static_cast<double>(value) / length) : T{0};
      }
      became[j] = static_cast<std::int32_t>(kept ? Column::kept : Column::dropped);
    }
  });
}

void low_rank_residual(CpuContext& context, const TensorView& x, const TensorView& p, const TensorView& q,
                       const TensorView& columns, const TensorView& error) {
  visit_compute(x.dtype, "low_rank_residual", [&]<class T>(std::type_identity<T>) {
    const int64_t n = x.shape[1];
    const int64_t r = p.shape[1];
    if (columns.as<std::int32_t>()[0] == static_cast<std::int32_t>(Column::not_finite)) {
      return;
    }
    const T* const px = x.as<T>();  // shape (m, n)
    const T* const pp = p.as<T>();  // shape (m, r)
    const T* const pq = q.as<T>();  // shape (n, r)
    T* const pe = error.as<T>();    // shape (m, n)
    parallel_ranges(context, x.shape[0], std::max(int64_t{1}, kGrain / n), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t column = 0; column < n; ++column) {
          T rest = px[row * n + column];
          for (int64_t j = 0; j < r; ++j) {
            rest -= pp[row * r + j] * pq[column * r + j];
          }
          pe[row * n + column] = rest;
        }
      }
    });
  });
}

void keep_columns(CpuContext& /*context*/, const TensorView& from, const TensorView& columns, const TensorView& to) {
  visit_compute(from.dtype, "keep_columns", [&]<class T>(std::type_identity<T>) {
    const int64_t r = from.shape[1];
    const T* const pf = from.as<T>();  // shape (n, r)
    T* const pt = to.as<T>();          // shape (n, r)
    const auto* const became = columns.as<std::int32_t>();
    for (int64_t i = 0; i < from.numel(); ++i) {
      if (became[i % r] == static_cast<std::int32_t>(Column::kept)) {
        pt[i] = pf[i];
      }
    }
  });
}

}  // namespace lockstep::ops::backend
