#include <lockstep/nn/run/trainer.hpp>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/kernels/hash.hpp>
#include <lockstep/nn/plan/pass_plans.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/nn/step/microbatch_pipeline.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

namespace {

Metrics sum_over_ranks(comm::Communicator& control, const Metrics& own) {
  // In rank order, so that every rank has the same bits.
  const std::vector<double> losses = comm::all_gather_value(control, own.loss_sum);
  const std::vector<double> correct = comm::all_gather_value(control, own.correct);
  const std::vector<double> top_k_correct = comm::all_gather_value(control, own.top_k_correct);
  const std::vector<double> samples = comm::all_gather_value(control, own.samples);
  Metrics sum;
  for (std::size_t r = 0; r < losses.size(); ++r) {
    sum.loss_sum += losses[r];
    sum.correct += correct[r];
    sum.top_k_correct += top_k_correct[r];
    sum.samples += samples[r];
  }
  return sum;
}

/// Everything that must be equal on all ranks, one item a line.
std::string contract(const Model& model, const DataSplit& data, const TrainerOptions& options, const Choices& choices) {
  std::ostringstream text;
  text << "version " << version() << '\n' << "model " << model.name() << '\n';
  for (const Model::Parameter& parameter : model.parameters()) {
    text << "parameter " << parameter.spec.name << ' ' << parameter.spec.shape << ' ' << options.plan.dtype << '\n';
  }
  for (const BufferSpec& buffer : model.buffers()) {
    text << "buffer " << buffer.name << ' ' << buffer.shape << '\n';
  }
  text << "training images " << data.train->size() << '\n'
       << "test images " << data.test->size() << '\n'
       << "seed " << options.seed << '\n'
       << "global_batch " << options.global_batch << '\n'
       << "accumulate " << options.accumulate << '\n'
       << "top_k " << options.plan.top_k << '\n'
       << "buckets " << options.buckets.bucket_bytes << ' ' << options.buckets.tail_bytes << ' '
       << options.buckets.head_bytes << ' ' << options.buckets.backward_s << ' ' << options.buckets.all_reduce.text()
       << '\n';
  for (const auto& [name, value] : option_texts(options, data)) {
    text << name << ' ' << value << '\n';
  }
  for (const auto& [call, choice] : choices) {
    text << "choice for " << call << ' ' << choice << '\n';
  }
  return text.str();
}

/// Hash of the bytes of an arena, worked out where it is: one number comes to the host.
std::uint64_t hash_of(Context& context, const TensorView& arena) {
  const Tensor result = Tensor::empty(context, Shape{}, DType::u64);
  std::uint64_t hash = 0;
  const IdleAtEnd idle(context.stream());
  ops::hash_range(context, arena, result);
  copy(context, result, TensorView(std::span(&hash, 1), Shape{}));
  context.synchronize();
  return hash;
}

}  // namespace

std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted) {
  if (wanted == CudaGraph::off) {
    return "switched off";
  }
  std::string obstacle;
  if (device.kind != DeviceKind::cuda) {
    obstacle = concat("the device is ", device);
  } else if (!gradients.can_be_captured()) {
    obstacle = concat("the ", gradients.backend(), " communicator cannot be captured");
  }
  require<UsageError>(wanted != CudaGraph::on || obstacle.empty(), "cuda graph is on, expected off: ", obstacle);
  return obstacle;
}

std::vector<comm::GradientRange> gradient_ranges(const ParameterSet& set) {
  std::vector<comm::GradientRange> ranges;
  const auto infos = set.parameters();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const std::int64_t end = i + 1 < infos.size() ? infos[i + 1].offset : set.numel();
    ranges.push_back({infos[i].spec.name, infos[i].offset, end, infos[i].writes});
  }
  return ranges;
}

