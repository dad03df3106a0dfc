#include <lockstep/nn/plan/detail/loss.hpp>

#include <string>

#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/regression_loss.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/kernels/softmax_cross_entropy.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/kernels/top_k.hpp>
#include <lockstep/kernels/weight_sum.hpp>

namespace lockstep::nn {

namespace {

ops::RegressionLossOptions regression_desc(const PlanOptions& options) {
  return {.kind = options.loss == Loss::l1      ? ops::RegressionLoss::l1
                  : options.loss == Loss::huber ? ops::RegressionLoss::huber
                                                : ops::RegressionLoss::mse,
          .delta = options.huber_delta};
}

/// Returns the elements of `metrics` to which the loss call adds its sums: the elements before StepState::kTopK.
TensorView loss_metrics(const TensorView& metrics) {
  return metrics.slice(0, 0, StepState::kTopK);
}

/// Returns the slot of the loss weights, or an invalid slot if the plan uses no weights. Also appends the call that
/// sums the weights. The metrics use this sum. In training, TrainStep divides the gradient by the sum.
SlotId plan_weights(PlanBuilder& builder) {
  if (builder.options().weights == LossWeights::none) {
    return {};
  }
  const SlotId weights = builder.state(StateField::weights);
  const SlotId valid = builder.state(StateField::valid);
  const SlotId scale = builder.state(StateField::sample_weight);
  const SlotId metrics = builder.state(StateField::metrics);
  const SlotId sum = builder.training() ? builder.weight_sum() : SlotId();
  const ops::GradMode mode = !builder.training()            ? ops::GradMode::ignore
                             : builder.options().accumulate ? ops::GradMode::accumulate
                                                            : ops::GradMode::overwrite;
  const SlotId workspace =
      builder.scratch(ops::weight_sum_workspace_bytes(builder.context(), builder.prototype(weights)));
  builder.call("weight_sum", {weights, valid, scale, metrics}, {sum, metrics, workspace}, 0,
               [=](Context& context, const Frame& frame) {
                 const TensorView total = frame[metrics].slice(0, StepState::kWeight, StepState::kWeight + 1);
                 ops::weight_sum(context, frame[weights], frame[valid], frame[scale], mode, frame[sum], total,
                                 frame[workspace]);
               });
  return weights;
}

void plan_top_k(PlanBuilder& builder, SlotId logits, SlotId weights) {
  const Shape shape = builder.prototype(logits).shape;
  const int k = builder.options().top_k;
  require<UsageError>(shape.rank() == 2 && k <= shape[1], "plan: top_k is ", k, ", the output of the model is ", shape,
                      ", expected at least ", k, " classes a sample");
  const SlotId labels = builder.state(StateField::labels);
  const SlotId valid = builder.state(StateField::valid);
  const SlotId metrics = builder.state(StateField::metrics);
  const SlotId workspace = builder.scratch(ops::top_k_workspace_bytes(builder.context(), builder.prototype(logits)));
  builder.call("top_k_correct", {logits, labels, weights, valid, metrics}, {metrics, workspace}, 0,
               [=](Context& context, const Frame& frame) {
                 const TensorView count = frame[metrics].slice(0, StepState::kTopK, StepState::kTopK + 1);
                 ops::top_k_correct(context, frame[logits], frame[labels], frame[weights], frame[valid], k, count,
                                    frame[workspace]);
               });
}

/// Returns the slot of the factor for each sample's gradient: 1 / (global number of samples), times the loss scale if
/// the plan has one.
SlotId plan_scale(PlanBuilder& builder) {
  const SlotId scale = builder.state(StateField::sample_weight);
  if (!builder.training() || !builder.options().scaled_loss) {
    return scale;
  }
  const SlotId factor = builder.loss_scale();
  const SlotId scaled = builder.statistics("scaled sample_weight", Shape{});
  builder.call("scale", {factor, scale}, {scaled}, 0, [=](Context& context, const Frame& frame) {
    ops::scale(context, frame[factor], frame[scale], frame[scaled]);
  });
  return scaled;
}

/// Appends a copy of dL/d(output), which the caller gives (Loss::given). Backward may overwrite the copy, but not the
/// caller's tensor.
SlotId plan_given_gradient(PlanBuilder& builder, SlotId output) {
  const SlotId target = builder.state(StateField::targets);
  const SlotId gradient = builder.activation("d(output)", builder.prototype(output).shape);
  builder.call("copy", {target}, {gradient}, 0, [=](Context& context, const Frame& frame) {
    ops::strided_copy(context, frame[target], frame[gradient]);
  });
  return gradient;
}

}  // namespace

SlotId plan_input(PlanBuilder& builder, const Model& model) {
  switch (model.input_kind()) {
    case InputKind::values:
      return builder.state(StateField::values);
    case InputKind::tokens:
      return builder.state(StateField::tokens);
    case InputKind::images:
      break;
  }
  ops::AugmentDesc desc = builder.options().augment;
  if (!builder.training()) {
    desc.pad = 0;
    desc.flip = false;
  }
  const SlotId images = builder.state(StateField::images);
  const SlotId ids = builder.state(StateField::sample_ids);
  const SlotId epoch = builder.state(StateField::epoch);
  const SlotId valid = builder.state(StateField::valid);
  const SlotId out = builder.activation("input", builder.batched(stored_input_shape(model.input_shape())));
  builder.call("augment", {images, ids, epoch, valid}, {out}, 0, [=](Context& context, const Frame& frame) {
    ops::augment(context, desc, frame[images], frame[ids], frame[epoch], frame[valid], frame[out]);
  });
  return out;
}

SlotId plan_loss(PlanBuilder& builder, const Model& model, SlotId output) {
  if (builder.options().loss == Loss::given) {
    return builder.training() ? plan_given_gradient(builder, output) : SlotId();
  }
  const SlotId weights = plan_weights(builder);
  const SlotId valid = builder.state(StateField::valid);
  const SlotId scale = plan_scale(builder);
  const SlotId metrics = builder.state(StateField::metrics);
  SlotId gradient;
  if (builder.training()) {
    const Shape shape = builder.prototype(output).shape;
    gradient = model.nodes().back().layer->backward_reads_output() ? builder.activation("d(output)", shape)
                                                                   : builder.alias(output, "d(output)", shape);
  }
  if (builder.options().loss != Loss::cross_entropy) {
    const SlotId target = builder.state(StateField::targets);
    const ops::RegressionLossOptions desc = regression_desc(builder.options());
    const SlotId workspace =
        builder.scratch(ops::regression_loss_workspace_bytes(builder.context(), builder.prototype(output)));
    builder.call(std::string(name_of(builder.options().loss)), {output, target, weights, valid, scale, metrics},
                 {gradient, metrics, workspace}, 0, [=](Context& context, const Frame& frame) {
                   ops::regression_loss(context, desc, frame[output], frame[target], frame[weights], frame[valid],
                                        frame[scale], frame[gradient], loss_metrics(frame[metrics]), frame[workspace]);
                 });
    return gradient;
  }
  const SlotId logits = output;
  const SlotId labels = builder.state(StateField::labels);
  const double smoothing = builder.training() ? builder.options().label_smoothing : 0;
  const auto cross_entropy = [&](SlotId label, SlotId weight, SlotId into) {
    const SlotId workspace =
        builder.scratch(ops::softmax_cross_entropy_workspace_bytes(builder.context(), builder.prototype(logits)));
    builder.call(
        "softmax_cross_entropy", {logits, label, weight, valid, scale, metrics}, {into, metrics, workspace}, 0,
        [=](Context& context, const Frame& frame) {
          ops::softmax_cross_entropy(context, frame[logits], frame[label], frame[weight], frame[valid], frame[scale],
                                     smoothing, frame[into], loss_metrics(frame[metrics]), frame[workspace]);
        },
        2);
  };
  if (builder.training() && builder.options().two_labels) {
    // A sample with two labels has the gradient share * d(label) + other_share * d(other label). One cross-entropy call
    // per label computes the summands. The second call may overwrite the logits.
    const SlotId other = builder.activation("d(output) of other labels", builder.prototype(output).shape);
    cross_entropy(builder.state(StateField::other_labels), builder.state(StateField::other_shares), other);
    cross_entropy(labels, builder.state(StateField::shares), gradient);
    builder.call("add", {gradient, other}, {gradient}, 0, [=](Context& context, const Frame& frame) {
      ops::add(context, frame[gradient], frame[other], frame[gradient]);
    });
  } else {
    cross_entropy(labels, weights, gradient);
  }
  if (!builder.training() && builder.options().top_k > 0) {
    plan_top_k(builder, logits, weights);
  }
  return gradient;
}

}  // namespace lockstep::nn
