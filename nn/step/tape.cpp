#include <lockstep/nn/step/tape.hpp>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/batch/copy_across.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

PlanOptions plan_of(const TapeOptions& options) {
  PlanOptions plan = options.plan;
  plan.loss = Loss::given;
  plan.weights = LossWeights::none;
  plan.top_k = 0;
  plan.label_smoothing = 0;
  plan.two_labels = false;
  plan.scaled_loss = false;
  plan.accumulate = true;
  plan.input_gradient = true;
  plan.kept_apart = true;
  plan.constant_parameters = !options.parameter_gradients;
  plan.inference_pass = options.inference_pass;
  plan.vjp = options.vjp || (!options.parameter_gradients && plan.recompute == Recompute::off);  // no further calls
  plan.jvp = options.jvp;
  plan.beside = nullptr;
  plan.cooperative = false;  // cooperative launches of tapes on different streams could block each other
  return plan;
}

/// Returns the options for computing the outputs of an inference pass.
PlanOptions inference_plan_of(const TapeOptions& options) {
  PlanOptions plan = plan_of(options);
  plan.accumulate = plan.input_gradient = plan.kept_apart = false;
  plan.constant_parameters = plan.inference_pass = plan.vjp = plan.jvp = false;
  plan.recompute = Recompute::off;
  return plan;
}

constexpr std::int64_t kStreams = std::int64_t{1} << 31;
constexpr std::int64_t kIdsOfStream = std::int64_t{1} << 32;  ///< number of sample ids for each `stream`

const TapeOptions& checked(const TapeOptions& options, const ParameterSet& parameters) {
  require<UsageError>(options.max_batch >= 1, "tape: max_batch is ", options.max_batch, ", expected at least 1");
  require<UsageError>(options.slots >= 1, "tape: slots is ", options.slots, ", expected at least 1");
  require<UsageError>(parameters.weight_dtype() == options.plan.dtype, "tape: the parameters are for ",
                      parameters.weight_dtype(), ", expected ", options.plan.dtype, " as in the plan");
  require<UsageError>(options.stream >= 0 && options.stream < kStreams, "tape: stream is ", options.stream,
                      ", expected 0 to ", kStreams - 1);
  return options;
}

/// Throws if the tape cannot read the memory of `view`, or if `written` is true and the tape cannot write this memory.
/// Must be called before anything is enqueued.
void require_usable(const Context& context, const char* what, const TensorView& view, bool written) {
  const Device device = view.device == Device::cpu() ? view.device : context.device();
  require_on(device, what, {&view});
  for (int axis = 0; written && axis < view.shape.rank(); ++axis) {
    require<ShapeError>(view.strides[axis] != 0 || view.shape[axis] <= 1, what, " has stride 0 on axis ", axis,
                        ", expected elements apart");
  }
}

void require_floating(const char* what, const TensorView& view) {
  require<DTypeError>(is_floating(view.dtype), what, " is ", view.dtype, ", expected a floating-point type");
}

}  // namespace

