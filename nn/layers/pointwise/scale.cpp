#include <cmath>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

/// Multiplies the input by a constant factor.
class ScaleLayer final : public Layer {
 public:
  ScaleLayer(std::string name, double factor) : Layer(std::move(name)), factor_(factor) {
    require<UsageError>(std::isfinite(factor), this->name(), ": factor is ", factor, ", expected a finite number");
  }
  [[nodiscard]] std::string kind() const override { return "scale"; }
  [[nodiscard]] std::string settings() const override { return concat("factor ", exact_text(factor_)); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  double factor_;
};

void ScaleLayer::plan(PlanBuilder& builder) const {
  const SlotId x = builder.input();
  const SlotId y = output_like_input(builder, name(), /*reads_input=*/false);
  const SlotId factor = builder.statistics(name() + ".factor", Shape{});
  const auto scaled = [=, value = factor_](SlotId by, SlotId from, SlotId to) {
    return [=](Context& context, const Frame& frame) {
      ops::fill(context, value, frame[by]);  // ops::scale() reads the factor from device memory
      ops::scale(context, frame[by], frame[from], frame[to]);
    };
  };
  builder.call("scale forward", {x}, {y, factor}, 0, scaled(factor, x, y), 2);
  builder.set_output(y);
  on_symmetric_gradient(builder, [=, this](PlanBuilder& b, SlotId dy, SlotId dx) {
    const SlotId again = b.statistics("d(" + name() + ").factor", Shape{});
    b.call("scale backward", {dy}, {dx, again}, 0, scaled(again, dy, dx), 2);
  });
}

}  // namespace

NodeId ModelBuilder::scale(const std::string& name, NodeId x, double factor) {
  return add_channelwise(std::make_shared<ScaleLayer>(name, factor), {x});
}

}  // namespace lockstep::nn
