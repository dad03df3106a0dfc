#pragma once

#include <cstdint>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/pool2d.hpp>

namespace lockstep::ops {

// The stem of a residual network: batch norm, ReLU and a max pool with 3 x 3 windows at stride 2 in one pass. The pass
// stores neither the normalised image nor the gradient of the normalised image.
//
//   x, dx:  (N, H, W, C), y, dy: (N, P, Q, C), contiguous; batch_norm.hpp states the types and the other arguments
//   desc:   kernel {3, 3} and stride {2, 2} with any padding; ShapeError for another kernel or stride
//   index:  u8, shape of y: 3 * r + s if the largest element is in row r, column s of the window; kNoWinner if y is not
//           positive, so that no gradient passes

inline constexpr std::uint8_t kNoWinner = 255;

/// Returns true if `desc` has the windows that the ops of this file take: 3 x 3 at stride 2.
[[nodiscard]] constexpr bool is_stem_pool(const PoolDesc& desc) {
  return desc.kernel[0] == 3 && desc.kernel[1] == 3 && desc.stride[0] == 2 && desc.stride[1] == 2;
}

/// Computes y and index of max_pool2d_forward(relu(batch_norm_apply(x, coefficients))). Each value is rounded to the
/// type of x before the comparison.
void batch_norm_pool_forward(Context& context, const PoolDesc& desc, const TensorView& x,
                             const TensorView& coefficients, const TensorView& y, const TensorView& index);

/// Does batch_norm_backward_reduce for the gradient g that reaches the batch norm through pool and ReLU. The g of an
/// element is the unrounded sum of dy over all windows whose largest element (index) is this element. The windows are
/// added in row-major order. workspace has batch_norm_workspace_bytes(x) bytes.
void batch_norm_pool_backward_reduce(Context& context, const PoolDesc& desc, const TensorView& dy,
                                     const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                     const TensorView& valid, GradMode mode, const TensorView& sums,
                                     const TensorView& dweight, const TensorView& dbias, const TensorView& workspace);

/// Does batch_norm_backward_apply for the gradient g that batch_norm_pool_backward_reduce describes.
void batch_norm_pool_backward_apply(Context& context, const PoolDesc& desc, const TensorView& dy,
                                    const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                    const TensorView& sums, const TensorView& stats, const TensorView& valid,
                                    const TensorView& dx);

namespace backend {  // functions that batch_norm_pool.cpp calls after its checks; on the host they also check `valid`
LOCKSTEP_BACKENDS(batch_norm_pool_forward);
LOCKSTEP_BACKENDS(batch_norm_pool_backward_reduce);
LOCKSTEP_BACKENDS(batch_norm_pool_backward_apply);
}  // namespace backend

}  // namespace lockstep::ops
