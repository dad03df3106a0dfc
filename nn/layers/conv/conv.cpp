#include <cmath>
#include <utility>

#include <lockstep/nn/layers/conv/detail/conv_passes.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

/// Returns whether a convolution's plan for `pass` may also do the batch norm's work in `desc.norm`. On the host, the
/// reference plan can do this work for every pass.
bool may_be_served(PlanBuilder& b, const ops::ConvDesc& desc, ops::ConvPass pass) {
  return b.context().device().kind == DeviceKind::cpu || ops::conv_may_serve_norm(desc, pass);
}

/// Appends the forward pass. If a batch norm reads y, the pass also computes the sums that the norm needs, unless the
/// convolution's plan cannot compute these sums.
void plan_forward(PlanBuilder& b, const std::string& kind, const std::string& name, ops::ConvDesc desc, SlotId x,
                  SlotId weight, SlotId bias, SlotId y) {
  desc.bias = bias.valid();
  const SlotId shift = desc.bias ? SlotId{} : b.sums_wanted_near(y);
  desc.norm.wanted = shift.valid();
  if (!may_be_served(b, desc, ops::ConvPass::forward)) {
    desc.norm = {};
  }
  const auto plan = plan_conv_pass(b, name + " forward", desc, ops::ConvPass::forward);
  if (!plan->serves_norm()) {
    append_pass(b, kind + " forward", plan, x, weight, bias, y);
    return;
  }
  const SlotId scratch = b.scratch(plan->workspace_bytes());
  const SlotId sums = b.statistics(name + ".sums", {2, desc.out_channels});
  b.call(kind + " forward_with_sums " + plan->choice(), {x, weight, shift}, {y, sums, scratch}, desc.flops(),
         [=](Context& context, const Frame& frame) {
           ops::conv2d_for_norm(context, *plan, frame[x], frame[weight], frame[y], frame[scratch],
                                {.sums = frame[sums], .shift = frame[shift]});
         });
  b.leave_sums(sums);
}

/// Appends the data gradient of a convolution whose input is the output of a batch norm. The same pass also does the
/// first part of this norm's backward. `norm` describes the norm.
void plan_for_norm(PlanBuilder& b, const std::string& kind, const std::string& name,
                   const std::shared_ptr<const ops::ConvPlan>& plan, SlotId dy, SlotId weight, const FusibleNorm& norm,
                   SlotId addend) {
  const ops::ConvDesc& desc = plan->desc();
  const SlotId g = b.activation("masked d(input) of " + name, desc.x_shape());
  const SlotId sums = b.statistics("sums of d(input) of " + name, {desc.norm.pair ? 3 : 2, desc.in_channels});
  const SlotId scratch = b.scratch(plan->workspace_bytes());
  b.call(kind + " backward_data_for_norm " + plan->choice(),
         {dy, weight, addend, norm.mask, norm.x, norm.coefficients, norm.x2, norm.coefficients2}, {g, sums, scratch},
         desc.flops(), [=, n = norm](Context& context, const Frame& frame) {
           ops::conv2d_for_norm(context, *plan, frame[dy], frame[weight], frame[g], frame[scratch],
                                {.sums = frame[sums],
                                 .addend = frame[addend],
                                 .mask = frame[n.mask],
                                 .x = frame[n.x],
                                 .coefficients = frame[n.coefficients],
                                 .x2 = frame[n.x2],
                                 .coefficients2 = frame[n.coefficients2]});
         });
  b.pass_masked_gradient({g, sums});
}

