#include <lockstep/kernels/resized_crop.hpp>

#include <algorithm>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::string_view kOp = "resized_crop";
constexpr std::int64_t kMostSide = 4096;

/// Everything from the first to the last element of rows that lie any distance apart.
TensorView range_of(const TensorView& rows) {
  const std::int64_t count = rows.shape[0];
  const std::int64_t last = count > 0 ? (count - 1) * rows.strides[0] : 0;
  double* begin = rows.as<double>() + std::min<std::int64_t>(last, 0);
  return {begin, DType::f64, rows.device, Shape{count > 0 ? std::max(last, -last) + rows.shape[1] : 0}};
}

}  // namespace

void resized_crop(Context& context, const TensorView& pictures, const TensorView& parts, const TensorView& out) {
  require_on(context.device(), kOp, {&pictures, &parts, &out});
  require<ShapeError>(pictures.shape.rank() == 2, kOp, ": pictures are ", pictures.shape, ", expected (N, B)");
  require<DTypeError>(pictures.dtype == DType::u8, kOp, ": pictures are ", pictures.dtype, ", expected u8");
  const Shape expected{pictures.shape[0], kPartColumns};
  require<ShapeError>(parts.shape == expected, kOp, ": parts are ", parts.shape, ", expected ", expected);
  require<DTypeError>(parts.dtype == DType::f64, kOp, ": parts are ", parts.dtype, ", expected f64");
  require<ShapeError>(out.shape.rank() == 4 && out.shape[0] == pictures.shape[0] && out.shape[3] == 3, kOp, ": out is ",
                      out.shape, ", pictures are ", pictures.shape, ", expected (N, H, W, 3)");
  require<DTypeError>(out.dtype == DType::u8, kOp, ": out is ", out.dtype, ", expected u8");
  require<ShapeError>(out.shape[1] <= kMostSide && out.shape[2] <= kMostSide, kOp, ": out is ", out.shape,
                      ", expected images of at most ", kMostSide, " x ", kMostSide);
  for (const TensorView* view : {&pictures, &out}) {
    require<ShapeError>(view->is_contiguous(), kOp, ": a tensor ", view->shape, " with strides ", view->strides,
                        ", expected contiguous pictures and out");
  }
  require<ShapeError>(parts.strides[1] == 1, kOp, ": parts have strides ", parts.strides,
                      ", expected the columns of a row side by side");
  require_apart(kOp, {out, "out"}, {{pictures, "pictures"}, {range_of(parts), "parts"}});
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::resized_crop(c, pictures, parts, out)) {
    backend::resized_crop(c, pictures, parts, out);
  });
}

}  // namespace lockstep::ops
