#include <lockstep/kernels/reduce.hpp>

#include <cstdint>

namespace lockstep::ops {

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
  require<UsageError>(mode != GradMode::ignore,
                      "reduce_rows: mode is ignore: a gradient that is not wanted needs no call");
  require<ShapeError>(x.shape.rank() == 2, "reduce_rows: x is ", x.shape, ", expected (M, C)");
  require<ShapeError>(sums.shape == Shape{x.shape[1]}, "reduce_rows: sums are ", sums.shape, ", x is ", x.shape,
                      ", expected one sum a column");
  require_compute_dtype("reduce_rows", "x", x);
  require<DTypeError>(sums.dtype == accumulation_dtype(x.dtype), "reduce_rows: x is ", x.dtype, ", sums are ",
                      sums.dtype, ", expected ", accumulation_dtype(x.dtype));
  require<ShapeError>(x.is_contiguous() && sums.is_contiguous(), "reduce_rows: x ", x, ", sums ", sums,
                      ", expected contiguous tensors");
  require<ShapeError>(!overlaps(x, sums), "reduce_rows: sums overlap x");
  if (const std::size_t bytes = reduce_rows_workspace_bytes(context, x); bytes > 0) {
    require_workspace("reduce_rows", workspace, bytes, alignof(double));
    require<ShapeError>(!overlaps(workspace, x) && !overlaps(workspace, sums),
                        "reduce_rows: workspace overlaps x or sums");
  }
  dispatch(context, "reduce_rows", [=](auto& c) -> decltype(backend::reduce_rows(c, x, mode, sums, workspace)) {
    backend::reduce_rows(c, x, mode, sums, workspace);
  });
}

std::size_t squared_norm_workspace_bytes(const Context& /*context*/, const TensorView& x) {
  const std::int64_t chunks = (x.numel() + backend::kSquaredNormChunk - 1) / backend::kSquaredNormChunk;
  return static_cast<std::size_t>(chunks) * sizeof(double);
}

void squared_norm(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  require<ShapeError>(x.given(), "squared_norm: x is not given");
  require_on(context.device(), "squared_norm", {&x, &result, &workspace});
  require_compute_dtype("squared_norm", "x", x);
  require<ShapeError>(x.is_contiguous(), "squared_norm: x is ", x.shape, " with strides ", x.strides,
                      ", expected a contiguous tensor");
  require<ShapeError>(result.given() && result.numel() == 1, "squared_norm: result is ", result.shape,
                      ", expected a scalar");
  require<DTypeError>(result.dtype == DType::f64, "squared_norm: result is ", result.dtype, ", expected f64");
  require<ShapeError>(!overlaps(result, x), "squared_norm: result overlaps x");
  if (const std::size_t bytes = squared_norm_workspace_bytes(context, x); bytes > 0) {
    require_workspace("squared_norm", workspace, bytes, alignof(double));
    require<ShapeError>(!overlaps(workspace, x) && !overlaps(workspace, result),
                        "squared_norm: workspace overlaps x or result");
  }
  dispatch(context, "squared_norm", [=](auto& c) -> decltype(backend::squared_norm(c, x, result, workspace)) {
    backend::squared_norm(c, x, result, workspace);
  });
}

}  // namespace lockstep::ops
