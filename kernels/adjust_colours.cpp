#include <lockstep/kernels/adjust_colours.hpp>

#include <lockstep/kernels/detail/tables.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::string_view kOp = "adjust_colours";

}  // namespace

void adjust_colours(Context& context, const TensorView& images, const TensorView& changes,
                    const TensorView& workspace) {
  require_on(context.device(), kOp, {&images, &changes, &workspace});
  require<ShapeError>(images.shape.rank() == 4 && images.shape[3] == 3, kOp, ": images are ", images.shape,
                      ", expected (N, H, W, 3)");
  require<DTypeError>(images.dtype == DType::u8, kOp, ": images are ", images.dtype, ", expected u8");
  require<ShapeError>(images.is_contiguous(), kOp, ": images ", images.shape, " with strides ", images.strides,
                      " are not contiguous, expected a contiguous tensor");
  require<ShapeError>(images.shape[1] * images.shape[2] <= kMostColourPixels, kOp, ": images are ", images.shape,
                      ", expected at most ", kMostColourPixels, " pixels an image");
  require_table(kOp, {changes, "changes"}, Shape{images.shape[0], kColourColumns});
  require_tensor(kOp, {workspace, "workspace"}, DType::i64, Shape{images.shape[0]});
  require_apart_from_table(kOp, {images, "images"}, {changes, "changes"});
  require_apart_from_table(kOp, {workspace, "workspace"}, {changes, "changes"});
  require_apart(kOp, {images, "images"}, {{workspace, "workspace"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(adjust_colours, images, changes, workspace));
}

}  // namespace lockstep::ops
