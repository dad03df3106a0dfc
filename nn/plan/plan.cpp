#include <lockstep/nn/plan/plan.hpp>

#include <array>
#include <cmath>
#include <iomanip>
#include <numeric>
#include <sstream>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/nn/plan/precision.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

namespace {

constexpr std::array<std::string_view, 3> kModes{"train", "evaluate", "infer"};  // names in the order of enum Mode
constexpr std::array<std::string_view, 5> kLosses{"cross_entropy", "mse", "l1", "huber",
                                                  "given"};                      // names in the order of enum Loss
constexpr std::array<std::string_view, 3> kRecompute{"off", "cheap", "blocks"};  // names in the order of enum Recompute

TensorView as_view(const Buffer& workspace) {
  return {workspace.data(), DType::u8, workspace.device(), {static_cast<std::int64_t>(workspace.bytes())}};
}

template <class Number>
Number sum_of(const std::vector<Call>& calls, Number Call::*part) {
  return std::accumulate(calls.begin(), calls.end(), Number{},
                         [part](Number sum, const Call& call) { return sum + call.*part; });
}

}  // namespace

std::string_view name_of(Mode mode) {
  return kModes[static_cast<std::size_t>(mode)];
}

std::string_view name_of(Loss loss) {
  return kLosses[static_cast<std::size_t>(loss)];
}

std::string_view name_of(Recompute recompute) {
  return kRecompute[static_cast<std::size_t>(recompute)];
}

StepLayout step_layout(const Model& model, const PlanOptions& options) {
  return {.model = model.name(),
          .dtype = options.dtype,
          .input_kind = model.input_kind(),
          .input = model.input_shape(),
          .output = model.output_shape(),
          .regression = options.loss != Loss::cross_entropy,
          .weights = options.weights,
          .two_labels = options.two_labels};
}

Plan::Plan(Context& context, const Model& model, Mode mode, std::int64_t batch, const PlanOptions& options)
    : mode_(mode),
      inference_pass_(options.inference_pass),
      batch_(batch),
      top_k_(mode == Mode::evaluate ? options.top_k : 0),
      layout_(step_layout(model, options)),
      scaled_loss_(options.scaled_loss),
      beside_(options.beside) {
  require<UsageError>(options.top_k >= 0, "plan: top_k is ", options.top_k, ", expected at least 0");
  require<UsageError>(options.top_k == 0 || options.loss == Loss::cross_entropy, "plan: top_k is ", options.top_k,
                      ", the loss ", name_of(options.loss), "; expected 0 or a loss over classes");
  require<UsageError>(options.label_smoothing == 0 || options.loss == Loss::cross_entropy, "plan: label_smoothing is ",
                      options.label_smoothing, ", the loss ", name_of(options.loss),
                      "; expected 0 or a loss over classes");
  require<UsageError>(options.loss != Loss::huber || (std::isfinite(options.huber_delta) && options.huber_delta > 0),
                      "plan: huber_delta is ", options.huber_delta, ", expected a positive, finite number");
  require<UsageError>(batch >= 1, "plan: batch size is ", batch, ", expected at least 1");
  require<UsageError>(!options.tf32 || options.dtype == DType::f32, "plan: tf32 is on and dtype is ", options.dtype,
                      ", expected dtype f32 or tf32 off");
  require<UsageError>(
      !options.two_labels || (options.loss == Loss::cross_entropy && options.weights == LossWeights::none),
      "plan: two labels a sample with the loss ", name_of(options.loss), " and weights '", name_of(options.weights),
      "', expected a loss over classes and no weights");
  layout_.two_labels = options.two_labels && mode == Mode::train;
  require<UsageError>(!options.input_gradient || model.input_kind() == InputKind::values,
                      "plan: input_gradient of model ", model.name(), ", whose input is ",
                      name_of(input_field(model.input_kind())), ", expected values");
  require<UsageError>(
      (!options.vjp && !options.jvp) ||
          (mode == Mode::train && options.loss == Loss::given && options.input_gradient && options.kept_apart &&
           options.recompute == Recompute::off && options.beside == nullptr),
      "plan: ", options.vjp ? "vjp" : "jvp",
      " is on, expected also a given loss, input_gradient, kept_apart, no recompute and no second context");
  require_computed_on(context.device(), options.dtype);
  require<UsageError>(beside_ != &context && (beside_ == nullptr || beside_->device() == context.device()),
                      "plan: beside is ",
                      beside_ == &context ? "the plan's own context" : "a context of another device",
                      ", expected another one on ", context.device());
  contents_ = PlanBuilder(context, model, mode, batch, options).build();
  meetings_.reserve(contents_.joins.size());
  for (std::size_t i = 0; i < contents_.joins.size(); ++i) {
    meetings_.emplace_back(context.device());
  }
}