struct Tape::Impl {
  Impl(Context& ctx, const Model& model, ParameterSet& set, const TapeOptions& o)
      : context(ctx),
        options(checked(o, set)),
        parameters(set),
        plan_options(plan_of(o)),
        plan(ctx, model, Mode::train, o.max_batch, plan_options),
        workspace(plan.workspace_bytes(), ctx),
        slots(static_cast<std::size_t>(o.slots)),
        idle(ctx.stream()) {
    if (o.inference_pass) {
      inference.emplace(ctx, model, set, InferenceOptions{.max_batch = o.max_batch, .plan = inference_plan_of(o)});
    }
    if (o.jvp) {
      tangents.emplace(ctx, o.max_batch, plan.layout());
    }
    std::vector<std::int64_t> ids(static_cast<std::size_t>(o.max_batch));
    std::iota(ids.begin(), ids.end(), o.stream * kIdsOfStream);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      StepState& state = states.emplace_back(ctx, o.max_batch, plan.layout());
      state.set(ctx, {.learning_rate = 0, .sample_weight = 1, .valid = o.max_batch});
      copy_now(ctx, TensorView(std::span(ids), {o.max_batch}), state.view(StateField::sample_ids));
      if (i == 0) {
        plan.bind(set, state, workspace, o.gradients.given() ? o.gradients : set.gradients());
        continue;
      }
      const Buffer& more = kept.emplace_back(std::max<std::size_t>(plan.kept_bytes(), kAlignment), ctx);
      plan.keep_in(
          plan.add_kept(TensorView(more.data(), DType::u8, ctx.device(), {static_cast<std::int64_t>(more.bytes())})));
      plan.use(state);
    }
  }

  /// Copies `samples` samples from `from` to a field of the slot's state, and sets the field's remaining samples, up to
  /// max_batch, to 0.
  void take(StepState& state, const FieldView& from, std::int64_t samples) {
    ingest(context, state, from);
    const TensorView& rows = state.view(from.field);
    if (samples < options.max_batch) {
      ops::fill(context, 0, rows.slice(0, samples, options.max_batch));
    }
  }

  void set_valid(StepState& state, std::size_t slot, std::int64_t samples) {
    if (slots[slot].valid != samples) {
      ops::fill(context, static_cast<double>(samples), state.view(StateField::valid));
      slots[slot].valid = samples;
    }
  }

  /// Returns the index of the slot of pass `pass`.
  [[nodiscard]] std::size_t slot_of(std::int64_t pass) const {
    const auto found = std::ranges::find(slots, pass, &Slot::pass);
    require<UsageError>(pass >= 0 && found != slots.end(), "tape: pass ", pass,
                        " has no slot, expected one that forward() returned, before its backward() or release()");
    return static_cast<std::size_t>(found - slots.begin());
  }

  /// Returns slot_of(pass). Throws StateError if the parameters may have changed since the pass.
  [[nodiscard]] std::size_t slot_in_use(std::int64_t pass) const {
    const std::size_t slot = slot_of(pass);
    require<StateError>(slots[slot].version == parameters.version(), "tape: the parameters were written since pass ",
                        pass, ", expected its backward() before; release() frees the slot");
    return slot;
  }

  static constexpr std::int64_t kFree = -1;
  struct Slot {
    std::int64_t pass = kFree;  ///< number of the pass whose activations the slot keeps
    std::int64_t samples = 0;   ///< number of samples of the pass
    std::int64_t valid = -1;    ///< value of StateField::valid in the slot's state; -1: not known
    std::uint64_t version = 0;  ///< version of the parameters at the pass
  };

  /// Makes the plan use the slot of pass `pass`, and copies the gradient of the output from `out` to the slot's state.
  Slot& with_out_gradient(std::int64_t pass) {
    const std::size_t number = slot_of(pass);
    take(states[number], out, slots[number].samples);
    plan.keep_in(static_cast<int>(number));
    return slots[number];
  }

  Context& context;
  TapeOptions options;
  const ParameterSet& parameters;
  PlanOptions plan_options;
  Plan plan;
  Buffer workspace;
  std::deque<StepState> states;        ///< input and gradient of the output of each slot
  std::deque<Buffer> kept;             ///< kept activations of all slots except slot 0, which uses the workspace
  std::optional<Inference> inference;  ///< used only with TapeOptions::inference_pass, to compute outputs
  std::optional<StepState> tangents;   ///< tangent of the input for jvp()
  std::vector<Slot> slots;
  std::int64_t passes = 0;  ///< number of forward passes
  FieldView in{}, out{};    ///< views of the present call; kept between calls for their memory
  SyncGuard idle;           ///< destroyed first, to wait for queued work
};

Tape::Tape(Context& context, const Model& model, ParameterSet& parameters, const TapeOptions& options)
    : impl_(std::make_unique<Impl>(context, model, parameters, options)) {}

Tape::~Tape() = default;

std::int64_t Tape::forward(const TensorView& in, const TensorView& out, std::string_view in_axes,
                           std::string_view out_axes) {
  Impl& s = *impl_;
  const auto found = std::ranges::find(s.slots, Impl::kFree, &Impl::Slot::pass);
  require<StateError>(found != s.slots.end(), "tape: all ", s.slots.size(),
                      " slots are in use, expected backward() or release() before");
  const auto slot = static_cast<std::size_t>(found - s.slots.begin());
  s.in.field = StateField::values;
  s.in.view = in;
  s.in.axes = in_axes;
  s.out.view = out;
  s.out.axes = out_axes;
  const std::int64_t samples = samples_of(s.plan.layout(), s.in);
  require<UsageError>(samples <= s.options.max_batch, "the input has ", samples, " samples, expected at most ",
                      s.options.max_batch, " (max_batch of the tape)");
  require_usable(s.context, "tape: the input", in, false);
  if (out.given()) {
    require_output(s.plan.layout(), s.out, samples);
    require_floating("tape: the output", out);
    require_usable(s.context, "tape: the output", out, true);
  }
  StepState& state = s.states[slot];
  s.take(state, s.in, samples);
  s.set_valid(state, slot, samples);
  ops::fill(s.context, static_cast<double>(s.passes), state.view(StateField::epoch));  // dropout draws anew
  s.plan.keep_in(static_cast<int>(slot));
  s.plan.forward(s.context);
  if (out.given() && s.inference) {
    s.inference->run(in, out, in_axes, out_axes);
  } else if (out.given()) {
    emit(s.context, s.plan.layout(), s.plan.output().slice(0, 0, samples), s.out);
  }
  found->pass = s.passes;
  found->samples = samples;
  found->version = s.parameters.version();
  return s.passes++;
}

