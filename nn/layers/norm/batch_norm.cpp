#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/batch_norm_fused.hpp>
#include <lockstep/kernels/batch_norm_given.hpp>
#include <lockstep/kernels/batch_norm_pool.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/nn/layers/detail/one_input.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

/// If ranks share statistics, appends calls that add up the sums `own` of all ranks, and returns the slot of the
/// result. Otherwise returns `own`. `name` is the layer's name. Call this function before input_gradient(), because the
/// call that is appended right after input_gradient() must write the gradient.
SlotId sums_of_all_ranks(PlanBuilder& b, SlotId own, const std::string& name) {
  if (!b.options().shares_statistics()) {
    return own;
  }
  const std::int64_t numel = b.prototype(own).numel();
  const SlotId all = b.all_gather("batch_norm gather", own, "d(" + name + ").sums of all ranks");
  const SlotId workspace = b.scratch(ops::reduce_rows_workspace_bytes(b.context(), b.prototype(all)));
  const SlotId sums = b.statistics("d(" + name + ").shared sums", {2, numel / 2});
  b.call("batch_norm merge_sums", {all}, {sums, workspace}, 0, [=](Context& context, const Frame& frame) {
    ops::reduce_rows(context, frame[all], ops::GradMode::overwrite, frame[sums].reshape({numel}), frame[workspace]);
  });
  return sums;
}

/// Returns whether one call can do the whole pass `pass` over x. On a GPU, that call is one cooperative launch. A
/// forward pass in one call updates the running statistics. So a plan that recomputes calls cannot use such a pass,
/// because the statistics would be updated twice.
bool in_one_call(PlanBuilder& b, const TensorView& x, ops::NormPass pass) {
  const PlanOptions& options = b.options();
  const bool possible = pass == ops::NormPass::backward || options.recompute == Recompute::off;
  if (b.infers() || !b.fuses() || !options.cooperative || !possible || options.shares_statistics()) {
    return false;
  }
  return b.context().device().kind == DeviceKind::cpu ? ops::batch_norm_fits_chip(options.chip, x, pass)
                                                      : ops::batch_norm_fits(b.context(), x, pass);
}

/// Returns whether a convolution may also compute the norm's sums. This needs sums that do not include other ranks'
/// batches, and a plan that recomputes no call.
bool takes_given_sums(PlanBuilder& b) {
  return !b.infers() && b.fuses() && !b.options().shares_statistics() && b.options().recompute == Recompute::off;
}

/// Slots of a norm whose forward is planned. The norm's backward reads these slots.
struct NormForward {
  SlotId x, residual, weight, bias, running_mean, running_var, coefficients;
  SlotId stats{}, valid{}, mask{}, scratch{};  ///< set only in training
  double epsilon = 0;
  double momentum = 0;
  bool relu = false;
};

/// Slots and gradients of a norm that the norm's backward reads and writes.
struct NormSlots {
  SlotId x, coefficients, stats, sums;
  GradientTarget dweight, dbias, dx;

  [[nodiscard]] ops::NormBackward views(const Frame& frame) const {
    return {frame[x],          frame[coefficients], frame[sums],   frame[dweight.slot],
            frame[dbias.slot], dweight.mode,        frame[dx.slot]};
  }
};

/// Returns the slots and gradients for the backward of the current node's norm. `name` is the layer's name.
NormSlots norm_backward(PlanBuilder& b, const std::string& name, SlotId x, SlotId coefficients, SlotId stats) {
  const auto [dweight, dbias] = b.parameter_gradients(name + ".weight", name + ".bias");
  const SlotId sums = b.statistics("d(" + name + ").sums", {2, b.prototype(x).shape.back()});
  return {x, coefficients, stats, sums, dweight, dbias, {}};
}

/// Returns whether a block's last norm can also run the backward of the shortcut's norm. In this case, the last norm's
/// forward has computed the output of the shortcut's norm, too.
bool takes_backward_of_shortcut(PlanBuilder& b) {
  bool wanted = b.unapplied_norm(1).coefficients.valid() && !b.options().shares_statistics() &&
                b.wants_input_gradient(0) && b.wants_input_gradient(1);
  if (wanted) {
    b.as_input(1, [&] { wanted = b.wants_input_gradient(0); });
  }
  return wanted;
}