std::map<std::string, std::string> option_texts(const TrainerOptions& options, const DataSplit& data) {
  const auto text = [](const auto&... values) {
    std::ostringstream out;
    out.precision(17);
    const char* separator = "";
    ((out << std::exchange(separator, " ") << values), ...);
    return out.str();
  };
  const ops::AugmentDesc& augment = options.plan.augment;
  std::string milestones;
  for (const std::int64_t milestone : options.schedule.milestones) {
    milestones += concat(milestones.empty() ? "" : " ", milestone);
  }
  std::map<std::string, std::string> texts{{"dtype", text(options.plan.dtype)},
                                           {"learning_rate", text(options.schedule.base)},
                                           {"schedule", text(name_of(options.schedule.kind))},
                                           {"warmup_steps", text(options.schedule.warmup_steps)},
                                           {"total_steps", text(options.schedule.total_steps)},
                                           {"milestones", milestones},
                                           {"gamma", text(options.schedule.gamma)},
                                           {"optimizer", text(name_of(options.optimizer.kind))},
                                           {"clip_norm", text(options.optimizer.clip_norm)},
                                           {"skip_non_finite", text(options.optimizer.skip_non_finite)},
                                           {"weight_decay", text(options.weight_decay)},
                                           {"decay_norm_and_bias", text(options.decay_all)},
                                           {"loss", text(name_of(options.plan.loss))},
                                           {"huber_delta", text(options.plan.huber_delta)},
                                           {"dropout_seed", text(options.plan.dropout_seed)},
                                           {"label_smoothing", text(options.plan.label_smoothing)},
                                           {"pad", text(augment.pad)},
                                           {"flip", text(augment.flip)},
                                           {"mean", text(augment.mean[0], augment.mean[1], augment.mean[2])},
                                           {"std", text(augment.std[0], augment.std[1], augment.std[2])},
                                           {"augmentation_seed", text(augment.seed)},
                                           {"keep_last", text(options.keep_last)},
                                           {"training_data", text(data.train->fingerprint())},
                                           {"test_data", text(data.test->fingerprint())}};
  if (options.accumulate > 1) {
    texts["accumulate"] = text(options.accumulate);
  }
  if (options.optimizer.loss_scale.scales()) {
    texts["loss_scale"] = text_of(options.optimizer.loss_scale);
  }
  if (options.reduce_dtype != DType::f32) {
    texts["reduce_dtype"] = text(options.reduce_dtype);
  }
  if (options.plan.tf32) {
    texts["tf32"] = text(options.plan.tf32);
  }
  const OptimizerOptions& optimizer = options.optimizer;
  if (optimizer.kind == OptimizerKind::sgd || optimizer.kind == OptimizerKind::lars) {
    texts["momentum"] = text(optimizer.momentum);
    texts["nesterov"] = text(optimizer.nesterov);
  } else {
    texts["betas"] = text(optimizer.beta1, optimizer.beta2);
  }
  if (optimizer.kind != OptimizerKind::sgd) {
    texts["epsilon"] = text(optimizer.epsilon);
  }
  if (optimizer.kind == OptimizerKind::lars) {
    texts["trust_coefficient"] = text(optimizer.trust_coefficient);
  }
  return texts;
}

struct Trainer::State {
  State(Context& ctx, const Ranks& r, const Model& m, const DataSplit& d, const TrainerOptions& o)
      : context(ctx),
        ranks(r),
        data(d),
        options(o),
        train_sampler(sampler_of(*d.train, true, r, o)),
        test_sampler(sampler_of(*d.test, false, r, o)),
        loader_bytes(Loader::memory_bytes(*d.train, train_sampler, loader_options()) +
                     Loader::memory_bytes(*d.test, test_sampler, loader_options())),
        capacity(share_of(train_sampler.capacity(), o.accumulate, 0).count),
        parameters(ctx, m, o.plan.dtype, {.weight_decay = o.weight_decay, .decay_all = o.decay_all, .memory = nullptr}),
        idle_parameters(ctx.stream()),
        optimizer(ctx, parameters, o.optimizer),
        pipeline(ctx, r.grad, capacity, step_layout(m, o.plan), o.accumulate),
        plans(ctx, m, capacity, o.accumulate, plan_options(o)),
        workspace(plans.workspace_bytes(), ctx),
        reducer(r.grad, ctx.stream(), r.comm_stream, gradient_ranges(parameters),
                comm::plan_buckets(gradient_ranges(parameters), with_element_bytes(o)), parameters.gradients(),
                {.reduce_dtype = o.reduce_dtype}),
        written([this](int parameter) {
          doing("reducing gradients of step", position.step + 1);
          reducer.written(parameter);
          doing("computing step", position.step + 1);
        }),
        graph_obstacle(nn::graph_obstacle(ctx.device(), r.grad, o.cuda_graph)),
        graphs(graph_obstacle.empty() ? 4 * static_cast<std::size_t>(pipeline.states()) : 0),
        choices(plans.choices()),
        contract(nn::contract(m, d, o, choices)),
        drained(ctx.device()),
        idle(ctx.stream()) {
    plans.bind(parameters, pipeline.state(0), workspace);
  }

