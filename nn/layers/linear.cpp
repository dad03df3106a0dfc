#include <cmath>
#include <memory>

#include <lockstep/kernels/matmul.hpp>
#include <lockstep/nn/layers/layers.hpp>
#include <lockstep/nn/plan_builder.hpp>

namespace lockstep::nn {

namespace {

std::shared_ptr<const ops::MatmulPlan> plan_product(PlanBuilder& builder, const std::string& key,
                                                    const ops::MatmulDesc& desc) {
  return builder.planned(key,
                         [&](const std::string& choice) { return ops::plan_matmul(builder.context(), desc, choice); });
}

}  // namespace

LinearLayer::LinearLayer(std::string name, const Shape& logical, std::int64_t features, bool he_init)
    : Layer(std::move(name)), logical_(logical), features_(features), he_init_(he_init) {
  require<ShapeError>(features >= 1, this->name(), ": features is ", features, ", expected at least 1");
}

Shape LinearLayer::output_shape(std::span<const Shape> inputs) const {
  require<ShapeError>(inputs[0].rank() == logical_.rank(), name(), ": input ", inputs[0], ", expected rank ",
                      logical_.rank());
  return {features_};
}

std::vector<ParameterSpec> LinearLayer::parameters(std::span<const Shape> inputs) const {
  const std::int64_t fan_in = logical_.numel();
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  ParameterSpec weight{.name = name() + ".weight",
                       .shape = {features_, fan_in},
                       .dims = {features_, fan_in},
                       .axes = {0, 1},
                       .stored_last = inputs[0].back(),
                       .role = ParameterRole::weight,
                       .init = he_init_ ? Initialiser{Initialiser::Kind::normal, bound * std::sqrt(2.0)}
                                        : Initialiser{Initialiser::Kind::uniform, bound}};
  if (logical_.rank() == 3) {  // an image: dims (K, C, H, W), stored (K, H, W, C)
    weight.dims = {features_, logical_[2], logical_[0], logical_[1]};
    weight.axes = {0, 2, 3, 1};
  }
  ParameterSpec bias{.name = name() + ".bias",
                     .shape = {features_},
                     .dims = {features_},
                     .axes = {0},
                     .stored_last = features_,
                     .role = ParameterRole::bias,
                     .init = he_init_ ? Initialiser{} : Initialiser{Initialiser::Kind::uniform, bound}};
  return {std::move(weight), std::move(bias)};
}

void LinearLayer::plan(PlanBuilder& builder) const {
  const std::int64_t batch = builder.batch();
  const std::int64_t in = builder.input_shape().numel();  // as stored
  const std::int64_t out = features_;
  const SlotId x = builder.input();
  const SlotId weight = builder.parameter(name() + ".weight");
  const SlotId bias = builder.parameter(name() + ".bias");
  const SlotId y = builder.activation(name(), {batch, out});

  const ops::MatmulDesc forward{
      .dtype = builder.dtype(), .m = batch, .n = out, .k = in, .transpose_b = true, .bias = true};
  const auto forward_plan = plan_product(builder, name() + " forward", forward);
  const SlotId scratch = builder.scratch(forward_plan->workspace_bytes());
  builder.call("matmul forward " + forward_plan->choice(), {x, weight, bias}, {y, scratch}, forward.flops(),
               [=](Context& context, const Frame& frame) {
                 ops::matmul(context, *forward_plan, frame[x].reshape({batch, in}), frame[weight].reshape({out, in}),
                             frame[bias], frame[y], frame[scratch]);
               });
  builder.set_output(y);

  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const GradientTarget dweight = b.parameter_gradient(name() + ".weight");
    const ops::MatmulDesc weights{
        .dtype = b.dtype(), .m = out, .n = in, .k = batch, .transpose_a = true, .grad_mode = dweight.mode};
    const auto weights_plan = plan_product(b, name() + " backward_weights", weights);
    const SlotId weights_scratch = b.scratch(weights_plan->workspace_bytes());
    b.call("matmul backward_weights " + weights_plan->choice(), {dy, x}, {dweight.slot, weights_scratch},
           weights.flops(), [=](Context& context, const Frame& frame) {
             ops::matmul(context, *weights_plan, frame[dy], frame[x].reshape({batch, in}), {},
                         frame[dweight.slot].reshape({out, in}), frame[weights_scratch]);
           });
    b.reduce_rows(dy, {batch, out}, b.parameter_gradient(name() + ".bias"));
    const GradientTarget dx = b.input_gradient(0);
    if (dx.wanted()) {
      const ops::MatmulDesc data{.dtype = b.dtype(), .m = batch, .n = in, .k = out, .grad_mode = dx.mode};
      const auto data_plan = plan_product(b, name() + " backward_data", data);
      const SlotId data_scratch = b.scratch(data_plan->workspace_bytes());
      b.call("matmul backward_data " + data_plan->choice(), {dy, weight, dx.slot}, {dx.slot, data_scratch},
             data.flops(), [=](Context& context, const Frame& frame) {
               ops::matmul(context, *data_plan, frame[dy], frame[weight].reshape({out, in}), {},
                           frame[dx.slot].reshape({batch, in}), frame[data_scratch]);
             });
    }
  });
}

}  // namespace lockstep::nn
