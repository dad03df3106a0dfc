#include <lockstep/kernels/add.hpp>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& out) {
  require_on(context.device(), "add", {&a, &b, &out});
  require_alike("add", {{a, "a"}, {b, "b"}, {out, "out"}});
  require_same_or_apart("add", {out, "out"}, {a, "a"});
  require_same_or_apart("add", {out, "out"}, {b, "b"});
  dispatch(context, "add", LOCKSTEP_BACKEND(add, a, b, out));
}

}  // namespace lockstep::ops