  static PlanOptions plan_options(const TrainerOptions& o) {
    PlanOptions plan = o.plan;
    plan.scaled_loss = o.optimizer.loss_scale.scales();
    return plan;
  }

  static comm::BucketOptions with_element_bytes(const TrainerOptions& o) {
    comm::BucketOptions buckets = o.buckets;
    const DType travels = o.reduce_dtype == DType::f32 ? ops::accumulation_dtype(o.plan.dtype) : o.reduce_dtype;
    buckets.element_bytes = static_cast<std::int64_t>(size_of(travels));
    return buckets;
  }

  static Sampler sampler_of(const Dataset& dataset, bool training, const Ranks& r, const TrainerOptions& o) {
    return Sampler({.size = dataset.size(),
                    .batch_size = o.global_batch,
                    .ranks = r.grad.size(),
                    .rank = r.grad.rank(),
                    .shuffle = training,
                    .keep_last = !training || o.keep_last,
                    .seed = o.seed});
  }

  [[nodiscard]] LoaderOptions loader_options() const {
    return {.workers = options.loader_workers, .prefetch = options.prefetch, .epoch = 0, .batch = 0};
  }

  void doing(const char* what, std::int64_t number) const noexcept {
    if (ranks.watchdog != nullptr) {
      ranks.watchdog->begin(what, number);
    }
  }

  /// Waits for the context's stream, where operations of ranks.grad may be.
  void synchronize() {
    doing("waiting for the device after step", position.step);
    comm::wait(context.stream(), drained, ranks.grad);
  }

  /// The loader of the training set, from the current position on.
  void open_loader() {
    pipeline.wait_for_copies();
    loader.reset();
    LoaderOptions from_here = loader_options();
    from_here.epoch = position.epoch;
    from_here.batch = position.batch;
    loader = std::make_unique<Loader>(*data.train, train_sampler, pipeline.host_memory(), from_here);
    behind = false;
  }

