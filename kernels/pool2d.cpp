#include <lockstep/kernels/pool2d.hpp>

#include <initializer_list>
#include <limits>
#include <string_view>

namespace lockstep::ops {
namespace {

void check(std::string_view op, const TensorView& view, std::string_view name, DType dtype, const Shape& shape) {
  require<DTypeError>(view.dtype == dtype, op, ": ", name, " is ", view.dtype, ", expected ", dtype);
  require<ShapeError>(view.shape == shape, op, ": ", name, " is ", view.shape, ", expected ", shape);
  require<ShapeError>(view.is_contiguous(), op, ": ", name, " ", view.shape, " with strides ", view.strides,
                      " is not contiguous");
}

void check_image(std::string_view op, const TensorView& view, std::string_view name) {
  require_compute_dtype(op, name, view);
  require<ShapeError>(view.shape.rank() == 4, op, ": ", name, " is ", view.shape, ", expected (N, H, W, C)");
  require<ShapeError>(view.is_contiguous(), op, ": ", name, " ", view.shape, " with strides ", view.strides,
                      " is not contiguous");
}

/// index holds h * W + w in 32 bits.
void check_index_range(std::string_view op, const Shape& image) {
  require<ShapeError>(image[2] == 0 || image[1] <= std::numeric_limits<std::int32_t>::max() / image[2], op, ": ",
                      image[1], " x ", image[2], " pixels, expected fewer than 2^31");
}

void check_pooled(std::string_view op, const TensorView& image, const TensorView& pooled, std::string_view name) {
  require<ShapeError>(image.shape[1] >= 1 && image.shape[2] >= 1, op, ": ", image.shape,
                      " has no pixel to take the mean of");
  check(op, pooled, name, image.dtype, Shape{image.shape[0], image.shape[3]});
  require<ShapeError>(!overlaps(image, pooled), op, ": input and output overlap");
}

}  // namespace

Shape pooled_shape(const PoolDesc& desc, const Shape& x) {
  require<ShapeError>(x.rank() == 4, "pooled_shape: x is ", x, ", expected (N, H, W, C)");
  Shape y = x;
  for (int i = 0; i < 2; ++i) {
    const auto u = static_cast<std::size_t>(i);
    const std::int64_t extent = x[1 + i];
    const std::int64_t kernel = desc.kernel[u];
    const std::int64_t stride = desc.stride[u];
    const std::int64_t before = desc.pad_before[u];
    const std::int64_t after = desc.pad_after[u];
    require<ShapeError>(kernel >= 1 && stride >= 1 && before >= 0 && after >= 0, "pooled_shape: kernel ", kernel,
                        ", stride ", stride, ", padding ", before, " and ", after,
                        ", expected a positive kernel and stride and no negative padding");
    require<ShapeError>(extent + before + after >= kernel, "pooled_shape: a window of ", kernel,
                        " does not fit extent ", extent, " padded by ", before, " and ", after);
    const std::int64_t out = (extent + before + after - kernel) / stride + 1;
    require<ShapeError>(before < kernel && (out - 1) * stride - before < extent, "pooled_shape: a window of ", kernel,
                        " over extent ", extent, " padded by ", before, " and ", after, " lies in padding only");
    y[1 + i] = out;
  }
  return y;
}

void max_pool2d_forward(Context& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index) {
  constexpr std::string_view kOp = "max_pool2d_forward";
  require_on(context.device(), kOp, {&x, &y, &index});
  check_image(kOp, x, "x");
  check(kOp, y, "y", x.dtype, pooled_shape(desc, x.shape));
  require<ShapeError>(!overlaps(x, y), kOp, ": y overlaps x");
  if (index.given()) {
    check_index_range(kOp, x.shape);
    check(kOp, index, "index", DType::i32, y.shape);
    require<ShapeError>(!overlaps(index, x) && !overlaps(index, y), kOp, ": index overlaps x or y");
  }
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::max_pool2d_forward(c, desc, x, y, index)) {
    backend::max_pool2d_forward(c, desc, x, y, index);
  });
}

void max_pool2d_backward(Context& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx) {
  constexpr std::string_view kOp = "max_pool2d_backward";
  require_on(context.device(), kOp, {&dy, &index, &dx});
  check_image(kOp, dx, "dx");
  check_index_range(kOp, dx.shape);
  check(kOp, dy, "dy", dx.dtype, pooled_shape(desc, dx.shape));
  check(kOp, index, "index", DType::i32, dy.shape);
  require<ShapeError>(!overlaps(dx, dy) && !overlaps(dx, index), kOp, ": dx overlaps an input");
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::max_pool2d_backward(c, desc, dy, index, dx)) {
    backend::max_pool2d_backward(c, desc, dy, index, dx);
  });
}

void global_average_pool_forward(Context& context, const TensorView& x, const TensorView& y) {
  constexpr std::string_view kOp = "global_average_pool_forward";
  require_on(context.device(), kOp, {&x, &y});
  check_image(kOp, x, "x");
  check_pooled(kOp, x, y, "y");
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::global_average_pool_forward(c, x, y)) {
    backend::global_average_pool_forward(c, x, y);
  });
}

void global_average_pool_backward(Context& context, const TensorView& dy, const TensorView& dx) {
  constexpr std::string_view kOp = "global_average_pool_backward";
  require_on(context.device(), kOp, {&dy, &dx});
  check_image(kOp, dx, "dx");
  check_pooled(kOp, dx, dy, "dy");
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::global_average_pool_backward(c, dy, dx)) {
    backend::global_average_pool_backward(c, dy, dx);
  });
}

}  // namespace lockstep::ops
