#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/linear_epilogue.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

/// Computes y = activation(weight x + bias) + residual. The weight has the shape (K, features) for K outputs; the
/// residual is the second input. x is a flattened image, a vector of features, or one position of a sequence. An image
/// is flattened in the order C, H, W, as in PyTorch.
class LinearLayer final : public Layer {
 public:
  /// `logical` is the shape of an input sample, without padded channels.
  LinearLayer(std::string name, const Shape& logical, std::int64_t features, LinearOptions options)
      : Layer(std::move(name)), logical_(logical), features_(features), options_(std::move(options)) {
    require<ShapeError>(features >= 1, this->name(), ": features is ", features, ", expected at least 1");
  }
  [[nodiscard]] std::string kind() const override { return "linear"; }
  [[nodiscard]] std::string settings() const override {
    return activates() ? concat("activation ", ops::name_of(options_.activation)) : std::string();
  }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0].rank() == logical_.rank(), name(), ": input ", inputs[0], ", expected ",
                        logical_.rank(), logical_.rank() == 1 ? " axis" : " axes");
    const Shape shape = sequence() ? Shape{inputs[0][0], features_} : Shape{features_};
    require<ShapeError>(inputs.size() == 1 || inputs[1] == shape, name(), ": the residual is ", inputs.back(),
                        ", expected ", shape);
    return shape;
  }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] bool backward_reads_output() const override { return slope_of_output(); }
  [[nodiscard]] std::optional<DenseForm> dense_form() const override {
    if (logical_.rank() != 1 || options_.residual.index >= 0) {
      return std::nullopt;
    }
    return DenseForm{weight_name(), options_.bias ? name() + ".bias" : std::string(), options_.activation};
  }
  void plan(PlanBuilder& builder) const override;

 private:
  [[nodiscard]] bool sequence() const { return logical_.rank() == 2; }
  [[nodiscard]] std::string weight_name() const {
    return options_.weight.empty() ? name() + ".weight" : options_.weight;
  }
  [[nodiscard]] bool activates() const { return options_.activation != ops::Activation::identity; }
  /// Returns true if backward computes the slope of the activation from the output y. Then the plan does not keep the
  /// product weight * x.
  [[nodiscard]] bool slope_of_output() const {
    return options_.activation == ops::Activation::relu && options_.residual.index < 0;
  }
  /// Appends the calls for the product, the bias, the activation and the residual, or a single call for all of these if
  /// ops::fuses_activation() allows it. Returns the slot from which backward computes the activation's slope: the
  /// output, or the product before the bias is added.
  SlotId plan_forward(PlanBuilder& builder, std::int64_t rows, std::int64_t in) const;
  /// Appends the calls for the tangent of the output. `kept` is the slot that plan_forward() returned.
  void plan_tangent(PlanBuilder& b, SlotId kept, std::int64_t rows, std::int64_t in) const;

  Shape logical_;
  std::int64_t features_;
  LinearOptions options_;
};

std::vector<ParameterSpec> LinearLayer::parameters(std::span<const Shape> inputs) const {
  const std::int64_t fan_in = sequence() ? logical_.back() : logical_.numel();
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  const double deviation = options_.he_init ? bound * std::sqrt(2.0) : options_.deviation;
  const Initialiser uniform{Initialiser::Kind::uniform, bound};
  const Initialiser init = deviation > 0 ? Initialiser{Initialiser::Kind::normal, deviation} : uniform;
  const Shape matrix{features_, fan_in};
  ParameterSpec weight{weight_name(), matrix, matrix, {0, 1}, inputs[0].back(), ParameterRole::weight, init};
  if (logical_.rank() >= 3) {  // image: (K, C, H, W), stored as (K, H, W, C); a volume has D before H
    weight.dims = {features_, logical_.back()};
    weight.axes = {0};
    for (int i = 0; i + 1 < logical_.rank(); ++i) {
      weight.dims.push_back(logical_[i]);
      weight.axes.push_back(2 + i);
    }
    weight.axes.push_back(1);
  }
  std::vector<ParameterSpec> all{std::move(weight)};
  if (options_.bias) {
    all.push_back(ParameterSpec::of_channels(name() + ".bias", features_, features_, ParameterRole::bias,
                                             deviation > 0 ? Initialiser{} : uniform));
  }
  return all;
}

