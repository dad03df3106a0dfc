#include <lockstep/kernels/grouped_copy.hpp>

#include <lockstep/runtime/detail/copy_loops.hpp>

namespace lockstep::ops {

void require_copy_pair(std::string_view op, const TensorView& src, const TensorView& dst) {
  require_copyable(op, src, dst);
  require<DTypeError>(src.dtype == dst.dtype, op, ": src is ", src.dtype, ", dst is ", dst.dtype,
                      ", expected both of one type");
  require<ShapeError>(src.is_contiguous() && dst.is_contiguous(), op, ": ", src, " with strides ", src.strides, " and ",
                      dst.strides, ", expected contiguous tensors");
}

void grouped_copy(Context& context, std::span<const CopyPair> pairs) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [src, dst] = pairs[i];
    try {
      require_on(context.device(), "grouped_copy", {&src, &dst});
      require_copy_pair("grouped_copy", src, dst);
    } catch (Error& e) {
      e.annotate(concat("pair ", i));
      throw;
    }
  }
  dispatch(context, "grouped_copy", LOCKSTEP_BACKEND(grouped_copy, pairs));
}

}  // namespace lockstep::ops
