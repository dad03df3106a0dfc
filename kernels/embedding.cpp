#include <lockstep/kernels/embedding.hpp>

#include <cstdint>
#include <limits>
#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

void check_table(std::string_view op, const Operand& table) {
  const auto& [view, name] = table;
  require<ShapeError>(view.shape.rank() == 2, op, ": ", name, " is ", view.shape, ", expected (V, D)");
  require_compute_dtype(op, name, view);
  require<ShapeError>(view.is_contiguous(), op, ": ", name, " ", view.shape, " with strides ", view.strides,
                      " is not contiguous, expected a contiguous tensor");
}

/// Checks ids and returns the shape of y, which has a row of `width` elements per id.
Shape check_ids(std::string_view op, const TensorView& ids, std::int64_t width) {
  require<ShapeError>(ids.shape.rank() >= 1, op, ": ids are ", ids.shape, ", expected (..., T)");
  require_tensor(op, {ids, "ids"}, DType::i32, ids.shape);
  Shape shape = ids.shape;
  shape.push_back(width);
  return shape;
}

}  // namespace

void embedding_forward(Context& context, const TensorView& table, const TensorView& ids, const TensorView& positions,
                       const TensorView& valid, const TensorView& y, const TensorView& bad_ids) {
  constexpr std::string_view kOp = "embedding_forward";
  require_on(context.device(), kOp, {&table, &ids, &positions, &valid, &y, &bad_ids});
  check_table(kOp, {table, "table"});
  const std::int64_t width = table.shape[1];
  require_tensor(kOp, {y, "y"}, table.dtype, check_ids(kOp, ids, width));
  require_tensor_if_given(kOp, {positions, "positions"}, table.dtype, Shape{ids.shape.back(), width});
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require_apart(kOp, {y, "y"},
                {{table, "table"}, {ids, "ids"}, {positions, "positions"}, {valid, "valid"}, {bad_ids, "bad_ids"}});
  if (bad_ids.given()) {
    require_scalar(kOp, {bad_ids, "bad_ids"}, DType::f64);
    require_apart(kOp, {bad_ids, "bad_ids"},
                  {{table, "table"}, {ids, "ids"}, {positions, "positions"}, {valid, "valid"}});
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(embedding_forward, table, ids, positions, valid, y, bad_ids));
}

std::size_t embedding_backward_workspace_bytes(const Context& context, const TensorView& dtable) {
  constexpr std::string_view kOp = "embedding_backward_workspace_bytes";
  require<ShapeError>(dtable.shape.rank() == 2, kOp, ": dtable is ", dtable.shape, ", expected (V, D)");
  if (context.device().kind == DeviceKind::cpu) {
    return 0;
  }
  return static_cast<std::size_t>(dtable.shape[0]) * 2 * sizeof(std::int32_t);  // first and last token of each id
}

void embedding_backward(Context& context, const TensorView& dy, const TensorView& ids, GradMode mode,
                        const TensorView& dtable, const TensorView& workspace) {
  constexpr std::string_view kOp = "embedding_backward";
  require_on(context.device(), kOp, {&dy, &ids, &dtable, &workspace});
  require<UsageError>(
      mode != GradMode::ignore, kOp,
      ": mode is ignore, expected overwrite or accumulate: a gradient that is not wanted needs no call");
  require_compute_dtype(kOp, "dy", dy);
  require<ShapeError>(dtable.shape.rank() == 2, kOp, ": dtable is ", dtable.shape, ", expected (V, D)");
  require_tensor(kOp, {dtable, "dtable"}, accumulation_dtype(dy.dtype), dtable.shape);
  require_tensor(kOp, {dy, "dy"}, dy.dtype, check_ids(kOp, ids, dtable.shape[1]));
  require<ShapeError>(ids.numel() <= std::numeric_limits<std::int32_t>::max(), kOp, ": ids are ", ids.shape,
                      ", expected fewer than 2^31");
  require_apart(kOp, {dtable, "dtable"}, {{dy, "dy"}, {ids, "ids"}});
  if (const std::size_t bytes = embedding_backward_workspace_bytes(context, dtable); bytes > 0) {
    require_workspace(kOp, workspace, bytes, alignof(std::int32_t));
    require_apart(kOp, {workspace, "workspace"}, {{dy, "dy"}, {ids, "ids"}, {dtable, "dtable"}});
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(embedding_backward, dy, ids, mode, dtable, workspace));
}

}  // namespace lockstep::ops
