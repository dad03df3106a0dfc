#include <lockstep/kernels/reduce.hpp>

#include <cstdint>
#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Does the checks that the ops sum and squared_norm share.
void check_sum(const Context& context, std::string_view op, const TensorView& x, const TensorView& result,
               const TensorView& workspace) {
  require<ShapeError>(x.given(), op, ": x is not given, expected a tensor");
  require_on(context.device(), op, {&x, &result, &workspace});
  require_alike(op, {{x, "x"}});
  require_scalar(op, {result, "result"}, DType::f64);
  require_apart(op, {result, "result"}, {{x, "x"}});
  if (const std::size_t bytes = sum_workspace_bytes(context, x); bytes > 0) {
    require_workspace(op, workspace, bytes, alignof(double));
    require_apart(op, {workspace, "workspace"}, {{x, "x"}, {result, "result"}});
  }
}

}  // namespace

std::size_t reduce_rows_workspace_bytes(const Context& context, const TensorView& x) {
  require<ShapeError>(x.shape.rank() == 2, "reduce_rows: x is ", x.shape, ", expected (M, C)");
  const std::int64_t chunks = (x.shape[0] + backend::kReduceRowsChunk - 1) / backend::kReduceRowsChunk;
  if (context.device().kind == DeviceKind::cpu || chunks <= 1) {
    return 0;
  }
  return static_cast<std::size_t>(chunks * x.shape[1]) * sizeof(double);
}

void reduce_rows(Context& context, const TensorView& x, GradMode mode, const TensorView& sums,
                 const TensorView& workspace) {
  require_on(context.device(), "reduce_rows", {&x, &sums, &workspace});
  require<UsageError>(
      mode != GradMode::ignore,
      "reduce_rows: mode is ignore, expected overwrite or accumulate: a gradient that is not wanted needs no call");
  require<ShapeError>(x.shape.rank() == 2, "reduce_rows: x is ", x.shape, ", expected (M, C)");
  require<ShapeError>(sums.shape == Shape{x.shape[1]}, "reduce_rows: sums are ", sums.shape, ", x is ", x.shape,
                      ", expected one sum a column");
  require_compute_dtype("reduce_rows", "x", x);
  require<DTypeError>(sums.dtype == accumulation_dtype(x.dtype), "reduce_rows: x is ", x.dtype, ", sums are ",
                      sums.dtype, ", expected sums of ", accumulation_dtype(x.dtype));
  require<ShapeError>(x.is_contiguous() && sums.is_contiguous(), "reduce_rows: x ", x, ", sums ", sums,
                      ", expected contiguous tensors");
  require<ShapeError>(!overlaps(x, sums), "reduce_rows: sums overlap x, expected memory of its own for each");
  if (const std::size_t bytes = reduce_rows_workspace_bytes(context, x); bytes > 0) {
    require_workspace("reduce_rows", workspace, bytes, alignof(double));
    require<ShapeError>(!overlaps(workspace, x) && !overlaps(workspace, sums),
                        "reduce_rows: workspace overlaps x or sums, expected memory of its own for each");
  }
  dispatch(context, "reduce_rows", LOCKSTEP_BACKEND(reduce_rows, x, mode, sums, workspace));
}

std::size_t sum_workspace_bytes(const Context& /*context*/, const TensorView& x) {
  const std::int64_t chunks = (x.numel() + backend::kSumChunk - 1) / backend::kSumChunk;
  return static_cast<std::size_t>(chunks) * sizeof(double);
}

void sum(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  check_sum(context, "sum", x, result, workspace);
  dispatch(context, "sum", LOCKSTEP_BACKEND(sum, x, result, workspace));
}

std::size_t squared_norm_workspace_bytes(const Context& context, const TensorView& x) {
  return sum_workspace_bytes(context, x);
}

void squared_norm(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  check_sum(context, "squared_norm", x, result, workspace);
  dispatch(context, "squared_norm", LOCKSTEP_BACKEND(squared_norm, x, result, workspace));
}

void all_finite(Context& context, const TensorView& x, const TensorView& found) {
  constexpr std::string_view kOp = "all_finite";
  require_on(context.device(), kOp, {&x, &found});
  require<ShapeError>(x.given(), kOp, ": x is not given, expected a tensor");
  require_alike(kOp, {{x, "x"}});
  require_scalar(kOp, {found, "found"}, DType::i32);
  require_apart(kOp, {found, "found"}, {{x, "x"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(all_finite, x, found));
}

}  // namespace lockstep::ops