/// Returns the slots and gradients for the backward of the shortcut's norm, whose output this node has computed.
NormSlots shortcut_backward(PlanBuilder& b) {
  const UnappliedNorm& shortcut = b.unapplied_norm(1);
  const SlotId x2 = b.input(1);
  NormSlots norm;
  b.as_input(1, [&] { norm = norm_backward(b, shortcut.name, x2, shortcut.coefficients, shortcut.stats); });
  return norm;
}

/// Appends the pass that computes dx of both norms that end a block: `norm` on the branch, and `other` on the shortcut.
/// If `reuse` is valid, norm.dx takes the memory of `reuse`. other.dx takes the memory of `g`.
void plan_pair_apply(PlanBuilder& b, NormSlots norm, NormSlots other, SlotId g, SlotId reuse, SlotId stats,
                     SlotId valid) {
  norm.dx = b.input_gradient(0, reuse, false);
  b.as_input(1, [&] { other.dx = b.input_gradient(0, g, false); });
  b.call("batch_norm backward_apply_pair",
         {g, norm.x, other.x, norm.coefficients, other.coefficients, norm.sums, other.sums, stats, valid},
         {norm.dx.slot, other.dx.slot}, 0, [=](Context& context, const Frame& frame) {
           ops::batch_norm_backward_apply_pair(context, frame[g], norm.views(frame), other.views(frame), frame[stats],
                                               frame[valid]);
         });
}

/// Appends the call that computes the norm's sums and parameter gradients from `given`, in which a convolution has
/// stored sums. The call reads rows 0 and `row` of `given`.
void plan_given_gradients(PlanBuilder& b, SlotId given, std::int64_t row, const NormSlots& norm) {
  b.call("batch_norm gradients_given", {given}, {norm.sums, norm.dweight.slot, norm.dbias.slot}, 0,
         [=](Context& context, const Frame& frame) {
           const std::int64_t channels = frame[given].shape[1];
           const auto vector = [&](std::int64_t i) { return frame[given].slice(0, i, i + 1).reshape({channels}); };
           ops::batch_norm_gradients_given(context, vector(0), vector(row), norm.dweight.mode, frame[norm.sums],
                                           frame[norm.dweight.slot], frame[norm.dbias.slot]);
         });
}

/// Appends the backward of a norm for which a convolution has computed the masked gradient g and its sums. If `pair` is
/// true, also appends the backward of the shortcut's norm. If the norm has a residual, the residual's gradient is g.
void plan_masked_backward(PlanBuilder& b, const std::string& name, const NormForward& n, bool pair) {
  const auto [g, given] = b.masked_gradient();
  NormSlots norm = norm_backward(b, name, n.x, n.coefficients, n.stats);
  plan_given_gradients(b, given, 1, norm);
  if (pair) {
    const NormSlots other = shortcut_backward(b);
    plan_given_gradients(b, given, 2, other);
    plan_pair_apply(b, norm, other, g, {}, n.stats, n.valid);
    return;
  }
  if (n.residual.valid()) {
    b.pass_gradient(1, g);
  }
  norm.dx = b.input_gradient(0, n.residual.valid() ? SlotId{} : g, false);
  b.call("batch_norm backward_apply", {g, n.x, n.coefficients, norm.sums, n.stats, n.valid}, {norm.dx.slot}, 0,
         [=, g = g](Context& context, const Frame& frame) {
           ops::batch_norm_backward_apply(context, frame[g], {}, {}, frame[n.x], frame[n.coefficients],
                                          frame[norm.sums], frame[n.stats], frame[n.valid], frame[norm.dx.slot], {});
         });
}

