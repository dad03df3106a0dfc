#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/layer_norm.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

/// Layer norm over the last axis. In an image, the channels of each pixel are normalised.
class LayerNormLayer final : public Layer {
 public:
  LayerNormLayer(std::string name, double epsilon) : Layer(std::move(name)), epsilon_(epsilon) {}
  [[nodiscard]] std::string kind() const override { return "layer_norm"; }
  [[nodiscard]] std::string settings() const override { return "epsilon " + exact_text(epsilon_); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override {
    const std::int64_t channels = inputs[0].back();
    const auto spec = [&](const char* suffix, ParameterRole role, double value) {
      return ParameterSpec::of_channels(name() + suffix, channels, channels, role,
                                        {Initialiser::Kind::constant, value});
    };
    return {spec(".weight", ParameterRole::norm_weight, 1), spec(".bias", ParameterRole::norm_bias, 0)};
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
    const double epsilon = epsilon_;
    const SlotId x = builder.input();
    const SlotId weight = builder.parameter(name() + ".weight");
    const SlotId bias = builder.parameter(name() + ".bias");
    const Shape rows{builder.batched(builder.input_shape()).numel() / builder.input_shape().back()};
    SlotId mean;
    SlotId inv_std;
    if (builder.training()) {
      mean = builder.statistics(name() + ".mean", rows);
      inv_std = builder.statistics(name() + ".inv_std", rows);
    }
    const SlotId y = output_like_input(builder, name(), /*reads_input=*/true);
    builder.call("layer_norm forward", {x, weight, bias}, {y, mean, inv_std}, 0,
                 [=](Context& context, const Frame& frame) {
                   ops::layer_norm_forward(context, frame[x], frame[weight], frame[bias], epsilon, frame[y],
                                           frame[mean], frame[inv_std]);
                 });
    builder.set_output(y);

    // Backward computes dx = S (w dy) with the weight w and a symmetric matrix S. So the tangent of the output is w (S
    // t), where t is the tangent of the input. layer_norm_backward() with a weight of ones computes S t.
    builder.on_tangent([=, this](PlanBuilder& b) {
      const SlotId t = b.input_tangent();
      const SlotId to = b.new_tangent();
      const SlotId ones = b.statistics(name() + ".ones", {b.prototype(weight).shape});
      const SlotId coefficients = b.statistics(name() + ".coefficients", {4, b.prototype(weight).shape[0]});
      const SlotId scratch = b.scratch(ops::layer_norm_workspace_bytes(b.context(), b.prototype(x)));
      b.call(
          "layer_norm tangent", {t, x, weight, mean, inv_std}, {to, ones, coefficients, scratch}, 0,
          [=](Context& context, const Frame& frame) {
            ops::fill(context, 1, frame[ones]);
            ops::layer_norm_backward(context, frame[t], frame[x], frame[ones], frame[mean], frame[inv_std],
                                     ops::GradMode::ignore, frame[to], {}, {}, frame[scratch]);
            ops::fill(context, 0, frame[coefficients]);
            ops::strided_copy(context, frame[weight].reshape({1, frame[weight].shape[0]}),
                              frame[coefficients].slice(0, 0, 1));
            ops::batch_norm_apply(context, frame[to], frame[coefficients], {}, false, frame[to], {});
          },
          5);
    });
    builder.on_backward([=, this](PlanBuilder& b) {
      const SlotId dy = b.output_gradients()[0];
      const SlotId scratch = b.scratch(ops::layer_norm_workspace_bytes(b.context(), b.prototype(x)));
      const auto [dweight, dbias] = b.parameter_gradients(name() + ".weight", name() + ".bias");
      const GradientTarget dx = b.input_gradient(0, dy, false);  // dx may take the memory of dy
      b.call("layer_norm backward", {dy, x, weight, mean, inv_std}, {dx.slot, dweight.slot, dbias.slot, scratch}, 0,
             [=, dweight = dweight, dbias = dbias](Context& context, const Frame& frame) {
               ops::layer_norm_backward(context, frame[dy], frame[x], frame[weight], frame[mean], frame[inv_std],
                                        dweight.mode, frame[dx.slot], frame[dweight.slot], frame[dbias.slot],
                                        frame[scratch]);
             });
    });
  }

 private:
  double epsilon_;
};

}  // namespace

NodeId ModelBuilder::layer_norm(const std::string& name, NodeId x, double epsilon) {
  require_all_channels(name, x);
  return add(std::make_shared<LayerNormLayer>(name, epsilon), {x});
}

}  // namespace lockstep::nn