void Tape::check(std::int64_t pass, const TensorView& out_gradient, const TensorView& in_gradient,
                 std::string_view out_axes, std::string_view in_axes) {
  Impl& s = *impl_;
  require<UsageError>(
      s.options.parameter_gradients || in_gradient.given(),
      "tape: backward() of constant parameters has nothing to write, expected a view for the gradient of the input");
  const std::int64_t samples = s.slots[s.slot_in_use(pass)].samples;
  s.out.field = StateField::targets;
  s.out.view = out_gradient;
  s.out.axes = out_axes;
  s.in.view = in_gradient;
  s.in.axes = in_axes;
  const std::int64_t given = samples_of(s.plan.layout(), s.out);
  require<ShapeError>(given == samples, "the gradient of the output has ", given, " samples, expected ", samples,
                      " as pass ", pass);
  require_floating("tape: the gradient of the output", out_gradient);
  require_usable(s.context, "tape: the gradient of the output", out_gradient, false);
  if (in_gradient.given()) {
    require_input(s.plan.layout(), s.in, samples);
    require_floating("tape: the gradient of the input", in_gradient);
    require_usable(s.context, "tape: the gradient of the input", in_gradient, true);
  }
}

void Tape::backward(std::int64_t pass, const TensorView& out_gradient, const TensorView& in_gradient,
                    std::string_view out_axes, std::string_view in_axes) {
  check(pass, out_gradient, in_gradient, out_axes, in_axes);  // sets s.in and s.out, too
  Impl& s = *impl_;
  Impl::Slot& slot = s.with_out_gradient(pass);
  s.plan.backward(s.context);
  if (in_gradient.given()) {
    emit_input(s.context, s.plan.layout(), s.plan.input_gradient().slice(0, 0, slot.samples), s.in);
  }
  slot.pass = Impl::kFree;
}

void Tape::vjp(std::int64_t pass, const TensorView& out_gradient, const TensorView& in_gradient,
               std::string_view out_axes, std::string_view in_axes) {
  Impl& s = *impl_;
  require<StateError>(s.plan_options.vjp, "tape: the option vjp is false, expected true for vjp()");
  require<UsageError>(in_gradient.given(), "tape: vjp() has no memory for the gradient of the input, expected a view");
  check(pass, out_gradient, in_gradient, out_axes, in_axes);
  const Impl::Slot& slot = s.with_out_gradient(pass);
  s.plan.vjp(s.context);
  emit_input(s.context, s.plan.layout(), s.plan.vjp_result().slice(0, 0, slot.samples), s.in);
}

void Tape::jvp(std::int64_t pass, const TensorView& in_tangent, const TensorView& out_tangent, std::string_view in_axes,
               std::string_view out_axes) {
  Impl& s = *impl_;
  require<StateError>(s.options.jvp, "tape: the option jvp is false, expected true for jvp()");
  const std::size_t number = s.slot_in_use(pass);
  const std::int64_t samples = s.slots[number].samples;
  s.in.field = StateField::values;
  s.in.view = in_tangent;
  s.in.axes = in_axes;
  s.out.view = out_tangent;
  s.out.axes = out_axes;
  const std::int64_t given = samples_of(s.plan.layout(), s.in);
  require<ShapeError>(given == samples, "the tangent of the input has ", given, " samples, expected ", samples,
                      " as pass ", pass);
  require_output(s.plan.layout(), s.out, samples);
  require_floating("tape: the tangent of the input", in_tangent);
  require_usable(s.context, "tape: the tangent of the input", in_tangent, false);
  require_floating("tape: the tangent of the output", out_tangent);
  require_usable(s.context, "tape: the tangent of the output", out_tangent, true);
  s.take(*s.tangents, s.in, samples);
  s.plan.keep_in(static_cast<int>(number));
  copy_across(s.context, s.tangents->view(StateField::values), s.plan.input_tangent());
  s.plan.jvp(s.context);
  emit(s.context, s.plan.layout(), s.plan.output_tangent().slice(0, 0, samples), s.out);
}

void Tape::release(std::int64_t pass) {
  Impl& s = *impl_;
  if (pass != kAllPasses) {
    s.slots[s.slot_of(pass)].pass = Impl::kFree;
    return;
  }
  for (Impl::Slot& each : s.slots) {
    each.pass = Impl::kFree;
  }
}

std::int64_t Tape::free_slots() const {
  return std::ranges::count(impl_->slots, Impl::kFree, &Impl::Slot::pass);
}
std::size_t Tape::slot_bytes() const {
  return impl_->plan.kept_bytes() + impl_->states.front().bytes();
}
std::size_t Tape::bytes() const {
  return impl_->workspace.bytes() + impl_->slots.size() * impl_->states.front().bytes() +
         (impl_->slots.size() - 1) * impl_->plan.kept_bytes();
}

}  // namespace lockstep::nn