/// Appends the backward of a block's last norm and of its shortcut's norm. A first pass stores the gradient g that both
/// norms share; a second pass reads g once and computes dx of both norms. g takes the memory of dy2 if there is a dy2,
/// otherwise the memory of dy. Then the dx of the shortcut's norm takes the memory of g.
void plan_pair_backward(PlanBuilder& b, const std::string& name, const NormForward& n) {
  const SlotId dy = b.output_gradients()[0];
  const SlotId dy2 = b.output_gradients().size() > 1 ? b.output_gradients()[1] : SlotId{};
  const NormSlots norm = norm_backward(b, name, n.x, n.coefficients, n.stats);
  const NormSlots other = shortcut_backward(b);
  const SlotId g = b.overwrite_gradient(dy2.valid() ? dy2 : dy, "d(" + b.unapplied_norm(1).name + ")");
  const SlotId scratch = b.scratch(ops::batch_norm_workspace_bytes(b.context(), b.prototype(n.x)));
  b.call("batch_norm backward_reduce_pair",
         {dy, dy2, n.mask, n.x, other.x, n.coefficients, other.coefficients, n.valid},
         {norm.sums, other.sums, norm.dweight.slot, norm.dbias.slot, other.dweight.slot, other.dbias.slot, g, scratch},
         0, [=](Context& context, const Frame& frame) {
           ops::batch_norm_backward_reduce_pair(context, frame[dy], frame[dy2], frame[n.mask], norm.views(frame),
                                                other.views(frame), frame[n.valid], frame[g], frame[scratch]);
         });
  plan_pair_apply(b, norm, other, g, dy2.valid() ? dy : SlotId{}, n.stats, n.valid);
}

/// Appends the backward of a norm with ReLU whose output only a max pool reads (PlanBuilder::pooled_gradient()).
void plan_pool_backward(PlanBuilder& b, const std::string& name, const NormForward& n) {
  const auto [dy, index, desc] = b.pooled_gradient();
  const NormSlots norm = norm_backward(b, name, n.x, n.coefficients, n.stats);
  const SlotId scratch = b.scratch(ops::batch_norm_workspace_bytes(b.context(), b.prototype(n.x)));
  b.call("batch_norm pool_backward_reduce", {dy, index, n.x, n.coefficients, n.valid},
         {norm.sums, norm.dweight.slot, norm.dbias.slot, scratch}, 0,
         [=, dy = dy, index = index, desc = desc](Context& context, const Frame& frame) {
           ops::batch_norm_pool_backward_reduce(
               context, desc, frame[dy], frame[index], frame[n.x], frame[n.coefficients], frame[n.valid],
               norm.dweight.mode, frame[norm.sums], frame[norm.dweight.slot], frame[norm.dbias.slot], frame[scratch]);
         });
  const SlotId sums = sums_of_all_ranks(b, norm.sums, name);
  const GradientTarget dx = b.input_gradient(0, {}, false);
  if (!dx.wanted()) {
    return;
  }
  b.call("batch_norm pool_backward_apply", {dy, index, n.x, n.coefficients, sums, n.stats, n.valid}, {dx.slot}, 0,
         [=, dy = dy, index = index, desc = desc](Context& context, const Frame& frame) {
           ops::batch_norm_pool_backward_apply(context, desc, frame[dy], frame[index], frame[n.x],
                                               frame[n.coefficients], frame[sums], frame[n.stats], frame[n.valid],
                                               frame[dx.slot]);
         });
}

