#include <lockstep/kernels/linear_epilogue.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/activation.hpp>
#include <lockstep/kernels/cpu/column_sums.hpp>
#include <lockstep/kernels/cpu/element.hpp>

namespace lockstep::ops::backend {
namespace {

using std::int64_t;

int64_t rows_worth_a_thread(int64_t columns) {
  return std::max(int64_t{1}, activations::kGrain / columns);
}

}  // namespace

void linear_epilogue_forward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& bias,
                             const TensorView& residual, const TensorView& y) {
  visit_element(x.dtype, "linear_epilogue_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t columns = x.shape.back();
    const T* px = x.as<T>();  // (M, N)
    const Value<T>* pb = bias.given() ? bias.as<Value<T>>() : nullptr;
    const T* pr = residual.given() ? residual.as<T>() : nullptr;  // (M, N)
    T* py = y.as<T>();                                            // (M, N)
    activations::visit(kind, [&]<class Function>(Function) {
      const auto rows = [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          const int64_t at = row * columns;
          for (int64_t c = 0; c < columns; ++c) {
            const Value<T> in = value_of(px[at + c]);
            const Value<T> value = Function::value(pb == nullptr ? in : in + pb[c]);
            py[at + c] = T(pr == nullptr ? value : value + value_of(pr[at + c]));
          }
        }
      };
      parallel_ranges(context, x.numel() / columns, rows_worth_a_thread(columns), rows);
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
    const T* px = inputs ? x.as<T>() : nullptr;  // (M, N)
    const Value<T>* pb = inputs && bias.given() ? bias.as<Value<T>>() : nullptr;
    const T* pdy = dy.as<T>();                   // (M, N)
    T* pdx = dx.given() ? dx.as<T>() : nullptr;  // (M, N)
    activations::visit(kind, [&]<class Function>(Function) {
      /// total: (N), or null.
      const auto take = [=](int64_t row, double* total) {
        const int64_t at = row * columns;
        for (int64_t c = 0; c < columns; ++c) {
          Value<T> gradient = value_of(pdy[at + c]);
          if (px != nullptr) {
            const Value<T> in = value_of(px[at + c]);
            gradient *= Function::slope(pb == nullptr ? in : in + pb[c]);
          }
          if (total != nullptr) {
            total[c] += static_cast<double>(gradient);
          }
          if (pdx != nullptr) {
            pdx[at + c] = T(gradient);
          }
        }
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
  });
}

}  // namespace lockstep::ops::backend
