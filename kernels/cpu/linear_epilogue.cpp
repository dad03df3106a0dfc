#include <lockstep/kernels/linear_epilogue.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/activation.hpp>
#include <lockstep/kernels/cpu/column_sums.hpp>
#include <lockstep/kernels/cpu/element.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int64_t kPiece = 512;  // number of elements that are computed together, on the stack

int64_t rows_worth_a_thread(int64_t columns) {
  return std::max(int64_t{1}, activations::kGrain / columns);
}

/// Calls f(at, column, count) for the pieces of rows [first, last) of a tensor (M, columns). A piece is the elements
/// [at, at + count); its first element is in column `column`. If a row has fewer than kPiece elements, a piece is one
/// or more full rows. Otherwise a piece is a part of one row.
template <class F>
void for_pieces(int64_t first, int64_t last, int64_t columns, F f) {
  const int64_t most = columns < kPiece ? kPiece / columns * columns : kPiece;
  const int64_t end = last * columns;
  for (int64_t at = first * columns, column = 0; at < end;) {
    const int64_t count = std::min(most, columns < kPiece ? end - at : columns - column);
    f(at, column, count);
    at += count;
    column = (column + count) % columns;
  }
}

/// Sets to = x + bias. x is `count` elements of a tensor (M, columns): full rows, or a part of one row that begins at
/// `column`. bias has `columns` numbers, or is null.
template <class T>
void add_bias(const T* x, const Value<T>* bias, int64_t column, int64_t columns, int64_t count, Value<T>* to) {
  std::transform(x, x + count, to, [](T in) { return value_of(in); });
  for (int64_t row = 0; bias != nullptr && row < count; row += columns) {
    const int64_t width = std::min(columns, count - row);
    for (int64_t c = 0; c < width; ++c) {
      to[row + c] += bias[column + c];
    }
  }
}

}  // namespace

void linear_epilogue_forward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& bias,
                             const TensorView& residual, const TensorView& y) {
  visit_element(x.dtype, "linear_epilogue_forward", [&]<class T>(std::type_identity<T>) {
    using V = Value<T>;
    const int64_t columns = x.shape.back();
    const T* px = x.as<T>();  // shape (M, N)
    const V* pb = bias.given() ? bias.as<V>() : nullptr;
    const T* pr = residual.given() ? residual.as<T>() : nullptr;  // shape (M, N)
    T* py = y.as<T>();                                            // shape (M, N)
    parallel_ranges(context, x.numel() / columns, rows_worth_a_thread(columns), [=](int64_t first, int64_t last) {
      V piece[kPiece];
      for_pieces(first, last, columns, [&](int64_t at, int64_t column, int64_t count) {
        add_bias(px + at, pb, column, columns, count, piece);
        activations::values(kind, piece, count, piece);
        if (pr != nullptr) {
          for (int64_t i = 0; i < count; ++i) {
            piece[i] += value_of(pr[at + i]);
          }
        }
        store_values<T>(piece, count, py + at);
      });
    });
  });
}

std::size_t linear_epilogue_workspace_bytes(const CpuContext& /*context*/, const TensorView& x) {
  return column_sums_bytes(x.numel() / x.shape.back(), x.shape.back(), 1);
}

void linear_epilogue_backward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& bias,
                              const TensorView& dy, GradMode mode, const TensorView& dx, const TensorView& dbias,
                              const TensorView& workspace) {
  visit_element(dy.dtype, "linear_epilogue_backward", [&]<class T>(std::type_identity<T>) {
    const int64_t columns = dy.shape.back();
    const int64_t rows = dy.numel() / columns;
    const bool inputs = kind != Activation::identity;
    const T* px = inputs ? x.as<T>() : nullptr;  // shape (M, N)
    const Value<T>* pb = inputs && bias.given() ? bias.as<Value<T>>() : nullptr;
    const T* pdy = dy.as<T>();                   // shape (M, N)
    T* pdx = dx.given() ? dx.as<T>() : nullptr;  // shape (M, N)
    /// Adds the row's gradients to total (N), unless total is null.
    const auto take = [=](int64_t row, double* total) {
      for_pieces(row, row + 1, columns, [=](int64_t at, int64_t column, int64_t count) {
        Value<T> piece[kPiece];
        if (px != nullptr) {
          add_bias(px + at, pb, column, columns, count, piece);
          activations::slopes(kind, piece, count, piece);
        }
        for (int64_t i = 0; i < count; ++i) {
          Value<T> gradient = value_of(pdy[at + i]);
          if (px != nullptr) {
            gradient *= piece[i];
          }
          if (total != nullptr) {
            total[column + i] += static_cast<double>(gradient);
          }
          if (pdx != nullptr) {
            pdx[at + i] = T(gradient);
          }
        }
      });
    };
    if (mode != GradMode::ignore) {
      column_sums(context, rows, columns, mode == GradMode::accumulate, static_cast<double*>(workspace.data),
                  std::array{dbias.as<Value<T>>()}, take);
    } else {
      parallel_ranges(context, rows, rows_worth_a_thread(columns), [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          take(row, nullptr);
        }
      });
    }
  });
}

}  // namespace lockstep::ops::backend
