#include <lockstep/kernels/low_rank.hpp>

#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Checks that an operand is a matrix of at least one row and one column, f32, or f64 on the host.
void require_matrix(const Context& context, std::string_view op, const Operand& operand) {
  const auto& [view, name] = operand;
  require<ShapeError>(view.given() && view.shape.rank() == 2 && view.numel() > 0 && view.is_contiguous(), op, ": ",
                      name, " is ", view, ", expected a contiguous matrix of at least one element");
  require<DTypeError>(view.dtype == DType::f32 || (view.dtype == DType::f64 && context.device() == Device::cpu()), op,
                      ": ", name, " is ", view.dtype, ", expected f32, or f64 on the host");
}

}  // namespace

void orthonormalise(Context& context, double epsilon, const TensorView& x, const TensorView& columns) {
  constexpr std::string_view kOp = "orthonormalise";
  require_on(context.device(), kOp, {&x, &columns});
  require_matrix(context, kOp, {x, "x"});
  require_tensor(kOp, {columns, "columns"}, DType::i32, Shape{x.shape[1]});
  require_apart(kOp, {columns, "columns"}, {{x, "x"}});
  require<UsageError>(epsilon > 0 && epsilon < 1, kOp, ": epsilon is ", epsilon, ", expected 0 < epsilon < 1");
  dispatch(context, kOp, LOCKSTEP_BACKEND(orthonormalise, epsilon, x, columns));
}

void low_rank_residual(Context& context, const TensorView& x, const TensorView& p, const TensorView& q,
                       const TensorView& columns, const TensorView& error) {
  constexpr std::string_view kOp = "low_rank_residual";
  require_on(context.device(), kOp, {&x, &p, &q, &columns, &error});
  require_matrix(context, kOp, {x, "x"});
  require_matrix(context, kOp, {p, "p"});
  const std::int64_t rank = p.shape[1];
  require_tensor(kOp, {p, "p"}, x.dtype, Shape{x.shape[0], rank});
  require_tensor(kOp, {q, "q"}, x.dtype, Shape{x.shape[1], rank});
  require_tensor(kOp, {columns, "columns"}, DType::i32, Shape{rank});
  require_tensor(kOp, {error, "error"}, x.dtype, x.shape);
  require_apart(kOp, {error, "error"}, {{x, "x"}, {p, "p"}, {q, "q"}, {columns, "columns"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(low_rank_residual, x, p, q, columns, error));
}

void keep_columns(Context& context, const TensorView& from, const TensorView& columns, const TensorView& to) {
  constexpr std::string_view kOp = "keep_columns";
  require_on(context.device(), kOp, {&from, &columns, &to});
  require_matrix(context, kOp, {from, "from"});
  require_tensor(kOp, {columns, "columns"}, DType::i32, Shape{from.shape[1]});
  require_tensor(kOp, {to, "to"}, from.dtype, from.shape);
  require_apart(kOp, {to, "to"}, {{from, "from"}, {columns, "columns"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(keep_columns, from, columns, to));
}

}  // namespace lockstep::ops
