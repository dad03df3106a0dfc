#include <lockstep/nn/step/inference.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/nn/step/parts/mlp_pass.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

namespace {

/// Returns the batch sizes of the plans in ascending order: those of 1, 4, 8, 12, 16, 24, 32, 48, ..., 256, 384, 1024,
/// 4096, 16384, ... that are less than `most`, then `most`. From 8 to 384, each size is a half or a third larger than
/// the size before, because a plan's fixed time matters there. Splitting a number of samples into these sizes, or
/// leaving room in a plan unused, then takes at most 1.5 times as long as a plan of the exact size.
std::vector<std::int64_t> plan_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : {1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384}) {
    if (size < most) {
      sizes.push_back(size);
    }
  }
  for (std::int64_t size = 1024; size < most; size *= 4) {
    sizes.push_back(size);
  }
  sizes.push_back(most);
  return sizes;
}

/// Returns an estimate, in seconds, of the time of one run of `plan`. Each call counts 0.5 us in f64, and 1 us in other
/// types. The operations count at the rate of one core. The estimate is used only to choose batch sizes.
double seconds_of(const Plan& plan) {
  const bool f64 = plan.layout().dtype == DType::f64;
  return (f64 ? 0.5e-6 : 1e-6) * static_cast<double>(plan.calls().size()) + plan.flops() / (f64 ? 20e9 : 80e9);
}

ParameterSet const& checked(const ParameterSet& parameters, const Model& model, const InferenceOptions& options) {
  require<UsageError>(options.max_batch >= 1, "inference: max_batch is ", options.max_batch, ", expected at least 1");
  require<UsageError>(parameters.weight_dtype() == options.plan.dtype, "inference: the parameters of model ",
                      model.name(), " are for ", parameters.weight_dtype(), ", expected ", options.plan.dtype,
                      " as in the plan");
  const std::vector<Model::Parameter> expected = model.parameters();
  const auto infos = parameters.parameters();
  bool same = infos.size() == expected.size() && parameters.buffers().size() == model.buffers().size();
  for (std::size_t i = 0; same && i < infos.size(); ++i) {
    same = infos[i].spec.name == expected[i].spec.name && infos[i].spec.shape == expected[i].spec.shape;
  }
  require<UsageError>(same, "inference: the parameters are of another model, expected those of ", model.name());
  return parameters;
}

/// Returns the options without weights of the loss, because inference computes no loss.
PlanOptions without_weights(PlanOptions options) {
  options.weights = LossWeights::none;
  return options;
}

/// A range [low, high) of memory addresses; initially empty.
struct Range {
  std::uintptr_t low = std::numeric_limits<std::uintptr_t>::max();
  std::uintptr_t high = 0;

  void add(const Range& other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
  [[nodiscard]] bool meets(const Range& other) const { return low < other.high && other.low < high; }
  /// from() returns the range relative to the address `start`. at() turns a relative range into addresses again.
  [[nodiscard]] Range from(const void* start) const { return {low - address(start), high - address(start)}; }
  [[nodiscard]] Range at(const void* start) const { return {low + address(start), high + address(start)}; }
  static std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
};

/// Returns the bytes between the first and the last element of `view`.
Range range_of(const TensorView& view) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  std::int64_t low = 0;
  std::int64_t high = size;
  for (int axis = 0; axis < view.shape.rank(); ++axis) {
    const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis] * size;
    (reach < 0 ? low : high) += reach;
  }
  return Range{static_cast<std::uintptr_t>(low), static_cast<std::uintptr_t>(high)}.at(view.data);
}

}  // namespace

struct Inference::Impl {
  Impl(Context& ctx, const Model& model, const ParameterSet& parameters, const InferenceOptions& options)
      : context(ctx),
        max_batch((checked(parameters, model, options), options.max_batch)),
        state(ctx, options.max_batch, step_layout(model, without_weights(options.plan))),
        idle(ctx.stream()) {
    state.set(ctx, {.learning_rate = 0, .sample_weight = 1, .valid = max_batch, .epoch = 0});
    mlp = MlpPass::of(ctx, model, parameters);
    if (!mlp) {
      make_plans(model, parameters, without_weights(options.plan));
    }
    Shape rows{max_batch};
    for (const std::int64_t extent : state.layout().output) {
      rows.push_back(extent);
    }
    const DType dtype = mlp ? parameters.weight_dtype() : plans.back().output().dtype;
    out = Buffer(static_cast<std::size_t>(rows.numel()) * size_of(dtype), ctx);
    output = TensorView(out.data(), dtype, ctx.device(), rows);
  }

