#include <lockstep/kernels/batch_norm_pool.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;

/// Does the checks that all three ops of this file share. `y` is the pooled tensor: y in the forward pass, dy in the
/// backward passes.
void check_pool(std::string_view op, const PoolDesc& desc, const TensorView& x, const TensorView& coefficients,
                const Operand& y, const TensorView& index) {
  require_images(op, {x, "x"});
  require<ShapeError>(is_stem_pool(desc), op, ": the window is ", desc.kernel[0], " x ", desc.kernel[1], " at stride ",
                      desc.stride[0], " x ", desc.stride[1], ", expected 3 x 3 at 2 x 2");
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 30;  // limit for H and W: positions have 32 bits
  require<ShapeError>(x.shape[1] <= kMostPixels && x.shape[2] <= kMostPixels, op, ": x is ", x.shape,
                      ", expected at most ", kMostPixels, " pixels in a line or column");
  require<ShapeError>(x.shape[3] >= 1, op, ": x is ", x.shape, ", expected at least one channel");
  require_tensor(op, {coefficients, "coefficients"}, accumulation_dtype(x.dtype), Shape{4, x.shape[3]});
  require_tensor(op, y, x.dtype, pooled_shape(desc, x.shape));
  require_tensor(op, {index, "index"}, DType::u8, y.view.shape);
}

void check_backward(std::string_view op, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                    const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                    const TensorView& sums) {
  check_pool(op, desc, x, coefficients, {dy, "dy"}, index);
  require_scalar_if_given(op, {valid, "valid"}, DType::i64);
  require_tensor(op, {sums, "sums"}, accumulation_dtype(x.dtype), Shape{2, x.shape[3]});
}

}  // namespace

void batch_norm_pool_forward(Context& context, const PoolDesc& desc, const TensorView& x,
                             const TensorView& coefficients, const TensorView& y, const TensorView& index) {
  constexpr std::string_view kOp = "batch_norm_pool_forward";
  require_on(context.device(), kOp, {&x, &coefficients, &y, &index});
  check_pool(kOp, desc, x, coefficients, {y, "y"}, index);
  require_apart(kOp, {y, "y"}, {{x, "x"}, {coefficients, "coefficients"}});
  require_apart(kOp, {index, "index"}, {{x, "x"}, {coefficients, "coefficients"}, {y, "y"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(batch_norm_pool_forward, desc, x, coefficients, y, index));
}

void batch_norm_pool_backward_reduce(Context& context, const PoolDesc& desc, const TensorView& dy,
                                     const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                     const TensorView& valid, GradMode mode, const TensorView& sums,
                                     const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  constexpr std::string_view kOp = "batch_norm_pool_backward_reduce";
  require_on(context.device(), kOp, {&dy, &index, &x, &coefficients, &valid, &sums, &dweight, &dbias, &workspace});
  check_backward(kOp, desc, dy, index, x, coefficients, valid, sums);
  require_workspace(kOp, workspace, batch_norm_workspace_bytes(context, x), kWorkspaceAlignment);
  const auto apart = [&](const Operand& out) {
    require_apart(kOp, out, {{dy, "dy"}, {index, "index"}, {x, "x"}, {coefficients, "coefficients"}, {valid, "valid"}});
  };
  apart({sums, "sums"});
  apart({workspace, "workspace"});
  require_apart(kOp, {sums, "sums"}, {{workspace, "workspace"}});
  if (mode != GradMode::ignore) {
    for (const Operand& gradient : {Operand{dweight, "dweight"}, Operand{dbias, "dbias"}}) {
      require_tensor(kOp, gradient, accumulation_dtype(x.dtype), Shape{x.shape[3]});
      apart(gradient);
      require_apart(kOp, gradient, {{sums, "sums"}, {workspace, "workspace"}});
    }
    require_apart(kOp, {dweight, "dweight"}, {{dbias, "dbias"}});
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_pool_backward_reduce, desc, dy, index, x, coefficients, valid, mode, sums,
                            dweight, dbias, workspace));
}

void batch_norm_pool_backward_apply(Context& context, const PoolDesc& desc, const TensorView& dy,
                                    const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                    const TensorView& sums, const TensorView& stats, const TensorView& valid,
                                    const TensorView& dx) {
  constexpr std::string_view kOp = "batch_norm_pool_backward_apply";
  require_on(context.device(), kOp, {&dy, &index, &x, &coefficients, &sums, &stats, &valid, &dx});
  check_backward(kOp, desc, dy, index, x, coefficients, valid, sums);
  require_tensor(kOp, {stats, "stats"}, accumulation_dtype(x.dtype), Shape{2 * x.shape[3] + 1});
  require_tensor(kOp, {dx, "dx"}, x.dtype, x.shape);
  require_apart(kOp, {dx, "dx"},
                {{dy, "dy"},
                 {index, "index"},
                 {x, "x"},
                 {coefficients, "coefficients"},
                 {sums, "sums"},
                 {stats, "stats"},
                 {valid, "valid"}});
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(batch_norm_pool_backward_apply, desc, dy, index, x, coefficients, sums, stats, valid, dx));
}

}  // namespace lockstep::ops
