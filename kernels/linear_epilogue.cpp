#include <lockstep/kernels/linear_epilogue.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;

}  // namespace

void linear_epilogue_forward(Context& context, Activation kind, const TensorView& x, const TensorView& bias,
                             const TensorView& residual, const TensorView& y) {
  constexpr std::string_view kOp = "linear_epilogue_forward";
  require_on(context.device(), kOp, {&x, &bias, &residual, &y});
  require_alike(kOp, {{x, "x"}, {y, "y"}});
  require_rows(kOp, {x, "x"});
  require_same_or_apart(kOp, {y, "y"}, {x, "x"});
  if (bias.given()) {
    require_tensor(kOp, {bias, "bias"}, accumulation_dtype(x.dtype), Shape{x.shape.back()});
    require_apart(kOp, {y, "y"}, {{bias, "bias"}});
  }
  if (residual.given()) {
    require_alike(kOp, {{x, "x"}, {residual, "residual"}});
    require_same_or_apart(kOp, {y, "y"}, {residual, "residual"});
  }
  static_cast<void>(name_of(kind));  // throws UsageError for a value that is no Activation
  dispatch(context, kOp, LOCKSTEP_BACKEND(linear_epilogue_forward, kind, x, bias, residual, y));
}

std::size_t linear_epilogue_workspace_bytes(const Context& context, const TensorView& x) {
  constexpr std::string_view kOp = "linear_epilogue_workspace_bytes";
  require_on(context.device(), kOp, {&x});
  require_alike(kOp, {{x, "x"}});
  require_rows(kOp, {x, "x"});
  return ask(context, kOp, LOCKSTEP_BACKEND(linear_epilogue_workspace_bytes, x));
}

void linear_epilogue_backward(Context& context, Activation kind, const TensorView& x, const TensorView& bias,
                              const TensorView& dy, GradMode mode, const TensorView& dx, const TensorView& dbias,
                              const TensorView& workspace) {
  constexpr std::string_view kOp = "linear_epilogue_backward";
  require_on(context.device(), kOp, {&x, &bias, &dy, &dx, &dbias, &workspace});
  static_cast<void>(name_of(kind));
  require_alike(kOp, {{dy, "dy"}});
  require_rows(kOp, {dy, "dy"});
  const Shape row{dy.shape.back()};
  const DType parameter = accumulation_dtype(dy.dtype);
  if (kind != Activation::identity || x.given()) {
    require_alike(kOp, {{dy, "dy"}, {x, "x"}});
  }
  require_tensor_if_given(kOp, {bias, "bias"}, parameter, row);
  if (dx.given()) {
    require_alike(kOp, {{dy, "dy"}, {dx, "dx"}});
    require_same_or_apart(kOp, {dx, "dx"}, {dy, "dy"});
    require_same_or_apart(kOp, {dx, "dx"}, {x, "x"});
    require_apart(kOp, {dx, "dx"}, {{bias, "bias"}});
  }
  if (mode != GradMode::ignore) {
    require_tensor(kOp, {dbias, "dbias"}, parameter, row);
    require_workspace(kOp, workspace, linear_epilogue_workspace_bytes(context, dy), kWorkspaceAlignment);
    for (const Operand& out : {Operand{dbias, "dbias"}, Operand{workspace, "workspace"}}) {
      require_apart(kOp, out, {{x, "x"}, {bias, "bias"}, {dy, "dy"}, {dx, "dx"}});
    }
    require_apart(kOp, {dbias, "dbias"}, {{workspace, "workspace"}});
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(linear_epilogue_backward, kind, x, bias, dy, mode, dx, dbias, workspace));
}

}  // namespace lockstep::ops