  /// A pass of a batch: what it enqueues between its input and its metrics is run(state). Rows beyond the samples are
  /// not read: the plan masks them.
  template <class Run>
  void pass(const Batch& batch, std::int64_t number, double learning_rate, Metrics& sums, const Run& run) {
    const Share rows = share_of(batch.valid, options.accumulate, number);
    // A single pass takes the zeros behind the samples too.
    const std::int64_t count = options.accumulate == 1 ? capacity : rows.count;
    run(pipeline.begin(batch, rows.begin, count,
                       {.learning_rate = learning_rate,
                        .loss_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(batch.global_valid, 1)),
                        .valid = rows.count,
                        .epoch = batch.epoch}));
    pipeline.end(static_cast<double>(rows.count), sums);
  }

  /// What a pass of training enqueues. It is the same for every step, and what changes is read from the state.
  void enqueue_training(int state, bool first, bool last) {
    Plan& plan = first ? plans.train : *plans.accumulate;
    plan.use(pipeline.state(state));
    if (!last) {
      plan.run(context);
      return;
    }
    reducer.begin_step();
    try {
      plan.run(context, written);
      doing("waiting for the gradients of step", position.step + 1);
      reducer.finish();
    } catch (...) {
      reducer.abandon_step();
      throw;
    }
    optimizer.update(context, pipeline.state(state).view(StateField::learning_rate));
  }

  /// The same as one launch, where steps are captured. The first step runs as it is: libraries make what they need.
  void run_training(int state, bool first, bool last) {
    if (graphs.empty() || !warm) {
      enqueue_training(state, first, last);
      return;
    }
    const auto graph_of = [&](int of_state) -> Graph& {
      return graphs[4 * static_cast<std::size_t>(of_state) + (first ? 2U : 0U) + (last ? 1U : 0U)];
    };
    if (!graph_of(state).given()) {
      try {
        for (int each = 0; each < pipeline.states(); ++each) {
          graph_of(each) = Graph::capture(context.stream(), [&] { enqueue_training(each, first, last); });
          graph_of(each).upload(context.stream());
        }
      } catch (Error& error) {
        error.annotate("the step as a CUDA graph (cuda_graph off does without)");
        throw;
      }
    }
    graph_of(state).launch(context.stream());
  }

  Context& context;
  Ranks ranks;
  const DataSplit& data;
  TrainerOptions options;
  Sampler train_sampler;
  Sampler test_sampler;
  std::size_t loader_bytes;
  std::int64_t capacity;
  ParameterSet parameters;
  IdleAtEnd idle_parameters;  ///< their memory is filled by queued work when a later member cannot be made
  Optimizer optimizer;
  PassPipeline pipeline;
  PassPlans plans;
  Buffer workspace;
  comm::GradientReducer reducer;
  std::function<void(int)> written;
  std::string graph_obstacle;
  std::vector<Graph> graphs;  ///< by state and place in the step; none where steps are not captured
  bool warm = false;          ///< a step has run
  std::unique_ptr<Loader> loader;
  bool behind = false;  ///< a step failed, whose batch the loader has given out
  Choices choices;      ///< of all plans
  std::string contract;
  Position position;
  Metrics window;
  Metrics evaluated;
  double samples_seen = 0;
  Event drained;   ///< of synchronize()
  IdleAtEnd idle;  ///< goes first
};

Trainer::Trainer(Context& context, const Ranks& ranks, const Model& model, const DataSplit& data,
                 const TrainerOptions& options) {
  (void)run_rules({.ranks = ranks.grad.size(), .global_batch = options.global_batch, .accumulate = options.accumulate});
  require<UsageError>(!options.plan.accumulate,
                      "trainer: PlanOptions::accumulate is on, expected TrainerOptions::accumulate passes");
  const StepLayout layout = step_layout(model, options.plan);
  require<UsageError>(layout.input_kind == InputKind::images && !layout.regression && layout.output.rank() == 1,
                      "the trainer takes models on u8 images with one class a sample, model ", model.name(),
                      " is none, or the loss is ", name_of(options.plan.loss),
                      "; for sequences and regressions run Plan and Optimizer");
  state_ = std::make_unique<State>(context, ranks, model, data, options);
  state_->parameters.initialise(context, options.seed);
}

Trainer::~Trainer() = default;

void Trainer::start() {
  state_->doing("agreeing on options and parameters after step", state_->position.step);
  comm::require_same_on_all_ranks(state_->ranks.control, state_->contract);
  broadcast_state();
  state_->open_loader();  // last: it may fail on one rank alone
}

void Trainer::require_same_state() {
  State& s = *state_;
  s.synchronize();  // before the copies, as in skipped_updates()
  std::ostringstream text;
  text << "epoch " << s.position.epoch << ", batch " << s.position.batch << ", step " << s.position.step << '\n'
       << "parameters with hash " << hash_of(s.context, s.parameters.values()) << '\n';
  for (const std::string& name : s.parameters.state_names()) {
    text << name << " with hash " << hash_of(s.context, s.parameters.state(name)) << '\n';
  }
  for (const std::string& name : s.parameters.counter_names()) {
    text << name << " with hash " << hash_of(s.context, s.parameters.counter(name)) << '\n';
  }
  if (s.parameters.loss_scale().given()) {
    text << "loss scale with hash " << hash_of(s.context, s.parameters.loss_scale()) << '\n'
         << "good updates with hash " << hash_of(s.context, s.parameters.loss_scale_good()) << '\n';
  }
  text << "averaged statistics with hash " << hash_of(s.context, s.parameters.evaluation_buffer_arena()) << '\n';
  comm::require_same_on_all_ranks(s.ranks.control, text.str());
}

