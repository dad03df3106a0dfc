#include <cmath>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/dropout.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/relu.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/kernels/subsample_pad.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

void ReluLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape shape = builder.batched(builder.input_shape());
  const SlotId y = builder.may_overwrite_input() ? builder.alias(x, name(), shape) : builder.activation(name(), shape);
  builder.call("relu forward", {x}, {y}, 0,
               [=](Context& context, const Frame& frame) { ops::relu_forward(context, frame[x], frame[y]); });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, dy, false);
    if (dx.wanted()) {
      b.call("relu backward", {y, dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::relu_backward(context, frame[y], frame[dy], frame[dx.slot]);
      });
    }
  });
}

ActivationLayer::ActivationLayer(std::string name, ops::Activation function)
    : Layer(std::move(name)), function_(function) {
  static_cast<void>(ops::name_of(function));  // UsageError for a value that is none
}

void ActivationLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape shape = builder.batched(builder.input_shape());
  const ops::Activation function = function_;
  // Backward reads x, not y; so only without backward may y take the place of x.
  const SlotId y = !builder.training() && builder.may_overwrite_input() ? builder.alias(x, name(), shape)
                                                                        : builder.activation(name(), shape);
  builder.call(kind() + " forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::activation_forward(context, function, frame[x], frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, dy, false);
    if (dx.wanted()) {
      b.call(kind() + " backward", {x, dy}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::activation_backward(context, function, frame[x], frame[dy], frame[dx.slot]);
      });
    }
  });
}

ScaleLayer::ScaleLayer(std::string name, double factor) : Layer(std::move(name)), factor_(factor) {
  require<UsageError>(std::isfinite(factor), this->name(), ": factor is ", factor, ", expected a finite number");
}

std::string ScaleLayer::settings() const {
  return concat("factor ", exact_text(factor_));
}

void ScaleLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape shape = builder.batched(builder.input_shape());
  const SlotId y = builder.may_overwrite_input() ? builder.alias(x, name(), shape) : builder.activation(name(), shape);
  const SlotId factor = builder.statistics(name() + ".factor", Shape{});
  const auto scaled = [=, value = factor_](SlotId by, SlotId from, SlotId to) {
    return [=](Context& context, const Frame& frame) {
      ops::fill(context, value, frame[by]);  // ops::scale() reads it where the tensors are
      ops::scale(context, frame[by], frame[from], frame[to]);
    };
  };
  builder.call("scale forward", {x}, {y, factor}, 0, scaled(factor, x, y), 2);
  builder.set_output(y);
  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, dy, false);
    if (dx.wanted()) {
      const SlotId again = b.statistics("d(" + name() + ").factor", Shape{});
      b.call("scale backward", {dy}, {dx.slot, again}, 0, scaled(again, dy, dx.slot), 2);
    }
  });
}

Shape AddLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0] == inputs[1], name(), ": inputs ", inputs[0], " and ", inputs[1],
                      ", expected one shape");
  return inputs[0];
}

void AddLayer::plan(PlanBuilder& builder) const {
  const SlotId a = builder.input(0);
  const SlotId b = builder.input(1);
  const Shape shape = builder.batched(builder.input_shape());
  SlotId sum;
  for (const int i : {1, 0}) {  // the branch rather than what it began with
    if (!sum.valid() && builder.may_overwrite_input(i)) {
      sum = builder.alias(builder.input(i), name(), shape);
    }
  }
  if (!sum.valid()) {
    sum = builder.activation(name(), shape);
  }
  builder.call("add", {a, b}, {sum}, 0,
               [=](Context& context, const Frame& frame) { ops::add(context, frame[a], frame[b], frame[sum]); });
  builder.set_output(sum);
  builder.on_backward([](PlanBuilder& after) {
    const SlotId dy = after.output_gradients()[0];
    after.pass_gradient(0, dy);
    after.pass_gradient(1, dy);
  });
}

DropoutLayer::DropoutLayer(std::string name, double rate, std::uint32_t number)
    : Layer(std::move(name)), rate_(rate), number_(number) {
  require<UsageError>(rate >= 0 && rate < 1, this->name(), ": dropout rate is ", rate, ", expected [0, 1)");
}

std::string DropoutLayer::settings() const {
  return concat("rate ", exact_text(rate_), ", number ", number_);
}

void DropoutLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape shape = builder.batched(builder.input_shape());
  const bool in_place = builder.may_overwrite_input();
  if (!builder.training() && in_place) {
    builder.set_output(x);
    return;
  }
  const SlotId y = in_place ? builder.alias(x, name(), shape) : builder.activation(name(), shape);
  builder.set_output(y);
  if (!builder.training()) {  // the next layer may overwrite y, and x has other readers
    builder.call("copy", {x}, {y}, 0, [=](Context& context, const Frame& frame) { copy(context, frame[x], frame[y]); });
    return;
  }
  const ops::DropoutDesc desc{.rate = rate_, .seed = builder.options().dropout_seed, .layer = number_};
  const SlotId ids = builder.state(StateField::sample_ids);
  const SlotId epoch = builder.state(StateField::epoch);
  builder.call("dropout forward", {x, ids, epoch}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::dropout(context, desc, frame[ids], frame[epoch], frame[x], frame[y]);
  });
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0, dy, false);
    if (dx.wanted()) {
      b.call("dropout backward", {dy, ids, epoch}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::dropout(context, desc, frame[ids], frame[epoch], frame[dy], frame[dx.slot]);
      });
    }
  });
}

SubsamplePadLayer::SubsamplePadLayer(std::string name, std::int64_t channels, std::int64_t stride)
    : Layer(std::move(name)), channels_(channels), stride_(stride) {
  require<ShapeError>(stride >= 1, this->name(), ": stride is ", stride, ", expected at least 1");
}

Shape SubsamplePadLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0].rank() == 3 && inputs[0][2] <= channels_, name(), ": input ", inputs[0],
                      ", expected (H, W, C) with C <= ", channels_);
  return {(inputs[0][0] + stride_ - 1) / stride_, (inputs[0][1] + stride_ - 1) / stride_, channels_};
}

std::string SubsamplePadLayer::settings() const {
  return concat("stride ", stride_);
}

void SubsamplePadLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const Shape in = builder.input_shape();
  const SlotId y = builder.activation(name(), builder.batched(output_shape({&in, 1})));
  const std::int64_t stride = stride_;
  builder.call("subsample_pad forward", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::subsample_pad_forward(context, stride, frame[x], frame[y]);
  });
  builder.set_output(y);
  builder.on_backward([=](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dx = b.input_gradient(0);
    if (dx.wanted()) {
      b.call("subsample_pad backward", {dy, dx.slot}, {dx.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::subsample_pad_backward(context, stride, frame[dy], dx.mode, frame[dx.slot]);
      });
    }
  });
}

}  // namespace lockstep::nn