double Plan::flops() const {
  return sum_of(contents_.calls, &Call::flops);
}

double Plan::bytes() const {
  return sum_of(contents_.calls, &Call::bytes);
}

int Plan::launches() const {
  return sum_of(contents_.calls, &Call::launches);
}

void Plan::bind(ParameterSet& parameters, StepState& state, const Buffer& workspace) {
  bind(parameters, state, as_view(workspace));
}

void Plan::bind(ParameterSet& parameters, StepState& state, const TensorView& workspace) {
  bind_slots(parameters, state, workspace);
}

void Plan::bind(ParameterSet& parameters, StepState& state, const Buffer& workspace, const TensorView& gradients) {
  const TensorView own = parameters.gradients();
  require<ShapeError>(gradients.shape == own.shape && gradients.dtype == own.dtype && gradients.device == own.device,
                      "plan: the gradients are ", gradients, ", expected ", own, " as the parameters'");
  require_memory("plan: gradients", gradients, own.bytes(), own.device);
  bind_slots(parameters, state, as_view(workspace), gradients);
}

void Plan::bind(const ParameterSet& parameters, StepState& state, const Buffer& workspace) {
  bind(parameters, state, as_view(workspace));
}

void Plan::bind(const ParameterSet& parameters, StepState& state, const TensorView& workspace) {
  require<StateError>(
      mode_ != Mode::train,
      "plan: a plan that trains is bound to constant parameters, expected parameters that may be written");
  bind_slots(parameters, state, workspace);
}

void Plan::bind_slots(const ParameterSet& parameters, const StepState& state, const TensorView& workspace,
                      const TensorView& gradients) {
  require_memory("plan: workspace", workspace, contents_.workspace_bytes, parameters.values().device);
  require<ShapeError>(state.batch() >= batch_, "plan: the step state holds batches of ", state.batch(),
                      ", expected at least ", batch_);
  require<StateError>(
      mode_ != Mode::train || scaled_loss_ == parameters.loss_scale().given(), "plan: the loss is ",
      scaled_loss_ ? "scaled and the parameters hold no loss scale" : "not scaled and the parameters hold a loss scale",
      ", expected both or neither");
  kept_.assign(1, {});
  set_ = 0;
  device_ = workspace.device;
  workspace_ = in_use_ = static_cast<std::byte*>(workspace.data);
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
        view = gradients.given() ? parameters.gradient_in(slot.source, gradients) : parameters.gradient(slot.source);
        break;
      case SlotKind::buffer:
        view = mode_ == Mode::train && !inference_pass_ ? parameters.buffer(slot.source)
                                                        : parameters.evaluation_buffer(slot.source);
        break;
      case SlotKind::loss_scale:
        view = parameters.loss_scale();
        break;
      case SlotKind::weight_sum:
        view = parameters.weight_sum();
        break;
      case SlotKind::state:
        bind_state(i, state, 0);
        break;
    }
    require<ShapeError>(view.shape == slot.shape && view.dtype == slot.dtype, "plan: ", slot.name, " is bound to ",
                        view, ", expected ", slot.dtype, " ", slot.shape);
  }
  bind_again(frame_, again_);
  bound_ = true;
}

void Plan::bind_again(const Frame& frame, Frame& again) const {
  if (contents_.recomputed.calls == 0) {
    return;
  }
  again = frame;
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    if (const int other = contents_.slots[i].again; other >= 0) {
      again.views_[i] = frame.views_[static_cast<std::size_t>(other)];
    }
  }
}