/// Convolution without activation. The weight has the shape (K, C / groups, R), (K, C / groups, R, S) or (K, C /
/// groups, Q, R, S) for K output channels and kernel extents Q, R, S. The weight's initial values are normal with
/// standard deviation sqrt(2 / (K * kernel extents)), He's rule with "fan out", unless ConvOptions::init says
/// otherwise.
class ConvLayer final : public Layer {
 public:
  ConvLayer(int axes, std::string name, std::int64_t logical_in_channels, std::int64_t channels,
            const ConvOptions& options)
      : Layer(std::move(name)), axes_(axes), in_channels_(logical_in_channels), channels_(channels), options_(options) {
    require_axes(
        this->name(), axes,
        {{"kernel", options.kernel}, {"stride", options.stride}, {"pad", options.pad}, {"dilation", options.dilation}});
    require<ShapeError>(channels >= 1 && options.kernel.least() >= 1 && options.stride.least() >= 1 &&
                            options.pad.least() >= 0 && options.groups >= 1 && options.dilation.least() >= 1,
                        this->name(), ": channels ", channels, ", kernel ", options.kernel, ", stride ", options.stride,
                        ", pad ", options.pad, ", groups ", options.groups, ", dilation ", options.dilation,
                        "; expected positive values and pad >= 0");
    require<ShapeError>(logical_in_channels % options.groups == 0 && channels % options.groups == 0, this->name(),
                        ": groups is ", options.groups, ", expected a divisor of the ", logical_in_channels,
                        " channels that it reads and of the ", channels, " that it makes");
  }
  [[nodiscard]] std::string kind() const override { return concat("conv", axes_, 'd'); }
  [[nodiscard]] std::string settings() const override { return conv_settings(options_); }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0].rank() == axes_ + 1, name(), ": input ", inputs[0], ", expected ",
                        sample_text(axes_));
    const Shape y = describe_conv(axes_, inputs[0], channels_, options_).y_shape();
    return Shape(std::span(y.begin() + 1, y.end()));
  }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override {
    std::vector<ParameterSpec> specs =
        conv_parameters(name(), channels_, in_channels_ / options_.groups, inputs[0].back() / options_.groups, axes_,
                        options_.kernel, channels_, options_.bias);
    if (options_.init == ConvInit::identity) {  // add_conv() later sets the first filters to the identity
      const std::int64_t fan_in = specs[0].shape.numel() / channels_;
      specs[0].init = {Initialiser::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(fan_in))};
    }
    return specs;
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  int axes_;
  std::int64_t in_channels_;
  std::int64_t channels_;
  ConvOptions options_;
};

void ConvLayer::plan(PlanBuilder& builder) const {
  ops::ConvDesc desc = describe_conv(axes_, builder.input_shape(), channels_, options_);
  desc.batch = builder.batch();
  desc.dtype = builder.dtype();
  desc.tf32 = builder.options().tf32;

  const SlotId x = builder.input();
  const SlotId weight = builder.weight(name() + ".weight");
  const SlotId bias = options_.bias ? builder.parameter(name() + ".bias") : SlotId{};
  const SlotId y = builder.activation(name(), desc.y_shape());
  plan_forward(builder, kind(), name(), desc, x, weight, bias, y);
  builder.set_output(y);

  builder.on_tangent([=, this](PlanBuilder& b) {
    const SlotId t = b.input_tangent();
    append_pass(b, kind() + " forward", plan_conv_pass(b, name() + " tangent", desc, ops::ConvPass::forward), t, weight,
                {}, b.new_tangent());
  });
  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    // The weight gradient comes first: the all-reduce of its bucket can start while the data gradient is computed.
    append_weight_gradient(b, *this, desc, x, dy);
    if (options_.bias) {
      b.reduce_rows(dy, {desc.y_shape().numel() / channels_, channels_}, b.parameter_gradient(name() + ".bias"));
    }
    SlotId addend;
    const FusibleNorm* const norm = b.fusible_norm(addend);
    ops::ConvDesc pass_desc = desc;
    std::shared_ptr<const ops::ConvPlan> data_plan;
    if (norm != nullptr) {  // the norm needs this gradient alone, so the pass overwrites instead of adding
      pass_desc.grad_mode = ops::GradMode::overwrite;
      pass_desc.norm = {.wanted = true, .addend = addend.valid(), .pair = norm->x2.valid()};
      if (!may_be_served(b, pass_desc, ops::ConvPass::backward_data)) {
        pass_desc.norm = {};
      }
      data_plan = plan_conv_pass(b, name() + " backward_data", pass_desc, ops::ConvPass::backward_data);
      if (data_plan->serves_norm()) {
        plan_for_norm(b, kind(), name(), data_plan, dy, weight, *norm, addend);
        return;
      }
    }
    const GradientTarget dx = b.input_gradient(0);
    if (dx.wanted()) {
      pass_desc.grad_mode = dx.mode;
      if (data_plan == nullptr) {
        data_plan = plan_conv_pass(b, name() + " backward_data", pass_desc, ops::ConvPass::backward_data);
      }
      const SlotId before = dx.mode == ops::GradMode::accumulate ? dx.slot : SlotId{};
      append_pass(b, kind() + " backward_data", data_plan, dy, weight, {}, dx.slot, before);
    }
  });
}

}  // namespace

NodeId ModelBuilder::add_conv(int axes, const std::string& name, NodeId x, std::int64_t channels,
                              const ConvOptions& options) {
  if (options.groups != 1) {
    require_all_channels(name, x);  // else the padded channels would become members of the last group
  }
  const NodeId y = add_stored(std::make_shared<ConvLayer>(axes, name, this->channels(x), channels, options), {x});
  if (options.init == ConvInit::identity) {
    require<UsageError>(options.groups == 1, "model ", model_.name_, ": layer ", name, " has ", options.groups,
                        " groups and begins as the identity, expected 1 group");
    model_.initial_values_[name + ".weight"] = {.identity = true};
  }
  return y;
}

}  // namespace lockstep::nn