SlotId LinearLayer::plan_forward(PlanBuilder& builder, std::int64_t rows, std::int64_t in) const {
  const std::int64_t out = features_;
  const bool residual = options_.residual.index >= 0;
  const bool slope_of_product = builder.training() && activates() && !slope_of_output();
  const SlotId x = builder.input();
  const SlotId weight = builder.weight(weight_name());
  const SlotId bias = options_.bias ? builder.parameter(name() + ".bias") : SlotId{};
  const Shape shape = builder.batched(sequence() ? Shape{rows / builder.batch(), out} : Shape{out});
  const SlotId product = builder.activation(name(), shape);
  ops::MatmulDesc desc{.dtype = builder.dtype(), .m = rows, .n = out, .k = in, .transpose_b = true};
  desc.bias = options_.bias;
  desc.activation = options_.activation;
  const bool fused = !residual && !slope_of_product && (!activates() || ops::fuses_activation(builder.context(), desc));
  if (!fused) {
    desc.bias = false;
    desc.activation = ops::Activation::identity;
  }
  // A product with a fused activation has its own key for the stored choice, because the choice for the product alone
  // may not support the activation.
  const std::string pass = fused && activates() ? concat("forward ", ops::name_of(desc.activation)) : "forward";
  const auto plan = builder.matmul(name() + " " + pass, desc);
  const SlotId scratch = builder.scratch(plan->workspace_bytes());
  const SlotId matmul_bias = fused ? bias : SlotId{};
  builder.call("matmul " + pass + " " + plan->choice(), {x, weight, matmul_bias}, {product, scratch}, desc.flops(),
               [=](Context& context, const Frame& frame) {
                 ops::matmul(context, *plan, frame[x].reshape({rows, in}), frame[weight].reshape({out, in}),
                             frame[matmul_bias], frame[product].reshape({rows, out}), frame[scratch]);
               });
  SlotId y = product;
  if (!fused) {
    y = slope_of_product ? builder.activation(name() + ".y", shape) : builder.alias(product, name() + ".y", shape);
    const SlotId added = residual ? builder.input(1) : SlotId{};
    builder.call("linear_epilogue forward", {product, bias, added}, {y}, 0,
                 [=, kind = options_.activation](Context& context, const Frame& frame) {
                   ops::linear_epilogue_forward(context, kind, frame[product], frame[bias], frame[added], frame[y]);
                 });
  }
  builder.set_output(y);
  return slope_of_product ? product : y;
}

void LinearLayer::plan_tangent(PlanBuilder& b, SlotId kept, std::int64_t rows, std::int64_t in) const {
  const std::int64_t out = features_;
  const SlotId weight = b.weight(weight_name());
  const SlotId t = b.input_tangent();
  const SlotId added = options_.residual.index >= 0 ? b.input_tangent(1) : SlotId{};
  const SlotId to = b.new_tangent();
  const ops::MatmulDesc desc{.dtype = b.dtype(), .m = rows, .n = out, .k = in, .transpose_b = true};
  const auto plan = b.matmul(name() + " tangent", desc);
  const SlotId scratch = b.scratch(plan->workspace_bytes());
  b.call("matmul forward " + plan->choice(), {t, weight}, {to, scratch}, desc.flops(),
         [=](Context& context, const Frame& frame) {
           ops::matmul(context, *plan, frame[t].reshape({rows, in}), frame[weight].reshape({out, in}), {},
                       frame[to].reshape({rows, out}), frame[scratch]);
         });
  if (activates()) {
    const SlotId bias = options_.bias && !slope_of_output() ? b.parameter(name() + ".bias") : SlotId{};
    b.call("linear_epilogue backward", {kept, bias, to}, {to}, 0,
           [=, kind = options_.activation](Context& context, const Frame& frame) {
             ops::linear_epilogue_backward(context, kind, frame[kept], frame[bias], frame[to], ops::GradMode::ignore,
                                           frame[to], {}, {});
           });
  }
  if (added.valid()) {
    b.call("add", {to, added}, {to}, 0,
           [=](Context& context, const Frame& frame) { ops::add(context, frame[to], frame[added], frame[to]); });
  }
}

