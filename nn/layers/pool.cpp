#include <vector>

#include <lockstep/kernels/average_pool2d.hpp>
#include <lockstep/kernels/batch_norm_pool.hpp>
#include <lockstep/kernels/max_pool2d.hpp>
#include <lockstep/nn/layers/conv.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

// Over one axis and over three with the kernels for images, whose tensors are other views of the same memory:
//
//   (N, T, C)         as images (N, T, 1, C) under windows of one column
//   (N, D, H, W, C)   first the planes, as images (N * D, H, W, C); of the result (N, D, P, Q, C) then the axis D, as
//                     images (N, D, P * Q, C); a step that would do nothing is left out
//
// The largest of the largest is the largest, with the first of equal values in row-major order: of the planes the first
// wins, within it the first pixel. A mean of means is the mean, because the windows of one axis have the same extents
// whatever the others are, also where padding does not count. Kernels for three axes would move less (with a stride of
// two 9 / 8 of x's bytes, the steps 13 / 8), but be twice as many kernels. In 16 bits the planes are rounded, too.

namespace lockstep::nn {

namespace {

/// Of two axes of a window.
ops::PoolDesc plane_window(const PoolWindow& window, int rows, int columns) {
  const auto [kernel, stride, pad] = window;
  return {.kernel = {kernel[rows], kernel[columns]},
          .stride = {stride[rows], stride[columns]},
          .pad_before = {pad[rows], pad[columns]},
          .pad_after = {pad[rows], pad[columns]}};
}

/// Of one axis.
ops::PoolDesc column_window(const PoolWindow& window, int axis) {
  const auto [kernel, stride, pad] = window;
  return {.kernel = {kernel[axis], 1},
          .stride = {stride[axis], 1},
          .pad_before = {pad[axis], 0},
          .pad_after = {pad[axis], 0}};
}

/// True where y is x: there is less padding than kernel.
bool does_nothing(const ops::PoolDesc& desc) {
  return desc.kernel[0] == 1 && desc.kernel[1] == 1 && desc.stride[0] == 1 && desc.stride[1] == 1;
}

const PoolWindow& checked(const std::string& name, int axes, const PoolWindow& window) {
  require_axes(name, axes, {{"kernel", window.kernel}, {"stride", window.stride}, {"pad", window.pad}});
  return window;
}

std::string settings_of(const PoolWindow& window) {
  return concat("kernel ", window.kernel, ", stride ", window.stride, ", pad ", window.pad);
}

/// "max_pool" over two axes, "max_pool1d" and "max_pool3d" over others.
std::string pool_kind(const char* name, int axes) {
  return axes == 2 ? std::string(name) : concat(name, axes, 'd');
}

/// One run of a kernel for images: of x (N, H, W, C), which makes y (N, P, Q, C).
struct PoolStep {
  ops::PoolDesc desc;
  Shape x, y;
};

/// What pools a batch (N, space.., C).
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

/// The shape of one sample.
Shape pooled(const Layer& layer, int axes, const PoolWindow& window, const Shape& x) {
  require<ShapeError>(x.rank() == axes + 1, layer.name(), ": input ", x, ", expected ", sample_text(axes));
  Shape y = x;
  for (int i = 0; i < axes; ++i) {
    y[i] = ops::pooled_shape(column_window(window, i), {1, x[i], 1, 1})[1];
  }
  return y;
}

/// Slots of all steps: tensors[i] is what step i reads, tensors[i + 1] what it makes.
struct StepSlots {
  std::vector<SlotId> tensors, index;
};

/// Appends the steps, forward(i, step, x, y) each.
template <class Forward>
StepSlots plan_steps(PlanBuilder& builder, const std::string& name, const std::vector<PoolStep>& steps,
                     const Shape& output, Forward forward) {
  StepSlots slots{{builder.input()}, {}};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    slots.tensors.push_back(last ? builder.activation(name, output) : builder.activation(name + ".planes", steps[i].y));
    forward(i, steps[i], slots);
  }
  builder.set_output(slots.tensors.back());
  return slots;
}

/// Appends the steps' backward, last to first: backward(i, step, dy, dx) each.
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

}  // namespace

MaxPoolLayer::MaxPoolLayer(int axes, std::string name, const PoolWindow& window)
    : Layer(std::move(name)), axes_(axes), window_(checked(this->name(), axes, window)) {}

std::string MaxPoolLayer::kind() const {
  return pool_kind("max_pool", axes_);
}

Shape MaxPoolLayer::output_shape(std::span<const Shape> inputs) const {
  return pooled(*this, axes_, window_, inputs[0]);
}

std::string MaxPoolLayer::settings() const {
  return settings_of(window_);
}

bool MaxPoolLayer::takes_norm(int /*i*/, bool relu) const {
  return relu && axes_ == 2 && ops::is_stem_pool(plane_window(window_, 0, 1));
}

