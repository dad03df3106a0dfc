#include <lockstep/kernels/add.hpp>

namespace lockstep::ops {

void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& out) {
  require_on(context.device(), "add", {&a, &b, &out});
  require<DTypeError>(a.dtype == b.dtype && a.dtype == out.dtype, "add: types are ", a.dtype, ", ", b.dtype, " and ",
                      out.dtype, ", expected one type");
  require_compute_dtype("add", "a", a);
  require<ShapeError>(a.shape == b.shape && a.shape == out.shape, "add: shapes are ", a.shape, ", ", b.shape, " and ",
                      out.shape, ", expected one shape");
  require<ShapeError>(a.is_contiguous() && b.is_contiguous() && out.is_contiguous(), "add: a ", a, ", b ", b, ", out ",
                      out, ", expected contiguous tensors");
  for (const TensorView* in : {&a, &b}) {
    require<ShapeError>(out.data == in->data || !overlaps(out, *in), "add: out overlaps an input without being it");
  }
  dispatch(context, "add", [=](auto& c) -> decltype(backend::add(c, a, b, out)) { backend::add(c, a, b, out); });
}

}  // namespace lockstep::ops