/// Appends the call that computes the norm's coefficients. In training, the call computes them from the statistics of
/// all ranks, from the sums of the convolution that wrote x, or from x itself. If `fused` is true, appends no such
/// call, because the call of plan_output() computes the coefficients.
void plan_coefficients(PlanBuilder& b, const std::string& name, NormForward& n, bool fused) {
  if (b.infers()) {
    // Never computed again in backward: the running statistics may have changed since forward.
    b.call_once("batch_norm finalize_inference", {n.running_mean, n.running_var, n.weight, n.bias}, {n.coefficients}, 0,
                [=](Context& context, const Frame& frame) {
                  ops::batch_norm_finalize_inference(context, frame[n.running_mean], frame[n.running_var],
                                                     frame[n.weight], frame[n.bias], n.epsilon, frame[n.coefficients]);
                });
    if (!b.training()) {
      return;
    }
  }
  const std::int64_t channels = b.input_shape().back();
  n.valid = b.state(StateField::valid);
  const SlotId own = b.statistics(name + ".stats", {2 * channels + 1});
  if (b.infers()) {  // writes the count 1, because backward divides by the count
    n.stats = own;
    b.call("fill", {}, {own}, 0, [=](Context& context, const Frame& frame) { ops::fill(context, 1, frame[own]); });
    return;
  }
  n.scratch = b.scratch(ops::batch_norm_workspace_bytes(b.context(), b.prototype(n.x)));
  n.stats = own;
  if (b.options().shares_statistics()) {
    b.call("batch_norm stats", {n.x, n.valid}, {own, n.scratch}, 0, [=](Context& context, const Frame& frame) {
      ops::batch_norm_stats(context, frame[n.x], frame[n.valid], frame[own], frame[n.scratch]);
    });
    const SlotId all = b.all_gather("batch_norm gather", own, name + ".stats of all ranks");
    n.stats = b.statistics(name + ".shared stats", {2 * channels + 1});
    b.call("batch_norm merge_stats", {all}, {n.stats}, 0, [=](Context& context, const Frame& frame) {
      ops::batch_norm_merge_stats(context, frame[all], frame[n.stats]);
    });
    b.call("batch_norm finalize", {n.stats, n.weight, n.bias, n.running_mean, n.running_var},
           {n.coefficients, n.running_mean, n.running_var}, 0, [=](Context& context, const Frame& frame) {
             ops::batch_norm_finalize(context, frame[n.stats], frame[n.weight], frame[n.bias], n.epsilon, n.momentum,
                                      frame[n.running_mean], frame[n.running_var], frame[n.coefficients]);
           });
  } else if (const SlotId sums = b.input_sums(); sums.valid()) {
    b.call("batch_norm coefficients_given", {n.x, n.valid, sums, n.weight, n.bias, n.running_mean, n.running_var},
           {n.stats, n.coefficients, n.running_mean, n.running_var, n.scratch}, 0,
           [=](Context& context, const Frame& frame) {
             ops::batch_norm_coefficients_given(context, frame[n.x], frame[n.valid], frame[sums], frame[n.running_mean],
                                                frame[n.weight], frame[n.bias], n.epsilon, n.momentum, frame[n.stats],
                                                frame[n.running_mean], frame[n.running_var], frame[n.coefficients],
                                                frame[n.scratch]);
           });
    b.seldom_read(n.x);
  } else if (!fused) {
    b.call("batch_norm coefficients", {n.x, n.valid, n.weight, n.bias, n.running_mean, n.running_var},
           {n.stats, n.coefficients, n.running_mean, n.running_var, n.scratch}, 0,
           [=](Context& context, const Frame& frame) {
             ops::batch_norm_coefficients(context, frame[n.x], frame[n.valid], frame[n.weight], frame[n.bias],
                                          n.epsilon, n.momentum, frame[n.stats], frame[n.running_mean],
                                          frame[n.running_var], frame[n.coefficients], frame[n.scratch]);
           });
  }
}

/// Appends the call that makes the norm's output. A norm may be left unapplied: then the layer that reads the output
/// applies the coefficients. If the residual comes from such a norm, `added` holds that norm's coefficients; otherwise
/// `added` is invalid. If `fused` is true, the call also makes this norm's own coefficients.
SlotId plan_output(PlanBuilder& b, const std::string& name, const NormForward& n, SlotId added, bool fused) {
  const SlotId y = output_like_input(b, name, /*reads_input=*/true);
  if (fused) {
    b.call_together("batch_norm fused_forward",
                    {n.x, n.valid, n.weight, n.bias, n.running_mean, n.running_var, n.residual},
                    {n.stats, n.coefficients, n.running_mean, n.running_var, y, n.mask, n.scratch}, 0,
                    [=](Context& context, const Frame& frame) {
                      ops::batch_norm_fused_forward(context, frame[n.x], frame[n.valid], frame[n.weight], frame[n.bias],
                                                    n.epsilon, n.momentum, frame[n.residual], n.relu, frame[n.stats],
                                                    frame[n.running_mean], frame[n.running_var], frame[n.coefficients],
                                                    frame[y], frame[n.mask], frame[n.scratch]);
                    });
  } else if (added.valid()) {
    b.call("batch_norm apply_pair", {n.x, n.coefficients, n.residual, added}, {y, n.mask}, 0,
           [=](Context& context, const Frame& frame) {
             ops::batch_norm_apply_pair(context, frame[n.x], frame[n.coefficients], frame[n.residual], frame[added],
                                        n.relu, frame[y], frame[n.mask]);
           });
  } else {
    b.call("batch_norm apply", {n.x, n.coefficients, n.residual}, {y, n.mask}, 0,
           [=](Context& context, const Frame& frame) {
             ops::batch_norm_apply(context, frame[n.x], frame[n.coefficients], frame[n.residual], n.relu, frame[y],
                                   frame[n.mask]);
           });
  }
  return y;
}

