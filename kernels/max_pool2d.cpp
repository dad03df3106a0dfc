#include <lockstep/kernels/max_pool2d.hpp>

#include <limits>
#include <string_view>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Checks that an image has less than 2^31 pixels, because `index` holds pixel numbers h * W + w in 32 bits.
void check_index_range(std::string_view op, const Shape& image) {
  require<ShapeError>(image[2] == 0 || image[1] <= std::numeric_limits<std::int32_t>::max() / image[2], op, ": ",
                      image[1], " x ", image[2], " pixels, expected fewer than 2^31");
}

}  // namespace

void max_pool2d_forward(Context& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index) {
  constexpr std::string_view kOp = "max_pool2d_forward";
  require_on(context.device(), kOp, {&x, &y, &index});
  require_images(kOp, {x, "x"});
  require_tensor(kOp, {y, "y"}, x.dtype, pooled_shape(desc, x.shape));
  require_apart(kOp, {y, "y"}, {{x, "x"}});
  if (index.given()) {
    check_index_range(kOp, x.shape);
    require_tensor(kOp, {index, "index"}, DType::i32, y.shape);
    require_apart(kOp, {index, "index"}, {{x, "x"}, {y, "y"}});
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(max_pool2d_forward, desc, x, y, index));
}

void max_pool2d_backward(Context& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx) {
  constexpr std::string_view kOp = "max_pool2d_backward";
  require_on(context.device(), kOp, {&dy, &index, &dx});
  require_images(kOp, {dx, "dx"});
  check_index_range(kOp, dx.shape);
  require_tensor(kOp, {dy, "dy"}, dx.dtype, pooled_shape(desc, dx.shape));
  require_tensor(kOp, {index, "index"}, DType::i32, dy.shape);
  require_apart(kOp, {dx, "dx"}, {{dy, "dy"}, {index, "index"}});
  dispatch(context, kOp, LOCKSTEP_BACKEND(max_pool2d_backward, desc, dy, index, dx));
}

}  // namespace lockstep::ops
