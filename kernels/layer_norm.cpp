#include <lockstep/kernels/layer_norm.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;

/// Checks an operand of shape (`extent`), which has one number per channel or per row of x.
void check_vector(std::string_view op, const Operand& operand, const TensorView& x, std::int64_t extent) {
  require_tensor(op, operand, accumulation_dtype(x.dtype), Shape{extent});
}

}  // namespace

void layer_norm_forward(Context& context, const TensorView& x, const TensorView& weight, const TensorView& bias,
                        double epsilon, const TensorView& y, const TensorView& mean, const TensorView& inv_std) {
  constexpr std::string_view kOp = "layer_norm_forward";
  require_on(context.device(), kOp, {&x, &weight, &bias, &y, &mean, &inv_std});
  require<UsageError>(mean.given() == inv_std.given(), kOp, ": ", mean.given() ? "inv_std" : "mean",
                      " is missing, expected mean and inv_std or neither");
  require_alike(kOp, {{x, "x"}, {y, "y"}});
  require_rows(kOp, {x, "x"});
  const std::int64_t channels = x.shape.back();
  check_vector(kOp, {weight, "weight"}, x, channels);
  check_vector(kOp, {bias, "bias"}, x, channels);
  require_same_or_apart(kOp, {y, "y"}, {x, "x"});
  require_apart(kOp, {y, "y"}, {{weight, "weight"}, {bias, "bias"}});
  if (mean.given()) {
    check_vector(kOp, {mean, "mean"}, x, x.numel() / channels);
    check_vector(kOp, {inv_std, "inv_std"}, x, x.numel() / channels);
    require_apart(kOp, {mean, "mean"}, {{x, "x"}, {y, "y"}, {weight, "weight"}, {bias, "bias"}, {inv_std, "inv_std"}});
    require_apart(kOp, {inv_std, "inv_std"}, {{x, "x"}, {y, "y"}, {weight, "weight"}, {bias, "bias"}});
  }
  require<UsageError>(epsilon > 0, kOp, ": epsilon is ", epsilon, ", expected a positive number");
  dispatch(context, kOp, LOCKSTEP_BACKEND(layer_norm_forward, x, weight, bias, epsilon, y, mean, inv_std));
}

std::size_t layer_norm_workspace_bytes(const Context& context, const TensorView& x) {
  constexpr std::string_view kOp = "layer_norm_workspace_bytes";
  require_on(context.device(), kOp, {&x});
  require_alike(kOp, {{x, "x"}});
  require_rows(kOp, {x, "x"});
  return ask(context, kOp, LOCKSTEP_BACKEND(layer_norm_workspace_bytes, x));
}

void layer_norm_backward(Context& context, const TensorView& dy, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& inv_std, GradMode mode, const TensorView& dx,
                         const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  constexpr std::string_view kOp = "layer_norm_backward";
  require_on(context.device(), kOp, {&dy, &x, &weight, &mean, &inv_std, &dx, &dweight, &dbias, &workspace});
  require_alike(kOp, {{x, "x"}, {dy, "dy"}});
  require_rows(kOp, {x, "x"});
  const std::int64_t channels = x.shape.back();
  const std::int64_t rows = x.numel() / channels;
  check_vector(kOp, {weight, "weight"}, x, channels);
  check_vector(kOp, {mean, "mean"}, x, rows);
  check_vector(kOp, {inv_std, "inv_std"}, x, rows);
  if (dx.given()) {
    require_alike(kOp, {{x, "x"}, {dx, "dx"}});
    require_same_or_apart(kOp, {dx, "dx"}, {dy, "dy"});
    require_apart(kOp, {dx, "dx"}, {{x, "x"}, {weight, "weight"}, {mean, "mean"}, {inv_std, "inv_std"}});
  }
  if (mode != GradMode::ignore) {
    check_vector(kOp, {dweight, "dweight"}, x, channels);
    check_vector(kOp, {dbias, "dbias"}, x, channels);
    require_workspace(kOp, workspace, layer_norm_workspace_bytes(context, x), kWorkspaceAlignment);
    for (const Operand& out : {Operand{dweight, "dweight"}, Operand{dbias, "dbias"}, Operand{workspace, "workspace"}}) {
      require_apart(kOp, out,
                    {{dy, "dy"}, {x, "x"}, {weight, "weight"}, {mean, "mean"}, {inv_std, "inv_std"}, {dx, "dx"}});
    }
    require_apart(kOp, {dweight, "dweight"}, {{dbias, "dbias"}, {workspace, "workspace"}});
    require_apart(kOp, {dbias, "dbias"}, {{workspace, "workspace"}});
  }
  dispatch(context, kOp,
           LOCKSTEP_BACKEND(layer_norm_backward, dy, x, weight, mean, inv_std, mode, dx, dweight, dbias, workspace));
}

}  // namespace lockstep::ops