/// In an inference pass, sets the sums of the gradient to 0: the statistics do not depend on x, so dx = scale * g.
void plan_constant_statistics(PlanBuilder& b, SlotId sums) {
  if (b.infers()) {
    b.call("fill", {}, {sums}, 0, [=](Context& context, const Frame& frame) { ops::fill(context, 0, frame[sums]); });
  }
}

/// Appends the calls for the tangent of the output. The Jacobian of a norm without ReLU and residual is symmetric, so
/// the calls of its backward also compute the tangent. The last call adds the tangent of the residual and applies the
/// mask of the ReLU.
void plan_tangent(PlanBuilder& b, const std::string& name, const NormForward& n) {
  require<UnsupportedError>(!b.options().shares_statistics(), "plan: layer ", name,
                            " shares its statistics with other ranks, which has no rule for tangents (jvp); expected "
                            "statistics of its own, or no jvp");
  const SlotId t = b.input_tangent(0);
  const SlotId residual = n.residual.valid() ? b.input_tangent(1) : SlotId{};
  const SlotId to = b.new_tangent();
  const SlotId sums = b.statistics("t(" + name + ").sums", {2, b.prototype(n.x).shape.back()});
  const SlotId scratch = b.scratch(ops::batch_norm_workspace_bytes(b.context(), b.prototype(n.x)));
  const auto reduce = [&](SlotId g, SlotId g2, SlotId mask, SlotId masked) {
    b.call("batch_norm backward_reduce", {g, g2, mask, n.x, n.coefficients, n.valid}, {sums, masked, scratch}, 0,
           [=](Context& context, const Frame& frame) {
             ops::batch_norm_backward_reduce(context, frame[g], frame[g2], frame[mask], frame[n.x],
                                             frame[n.coefficients], frame[n.valid], ops::GradMode::ignore, frame[sums],
                                             {}, {}, frame[masked], frame[scratch]);
           });
  };
  reduce(t, {}, {}, {});
  plan_constant_statistics(b, sums);
  b.call("batch_norm backward_apply", {t, n.x, n.coefficients, sums, n.stats, n.valid}, {to}, 0,
         [=](Context& context, const Frame& frame) {
           ops::batch_norm_backward_apply(context, frame[t], {}, {}, frame[n.x], frame[n.coefficients], frame[sums],
                                          frame[n.stats], frame[n.valid], frame[to], {});
         });
  if (n.mask.valid() || residual.valid()) {
    reduce(to, residual, n.mask, to);
  }
}