void Plan::bind_state(std::size_t slot, const StepState& state, std::int64_t first) {
  const SlotInfo& info = contents_.slots[slot];
  TensorView view = state.view(static_cast<StateField>(info.source));
  const bool batched = info.shape.rank() > 0 && static_cast<StateField>(info.source) != StateField::metrics;
  if (batched && view.shape[0] > info.shape[0]) {
    view = view.slice(0, first, first + info.shape[0]);
  }
  frame_.views_[slot] = view;
  if (!again_.views_.empty()) {
    again_.views_[slot] = view;
  }
}

void Plan::use(const StepState& state, std::int64_t first) {
  require<StateError>(bound_, "plan: use() is called before bind(), expected bind() first");
  require<ShapeError>(first >= 0 && first <= state.batch() - batch_, "plan: the first sample is ", first,
                      " of a state of ", state.batch(), " samples, expected 0 to ", state.batch() - batch_);
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    if (contents_.slots[i].kind == SlotKind::state) {
      bind_state(i, state, first);
      require<ShapeError>(frame_.views_[i].shape == contents_.slots[i].shape, "plan: ", contents_.slots[i].name,
                          " is bound to ", frame_.views_[i], ", expected ", contents_.slots[i].shape);
    }
  }
}

const TensorView& Plan::output() const {
  require<StateError>(bound_, "plan: output() is called before bind(), expected bind() first");
  return frame_[contents_.output];
}

const TensorView& Plan::bound(SlotId slot, const char* what) const {
  require<StateError>(bound_ && slot.valid(), "plan: ", what,
                      bound_ ? concat(" of a plan without it, expected PlanOptions::", what)
                             : " is read before bind(), expected bind() first");
  return frame_[slot];
}

const TensorView& Plan::input_gradient() const {
  return bound(contents_.input_gradient, "input_gradient");
}

const TensorView& Plan::vjp_result() const {
  return bound(contents_.vjp_result, "vjp");
}

const TensorView& Plan::input_tangent() const {
  return bound(contents_.input_tangent, "jvp");
}

const TensorView& Plan::output_tangent() const {
  return bound(contents_.output_tangent, "jvp");
}

void Plan::run_one(Context& context, const Call& call, const CallRecord& record, int index) {
  using Lane = SpanRecorder::Lane;
  SpanRecorder::Scope span(record.recorder, context.stream(), call.beside ? Lane::beside : Lane::compute,
                           record.first_name + index);
  guard(context, call, false);
  try {
    call.run(context, call.backward && !again_.views_.empty() ? again_ : frame_);
  } catch (Error& error) {
    error.annotate(call.layer + " " + call.op);
    throw;
  }
  guard(context, call, true);
  span.end();
}

void Plan::guard(Context& context, const Call& call, bool check) {
  if (!contents_.guarded) {
    return;
  }
  context.stream().enqueue([this, &call, check] {
    for (const SlotId written : call.writes) {
      const SlotInfo* slot = &contents_.slots[static_cast<std::size_t>(written.index)];
      if (call.backward && slot->again >= 0) {
        slot = &contents_.slots[static_cast<std::size_t>(slot->again)];
      }
      if (slot->kind != SlotKind::workspace) {
        continue;
      }
      const bool shared = contents_.kept_apart && slot->offset >= contents_.kept_bytes;  // by all sets
      std::byte* const band = (shared ? workspace_ : in_use_) + slot->end;
      if (!check) {
        write_guard_band(band);
        continue;
      }
      const std::string damage = damage_of_guard_band(band);
      require<Error>(damage.empty(), call.layer, ' ', call.op, ": ", damage, " of '", slot->name, "' (", slot->bytes,
                     " bytes), expected no write outside of it");
    }
  });
}

void Plan::run_beside(Context& context, const Call& call, Meeting& meeting, const CallRecord& record, int index) {
  context.stream().record(meeting.begin);
  beside_->stream().wait(meeting.begin);
  run_one(*beside_, call, record, index);
  beside_->stream().record(meeting.end);
}

void Plan::run_call(Context& context, int index) {
  const Call& call = contents_.calls[static_cast<std::size_t>(index)];
  if (!call.beside) {
    run_one(context, call, {}, index);
    return;
  }
  run_beside(context, call, meetings_.front(), {}, index);
  context.stream().wait(meetings_.front().end);
}