  void make_plans(const Model& model, const ParameterSet& parameters, const PlanOptions& plan_options) {
    std::size_t workspace_bytes = 0;
    for (const std::int64_t size : plan_sizes(max_batch)) {
      const Plan& plan = plans.emplace_back(context, model, Mode::infer, size, plan_options);
      workspace_bytes = std::max(workspace_bytes, plan.workspace_bytes());
    }
    workspace = Buffer(workspace_bytes, context);
    for (Plan& plan : plans) {
      plan.bind(parameters, state, workspace);
    }
    choose_sizes();
  }

  /// Splits n samples into batches of the plans' sizes such that the estimated time is least, for each n up to
  /// max_batch. Sets first[n] to the index of the plan of the first batch.
  void choose_sizes() {
    first.assign(static_cast<std::size_t>(max_batch) + 1, 0);
    std::vector<double> cost(first.size(), 0);
    for (std::size_t n = 1; n < first.size(); ++n) {
      cost[n] = std::numeric_limits<double>::infinity();
      for (std::size_t p = 0; p < plans.size(); ++p) {
        const auto size = static_cast<std::size_t>(plans[p].batch());
        const double here = seconds_of(plans[p]) + (size < n ? cost[n - size] : 0);
        if (here < cost[n]) {
          cost[n] = here;
          first[n] = static_cast<int>(p);
        }
        if (size >= n) {
          break;  // a larger plan would have even more unused room
        }
      }
    }
  }

  /// Computes the outputs of the first n samples of the state and writes them to `output`.
  void compute(std::int64_t n) {
    if (mlp) {
      const TensorView in = state.view(input_field(state.layout().input_kind)).slice(0, 0, n);
      return mlp->run(context, in.slice(1, 0, state.layout().input[0]), output.slice(0, 0, n));
    }
    for (std::int64_t begin = 0; begin < n;) {
      Plan& plan = plans[static_cast<std::size_t>(first[static_cast<std::size_t>(n - begin)])];
      const std::int64_t size = plan.batch();
      const std::int64_t count = std::min(size, n - begin);
      // A plan always reads plan.batch() samples. Near the end of the state, a plan must therefore begin before sample
      // `begin`, and computes some samples a second time.
      const std::int64_t from = std::min(begin, max_batch - size);
      plan.use(state, from);
      plan.run(context);
      const TensorView rows = plan.output().slice(0, begin - from, begin - from + count);
      ops::strided_copy(context, rows, output.slice(0, begin, begin + count));
      begin += count;
    }
  }

