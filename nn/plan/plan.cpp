#include <lockstep/nn/plan/plan.hpp>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include <lockstep/kernels/regression_loss.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/kernels/softmax_cross_entropy.hpp>
#include <lockstep/kernels/top_k.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/memory_plan.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/nn/plan/precision.hpp>

namespace lockstep::nn {

namespace {

TensorView as_view(const Buffer& workspace) {
  return {workspace.data(), DType::u8, workspace.device(), {static_cast<std::int64_t>(workspace.bytes())}};
}

int root_of(const std::vector<SlotInfo>& slots, int index) {
  while (slots[static_cast<std::size_t>(index)].alias_of >= 0) {
    index = slots[static_cast<std::size_t>(index)].alias_of;
  }
  return index;
}

/// Decodes and normalises the images, or takes the input as it is.
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

ops::RegressionLossOptions regression_desc(const PlanOptions& options) {
  switch (options.loss) {
    case Loss::l1:
      return {.kind = ops::RegressionLoss::l1};
    case Loss::huber:
      return {.kind = ops::RegressionLoss::huber, .delta = options.huber_delta};
    case Loss::mse:
    case Loss::cross_entropy:
      break;
  }
  return {.kind = ops::RegressionLoss::mse};
}

/// What a loss adds to: the metrics without the count of the top k.
TensorView loss_metrics(const TensorView& metrics) {
  return metrics.slice(0, 0, StepState::kMetrics - 1);
}

void plan_top_k(PlanBuilder& builder, SlotId logits) {
  const Shape shape = builder.prototype(logits).shape;
  const int k = builder.options().top_k;
  require<UsageError>(shape.rank() == 2 && k <= shape[1], "plan: top_k is ", k, ", the output of the model is ", shape,
                      ", expected one row of at least so many classes a sample");
  const SlotId labels = builder.state(StateField::labels);
  const SlotId valid = builder.state(StateField::valid);
  const SlotId metrics = builder.state(StateField::metrics);
  const SlotId workspace = builder.scratch(ops::top_k_workspace_bytes(builder.context(), builder.prototype(logits)));
  builder.call("top_k_correct", {logits, labels, valid, metrics}, {metrics, workspace}, 0,
               [=](Context& context, const Frame& frame) {
                 const TensorView count = frame[metrics].slice(0, StepState::kMetrics - 1, StepState::kMetrics);
                 ops::top_k_correct(context, frame[logits], frame[labels], frame[valid], k, count, frame[workspace]);
               });
}

/// What multiplies the gradient of a sample: 1 / (global number of samples), times the loss scale when there is one.
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

/// Loss, accuracy and, when training, the gradient of the output, which takes its place unless the last layer reads it
/// again.
SlotId plan_loss(PlanBuilder& builder, const Model& model, SlotId output) {
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
    builder.call(std::string(name_of(builder.options().loss)), {output, target, valid, scale, metrics},
                 {gradient, metrics, workspace}, 0, [=](Context& context, const Frame& frame) {
                   ops::regression_loss(context, desc, frame[output], frame[target], frame[valid], frame[scale],
                                        frame[gradient], loss_metrics(frame[metrics]), frame[workspace]);
                 });
    return gradient;
  }
  const SlotId logits = output;
  const SlotId labels = builder.state(StateField::labels);
  const double smoothing = builder.training() ? builder.options().label_smoothing : 0;
  const SlotId workspace =
      builder.scratch(ops::softmax_cross_entropy_workspace_bytes(builder.context(), builder.prototype(logits)));
  builder.call("softmax_cross_entropy", {logits, labels, valid, scale, metrics}, {gradient, metrics, workspace}, 0,
               [=](Context& context, const Frame& frame) {
                 ops::softmax_cross_entropy(context, frame[logits], frame[labels], frame[valid], frame[scale],
                                            smoothing, frame[gradient], loss_metrics(frame[metrics]), frame[workspace]);
               });
  if (!builder.training() && builder.options().top_k > 0) {
    plan_top_k(builder, logits);
  }
  return gradient;
}

}  // namespace

std::string_view name_of(Mode mode) {
  switch (mode) {
    case Mode::train:
      return "train";
    case Mode::evaluate:
      return "evaluate";
    case Mode::infer:
      break;
  }
  return "infer";
}

std::string_view name_of(Loss loss) {
  switch (loss) {
    case Loss::cross_entropy:
      return "cross_entropy";
    case Loss::mse:
      return "mse";
    case Loss::l1:
      return "l1";
    case Loss::huber:
      break;
  }
  return "huber";
}

StepLayout step_layout(const Model& model, const PlanOptions& options) {
  return {.model = model.name(),
          .dtype = options.dtype,
          .input_kind = model.input_kind(),
          .input = model.input_shape(),
          .output = model.output_shape(),
          .regression = options.loss != Loss::cross_entropy};
}

