#include <lockstep/nn/layers/pool/detail/pool_steps.hpp>

namespace lockstep::nn {

namespace {

/// Returns the window along axis `axis`, as the window over an image of one column.
ops::PoolDesc column_window(const PoolWindow& window, int axis) {
  const auto [kernel, stride, pad] = window;
  return {.kernel = {kernel[axis], 1},
          .stride = {stride[axis], 1},
          .pad_before = {pad[axis], 0},
          .pad_after = {pad[axis], 0}};
}

/// Returns true if kernel and stride are 1. Padding, less than the kernel, is then 0, and the step would copy x to y.
bool does_nothing(const ops::PoolDesc& desc) {
  return desc.kernel[0] == 1 && desc.kernel[1] == 1 && desc.stride[0] == 1 && desc.stride[1] == 1;
}

}  // namespace

ops::PoolDesc plane_window(const PoolWindow& window, int rows, int columns) {
  const auto [kernel, stride, pad] = window;
  return {.kernel = {kernel[rows], kernel[columns]},
          .stride = {stride[rows], stride[columns]},
          .pad_before = {pad[rows], pad[columns]},
          .pad_after = {pad[rows], pad[columns]}};
}

PoolLayer::PoolLayer(const char* kind, int axes, std::string name, const PoolWindow& window)
    : Layer(std::move(name)), axes_(axes), window_(window), kind_(kind) {
  require_axes(this->name(), axes, {{"kernel", window.kernel}, {"stride", window.stride}, {"pad", window.pad}});
}

std::string PoolLayer::settings() const {
  return concat("kernel ", window_.kernel, ", stride ", window_.stride, ", pad ", window_.pad);
}

Shape PoolLayer::output_shape(std::span<const Shape> inputs) const {
  Shape y = inputs[0];
  require<ShapeError>(y.rank() == axes_ + 1, name(), ": input ", y, ", expected ", sample_text(axes_));
  for (int i = 0; i < axes_; ++i) {
    y[i] = ops::pooled_shape(column_window(window_, i), {1, y[i], 1, 1})[1];
  }
  return y;
}

std::vector<PoolStep> steps_of(int axes, const PoolWindow& window, const Shape& batch) {
  const auto step = [](const ops::PoolDesc& desc, const Shape& x) {
    return PoolStep{desc, x, ops::pooled_shape(desc, x)};
  };
  if (axes == 2) {
    return {step(plane_window(window, 0, 1), batch)};
  }
  const ops::PoolDesc column = column_window(window, 0);
  if (axes == 1) {
    return {step(column, {batch[0], batch[1], 1, batch[2]})};
  }
  const PoolStep planes = step(plane_window(window, 1, 2), {batch[0] * batch[1], batch[2], batch[3], batch[4]});
  const PoolStep depth = step(column, {batch[0], batch[1], planes.y[1] * planes.y[2], batch[4]});
  if (does_nothing(column)) {
    return {planes};
  }
  return does_nothing(planes.desc) ? std::vector{depth} : std::vector{planes, depth};
}

}  // namespace lockstep::nn
