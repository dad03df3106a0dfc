#include <lockstep/kernels/dropout.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

/// In training, sets elements to 0 with probability `rate`. The random numbers depend on PlanOptions::dropout_seed, the
/// epoch, the layer's `number` in the model, and the sample id. In evaluation and inference passes, the output equals
/// the input.
class DropoutLayer final : public Layer {
 public:
  DropoutLayer(std::string name, double rate, std::uint32_t number)
      : Layer(std::move(name)), rate_(rate), number_(number) {
    require<UsageError>(rate >= 0 && rate < 1, this->name(), ": dropout rate is ", rate,
                        ", expected at least 0 and below 1");
  }
  [[nodiscard]] std::string kind() const override { return "dropout"; }
  [[nodiscard]] std::string settings() const override {
    return concat("rate ", exact_text(rate_), ", number ", number_);
  }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  [[nodiscard]] std::optional<DenseForm> dense_form() const override { return DenseForm{}; }
  void plan(PlanBuilder& builder) const override;

 private:
  double rate_;
  std::uint32_t number_;
};

void DropoutLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  if (builder.infers()) {
    builder.on_backward([](PlanBuilder& b) { b.pass_gradient(0, b.output_gradients()[0]); });
    builder.on_tangent([](PlanBuilder& b) { b.set_tangent(b.input_tangent()); });
  }
  if (builder.infers() && builder.may_overwrite_input()) {
    builder.set_output(x);
    return;
  }
  const SlotId y = output_like_input(builder, name(), /*reads_input=*/false);
  builder.set_output(y);
  if (builder.infers()) {  // copies, because the next layer may overwrite y while other layers still read x
    builder.call("copy", {x}, {y}, 0, [=](Context& context, const Frame& frame) { copy(context, frame[x], frame[y]); });
    return;
  }
  const ops::DropoutDesc desc{.rate = rate_, .seed = builder.options().dropout_seed, .layer = number_};
  const SlotId ids = builder.state(StateField::sample_ids);
  const SlotId epoch = builder.state(StateField::epoch);
  builder.call("dropout forward", {x, ids, epoch}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::dropout(context, desc, frame[ids], frame[epoch], frame[x], frame[y]);
  });
  on_symmetric_gradient(builder, [=](PlanBuilder& b, SlotId dy, SlotId dx) {
    b.call("dropout backward", {dy, ids, epoch}, {dx}, 0, [=](Context& context, const Frame& frame) {
      ops::dropout(context, desc, frame[ids], frame[epoch], frame[dy], frame[dx]);
    });
  });
}

}  // namespace

NodeId ModelBuilder::dropout(const std::string& name, NodeId x, double rate) {
  const auto number = static_cast<std::uint32_t>(model_.nodes_.size());  // selects the layer's own random stream
  return add_channelwise(std::make_shared<DropoutLayer>(name, rate, number), {x});
}

}  // namespace lockstep::nn