void LinearLayer::plan(PlanBuilder& builder) const {
  const Shape& sample = builder.input_shape();  // stored shape, with padded channels
  const std::int64_t in = sequence() ? sample.back() : sample.numel();
  const std::int64_t rows = builder.batch() * (sequence() ? sample[0] : 1);
  const std::int64_t out = features_;
  const SlotId x = builder.input();
  const SlotId weight = builder.weight(weight_name());
  const SlotId kept = plan_forward(builder, rows, in);

  builder.on_tangent([=, this](PlanBuilder& b) { plan_tangent(b, kept, rows, in); });
  builder.on_backward([=, this](PlanBuilder& b) {
    SlotId dy = b.output_gradients()[0];  // first the gradient of the output, later the gradient of the product
    if (options_.residual.index >= 0) {
      b.pass_gradient(1, dy);
    }
    const GradientTarget dbias = options_.bias ? b.parameter_gradient(name() + ".bias") : GradientTarget{};
    if (activates()) {
      const SlotId given = dy;
      dy = b.overwrite_gradient(dy, "d(" + name() + " product)");
      // ReLU's slope needs no bias, because the slope is 1 exactly where y > 0 (if positive values do not round to 0).
      const SlotId bias = options_.bias && !slope_of_output() ? b.parameter(name() + ".bias") : SlotId{};
      const SlotId scratch =
          b.scratch(dbias.wanted() ? ops::linear_epilogue_workspace_bytes(b.context(), b.prototype(kept)) : 0);
      b.call("linear_epilogue backward", {kept, bias, given, dbias.slot}, {dy, dbias.slot, scratch}, 0,
             [=, kind = options_.activation](Context& context, const Frame& frame) {
               ops::linear_epilogue_backward(context, kind, frame[kept], frame[bias], frame[given], dbias.mode,
                                             frame[dy], frame[dbias.slot], frame[scratch]);
             });
    } else if (options_.bias) {
      b.reduce_rows(dy, {rows, out}, dbias);
    }
    const GradientTarget dweight = b.parameter_gradient(weight_name());
    if (dweight.wanted()) {
      const ops::MatmulDesc weights{.dtype = b.dtype(),
                                    .m = out,
                                    .n = in,
                                    .k = rows,
                                    .transpose_a = true,
                                    .grad_mode = dweight.mode,
                                    .accumulator_output = true};
      b.beside([&] {
        const auto plan = b.matmul(name() + " backward_weights", weights);
        const SlotId scratch = b.scratch(plan->workspace_bytes());
        b.call("matmul backward_weights " + plan->choice(), {dy, x}, {dweight.slot, scratch}, weights.flops(),
               [=](Context& context, const Frame& frame) {
                 ops::matmul(context, *plan, frame[dy].reshape({rows, out}), frame[x].reshape({rows, in}), {},
                             frame[dweight.slot].reshape({out, in}), frame[scratch]);
               });
      });
    }
    const GradientTarget dx = b.input_gradient(0);
    if (dx.wanted()) {
      const ops::MatmulDesc data{.dtype = b.dtype(), .m = rows, .n = in, .k = out, .grad_mode = dx.mode};
      const auto data_plan = b.matmul(name() + " backward_data", data);
      const SlotId data_scratch = b.scratch(data_plan->workspace_bytes());
      const SlotId before = dx.mode == ops::GradMode::accumulate ? dx.slot : SlotId{};
      b.call("matmul backward_data " + data_plan->choice(), {dy, weight, before}, {dx.slot, data_scratch}, data.flops(),
             [=](Context& context, const Frame& frame) {
               ops::matmul(context, *data_plan, frame[dy].reshape({rows, out}), frame[weight].reshape({out, in}), {},
                           frame[dx.slot].reshape({rows, in}), frame[data_scratch]);
             });
    }
  });
}

}  // namespace

NodeId ModelBuilder::linear(const std::string& name, NodeId x, std::int64_t features, const LinearOptions& options) {
  Shape logical = shape(x);
  logical[logical.rank() - 1] = channels(x);
  std::vector<NodeId> inputs{x};
  if (options.residual.index >= 0) {
    inputs.push_back(options.residual);
  }
  return add_stored(std::make_shared<LinearLayer>(name, logical, features, options), std::move(inputs));
}

}  // namespace lockstep::nn
