#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/operands.hpp>

/// The argument checks that the ops of batch norm share.
namespace lockstep::ops::batch_norm {

inline constexpr std::uintptr_t kWorkspaceAlignment = 64;  // bytes

inline void check_input(std::string_view op, const TensorView& x) {
  require_compute_dtype(op, "x", x);
  require<ShapeError>(x.shape.rank() >= 2 && x.shape.back() >= 1, op, ": x is ", x.shape,
                      ", expected (N, ..., C) with at least one channel");
  require<ShapeError>(x.is_contiguous(), op, ": x ", x.shape, " with strides ", x.strides,
                      " is not contiguous, expected a contiguous tensor");
}

/// Checks the type of statistics or parameters, in an op without a data tensor: on a GPU f32, on the host f32 or f64.
inline void check_parameters(std::string_view op, const Operand& operand) {
  const auto& [view, name] = operand;
  require_compute_dtype(op, name, view);
  require<DTypeError>(view.dtype == accumulation_dtype(view.dtype), op, ": ", name, " is ", view.dtype, ", expected ",
                      accumulation_dtype(view.dtype));
}

inline void check_mask(std::string_view op, const TensorView& mask, std::int64_t numel) {
  require_tensor_if_given(op, {mask, "mask"}, DType::u8, Shape{static_cast<std::int64_t>(relu_mask_bytes(numel))});
}

inline void check_workspace(std::string_view op, const Context& context, const TensorView& x,
                            const TensorView& workspace) {
  require_workspace(op, workspace, batch_norm_workspace_bytes(context, x), kWorkspaceAlignment);
}

/// Does the checks that both backward ops, reduce and apply, share.
inline void check_backward(std::string_view op, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                           const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                           const TensorView& sums) {
  check_input(op, x);
  const DType parameters = accumulation_dtype(x.dtype);
  require_tensor(op, {dy, "dy"}, x.dtype, x.shape);
  require_tensor_if_given(op, {dy2, "dy2"}, x.dtype, x.shape);
  check_mask(op, mask, x.numel());
  require_tensor(op, {coefficients, "coefficients"}, parameters, Shape{4, x.shape.back()});
  require_scalar_if_given(op, {valid, "valid"}, DType::i64);
  require_tensor(op, {sums, "sums"}, parameters, Shape{2, x.shape.back()});
}

/// Checks dweight and dbias, unless mode is ignore.
inline void check_gradients(std::string_view op, GradMode mode, const TensorView& dweight, const TensorView& dbias,
                            const TensorView& x) {
  if (mode != GradMode::ignore) {
    require_tensor(op, {dweight, "dweight"}, accumulation_dtype(x.dtype), Shape{x.shape.back()});
    require_tensor(op, {dbias, "dbias"}, accumulation_dtype(x.dtype), Shape{x.shape.back()});
  }
}

/// Checks the operands and options of batch_norm_finalize and batch_norm_coefficients, except for the type of stats.
inline void check_finalize(std::string_view op, const TensorView& stats, const TensorView& weight,
                           const TensorView& bias, double epsilon, double momentum, const TensorView& running_mean,
                           const TensorView& running_var, const TensorView& coefficients) {
  require<ShapeError>(weight.shape.rank() == 1 && weight.shape[0] >= 1, op, ": weight is ", weight.shape,
                      ", expected (C)");
  const std::int64_t channels = weight.shape[0];
  require_tensor(op, {stats, "stats"}, stats.dtype, Shape{2 * channels + 1});
  require_tensor(op, {weight, "weight"}, stats.dtype, Shape{channels});
  require_tensor(op, {bias, "bias"}, stats.dtype, Shape{channels});
  require_tensor(op, {coefficients, "coefficients"}, stats.dtype, Shape{4, channels});
  require<ShapeError>(running_mean.given() == running_var.given(), op, ": running_mean is ",
                      running_mean.given() ? "given and running_var is missing" : "missing and running_var is given",
                      ", expected both or neither");
  require_tensor_if_given(op, {running_mean, "running_mean"}, stats.dtype, Shape{channels});
  require_tensor_if_given(op, {running_var, "running_var"}, stats.dtype, Shape{channels});
  require<UsageError>(epsilon > 0, op, ": epsilon is ", epsilon, ", expected more than 0");
  require<UsageError>(momentum >= 0 && momentum <= 1, op, ": momentum is ", momentum, ", expected 0 to 1");
}

/// Checks that no output shares memory with another output, or with an input. An input in `in_place` may be the same
/// tensor as an output.
inline void check_apart(std::string_view op, std::initializer_list<Operand> outputs,
                        std::initializer_list<Operand> inputs, std::initializer_list<const TensorView*> in_place = {}) {
  const auto shared = [](const TensorView& a, const TensorView& b) {
    return a.given() && b.given() && a.data != nullptr && b.data != nullptr && overlaps(a, b);
  };
  for (const Operand* out = outputs.begin(); out != outputs.end(); ++out) {
    for (const Operand* other = outputs.begin(); other != out; ++other) {
      require<ShapeError>(!shared(out->view, other->view), op, ": ", out->name, " overlaps ", other->name,
                          ", expected memory of its own for each");
    }
    for (const Operand& in : inputs) {
      bool allowed = false;
      for (const TensorView* view : in_place) {
        allowed = allowed || (&in.view == view && out->view.shape == view->shape && out->view.data == view->data);
      }
      require<ShapeError>(allowed || !shared(out->view, in.view), op, ": ", out->name, " overlaps ", in.name,
                          ", expected memory of its own for each");
    }
  }
}

}  // namespace lockstep::ops::batch_norm
