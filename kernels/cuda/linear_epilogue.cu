// Computes y = function(x + bias) + residual for x (M, N), bias (N), and the gradients dx (M, N), dbias (N).
//
// Forward: blocks of 256 threads in a grid-stride loop over pieces of 16 bytes. A thread finds the column of its next
// piece by addition, so it needs only one division in all. For whole pieces the function is a template argument.
//
// Backward also sums over the rows. column_sums.hpp gives 32 pieces of columns and a chunk of rows to a block of 32 x 8
// threads. A thread keeps the same columns, so that their bias stays in registers. It writes dx in the same pass.
//
// Memory bandwidth bounds the kernels. Forward moves 8 bytes per element in f32 and 4 in 16 bits; with a residual 12
// and 6. Backward moves 12 and 6 (dy, x, dx), but less for identity, which does not read x. The bias comes from the
// caches.

#include <lockstep/kernels/cuda/activation.hpp>
#include <lockstep/kernels/cuda/column_sums.hpp>
#include <lockstep/kernels/linear_epilogue.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;

/// Computes y = function(x + bias) + residual, in pieces of kCount elements. A row has `period` pieces. The piece that
/// a thread takes next is `step` columns of pieces further, modulo `period`. A thread reads a piece of all inputs
/// before it writes the piece: y may be x or residual. x, residual (or null), y: (pieces, kCount), bias (or null):
/// (period, kCount).
template <class T, class F, int kCount>
__global__ void __launch_bounds__(kBlock) forward_kernel(F function, int64_t pieces, int64_t period, int64_t step,
                                                         const T* x, const float* bias, const T* residual, T* y) {
  gpu::wait_for_earlier();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlock;
  int64_t column = thread % period;
  for (int64_t piece = thread; piece < pieces; piece += threads) {
    auto values = gpu::load<kCount>(x + piece * kCount);
    gpu::Pack<float, kCount> shift{};
    if (bias != nullptr) {
      shift = gpu::load<kCount>(bias + column * kCount);
    }
    gpu::Pack<float, kCount> added{};
    if (residual != nullptr) {
      const auto more = gpu::load<kCount>(residual + piece * kCount);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        added.at[j] = gpu::to_float(more.at[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values.at[j] = gpu::from_float<T>(function.value(gpu::to_float(values.at[j]) + shift.at[j]) + added.at[j]);
    }
    gpu::store(y + piece * kCount, values);
    column += step;
    if (column >= period) {
      column -= period;
    }
  }
}

/// A function for gpu::column_sums that writes dx = dy * function'(x + bias), and sums dx over the rows. x, dy, dx: (M,
/// N), bias: (N). x, bias and dx may be null. If x is null, function' is 1.
template <class T, class F, int kCount>
struct Backward {
  F function;
  int64_t columns;
  const T* x;
  const float* bias;
  const T* dy;
  T* dx;

  /// The kCount columns of a thread. The pointers point to the first of these columns in row 0.
  struct Piece {
    F function;
    int64_t columns;
    const T* x;
    const T* dy;
    T* dx;
    gpu::Pack<float, kCount> shift;

    __device__ void operator()(int64_t row, float (&sums)[1][kCount]) const {
      const auto gradient = gpu::load<kCount>(dy + row * columns);
      float g[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        g[j] = gpu::to_float(gradient.at[j]);
      }
      if (x != nullptr) {
        const auto values = gpu::load<kCount>(x + row * columns);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          g[j] *= function.slope(gpu::to_float(values.at[j]) + shift.at[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sums[0][j] += g[j];
      }
      if (dx != nullptr) {
        gpu::store(dx + row * columns, gpu::rounded<T>(g));
      }
    }
  };

  __device__ Piece at(int64_t column) const {
    gpu::Pack<float, kCount> shift{};
    if (bias != nullptr) {
      shift = gpu::load<kCount>(bias + column);
    }
    return {function, columns, x == nullptr ? x : x + column, dy + column, dx == nullptr ? dx : dx + column, shift};
  }
};

/// Calls f(function, kCount). For 16-byte pieces the type of `function` depends on the kind, so that each kind has its
/// own kernel. For single elements all kinds share one type and one kernel.
template <class T, class F>
void visit_kernels(Activation kind, bool aligned, int64_t columns, F&& f) {
  gpu::visit_pieces<T>(aligned, columns, [&]<int kCount>(std::integral_constant<int, kCount> count) {
    if constexpr (kCount == 1) {
      f(gpu::AnyActivation{kind}, count);
    } else {
      gpu::AnyActivation{kind}.visit([&](auto function) { f(function, count); });
    }
  });
}

}  // namespace

void linear_epilogue_forward(CudaContext& context, Activation kind, const TensorView& x, const TensorView& bias,
                             const TensorView& residual, const TensorView& y) {
  if (x.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "linear_epilogue_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t columns = x.shape.back();
    const auto* const px = gpu::data<const T>(x);
    const auto* const pb = gpu::data<const float>(bias);
    const auto* const pr = gpu::data<const T>(residual);
    auto* const py = gpu::data<T>(y);
    visit_kernels<T>(kind, gpu::aligned_to_vectors(px, pb, pr, py), columns,
                     [&]<class F, int kCount>(F function, std::integral_constant<int, kCount>) {
                       const int64_t pieces = x.numel() / kCount;
                       const int64_t period = columns / kCount;
                       const unsigned blocks = gpu::blocks_for(pieces, kBlock);
                       const int64_t step = static_cast<int64_t>(blocks) * kBlock % period;
                       gpu::launch(forward_kernel<T, F, kCount>, dim3(blocks), dim3(kBlock), 0, context.stream(),
                                   function, pieces, period, step, px, pb, pr, py);
                     });
  });
}

std::size_t linear_epilogue_workspace_bytes(const CudaContext& /*context*/, const TensorView& x) {
  return gpu::column_sums_bytes(x.numel() / x.shape.back(), x.shape.back(), 1);
}

void linear_epilogue_backward(CudaContext& context, Activation kind, const TensorView& x, const TensorView& bias,
                              const TensorView& dy, GradMode mode, const TensorView& dx, const TensorView& dbias,
                              const TensorView& workspace) {
  gpu::visit_element(dy.dtype, "linear_epilogue_backward", [&]<class T>(std::type_identity<T>) {
    const int64_t columns = dy.shape.back();
    const bool inputs = kind != Activation::identity;
    const bool sums = mode != GradMode::ignore;
    const auto* const px = inputs ? gpu::data<const T>(x) : nullptr;
    const auto* const pb = inputs ? gpu::data<const float>(bias) : nullptr;
    const auto* const pdy = gpu::data<const T>(dy);
    auto* const pdx = gpu::data<T>(dx);
    visit_kernels<T>(kind, gpu::aligned_to_vectors(px, pb, pdy, pdx), columns,
                     [&]<class F, int kCount>(F function, std::integral_constant<int, kCount>) {
                       gpu::column_sums<1, kCount>(context, Backward<T, F, kCount>{function, columns, px, pb, pdy, pdx},
                                                   dy.numel() / columns, columns, mode == GradMode::accumulate,
                                                   sums ? gpu::data<float>(workspace) : nullptr,
                                                   gpu::ColumnSums<1>{{sums ? gpu::data<float>(dbias) : nullptr}});
                     });
  });
}

}  // namespace lockstep::ops::backend
