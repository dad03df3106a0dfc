#pragma once

#include <array>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep::ops {

/// A 2-D pooling window. Output extent = floor((in + before + after - kernel) / stride) + 1.
struct PoolDesc {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> pad_before{0, 0};
  std::array<std::int64_t, 2> pad_after{0, 0};
};

/// (N, H, W, C) -> shape of the pooled tensor. ShapeError when the window does not fit or lies in padding only.
[[nodiscard]] Shape pooled_shape(const PoolDesc& desc, const Shape& x);

// x, dx: (N, H, W, C), y, dy: (N, P, Q, C), contiguous; f32 or f64 on the host, f32, bf16 or f16
// on a GPU, with sums in f32. Deterministic, no workspace.

/// y = largest x in the window (padding never wins; the first of equal values in row-major order wins; a NaN wins).
/// index (i32, shape of y, may be missing in inference): h * W + w of the winner.
void max_pool2d_forward(Context& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index);
/// dx = sum of dy over the windows that the element won, in row-major order. dx is overwritten and is not dy. Windows
/// may overlap; an index outside its window is nobody's.
void max_pool2d_backward(Context& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx);

/// y (N, C) = mean over H and W of x (N, H, W, C).
void global_average_pool_forward(Context& context, const TensorView& x, const TensorView& y);
/// dx[n, h, w, c] = dy[n, c] / (H * W).
void global_average_pool_backward(Context& context, const TensorView& dy, const TensorView& dx);

namespace backend {  // called after the checks of pool2d.cpp
void max_pool2d_forward(CpuContext&, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index);
void max_pool2d_backward(CpuContext&, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx);
void global_average_pool_forward(CpuContext&, const TensorView& x, const TensorView& y);
void global_average_pool_backward(CpuContext&, const TensorView& dy, const TensorView& dx);
void max_pool2d_forward(CudaContext&, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index);
void max_pool2d_backward(CudaContext&, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx);
void global_average_pool_forward(CudaContext&, const TensorView& x, const TensorView& y);
void global_average_pool_backward(CudaContext&, const TensorView& dy, const TensorView& dx);
}  // namespace backend

}  // namespace lockstep::ops
