#include <lockstep/kernels/resized_crop.hpp>

#include <lockstep/kernels/detail/tables.hpp>

namespace lockstep::ops {
namespace {

constexpr std::string_view kOp = "resized_crop";
constexpr std::int64_t kMostSide = 4096;

}  // namespace

void resized_crop(Context& context, const TensorView& pictures, const TensorView& parts, const TensorView& out) {
  require_on(context.device(), kOp, {&pictures, &parts, &out});
  require<ShapeError>(pictures.shape.rank() == 2, kOp, ": pictures are ", pictures.shape, ", expected (N, B)");
  require<DTypeError>(pictures.dtype == DType::u8, kOp, ": pictures are ", pictures.dtype, ", expected u8");
  require_table(kOp, {parts, "parts"}, Shape{pictures.shape[0], kPartColumns});
  require<ShapeError>(out.shape.rank() == 4 && out.shape[0] == pictures.shape[0] && out.shape[3] == 3, kOp, ": out is ",
                      out.shape, ", expected (", pictures.shape[0], ", H, W, 3), as pictures are ", pictures.shape);
  require<DTypeError>(out.dtype == DType::u8, kOp, ": out is ", out.dtype, ", expected u8");
  require<ShapeError>(out.shape[1] <= kMostSide && out.shape[2] <= kMostSide, kOp, ": out is ", out.shape,
                      ", expected images of at most ", kMostSide, " x ", kMostSide);
  for (const TensorView* view : {&pictures, &out}) {
    require<ShapeError>(view->is_contiguous(), kOp, ": a tensor ", view->shape, " with strides ", view->strides,
                        ", expected contiguous pictures and out");
  }
  require_apart(kOp, {out, "out"}, {{pictures, "pictures"}});
  require_apart_from_table(kOp, {out, "out"}, {parts, "parts"});
  dispatch(context, kOp, LOCKSTEP_BACKEND(resized_crop, pictures, parts, out));
}

}  // namespace lockstep::ops
