#include <lockstep/kernels/pool2d.hpp>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::ops {

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
    require<ShapeError>(extent >= 1, "pooled_shape: x is ", x, ", expected at least one pixel an image");
    require<ShapeError>(extent + before + after >= kernel, "pooled_shape: a window of ", kernel,
                        " does not fit extent ", extent, " padded by ", before, " and ", after,
                        ", expected a larger extent or a smaller window");
    const std::int64_t out = (extent + before + after - kernel) / stride + 1;
    require<ShapeError>(before < kernel && (out - 1) * stride - before < extent, "pooled_shape: a window of ", kernel,
                        " over extent ", extent, " padded by ", before, " and ", after,
                        " lies in padding only, expected less padding");
    y[1 + i] = out;
  }
  return y;
}

}  // namespace lockstep::ops