void Trainer::step() {
  State& s = *state_;
  require<StateError>(s.loader != nullptr, "trainer: step() before start()");
  if (s.behind) {
    s.synchronize();
    s.open_loader();
  }
  const std::int64_t number = s.position.step + 1;
  s.doing("reading the batch of step", number);
  const Batch& batch = s.loader->next();
  const std::int64_t last = s.options.accumulate - 1;
  std::int64_t pass = 0;
  try {
    for (; pass <= last; ++pass) {
      s.doing("waiting for the device before step", number);
      s.pass(batch, pass, learning_rate(), s.window, [&](int state) {
        s.doing("computing step", number);
        s.run_training(state, pass == 0, pass == last);
      });
    }
  } catch (...) {
    s.pipeline.forget(pass);
    s.behind = true;
    throw;
  }
  s.warm = true;
  s.samples_seen += static_cast<double>(batch.valid);
  ++s.position.step;
  if (++s.position.batch == s.train_sampler.batches()) {
    s.position.batch = 0;
    ++s.position.epoch;
  }
}

const Position& Trainer::position() const {
  return state_->position;
}
std::int64_t Trainer::batches_per_epoch() const {
  return state_->train_sampler.batches();
}
double Trainer::learning_rate() const {
  return state_->options.schedule.at(state_->position.step);
}

std::int64_t Trainer::skipped_updates() {
  const TensorView& skipped = state_->optimizer.skipped();
  std::int64_t count = 0;
  if (skipped.given()) {
    state_->synchronize();  // a copy to pageable memory waits by itself, without a look at the communicator
    copy(state_->context, skipped, TensorView(std::span(&count, 1), Shape{}));
    state_->synchronize();
  }
  return count;
}

Metrics Trainer::take_metrics() {
  State& s = *state_;
  s.doing("waiting for the device after step", s.position.step);
  s.pipeline.flush();
  s.doing("adding up metrics of all ranks after step", s.position.step);
  return sum_over_ranks(s.ranks.control, std::exchange(s.window, Metrics{}));
}

void Trainer::reduce_buffers() {
  State& s = *state_;
  const std::vector<double> seen = samples_seen();
  double total = 0;
  for (const double samples : seen) {
    total += samples;
  }
  const std::int64_t n = s.parameters.buffer_arena().numel();
  if (total == 0 || n == 0) {
    return;  // nothing was trained since the evaluation buffers were loaded
  }
  const std::vector<double> all = gather_rank_buffers();
  std::vector<double> mean(static_cast<std::size_t>(n), 0.0);
  if (s.ranks.control.rank() == 0) {
    for (std::size_t r = 0; r < seen.size(); ++r) {
      const double weight = seen[r] / total;
      for (std::size_t i = 0; i < mean.size(); ++i) {
        mean[i] += weight * all[r * mean.size() + i];
      }
    }
  }
  Stream inline_stream = Stream::host_inline();
  const TensorView view(std::span<double>(mean), {n});
  s.ranks.control.broadcast(inline_stream, view, 0);
  copy(s.context, view, s.parameters.evaluation_buffer_arena());
  s.synchronize();
}

Metrics Trainer::evaluate() {
  State& s = *state_;
  reduce_buffers();
  s.pipeline.flush();
  s.evaluated = {};
  Loader loader(*s.data.test, s.test_sampler, s.pipeline.host_memory(), s.loader_options());
  const IdleAtEnd idle(s.context.stream());  // it waits for the copies
  for (std::int64_t i = 0; i < s.test_sampler.batches(); ++i) {
    s.doing("evaluating batch", i + 1);
    const Batch& batch = loader.next();
    for (std::int64_t pass = 0; pass < s.options.accumulate; ++pass) {
      s.pass(batch, pass, 0, s.evaluated, [&](int state) {
        s.plans.evaluate.use(s.pipeline.state(state));
        s.plans.evaluate.run(s.context);
      });
    }
  }
  s.doing("waiting for the device at the end of the evaluation after step", s.position.step);
  s.pipeline.flush();
  s.doing("adding up metrics of all ranks after step", s.position.step);
  return sum_over_ranks(s.ranks.control, s.evaluated);
}