Plan::Plan(Context& context, const Model& model, Mode mode, std::int64_t batch, const PlanOptions& options)
    : mode_(mode),
      batch_(batch),
      top_k_(mode == Mode::evaluate ? options.top_k : 0),
      layout_(step_layout(model, options)),
      scaled_loss_(options.scaled_loss) {
  require<UsageError>(options.top_k >= 0, "plan: top_k is ", options.top_k, ", expected at least 0");
  require<UsageError>(options.top_k == 0 || options.loss == Loss::cross_entropy, "plan: top_k is ", options.top_k,
                      ", the loss ", name_of(options.loss), "; expected 0 or a loss over classes");
  require<UsageError>(batch >= 1, "plan: batch size is ", batch, ", expected at least 1");
  require<UsageError>(!options.tf32 || options.dtype == DType::f32, "plan: tf32 beside dtype ", options.dtype,
                      ", expected f32");
  require_computed_on(context.device(), options.dtype);
  PlanBuilder builder(context, model, mode, batch, options, contents_);
  const auto& nodes = model.nodes();

  builder.nodes_[0].output = plan_input(builder, model);
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    builder.current_ = static_cast<int>(i);
    nodes[i].layer->plan(builder);
    require<StateError>(builder.nodes_[i].output.valid(), "plan: ", nodes[i].layer->name(), " set no output");
  }
  contents_.output = builder.nodes_.back().output;
  if (mode != Mode::infer) {
    const SlotId gradient = plan_loss(builder, model, contents_.output);
    if (gradient.valid()) {
      builder.nodes_.back().gradients.push_back(gradient);
    }
  }
  contents_.backward_begin = static_cast<int>(contents_.calls.size());
  if (mode == Mode::train) {
    builder.backward_phase_ = true;
    for (std::size_t i = nodes.size(); i-- > 1;) {
      builder.current_ = static_cast<int>(i);
      if (builder.nodes_[i].backward && !builder.nodes_[i].gradients.empty()) {
        const std::size_t first_call = contents_.calls.size();
        builder.nodes_[i].backward(builder);
        builder.require_gradients_read(first_call);
      }
    }
  }
  // The caller reads the logits after the run.
  auto& slots = contents_.slots;
  if (mode != Mode::train) {
    slots[static_cast<std::size_t>(contents_.output.index)].last = static_cast<int>(contents_.calls.size()) - 1;
  }

  // Lifetimes of the slots that own memory; an alias extends the life of the slot whose memory it took.
  std::vector<Lifetime> lifetimes;
  std::vector<int> place(slots.size(), -1);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    SlotInfo& slot = slots[i];
    if (slot.kind != SlotKind::workspace || slot.first < 0) {
      continue;
    }
    slot.saved = slot.first < contents_.backward_begin && slot.last >= contents_.backward_begin;
    const int root = root_of(slots, static_cast<int>(i));
    int& at = place[static_cast<std::size_t>(root)];
    if (at < 0) {
      at = static_cast<int>(lifetimes.size());
      lifetimes.push_back({slots[static_cast<std::size_t>(root)].bytes, slot.first, slot.last});
    } else {
      Lifetime& life = lifetimes[static_cast<std::size_t>(at)];
      life.first = std::min(life.first, slot.first);
      life.last = std::max(life.last, slot.last);
    }
  }
  if (!options.reuse_memory) {
    for (Lifetime& life : lifetimes) {
      life.first = 0;
      life.last = static_cast<int>(contents_.calls.size());
    }
  }
  const MemoryPlan memory = plan_memory(lifetimes, kAlignment);
  workspace_bytes_ = memory.peak_bytes;
  unshared_bytes_ = memory.sum_bytes;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind == SlotKind::workspace && slots[i].first >= 0) {
      const int at = place[static_cast<std::size_t>(root_of(slots, static_cast<int>(i)))];
      slots[i].offset = memory.offsets[static_cast<std::size_t>(at)];
    }
  }
}

double Plan::flops() const {
  double sum = 0;
  for (const Call& call : contents_.calls) {
    sum += call.flops;
  }
  return sum;
}

void Plan::bind(ParameterSet& parameters, StepState& state, const Buffer& workspace) {
  bind(parameters, state, as_view(workspace));
}

void Plan::bind(ParameterSet& parameters, StepState& state, const TensorView& workspace) {
  bind_slots(parameters, state, workspace);
}

void Plan::bind(const ParameterSet& parameters, StepState& state, const Buffer& workspace) {
  bind(parameters, state, as_view(workspace));
}

void Plan::bind(const ParameterSet& parameters, StepState& state, const TensorView& workspace) {
  require<StateError>(mode_ != Mode::train, "plan: it trains, expected parameters that may be written");
  bind_slots(parameters, state, workspace);
}

