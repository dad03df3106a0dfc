#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <lockstep/kernels/max_pool2d.hpp>
#include <lockstep/nn/layers/axis_sizes.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

// Pools over one and three axes run the kernels for images, on views of the same memory with other shapes:
//
//   (N, T, C)         runs as images (N, T, 1, C) with windows of one column.
//   (N, D, H, W, C)   runs in two steps: first the planes, as images (N * D, H, W, C); then axis D of their result
//                     (N, D, P, Q, C), as images (N, D, P * Q, C). A step that would do nothing is left out.
//
// Two steps give the same result as one window over three axes, except that in 16-bit types the result of the first
// step is rounded, too. The maximum of the planes' maxima is the maximum. If several elements have the maximum, both
// methods choose the first in row-major order. A mean of means is the mean, because windows along one axis have the
// same extents at all positions of the other axes, also if padding does not count.
//
// Kernels for three axes would move fewer bytes (with a stride of two, 9 / 8 of x's bytes instead of 13 / 8), but would
// double the number of kernels.

namespace lockstep::nn {

struct PoolWindow {
  AxisSizes kernel, stride, pad;
};

/// Base class of the max pool and the average pool over `axes` spatial axes, 1 to 3.
class PoolLayer : public Layer {
 public:
  /// `kind` names the pool over two axes, like "max_pool". Pools over one or three axes add "1d" or "3d" to this name.
  PoolLayer(const char* kind, int axes, std::string name, const PoolWindow& window);
  [[nodiscard]] std::string kind() const override { return axes_ == 2 ? kind_ : concat(kind_, axes_, 'd'); }
  [[nodiscard]] std::string settings() const override;
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return false; }

 protected:
  const int axes_;
  const PoolWindow window_;

 private:
  std::string kind_;
};

/// Returns the window over the two axes with the indices `rows` and `columns`.
[[nodiscard]] ops::PoolDesc plane_window(const PoolWindow& window, int rows, int columns);

/// One run of a kernel for images, which reads x (N, H, W, C) and makes y (N, P, Q, C).
struct PoolStep {
  ops::PoolDesc desc;
  Shape x, y;
};

/// Returns the steps that pool a batch (N, spatial axes.., C).
[[nodiscard]] std::vector<PoolStep> steps_of(int axes, const PoolWindow& window, const Shape& batch);

/// Calls forward(i, step, x, y) for each step in order. forward() must append a call that reads slot x and writes slot
/// y. The first step reads the slot `x`, and the last step writes the slot `output`. `name` is the layer's name.
template <class Forward>
void plan_steps(PlanBuilder& builder, const std::string& name, const std::vector<PoolStep>& steps, SlotId x,
                SlotId output, Forward forward) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SlotId y = i + 1 == steps.size() ? output : builder.activation(name + ".planes", steps[i].y);
    forward(i, steps[i], x, y);
    x = y;
  }
}

/// Appends the backward of the steps: calls backward(i, step, dy, dx) for each step, from the last to the first.
/// backward() must append a call that computes dx from dy.
template <class Backward>
void plan_steps_back(PlanBuilder& b, const std::string& name, const std::vector<PoolStep>& steps, Backward backward) {
  if (!b.wants_input_gradient(0)) {
    return;
  }
  SlotId dy = b.output_gradients()[0];
  for (std::size_t i = steps.size(); i-- > 0;) {
    const SlotId dx = i > 0 ? b.activation("d(" + name + ".planes)", steps[i].x) : b.input_gradient(0, {}, false).slot;
    backward(i, steps[i], dy, dx);
    dy = dx;
  }
}

}  // namespace lockstep::nn