CallRecord Plan::name_calls(SpanRecorder& recorder) const {
  CallRecord record{.recorder = &recorder, .first_name = static_cast<int>(recorder.names().size())};
  for (const Call& call : contents_.calls) {
    recorder.add_name({concat(call.layer, ' ', call.op), call.backward ? SpanKind::backward : SpanKind::forward});
  }
  return record;
}

void Plan::run(Context& context, const std::function<void(int)>& written, const CallRecord& record) {
  run_calls(context, 0, contents_.vjp_begin, written, record);
}

void Plan::forward(Context& context, const CallRecord& record) {
  run_calls(context, 0, contents_.backward_begin, {}, record);
}

void Plan::backward(Context& context, const std::function<void(int)>& written, const CallRecord& record) {
  run_calls(context, contents_.backward_begin, contents_.vjp_begin, written, record);
}

void Plan::vjp(Context& context) {
  static_cast<void>(vjp_result());
  if (contents_.vjp_begin == contents_.jvp_begin) {  // no calls for vjp(): backward() computes J^T u
    backward(context);
    return;
  }
  run_calls(context, contents_.vjp_begin, contents_.jvp_begin, {}, {});
}

void Plan::jvp(Context& context) {
  static_cast<void>(output_tangent());
  run_calls(context, contents_.jvp_begin, static_cast<int>(contents_.calls.size()), {}, {});
}

void Plan::run_calls(Context& context, int begin, int end, const std::function<void(int)>& written,
                     const CallRecord& record) {
  require<StateError>(bound_, "plan: run() is called before bind(), expected bind() first");
  const auto tell = [&](const Call& call) {
    if (written) {
      for (const int parameter : call.gradients) {
        written(parameter);
      }
    }
  };
  std::size_t begun = 0;   // number of calls enqueued on the side stream so far; forward has no call on the side stream
  std::size_t joined = 0;  // number of these calls for which the plan's stream has enqueued a wait
  const auto join = [&](int before) {
    std::size_t last = joined;
    while (last < begun && contents_.joins[last].before == before) {
      ++last;
    }
    if (last == joined) {
      return;
    }
    // The side stream runs calls in order, so this event also covers all earlier calls.
    context.stream().wait(meetings_[last - 1].end);
    for (; joined < last; ++joined) {
      tell(contents_.calls[static_cast<std::size_t>(contents_.joins[joined].call)]);
    }
  };
  try {
    for (int i = begin; i < end; ++i) {
      const Call& call = contents_.calls[static_cast<std::size_t>(i)];
      join(i);
      if (call.beside) {
        run_beside(context, call, meetings_[begun++], record, i);
      } else {
        run_one(context, call, record, i);
        tell(call);
      }
    }
    join(end);
  } catch (...) {
    wait_for_beside(context, begun);
    throw;
  }
}

int Plan::add_kept(const TensorView& workspace) {
  require<StateError>(bound_, "plan: add_kept() is called before bind(), expected bind() first");
  const std::size_t bytes = contents_.kept_apart ? contents_.kept_bytes : contents_.workspace_bytes;
  require_memory("plan: workspace", workspace, bytes, device_);
  Kept more{frame_, again_, static_cast<std::byte*>(workspace.data)};
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    if (contents_.slots[i].kind == SlotKind::workspace && contents_.slots[i].offset < bytes) {
      more.frame.views_[i].data = more.kept + contents_.slots[i].offset;
    }
  }
  bind_again(more.frame, more.again);
  kept_.push_back(std::move(more));
  return static_cast<int>(kept_.size()) - 1;
}

void Plan::keep_in(int set) {
  require<UsageError>(set >= 0 && set < static_cast<int>(kept_.size()), "plan: the set of kept activations is ", set,
                      ", expected 0 to ", static_cast<int>(kept_.size()) - 1);
  const auto swap = [this](Kept& kept) {
    std::swap(kept.frame, frame_);
    std::swap(kept.again, again_);
    std::swap(kept.kept, in_use_);
  };
  swap(kept_[set_]);  // stores the set in use in kept_[set_]
  set_ = static_cast<std::size_t>(set);
  swap(kept_[set_]);
}