void Plan::bind_slots(const ParameterSet& parameters, const StepState& state, const TensorView& workspace) {
  require_memory("plan: workspace", workspace, workspace_bytes_, parameters.values().device);
  require<ShapeError>(state.batch() >= batch_, "plan: the step state holds batches of ", state.batch(),
                      ", expected at least ", batch_);
  require<StateError>(mode_ != Mode::train || scaled_loss_ == parameters.loss_scale().given(), "plan: the loss is ",
                      scaled_loss_ ? "scaled, but the parameters hold no loss scale"
                                   : "not scaled, but the parameters hold a loss scale");
  frame_.views_.assign(contents_.slots.size(), {});
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    const SlotInfo& slot = contents_.slots[i];
    TensorView& view = frame_.views_[i];
    switch (slot.kind) {
      case SlotKind::workspace:
        view =
            TensorView(static_cast<std::byte*>(workspace.data) + slot.offset, slot.dtype, workspace.device, slot.shape);
        break;
      case SlotKind::parameter:
        view = parameters.value(slot.source);
        break;
      case SlotKind::weight:
        view = parameters.weight(slot.source);
        break;
      case SlotKind::gradient:
        view = parameters.gradient(slot.source);
        break;
      case SlotKind::buffer:
        view = mode_ == Mode::train ? parameters.buffer(slot.source) : parameters.evaluation_buffer(slot.source);
        break;
      case SlotKind::loss_scale:
        view = parameters.loss_scale();
        break;
      case SlotKind::state:
        bind_state(i, state, 0);
        break;
    }
    require<ShapeError>(view.shape == slot.shape && view.dtype == slot.dtype, "plan: ", slot.name, " is bound to ",
                        view, ", expected ", slot.dtype, " ", slot.shape);
  }
  bound_ = true;
}

void Plan::bind_state(std::size_t slot, const StepState& state, std::int64_t first) {
  const SlotInfo& info = contents_.slots[slot];
  TensorView view = state.view(static_cast<StateField>(info.source));
  const bool batched = info.shape.rank() > 0 && static_cast<StateField>(info.source) != StateField::metrics;
  if (batched && view.shape[0] > info.shape[0]) {
    view = view.slice(0, first, first + info.shape[0]);
  }
  frame_.views_[slot] = view;
}

void Plan::use(const StepState& state, std::int64_t first) {
  require<StateError>(bound_, "plan: use before bind");
  require<ShapeError>(first >= 0 && first <= state.batch() - batch_, "plan: samples from ", first, " of a state of ",
                      state.batch(), ", expected 0 to ", state.batch() - batch_);
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    if (contents_.slots[i].kind == SlotKind::state) {
      bind_state(i, state, first);
      require<ShapeError>(frame_.views_[i].shape == contents_.slots[i].shape, "plan: ", contents_.slots[i].name,
                          " is bound to ", frame_.views_[i], ", expected ", contents_.slots[i].shape);
    }
  }
}

const TensorView& Plan::output() const {
  require<StateError>(bound_, "plan: output before bind");
  return frame_[contents_.output];
}

void Plan::run_one(Context& context, const Call& call) const {
  try {
    call.run(context, frame_);
  } catch (Error& error) {
    error.annotate(call.layer + " " + call.op);
    throw;
  }
}

void Plan::run(Context& context, const std::function<void(int)>& written) {
  require<StateError>(bound_, "plan: run before bind");
  for (const Call& call : contents_.calls) {
    run_one(context, call);
    if (written) {
      for (const int parameter : call.gradients) {
        written(parameter);
      }
    }
  }
}

std::string describe(const Plan& plan) {
  std::ostringstream out;
  out << std::left << std::setw(5) << "call" << std::setw(28) << "layer" << std::setw(34) << "op" << std::setw(27)
      << "output" << std::right << std::setw(10) << "MFLOP" << std::setw(10) << "MB" << '\n';
  int index = 0;
  for (const Call& call : plan.calls()) {
    std::ostringstream output;
    if (!call.writes.empty()) {
      const SlotInfo& slot = plan.slots()[static_cast<std::size_t>(call.writes.front().index)];
      output << slot.dtype << ' ' << slot.shape;
    }
    out << std::left << std::setw(5) << index++ << std::setw(28) << call.layer << std::setw(34)
        << (call.backward ? "< " : "> ") + call.op << std::setw(27) << output.str() << std::right << std::fixed
        << std::setprecision(1) << std::setw(10) << call.flops / 1e6 << std::setw(10) << call.bytes / 1e6 << '\n';
  }
  double saved = 0;
  for (const SlotInfo& slot : plan.slots()) {
    saved += slot.saved && slot.alias_of < 0 ? static_cast<double>(slot.bytes) : 0;
  }
  out << name_of(plan.mode()) << " plan, batch " << plan.batch() << ": " << plan.calls().size() << " calls, "
      << std::setprecision(2) << plan.flops() / 1e9 << " GFLOP, workspace "
      << static_cast<double>(plan.workspace_bytes()) / 1e6 << " MB ("
      << static_cast<double>(plan.unshared_bytes()) / 1e6 << " MB without reuse, " << saved / 1e6
      << " MB saved for backward)\n";
  return out.str();
}

}  // namespace lockstep::nn