/// Appends the backward of a norm that shares no work with a convolution, a shortcut's norm or a pool.
void plan_backward(PlanBuilder& b, const std::string& name, const NormForward& n) {
  const SlotId dy = b.output_gradients()[0];
  const SlotId dy2 = b.output_gradients().size() > 1 ? b.output_gradients()[1] : SlotId{};
  const SlotId own = b.statistics("d(" + name + ").sums", {2, b.prototype(n.x).shape.back()});
  const SlotId scratch = b.scratch(ops::batch_norm_workspace_bytes(b.context(), b.prototype(n.x)));
  const auto [dweight, dbias] = b.parameter_gradients(name + ".weight", name + ".bias");
  // The residual's gradient is dy + dy2 after the mask, and takes the memory of dy2. If the first pass stores this
  // gradient, the second pass reads only the stored gradient, instead of dy, dy2 and the mask.
  const bool stores = b.fuses() && n.residual.valid() && b.first_input_gradient(1);
  GradientTarget dresidual = stores ? b.input_gradient(1, dy2, false) : GradientTarget{};
  const SlotId masked = dresidual.slot;
  if ((stores || (!n.residual.valid() && !dy2.valid())) && b.wants_input_gradient(0) &&
      in_one_call(b, b.prototype(n.x), ops::NormPass::backward)) {
    const GradientTarget dx = b.input_gradient(0, dy, false);
    b.call_together("batch_norm fused_backward", {dy, dy2, n.mask, n.x, n.coefficients, n.stats, n.valid},
                    {own, dweight.slot, dbias.slot, masked, dx.slot, scratch}, 0,
                    [=, dweight = dweight, dbias = dbias](Context& context, const Frame& frame) {
                      ops::batch_norm_fused_backward(context, frame[dy], frame[dy2], frame[n.mask], frame[n.x],
                                                     frame[n.coefficients], frame[n.stats], frame[n.valid],
                                                     dweight.mode, frame[own], frame[dweight.slot], frame[dbias.slot],
                                                     frame[masked], frame[dx.slot], frame[scratch]);
                    });
    return;
  }
  b.call("batch_norm backward_reduce", {dy, dy2, n.mask, n.x, n.coefficients, n.valid},
         {own, dweight.slot, dbias.slot, masked, scratch}, 0,
         [=, dweight = dweight, dbias = dbias](Context& context, const Frame& frame) {
           ops::batch_norm_backward_reduce(context, frame[dy], frame[dy2], frame[n.mask], frame[n.x],
                                           frame[n.coefficients], frame[n.valid], dweight.mode, frame[own],
                                           frame[dweight.slot], frame[dbias.slot], frame[masked], frame[scratch]);
         });
  const SlotId sums = sums_of_all_ranks(b, own, name);
  plan_constant_statistics(b, sums);
  // The next call is the last reader of dy and dy2. So dx may take the memory of dy, and dresidual the memory of dy2.
  const GradientTarget dx = b.input_gradient(0, dy, false);
  if (stores) {
    if (dx.wanted()) {
      b.call("batch_norm backward_apply", {masked, n.x, n.coefficients, sums, n.stats, n.valid}, {dx.slot}, 0,
             [=](Context& context, const Frame& frame) {
               ops::batch_norm_backward_apply(context, frame[masked], {}, {}, frame[n.x], frame[n.coefficients],
                                              frame[sums], frame[n.stats], frame[n.valid], frame[dx.slot], {});
             });
    }
    return;
  }
  dresidual = n.residual.valid() ? b.input_gradient(1, dy2, false) : GradientTarget{};
  if (!dx.wanted() && !dresidual.wanted()) {
    return;
  }
  // The op always writes dx. If no layer wants dx, as at the first layer, dx goes to memory that nothing reads.
  const SlotId dx_slot = dx.wanted() ? dx.slot : b.overwrite_gradient(dy, "d(input) of " + name);
  b.call("batch_norm backward_apply", {dy, dy2, n.mask, n.x, n.coefficients, sums, n.stats, n.valid},
         {dx_slot, dresidual.slot}, 0, [=](Context& context, const Frame& frame) {
           ops::batch_norm_backward_apply(context, frame[dy], frame[dy2], frame[n.mask], frame[n.x],
                                          frame[n.coefficients], frame[sums], frame[n.stats], frame[n.valid],
                                          frame[dx_slot], frame[dresidual.slot]);
         });
}

/// Batch norm over all axes but the last. The layer then adds the residual (second input) and applies the ReLU.
class BatchNormLayer final : public Layer {
 public:
  BatchNormLayer(std::string name, std::int64_t logical_channels, const BatchNormOptions& options)
      : Layer(std::move(name)), channels_(logical_channels), options_(options) {}
  [[nodiscard]] std::string kind() const override { return "batch_norm"; }
  [[nodiscard]] std::string settings() const override {
    return concat("epsilon ", exact_text(options_.epsilon), ", momentum ", exact_text(options_.momentum),
                  options_.relu ? ", relu" : "");
  }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs.size() == 1 || inputs[0] == inputs[1], name(), ": residual ", inputs.back(),
                        ", expected the input's shape ", inputs[0]);
    return inputs[0];
  }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override {
    const auto spec = [&](const char* suffix, ParameterRole role, double value) {
      return ParameterSpec::of_channels(name() + suffix, channels_, inputs[0].back(), role,
                                        {Initialiser::Kind::constant, value});
    };
    return {spec(".weight", ParameterRole::norm_weight, options_.initial_weight),
            spec(".bias", ParameterRole::norm_bias, 0)};
  }
  [[nodiscard]] std::vector<BufferSpec> buffers(std::span<const Shape> inputs) const override {
    const auto spec = [&](const char* suffix, double initial, const std::vector<double>& values) {
      return BufferSpec{name() + suffix, {channels_}, initial, inputs[0].back(), values};
    };
    return {spec(".running_mean", 0, options_.running_mean), spec(".running_var", 1, options_.running_var)};
  }
  [[nodiscard]] int gradients_taken() const override { return 2; }
  [[nodiscard]] bool takes_norm(int i, bool relu) const override { return i == 1 && !relu; }
  [[nodiscard]] std::string sums_wanted_near(PlanBuilder& builder, const TensorView& input) const override {
    return takes_given_sums(builder) && !in_one_call(builder, input, ops::NormPass::forward) ? name() + ".running_mean"
                                                                                             : std::string();
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  std::int64_t channels_;
  BatchNormOptions options_;
};