  /// Computes out = mlp(in) directly on the views of run(), which have been checked. Returns false, and does nothing,
  /// if a view has a type that the pass cannot read or write, or if inputs and outputs may share memory.
  bool compute_in_place(std::span<const SampleView> in, std::span<const SampleView> out_views) {
    Range read{};
    Range written{};
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (samples[i] > 0) {
        read.add(range_of(in[i].view));
        written.add(range_of(out_views[i].view));
        if (!MlpPass::samples_of(in[i].view, in[i].axes, false).given() ||
            !MlpPass::samples_of(out_views[i].view, out_views[i].axes, true).given()) {
          return false;
        }
      }
    }
    if (read.meets(written)) {
      return false;
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (samples[i] > 0) {
        mlp->run(context, MlpPass::samples_of(in[i].view, in[i].axes, false),
                 MlpPass::samples_of(out_views[i].view, out_views[i].axes, true));
      }
    }
    if (in.size() == 1 && samples[0] > 0) {
      again = {.known = true,
               .read = read.from(in[0].view.data),
               .written = written.from(out_views[0].view.data),
               .read_size = size_of(in[0].view.dtype),
               .written_size = size_of(out_views[0].view.dtype)};
    }
    return true;
  }

  void take(const SampleView& from, const SampleView& to) {
    given.field = input_field(state.layout().input_kind);
    given.view = from.view;
    given.axes = from.axes;
    wanted.view = to.view;
    wanted.axes = to.axes;
  }

  /// Checks that an input view and an output view fit the model. Returns the number of samples in the input view.
  std::int64_t checked_samples(const SampleView& from, const SampleView& to) {
    take(from, to);
    const std::int64_t n = samples_of(state.layout(), given);
    require<UsageError>(n <= max_batch, "the input has ", n, " samples, expected at most ", max_batch,
                        " (InferenceOptions::max_batch)");
    require_output(state.layout(), wanted, n);
    return n;
  }

  Context& context;
  std::int64_t max_batch;
  StepState state;
  std::optional<MlpPass> mlp;  ///< used instead of `plans` if the model is a chain of small linear layers
  /// Data of the last run(), for run_again(). `known` is false unless that run had one view and was computed in place.
  struct {
    bool known = false;
    Range read{}, written{};  ///< ranges relative to the address of the view's first element
    std::size_t read_size = 1, written_size = 1;
  } again;
  std::deque<Plan> plans;  ///< one plan per batch size, in ascending order of the batch sizes; empty if `mlp` is used
  Buffer workspace;
  Buffer out;
  TensorView output;  ///< view of `out` with shape (max_batch, output shape)
  std::vector<int> first;
  FieldView given;  ///< input view that run() handles now
  FieldView wanted;
  std::vector<std::int64_t> samples;  ///< number of samples in each input view of run()
  SyncGuard idle;                     ///< destroyed first, to wait for queued work
};

Inference::Inference(Context& context, const Model& model, const ParameterSet& parameters,
                     const InferenceOptions& options)
    : impl_(std::make_unique<Impl>(context, model, parameters, options)) {}

Inference::~Inference() = default;

void Inference::run(const TensorView& in, const TensorView& out, std::string_view in_axes, std::string_view out_axes) {
  const SampleView from{in, in_axes};
  const SampleView to{out, out_axes};
  run(std::span(&from, 1), std::span(&to, 1));
}

void Inference::run(std::span<const SampleView> in, std::span<const SampleView> out) {
  Impl& s = *impl_;
  s.again.known = false;
  require<UsageError>(in.size() == out.size(), "inference: ", in.size(), " inputs and ", out.size(),
                      " outputs, expected an output for each input");
  s.samples.resize(std::max(s.samples.size(), in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    try {
      s.samples[i] = s.checked_samples(in[i], out[i]);
    } catch (Error& error) {
      if (in.size() > 1) {
        error.annotate(concat("view ", i, " of ", in.size()));
      }
      throw;
    }
  }
  if (s.mlp && s.compute_in_place(in, out)) {
    return;
  }
  for (std::size_t begin = 0; begin < in.size();) {
    std::size_t end = begin;
    std::int64_t n = 0;
    for (; end < in.size() && n + s.samples[end] <= s.max_batch; ++end) {
      if (s.samples[end] > 0) {
        s.take(in[end], out[end]);
        ingest(s.context, s.state, s.given, n);
        n += s.samples[end];
      }
    }
    s.compute(n);
    std::int64_t at = 0;
    for (; begin < end; ++begin) {
      if (s.samples[begin] > 0) {
        s.take(in[begin], out[begin]);
        emit(s.context, s.state.layout(), s.output.slice(0, at, at + s.samples[begin]), s.wanted);
        at += s.samples[begin];
      }
    }
  }
}

bool Inference::run_again(const void* in, void* out) {
  Impl& s = *impl_;
  const auto& again = s.again;
  if (!again.known || Range::address(in) % again.read_size != 0 || Range::address(out) % again.written_size != 0 ||
      again.read.at(in).meets(again.written.at(out))) {
    return false;
  }
  s.mlp->run_again(s.context, in, out);
  return true;
}

bool Inference::runs_again() const {
  return impl_->again.known;
}

std::int64_t Inference::max_batch() const {
  return impl_->max_batch;
}
std::size_t Inference::bytes() const {
  return impl_->workspace.bytes() + impl_->state.bytes() + impl_->out.bytes();
}

}  // namespace lockstep::nn