void Plan::wait_for_beside(Context& context, std::size_t begun) noexcept {
  if (begun == 0) {
    return;
  }
  try {
    beside_->stream().record(meetings_[begun - 1].end);
    context.stream().wait(meetings_[begun - 1].end);
  } catch (...) {  // ignores this error, because the caller gets the original one
  }
}

std::string describe(const Plan& plan) {
  std::ostringstream out;
  out << std::left << std::setw(5) << "call" << std::setw(28) << "layer" << std::setw(36) << "op" << std::setw(27)
      << "output" << std::right << std::setw(10) << "MFLOP" << std::setw(10) << "MB" << std::setw(10) << "launches"
      << '\n';
  int index = 0;
  for (const Call& call : plan.calls()) {
    std::ostringstream output;
    if (!call.writes.empty()) {
      const SlotInfo& slot = plan.slots()[static_cast<std::size_t>(call.writes.front().index)];
      output << slot.dtype << ' ' << slot.shape;
    }
    out << std::left << std::setw(5) << index++ << std::setw(28) << call.layer << std::setw(36)
        << (call.backward ? "< " : "> ") + call.op << std::setw(27) << output.str() << std::right << std::fixed
        << std::setprecision(1) << std::setw(10) << call.flops / 1e6 << std::setw(10) << call.bytes / 1e6
        << std::setw(10) << call.launches << (call.beside ? "  beside" : "") << '\n';
  }
  double saved = 0;
  for (const SlotInfo& slot : plan.slots()) {
    saved += slot.saved && slot.alias_of < 0 ? static_cast<double>(slot.bytes) : 0;
  }
  if (!plan.joins().empty()) {
    out << plan.joins().size() << " calls run beside those that follow them\n";
  }
  out << name_of(plan.mode()) << " plan, batch " << plan.batch() << ": " << plan.calls().size() << " calls, "
      << plan.launches() << " launches on a GPU, " << std::setprecision(2) << plan.flops() / 1e9 << " GFLOP, "
      << plan.bytes() / 1e6 / static_cast<double>(plan.batch()) << " MB moved a sample, workspace "
      << static_cast<double>(plan.workspace_bytes()) / 1e6 << " MB ("
      << static_cast<double>(plan.unshared_bytes()) / 1e6 << " MB without reuse, " << saved / 1e6
      << " MB saved for backward)\n";
  if (const Recomputed& again = plan.recomputed(); again.calls > 0) {
    out << again.calls << " calls again in backward: " << again.flops / 1e9 << " GFLOP, "
        << again.bytes / 1e6 / static_cast<double>(plan.batch()) << " MB a sample of these; workspace without them "
        << static_cast<double>(again.workspace_bytes_without) / 1e6 << " MB\n";
  }
  return out.str();
}

void describe(Schema& schema, PlanOptions& options) {
  schema.group("Training");
  schema
      .own(
          "dtype", "NAME",
          "number format: fp32 (or f32), tf32, bf16, fp16 or f64; tf32: fp32, but on GPUs products round their factors "
          "to TF32; bf16, fp16: activations and weights in 16 bits, master weights and sums in fp32 (fp16 on GPUs "
          "only); f64: on CPUs only",
          [&options] {
            return std::string(name_of(Precision{options.dtype, options.tf32 && options.dtype == DType::f32}));
          },
          [&options](const std::string& name) {
            const Precision precision = parse_precision(name);
            options.dtype = precision.dtype;
            options.tf32 = precision.tf32;
            return true;
          })
      .is_common();
  const auto word = [](Recompute value) { return std::pair(std::string(name_of(value)), value); };
  schema.choice<Recompute>("recompute", options.recompute,
                           {word(Recompute::off), word(Recompute::cheap), word(Recompute::blocks)},
                           "activations that backward computes again, bit for bit, instead of keeping them, so that a "
                           "larger batch fits; cheap: outputs of norms, activations, pools and dropout; blocks: also "
                           "outputs of convolutions and products, all activations but those between blocks");
  schema.add("label_smoothing", options.label_smoothing, "label smoothing, 0 to 1").fraction().is_common();
  schema.add("top_k", options.top_k, "also report the test accuracy among the K largest outputs; 0: no")
      .at_least(0)
      .equal_on_ranks();
}

}  // namespace lockstep::nn