void BatchNormLayer::plan(PlanBuilder& builder) const {
  const bool has_residual = options_.residual.index >= 0;
  NormForward n{.x = builder.input(0),
                .residual = has_residual ? builder.input(1) : SlotId{},
                .weight = builder.parameter(name() + ".weight"),
                .bias = builder.parameter(name() + ".bias"),
                .running_mean = builder.buffer(name() + ".running_mean"),
                .running_var = builder.buffer(name() + ".running_var"),
                .coefficients = builder.statistics(name() + ".coefficients", {4, builder.input_shape().back()}),
                .epsilon = options_.epsilon,
                .momentum = options_.momentum,
                .relu = options_.relu};
  // If `leaves` is true, the only layer that reads the output applies the norm, instead of this layer.
  const bool leaves = !has_residual && builder.may_leave_norm_unapplied(n.relu);
  // If the residual comes from a norm that was left unapplied, this node applies that norm with the coefficients
  // `added`.
  const SlotId added = has_residual ? builder.unapplied_norm(1).coefficients : SlotId{};
  const bool fused = builder.training() && !leaves && !added.valid() && !builder.input_sums().valid() &&
                     in_one_call(builder, builder.prototype(n.x), ops::NormPass::forward);
  plan_coefficients(builder, name(), n, fused);
  if (builder.training() && n.relu && !leaves) {
    const std::int64_t elements = builder.batched(builder.input_shape()).numel();
    n.mask = builder.tensor(name() + ".mask", {static_cast<std::int64_t>(ops::relu_mask_bytes(elements))}, DType::u8);
  }
  if (leaves) {
    builder.set_output(n.x);
    builder.leave_norm_unapplied({n.coefficients, n.stats, name()});
  } else {
    builder.set_output(plan_output(builder, name(), n, added, fused));
  }

  const bool pair = n.relu && has_residual && takes_backward_of_shortcut(builder);
  if (n.relu && !leaves && takes_given_sums(builder) && builder.wants_input_gradient(0) && pair == added.valid() &&
      !in_one_call(builder, builder.prototype(n.x), ops::NormPass::backward)) {
    builder.offer_norm({n.mask, n.x, n.coefficients, pair ? n.residual : SlotId{}, pair ? added : SlotId{}});
  }
  builder.on_tangent([n, this](PlanBuilder& b) { plan_tangent(b, name(), n); });
  builder.on_backward([n, pair, this](PlanBuilder& b) {
    if (b.masked_gradient().g.valid()) {
      plan_masked_backward(b, name(), n, pair);
    } else if (b.pooled_gradient().dy.valid()) {
      plan_pool_backward(b, name(), n);
    } else if (n.relu && n.residual.valid() && takes_backward_of_shortcut(b)) {
      plan_pair_backward(b, name(), n);
    } else {
      plan_backward(b, name(), n);
    }
  });
}

}  // namespace

NodeId ModelBuilder::batch_norm(const std::string& name, NodeId x, const BatchNormOptions& options) {
  std::vector<NodeId> inputs{x};
  if (options.residual.index >= 0) {
    inputs.push_back(options.residual);
  }
  return add_channelwise(std::make_shared<BatchNormLayer>(name, channels(x), options), std::move(inputs));
}

}  // namespace lockstep::nn
