// The tests of layers check the statements that layers make about their memory and gradients (layer.hpp). The layers in
// this file make false statements, which the checks must find.

#include <lockstep/kernels/activation.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

/// The false statement of a layer, if any.
enum class Lie : unsigned char {
  none,
  output_not_read,     ///< backward reads the output, but the layer denies it
  gradient_read_last,  ///< the gradient of the input overwrites memory that a later call reads
  two_gradients        ///< backward reads one gradient of the output, but the layer claims to take two
};

/// A layer that computes y = tanh(x). Its gradient is the sum of two calls, so it is twice the true gradient.
class TwiceTanh final : public Layer {
 public:
  TwiceTanh(std::string name, Lie lie) : Layer(std::move(name)), lie_(lie) {}
  [[nodiscard]] std::string kind() const override { return "twice_tanh"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] int gradients_taken() const override { return lie_ == Lie::two_gradients ? 2 : 1; }
  [[nodiscard]] bool backward_reads_output() const override { return lie_ != Lie::output_not_read; }
  void plan(PlanBuilder& builder) const override {
    const SlotId x = builder.input();
    const SlotId y = builder.activation(name(), builder.batched(builder.input_shape()));
    builder.call("tanh", {x}, {y}, 0, [=](Context& context, const Frame& frame) {
      ops::activation_forward(context, ops::Activation::tanh, frame[x], frame[y]);
    });
    builder.set_output(y);
    builder.on_backward([=, this](PlanBuilder& b) {
      const SlotId dy = b.output_gradients()[0];
      const GradientTarget dx = b.input_gradient(0, lie_ == Lie::gradient_read_last ? dy : SlotId{}, false);
      b.call("slope", {y, dy}, {dx.slot}, 0, [=](Context&, const Frame& frame) {
        const auto out = frame[y].span<double>();
        for (std::size_t i = 0; i < out.size(); ++i) {
          frame[dx.slot].span<double>()[i] = frame[dy].span<double>()[i] * (1 - out[i] * out[i]);
        }
      });
      b.call("slope again", {y, dy, dx.slot}, {dx.slot}, 0, [=](Context&, const Frame& frame) {
        const auto out = frame[y].span<double>();
        for (std::size_t i = 0; i < out.size(); ++i) {
          frame[dx.slot].span<double>()[i] += frame[dy].span<double>()[i] * (1 - out[i] * out[i]);
        }
      });
    });
  }

 private:
  Lie lie_;
};

/// Returns a model with a TwiceTanh and then a dropout. The dropout may overwrite the output of TwiceTanh if no later
/// call reads this output.
Model model_of(Lie lie) {
  ModelBuilder b("claims", {6});
  const NodeId y = b.add(std::make_shared<TwiceTanh>("liar", lie), {b.linear("l0", b.input(), 5)});
  b.linear("fc", b.dropout("drop", y, 0.5), 3);
  return b.build();
}

::testing::AssertionResult checked(Lie lie, Mode mode) {
  return testing::sharing_memory_changes_nothing(model_of(lie), mode, 4, DType::f64);
}

TEST(LayerClaims, AWrongOneChangesBits) {
  for (const Mode mode : {Mode::train, Mode::evaluate, Mode::infer}) {
    EXPECT_TRUE(checked(Lie::none, mode)) << name_of(mode);
  }
  for (const Lie lie : {Lie::output_not_read, Lie::gradient_read_last}) {
    const auto result = checked(lie, Mode::train);
    EXPECT_FALSE(result) << static_cast<int>(lie);
    testing::expect_holds(result.message(), "train, gradients");
  }
}

TEST(LayerClaims, AGradientThatBackwardLeavesOutIsRefused) {
  ModelBuilder b("claims", {6});
  const NodeId y = b.add(std::make_shared<TwiceTanh>("liar", Lie::two_gradients), {b.linear("l0", b.input(), 5)});
  b.linear("fc", b.layer_norm("norm", b.batch_norm("bn", y, {.residual = y})), 3);
  CpuContext context;
  const Model model = b.build();
  EXPECT_EQ(testing::error_of<StateError>([&] { Plan(context, model, Mode::train, 4); }),
            "plan: layer liar says that it takes 2 gradients of its output, and its backward reads 1 of 2, expected "
            "all of them");
  EXPECT_NO_THROW(Plan(context, model, Mode::evaluate, 4));
}

}  // namespace
}  // namespace lockstep::nn
