#include <lockstep/kernels/grouped_copy.hpp>

#include <lockstep/runtime/copy_loops.hpp>

namespace lockstep::ops {

void grouped_copy(Context& context, std::span<const CopyPair> pairs) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [src, dst] = pairs[i];
    try {
      require_on(context.device(), "grouped_copy", {&src, &dst});
      require_copyable("grouped_copy", src, dst);
    } catch (Error& e) {
      e.annotate(concat("pair ", i));
      throw;
    }
    require<DTypeError>(src.dtype == dst.dtype, "grouped_copy: src of pair ", i, " is ", src.dtype, ", dst is ",
                        dst.dtype);
    require<ShapeError>(src.is_contiguous() && dst.is_contiguous(), "grouped_copy: pair ", i, " is ", src,
                        " with strides ", src.strides, " and ", dst.strides, ", expected contiguous tensors");
  }
  dispatch(context, "grouped_copy",
           [=](auto& c) -> decltype(backend::grouped_copy(c, pairs)) { backend::grouped_copy(c, pairs); });
}

}  // namespace lockstep::ops