void MaxPoolLayer::plan(PlanBuilder& builder) const {
  const Shape in = builder.input_shape();
  const Shape shape = builder.batched(output_shape({&in, 1}));
  const SlotId coefficients = builder.left_norm(0).coefficients;
  if (coefficients.valid()) {
    const SlotId x = builder.input();
    const SlotId y = builder.activation(name(), shape);
    const ops::PoolDesc desc = plane_window(window_, 0, 1);
    const SlotId winners = builder.tensor(name() + ".index", shape, DType::u8);
    builder.call("batch_norm pool_forward", {x, coefficients}, {y, winners}, 0,
                 [=](Context& context, const Frame& frame) {
                   ops::batch_norm_pool_forward(context, desc, frame[x], frame[coefficients], frame[y], frame[winners]);
                 });
    builder.set_output(y);
    builder.on_backward([=](PlanBuilder& b) { b.pass_pooled_gradient({b.output_gradients()[0], winners, desc}); });
    return;
  }
  const std::vector<PoolStep> steps = steps_of(axes_, window_, builder.batched(in));
  const StepSlots slots =
      plan_steps(builder, name(), steps, shape, [&](std::size_t i, const PoolStep& step, StepSlots& made) {
        const SlotId x = made.tensors[i];
        const SlotId y = made.tensors[i + 1];
        const SlotId index = builder.training() ? builder.tensor(name() + ".index", step.y, DType::i32) : SlotId{};
        made.index.push_back(index);
        builder.call("max_pool forward", {x}, {y, index}, 0, [=](Context& context, const Frame& frame) {
          ops::max_pool2d_forward(context, step.desc, frame[x].reshape(step.x), frame[y].reshape(step.y), frame[index]);
        });
      });
  builder.on_backward([=, this](PlanBuilder& b) {
    plan_steps_back(b, name(), steps, [&](std::size_t i, const PoolStep& step, SlotId dy, SlotId dx) {
      const SlotId index = slots.index[i];
      b.call("max_pool backward", {dy, index}, {dx}, 0, [=](Context& context, const Frame& frame) {
        ops::max_pool2d_backward(context, step.desc, frame[dy].reshape(step.y), frame[index],
                                 frame[dx].reshape(step.x));
      });
    });
  });
}

AveragePoolLayer::AveragePoolLayer(int axes, std::string name, const PoolWindow& window, ops::AverageOver over)
    : Layer(std::move(name)), axes_(axes), window_(checked(this->name(), axes, window)), over_(over) {}

std::string AveragePoolLayer::kind() const {
  return pool_kind("average_pool", axes_);
}

Shape AveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  return pooled(*this, axes_, window_, inputs[0]);
}

std::string AveragePoolLayer::settings() const {
  return settings_of(window_) + (over_ == ops::AverageOver::window ? "" : ", padding does not count");
}

void AveragePoolLayer::plan(PlanBuilder& builder) const {
  const Shape in = builder.input_shape();
  const std::vector<PoolStep> steps = steps_of(axes_, window_, builder.batched(in));
  const ops::AverageOver over = over_;
  plan_steps(builder, name(), steps, builder.batched(output_shape({&in, 1})),
             [&](std::size_t i, const PoolStep& step, const StepSlots& made) {
               const SlotId x = made.tensors[i];
               const SlotId y = made.tensors[i + 1];
               builder.call("average_pool forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
                 ops::average_pool2d_forward(context, step.desc, over, frame[x].reshape(step.x),
                                             frame[y].reshape(step.y));
               });
             });
  builder.on_backward([=, this](PlanBuilder& b) {
    plan_steps_back(b, name(), steps, [&](std::size_t /*i*/, const PoolStep& step, SlotId dy, SlotId dx) {
      b.call("average_pool backward", {dy}, {dx}, 0, [=](Context& context, const Frame& frame) {
        ops::average_pool2d_backward(context, step.desc, over, frame[dy].reshape(step.y), frame[dx].reshape(step.x));
      });
    });
  });
}

Shape GlobalAveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0].rank() >= 2 && inputs[0].rank() <= 4, name(), ": input ", inputs[0],
                      ", expected (T, C), (H, W, C) or (D, H, W, C)");
  return {inputs[0].back()};
}

void GlobalAveragePoolLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape in = builder.input_shape();
  const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
  const int last = in.rank() - 2;  // the innermost axis of space
  std::int64_t rows = 1;
  for (int i = 0; i < last; ++i) {
    rows *= in[i];
  }
  const Shape images{builder.batch(), rows, in[last], in.back()};
  builder.call("global_average_pool forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::global_average_pool_forward(context, frame[x].reshape(images), frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, {}, false);
    if (dx.wanted()) {
      b.call("global_average_pool backward", {dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::global_average_pool_backward(context, frame[dy], frame[dx.slot].reshape(images));
      });
    }
  });
}

}  // namespace lockstep::nn