std::vector<double> Trainer::samples_seen() {
  doing("gathering statistics of all ranks after step");
  return comm::all_gather_value(state_->ranks.control, state_->samples_seen);
}

std::vector<double> Trainer::gather_rank_buffers() {
  State& s = *state_;
  const std::int64_t n = s.parameters.buffer_arena().numel();
  std::vector<double> own(static_cast<std::size_t>(n));
  std::vector<double> all(static_cast<std::size_t>(n * s.ranks.control.size()));
  s.synchronize();  // before the copy, as in skipped_updates()
  copy(s.context, s.parameters.buffer_arena(), TensorView(std::span<double>(own), {n}));
  s.synchronize();
  doing("gathering statistics of all ranks after step");
  Stream inline_stream = Stream::host_inline();
  s.ranks.control.all_gather(inline_stream, TensorView(std::span<double>(own), {n}),
                             TensorView(std::span<double>(all), {n * s.ranks.control.size()}));
  if (s.ranks.control.rank() != 0) {
    all.clear();
  }
  return all;
}

void Trainer::restore(const Position& position, const std::vector<double>& own_buffers, double samples_seen) {
  State& s = *state_;
  const std::int64_t n = s.parameters.buffer_arena().numel();
  require<ShapeError>(static_cast<std::int64_t>(own_buffers.size()) == n, "restore: ", own_buffers.size(),
                      " buffer elements, expected ", n);
  require<UsageError>(
      position.epoch >= 0 && position.step >= 0 && position.batch >= 0 && position.batch < s.train_sampler.batches(),
      "restore: epoch ", position.epoch, ", batch ", position.batch, ", step ", position.step,
      ", expected a batch from 0 to ", s.train_sampler.batches() - 1, " and nothing negative");
  std::vector<double> host = own_buffers;
  copy(s.context, TensorView(std::span<double>(host), {n}), s.parameters.buffer_arena());
  s.synchronize();
  s.position = position;
  s.samples_seen = samples_seen;
  s.open_loader();
}

void Trainer::broadcast_state() {
  State& s = *state_;
  const auto send = [&](const TensorView& view) {
    if (view.numel() > 0) {
      s.ranks.grad.broadcast(s.context.stream(), view, 0);
    }
  };
  send(s.parameters.values());
  s.parameters.round_weights(s.context);
  for (const std::string& name : s.parameters.state_names()) {
    send(s.parameters.state(name));
  }
  for (const std::string& name : s.parameters.counter_names()) {
    send(s.parameters.counter(name));
  }
  if (s.parameters.loss_scale().given()) {
    send(s.parameters.loss_scale());
    send(s.parameters.loss_scale_good());
  }
  send(s.parameters.buffer_arena());
  send(s.parameters.evaluation_buffer_arena());
  s.synchronize();
}

ParameterSet& Trainer::parameters() {
  return state_->parameters;
}
const Plan& Trainer::train_plan() const {
  return state_->plans.train;
}
const Plan& Trainer::evaluation_plan() const {
  return state_->plans.evaluate;
}
const Choices& Trainer::choices() const {
  return state_->choices;
}
const comm::GradientReducer& Trainer::reducer() const {
  return state_->reducer;
}
comm::GradientReducer& Trainer::reducer() {
  return state_->reducer;
}
Context& Trainer::context() {
  return state_->context;
}

const std::string& Trainer::graph_obstacle() const {
  return state_->graph_obstacle;
}

std::size_t Trainer::planned_bytes() const {
  const State& s = *state_;
  return s.parameters.bytes() + s.optimizer.bytes() + s.workspace.bytes() + s.pipeline.bytes() + s.reducer.bytes() +
         s.loader_bytes;
}

void Trainer::doing(const char* what) const noexcept {
  state_->doing(what, state_->position.step);
}

}  // namespace lockstep::nn
