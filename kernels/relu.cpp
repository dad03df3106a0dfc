#include <lockstep/kernels/relu.hpp>

#include <initializer_list>
#include <string_view>

#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {
namespace {

struct Operand {
  const TensorView& view;
  std::string_view name;
};

/// All operands like the first: contiguous, one shape, one type, f32 or f64.
void check(std::string_view op, std::initializer_list<Operand> operands) {
  const auto& [first, first_name] = *operands.begin();
  require_compute_dtype(op, first_name, first);
  for (const auto& [view, name] : operands) {
    require<DTypeError>(view.dtype == first.dtype, op, ": ", name, " is ", view.dtype, ", expected ", first.dtype);
    require<ShapeError>(view.shape == first.shape, op, ": ", name, " is ", view.shape, ", expected ", first.shape);
    require<ShapeError>(view.is_contiguous(), op, ": ", name, " ", view.shape, " with strides ", view.strides,
                        " is not contiguous");
  }
}

}  // namespace

void relu_forward(Context& context, const TensorView& x, const TensorView& y) {
  require_on(context.device(), "relu_forward", {&x, &y});
  check("relu_forward", {{x, "x"}, {y, "y"}});
  require<ShapeError>(y.data == x.data || !overlaps(y, x), "relu_forward: y overlaps x without being it");
  dispatch(context, "relu_forward",
           [=](auto& c) -> decltype(backend::relu_forward(c, x, y)) { backend::relu_forward(c, x, y); });
}

void relu_backward(Context& context, const TensorView& y, const TensorView& dy, const TensorView& dx) {
  require_on(context.device(), "relu_backward", {&y, &dy, &dx});
  check("relu_backward", {{y, "y"}, {dy, "dy"}, {dx, "dx"}});
  require<ShapeError>(dx.data == dy.data || !overlaps(dx, dy), "relu_backward: dx overlaps dy without being it");
  require<ShapeError>(!overlaps(dx, y), "relu_backward: dx overlaps y");
  dispatch(context, "relu_backward",
           [=](auto& c) -> decltype(backend::relu_backward(c, y, dy, dx)) { backend::relu_backward(c, y, dy, dx); });
}

}  // namespace lockstep::ops
