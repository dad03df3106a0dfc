#include <lockstep/nn/step/train_step.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <locale>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/gradients/bucket_marks.hpp>
#include <lockstep/comm/gradients/gradient_tree.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/hash.hpp>
#include <lockstep/kernels/lerp.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>
#include <lockstep/nn/step/gradient_check.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/nn/step/microbatch_pipeline.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

namespace {

/// Hash of the bytes of an arena, computed on its device: one number comes to the host.
std::uint64_t hash_of(Context& context, const TensorView& arena) {
  const Tensor result = Tensor::empty(context, Shape{}, DType::u64);
  std::uint64_t hash = 0;
  const SyncGuard idle(context.stream());
  ops::hash_range(context, arena, result);
  copy(context, result, TensorView(std::span(&hash, 1), Shape{}));
  context.synchronize();
  return hash;
}

/// Every rank's number, in rank order.
std::vector<std::uint64_t> gathered(comm::Communicator& control, std::uint64_t number) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(control.size()));
  Stream stream = Stream::host_inline();
  control.all_gather(stream, TensorView(std::span(&number, 1), {1}), TensorView(std::span(all), {control.size()}));
  return all;
}

comm::BucketOptions with_element_bytes(const TrainStepOptions& o) {
  comm::BucketOptions buckets = o.buckets;
  const DType travels = o.sums.dtype == DType::f32 ? ops::accumulation_dtype(o.plan.dtype) : o.sums.dtype;
  buckets.element_bytes = static_cast<std::int64_t>(size_of(travels));
  return buckets;
}

/// The arenas that a step gives its parameters: the gradients' in memory that NCCL has registered, where there is some.
ParameterArenas with_gradients(ParameterArenas lent, const Buffer& gradients) {
  if (gradients.bytes() > 0) {
    lent.gradients =
        TensorView(gradients.data(), DType::u8, gradients.device(), {static_cast<std::int64_t>(gradients.bytes())});
  }
  return lent;
}

/// The gradients, followed by the weight sum when the step counts.
std::vector<comm::GradientRange> reduced_ranges(const ParameterSet& set, bool count_samples) {
  std::vector<comm::GradientRange> ranges = gradient_ranges(set);
  if (count_samples) {
    ranges.push_back({"sum of the weights of samples", set.trainable_numel(), set.trainable_numel() + kArenaStep, 1});
  }
  return ranges;
}

std::int64_t checked_batch(const TrainStepOptions& o) {
  require<UsageError>(o.max_batch >= 1, "train step: max_batch is ", o.max_batch, ", expected at least 1");
  require_moving_average(o.average);
  require<UsageError>(o.microbatches >= 0, "train step: microbatches is ", o.microbatches, ", expected at least 0");
  require<UsageError>(o.plan.weights == LossWeights::none || o.sums.dtype == DType::f32,
                      "train step: gradients travel as ", o.sums.dtype,
                      " (sums.dtype), which would round the sum of the ",
                      "weights of the loss (PlanOptions::weights), too; expected f32");
  require<UsageError>(!o.count_samples || o.sums.dtype == DType::f32, "train step: gradients travel as ", o.sums.dtype,
                      ", which would round the number of samples, too; expected f32, or count_samples "
                      "off and Batch::global_valid");
  require<UsageError>(o.count_samples || o.plan.weights == LossWeights::none,
                      "train step: count_samples is off beside weights of the loss, expected it on: their sum is the "
                      "divisor");
  require<UsageError>(!o.plan.accumulate,
                      "train step: PlanOptions::accumulate is on, expected TrainStepOptions::microbatches");
  require<UsageError>(o.plan.beside == nullptr,
                      "train step: PlanOptions::beside is given, expected TrainStepOptions::weights_beside");
  require<UsageError>(!o.plan.exchange.given(),
                      "train step: PlanOptions::exchange is given, expected the ranks of StepRanks");
  require<UsageError>(!o.plan.sync_batch_norm,
                      "train step: PlanOptions::sync_batch_norm is on, expected TrainStepOptions::sync_batch_norm");
  return o.max_batch;
}

/// The virtual ranks of each of `ranks` ranks; 0: there are none.
std::int64_t virtual_ranks_of(const TrainStepOptions& o, int ranks) {
  const std::int64_t all = o.virtual_ranks;
  if (all == 0) {
    return 0;
  }
  require<UsageError>(all > 0 && std::has_single_bit(static_cast<std::uint64_t>(all)) && all % ranks == 0,
                      "train step: ", all, " virtual ranks on ", ranks, ranks == 1 ? " rank" : " ranks",
                      ", expected a power of two that the ranks divide");
  require<UsageError>(o.microbatches <= 1, "train step: ", o.microbatches,
                      " micro-batches beside virtual ranks, expected 1: each virtual rank is one");
  require<UsageError>(!o.sync_batch_norm,
                      "train step: sync_batch_norm is on beside virtual ranks, expected it off: "
                      "each of them has statistics of its own");
  require<UsageError>(size_of(o.sums.dtype) != 2, "train step: gradients travel as ", o.sums.dtype,
                      " beside virtual ranks, expected f32: the sums would be rounded where ranks meet");
  require<UsageError>(o.strategy != Strategy::zero1 || o.optimizer.clip_norm == 0,
                      "train step: the strategy is zero1 "
                      "beside virtual ranks and a clip_norm of ",
                      o.optimizer.clip_norm, ", expected ddp: zero1 adds the norm by rank");
  require<UsageError>(
      o.strategy != Strategy::zero1 || o.optimizer.kind != OptimizerKind::lars || o.optimizer.rule != nullptr,
      "train step: the strategy is zero1 beside virtual ranks and lars, expected ddp: zero1 adds norms by rank");
  return all / ranks;
}

/// How many micro-batches of a step are under way on this rank.
std::int64_t microbatches_of(const TrainStepOptions& o, int ranks) {
  return std::max<std::int64_t>({o.microbatches, virtual_ranks_of(o, ranks), 1});
}

/// A second context on the device of a step: for weight gradients (TrainStepOptions::weights_beside).
std::unique_ptr<Context> context_beside(Context& context, std::optional<Stream>& worker) {
  if (context.device().kind == DeviceKind::cuda) {
    return std::make_unique<CudaContext>(
        context.device(),
        CudaContextOptions{.memory = &context.memory(), .dependent_launches = context.stream().launches_dependently()});
  }
  worker = context.stream().is_inline() ? Stream::host_inline() : Stream::host_worker("weights");
  return std::make_unique<CpuContext>(
      CpuContextOptions{.threads = static_cast<CpuContext&>(context).threads(), .stream = &*worker});
}

/// The buckets of the gradients, and how the ranks divide them.
struct Division {
  Division(ParameterSet& set, const comm::Communicator& ranks, const TrainStepOptions& o)
      : gradients(reduced_ranges(set, o.count_samples)), buckets(comm::plan_buckets(gradients, with_element_bytes(o))) {
    if (o.strategy != Strategy::zero1) {
      return;
    }
    for (const comm::Bucket& bucket : buckets) {  // the weight sum, behind the parameters, is for all ranks
      shards.push_back(comm::shards_of(bucket.begin, std::min(bucket.end, set.trainable_numel()), ranks.size()));
    }
    set.shard_states(shards, ranks.rank(), ranks.size());
  }
  std::vector<comm::GradientRange> gradients;
  std::vector<comm::Bucket> buckets;
  std::vector<comm::Shards> shards;  ///< one per bucket with zero1
};

/// What sums the buckets; the parameters hold its state.
std::shared_ptr<comm::BucketSum> sum_of(Context& context, ParameterSet& set, const Division& division,
                                        const TrainStepOptions& o) {
  comm::SumOptions options = o.sums;
  if (o.virtual_ranks > 0 && options.hook == nullptr && options.compress.empty()) {
    options.order = comm::SumOrder::tree;
  }
  std::shared_ptr<comm::BucketSum> sum = comm::make_bucket_sum(options,
                                                               {.divided = o.strategy == Strategy::zero1,
                                                                .virtual_ranks = o.virtual_ranks > 0,
                                                                .loss_scale = o.optimizer.loss_scale.scales()},
                                                               o.seed);
  std::vector<TensorView> kept;
  for (const comm::SumState& state : sum->state(division.gradients)) {
    const std::int64_t elements = state.of_gradients ? set.trainable_numel() : state.elements;
    kept.push_back(set.add(context, {.name = "compression " + state.name,
                                     .view = TensorView(nullptr, set.dtype(), context.device(), {elements}),
                                     .sharing = state.of_gradients ? Sharing::sum_of_ranks : Sharing::same,
                                     .layout = state.of_gradients ? StateLayout::parameters : StateLayout::tensor,
                                     .saved_as = (state.of_gradients ? "." : "compression_") + state.name,
                                     .missing = Missing::kept_unlike}));
  }
  sum->keep_in(kept);
  return sum;
}

/// A step that looks for gradients that are not finite lets none of them into the parameters.
OptimizerOptions optimizer_options(const TrainStepOptions& o) {
  OptimizerOptions options = o.optimizer;
  options.skip_non_finite = options.skip_non_finite || o.check_gradients;
  return options;
}

/// 1 / (samples of all ranks' largest micro-batches), rounded down to a power of two: sums of it are exact, and
/// gradients have about the size of those of the mean.
double power_of_two_weight(std::int64_t max_batch, std::int64_t ranks) {
  return std::exp2(-std::ceil(std::log2(static_cast<double>(max_batch) * static_cast<double>(ranks))));
}

/// The sum of all, which begin anew.
Metrics taken(std::vector<Metrics>& sums) {
  const Metrics sum = sum_in_tree(sums);
  std::fill(sums.begin(), sums.end(), Metrics{});
  return sum;
}

}  // namespace

std::string_view name_of(Strategy strategy) {
  return strategy == Strategy::zero1 ? "zero1" : "ddp";
}

Strategy parse_strategy(std::string_view name) {
  require<UsageError>(name == "ddp" || name == "zero1", "strategy is '", name, "', expected ddp or zero1");
  return name == "zero1" ? Strategy::zero1 : Strategy::ddp;
}

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
  const auto infos = set.trainable();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const std::int64_t end = i + 1 < infos.size() ? infos[i + 1].offset : set.trainable_numel();
    const Shape shape = infos[i].spec.stored_shape();
    const std::int64_t rows = shape.rank() >= 2 ? shape[0] : 0;
    ranges.push_back({.name = infos[i].spec.name,
                      .begin = infos[i].offset,
                      .end = end,
                      .expected_writes = infos[i].writes,
                      .rows = rows,
                      .columns = rows > 0 ? infos[i].numel / rows : 0});
  }
  return ranges;
}

struct TrainStep::Impl {
  Impl(Context& ctx, const StepRanks* several, const Model& model, const TrainStepOptions& o)
      : alone(several == nullptr ? comm::LocalGroup(1).communicator(0) : nullptr),
        context(ctx),
        ranks(several != nullptr ? *several : StepRanks{*alone, ctx.stream()}),
        options(o),
        virtual_ranks(virtual_ranks_of(o, ranks.grad.size())),
        weight(power_of_two_weight(checked_batch(o), std::max<std::int64_t>(ranks.grad.size(), o.virtual_ranks))),
        gradient_memory(ranks.grad.exchange_memory()),
        gradient_arena(
            gradient_memory == nullptr || o.lent.gradients.given()
                ? Buffer()
                : Buffer(parameter_arena_bytes(model, o.plan.dtype).gradients, *gradient_memory, ctx.stream())),
        parameters(ctx, model, o.plan.dtype,
                   {.weight_decay = o.weight_decay,
                    .decay_all = o.decay_all,
                    .groups = o.groups,
                    .lent = with_gradients(o.lent, gradient_arena),
                    .statistics_rows = std::max<std::int64_t>(virtual_ranks, 1)}),
        idle_parameters(ctx.stream()),
        division(parameters, ranks.grad, o),
        sum(sum_of(ctx, parameters, division, o)),
        optimizer(ctx, parameters, optimizer_options(o), o.count_samples ? parameters.weight_sum() : TensorView()),
        pipeline(ctx, ranks.grad, o.max_batch, step_layout(model, o.plan), 2 * microbatches_of(o, ranks.grad.size()),
                 o.empty_steps),
        beside(o.weights_beside ? context_beside(ctx, beside_worker) : nullptr),
        plans(ctx, model, o.max_batch,
              virtual_ranks > 0     ? 1
              : o.microbatches == 0 ? 2
                                    : o.microbatches,
              plan_options()),
        workspace(plans.workspace_bytes(), ctx),
        reducer(std::make_unique<comm::GradientReducer>(ranks.grad, ctx.stream(), ranks.comm_stream, division.gradients,
                                                        division.buckets, reduced(),
                                                        comm::ReducerOptions{.shards = division.shards, .sum = sum})),
        gradient_written([this](int parameter) {
          if (check) {
            check->written(context, parameter);
          }
          doing("reducing gradients of step", steps + 1);
          where(parameter);
          reducer->gradient_written(parameter);
          doing("computing step", steps + 1);
          where(parameter);
        }),
        sum_over_ranks([this](const TensorView& values) { reducer->sum(values); }),
        shard_updated([this](int bucket) { reducer->gather(bucket, parameters.values()); }),
        graph_obstacle(obstacle()),
        graphs(graph_obstacle.empty() ? 4 * static_cast<std::size_t>(pipeline.states()) : 0),
        choices(plans.choices()),
        trained(static_cast<std::size_t>(std::max<std::int64_t>(virtual_ranks, 1))),
        evaluated(trained.size()),
        drained(ctx.device()),
        idle(ctx.stream()),
        idle_beside(beside != nullptr ? beside->stream() : ctx.stream()) {
    if (virtual_ranks > 0) {
      tree.emplace(ctx, parameters.gradients_and_weight_sum(), virtual_ranks);
    }
    if (o.check_gradients) {
      check.emplace(ctx, parameters, optimizer.gradient_norm(), pipeline.host_memory());
    }
    plans.bind(parameters, pipeline.state(0), workspace);
    if (o.average.on()) {
      add_average(ctx, parameters);
      own_pieces = parameters.state_pieces();
    }
    parameters.initialise(ctx, o.seed);
    sum->initialise(ctx);
    record_into(nullptr);
    mark_buckets();  // last: an error from here on would leave the watchdog with a step that is gone
  }

  ~Impl() {
    if (marks) {
      ranks.watchdog->forget_device(this);
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Tells the watchdog how far a GPU has come with the reducer's buckets. A single rank sums none, and its marks would
  /// be copies between its kernels.
  void mark_buckets() {
    if (ranks.watchdog == nullptr || ranks.comm_stream.device().kind != DeviceKind::cuda || ranks.grad.size() == 1) {
      return;
    }
    marks.emplace(context, ranks.comm_stream, reducer->gradients(), reducer->buckets(), pipeline.states());
    reducer->mark_into(&*marks);
    ranks.watchdog->watch_device(this, [this] { return marks->text(); });
  }

  /// The buckets of this step are about to be summed, in the state with that index.
  void begin_marks(int state) noexcept {
    if (marks) {
      marks->begin(state, steps + 1);
    }
    summed_state = state;
  }

  void doing(const char* what, std::int64_t number) const noexcept {
    if (ranks.watchdog != nullptr) {
      ranks.watchdog->begin(what, number);
    }
  }

  /// How far backward is when it has written this gradient.
  void where(int parameter) const noexcept {
    if (ranks.watchdog != nullptr) {
      std::array<char, 96> text{};
      std::snprintf(text.data(), text.size(), "%d of %zu buckets enqueued, %s", reducer->started(),
                    reducer->buckets().size(),
                    parameters.trainable()[static_cast<std::size_t>(parameter)].spec.name.c_str());
      ranks.watchdog->where(text.data());
    }
  }

  [[nodiscard]] std::string obstacle() const {
    std::string found = nn::graph_obstacle(context.device(), ranks.grad, options.cuda_graph);
    if (virtual_ranks > 0 && found.empty()) {
      require<UsageError>(options.cuda_graph != CudaGraph::on, "cuda graph is on beside virtual ranks, expected off");
      found = "a rank computes several virtual ones";
    }
    if (!sum->can_be_captured() && found.empty()) {
      require<UsageError>(options.cuda_graph != CudaGraph::on, "cuda graph is on beside the gradient hook ",
                          sum->name(), ", expected off: the hook decides on the host");
      found = "the gradient hook " + sum->name() + " decides on the host";
    }
    return found;
  }

  [[nodiscard]] PlanOptions plan_options() {
    PlanOptions plan = options.plan;
    plan.scaled_loss = options.optimizer.loss_scale.scales();
    plan.cooperative = plan.cooperative && ranks.grad.size() == 1;
    plan.beside = beside.get();
    plan.sync_batch_norm = options.sync_batch_norm && ranks.grad.size() > 1;
    if (plan.sync_batch_norm) {
      const comm::Communicator* own = ranks.statistics;
      require<UsageError>(own == nullptr || (own->size() == ranks.grad.size() && own->rank() == ranks.grad.rank()),
                          "train step: statistics is rank ", own != nullptr ? own->rank() : 0, " of ",
                          own != nullptr ? own->size() : 0, ", expected rank ", ranks.grad.rank(), " of ",
                          ranks.grad.size(), " as grad");
    }
    plan.exchange = {.ranks = ranks.statistics != nullptr ? ranks.statistics : &ranks.grad,
                     .before = [this] { begin_exchange(); },
                     .after = [this] { doing("computing step", steps + 1); }};
    return plan;
  }

  /// Before the plan exchanges anything (StepRanks::statistics).
  void begin_exchange() {
    doing("exchanging tensors of the plan in step", steps + 1);
    if (ranks.statistics == nullptr || context.device().kind == DeviceKind::cuda) {
      reducer->wait_for_started();
    }
  }

  void synchronize() {
    doing("waiting for the device after step", steps);
    comm::wait(context.stream(), drained, ranks.grad);
  }

  /// All rows of a batch, and those that count.
  struct Rows {
    std::int64_t all = 0;
    std::int64_t valid = 0;
  };
  [[nodiscard]] Rows rows_of(const Batch& batch, const StepLayout& layout) const {
    const std::int64_t rows = samples_of(layout, batch.fields, true);
    require<UsageError>(rows <= options.max_batch, "the batch has ", rows, " samples, expected at most ",
                        options.max_batch, " (max_batch)");
    require<UsageError>(batch.valid == Batch::kAllRows || (batch.valid >= 0 && batch.valid <= rows), "the batch has ",
                        rows, " samples, of which ", batch.valid, " are to count, expected 0 to ", rows);
    return {rows, batch.valid == Batch::kAllRows ? rows : batch.valid};
  }

  /// Enqueues a micro-batch of training. The calls are the same in every step; what changes is read from the state.
  void enqueue(int state, bool first, bool last) {
    Plan& plan = first ? plans.train : *plans.accumulate;
    plan.use(pipeline.state(state));
    const CallRecord& calls = first ? record.train : record.accumulate;
    if (!last) {
      plan.run(context, {}, calls);
      return;
    }
    begin_reduction(state);
    try {
      if (options.count_samples && !weighs()) {
        ops::strided_copy(context, pipeline.state(state).view(StateField::weight_sum), parameters.weight_sum());
        reducer->gradient_written(static_cast<int>(parameters.trainable().size()));
      }
      plan.run(context, gradient_written, calls);
      if (weighs()) {  // the plan wrote the sum
        reducer->gradient_written(static_cast<int>(parameters.trainable().size()));
      }
      doing("waiting for the gradients of step", steps + 1);
      reducer->finish();
    } catch (...) {
      reducer->abandon_step();
      throw;
    }
    update_parameters(pipeline.state(state).view(StateField::learning_rate));
  }

  /// From here on gradients may be written and summed. state: index of the one that the step's last micro-batch reads.
  void begin_reduction(int state) {
    if (check) {
      check->begin(context);
    }
    if (marks) {
      marks->use(state);
    }
    reducer->begin_step();
  }

  /// Enqueues the update from summed gradients.
  void update_parameters(const TensorView& learning_rate) {
    if (division.shards.empty()) {
      recorded(record.update, [&] { optimizer.update(context, learning_rate); });
      return;
    }
    doing("exchanging the parameters of step", steps + 1);
    recorded(record.update, [&] { optimizer.update_shards(context, learning_rate, sum_over_ranks, shard_updated); });
    reducer->finish_gather();
    parameters.round_weights(context);
  }

  /// Enqueues `work` on the compute stream, as a span where spans are recorded.
  template <class Work>
  void recorded(int name, Work&& work) {
    SpanRecorder::Scope span(record.train.recorder, context.stream(), SpanRecorder::Lane::compute, name);
    work();
    span.end();
  }

  void record_into(SpanRecorder* other) {
    require<StateError>(added == 0, "train step: record_into() between add() and update()");
    SpanRecorder* const recorder = other != nullptr ? other : for_tool.get();
    record = {};
    reducer->record_into(recorder);
    if (recorder == nullptr) {
      return;
    }
    record.train = plans.train.name_calls(*recorder);
    if (plans.accumulate) {
      record.accumulate = plans.accumulate->name_calls(*recorder);
    }
    record.input = recorder->add_name({.text = "input", .kind = SpanKind::input});
    record.update = recorder->add_name({.text = "update", .kind = SpanKind::update});
    record.average = recorder->add_name({.text = "moving average", .kind = SpanKind::update});
    record.graph = recorder->add_name({.text = "step as a CUDA graph", .kind = SpanKind::graph});
  }

  /// The same as one launch, where steps are captured. The first run of each place is not captured, so that libraries
  /// can initialise.
  void run(int state, bool first, bool last) {
    const std::size_t place = (first ? 2U : 0U) + (last ? 1U : 0U);
    if (graphs.empty() || !warm[place]) {
      enqueue(state, first, last);
      warm[place] = true;
      return;
    }
    const auto graph_of = [&](int of_state) -> Graph& {
      return graphs[4 * static_cast<std::size_t>(of_state) + place];
    };
    if (!graph_of(state).given()) {
      try {
        for (int each = 0; each < pipeline.states(); ++each) {
          graph_of(each) = Graph::capture(context.stream(), [&] { enqueue(each, first, last); });
          graph_of(each).upload(context.stream());
        }
      } catch (Error& error) {
        error.annotate("the step as a CUDA graph (cuda_graph off does without)");
        throw;
      }
    }
    recorded(record.graph, [&] { graph_of(state).launch(context.stream()); });
  }

  /// Enqueues the micro-batch of this step's next virtual rank.
  void run_virtual(int state) {
    parameters.take_statistics(context, added);
    plans.train.use(pipeline.state(state));
    plans.train.run(context, {}, record.train);
    parameters.keep_statistics(context, added);
    tree->add(context);
  }

  /// Enqueues what the moving average takes of the weights behind the update that was enqueued last.
  void take_average() {
    const double share = options.average.weight(steps_before + steps, scheduled_before + steps);
    if (share == 0) {
      return;
    }
    recorded(record.average, [&] {
      const MovingAverage average = average_of(parameters);
      for (const auto& [begin, end] : own_pieces) {
        ops::lerp(context, share, parameters.values().slice(0, begin, end),
                  parameters.state_range(average.weights, begin, end));
      }
      ops::lerp(context, share, parameters.statistics(), average.statistics);
    });
  }

  void begin_average() {
    require<StateError>(options.average.on(), "train step: begin_average() without a moving average, expected ",
                        "TrainStepOptions::average");
    require<StateError>(added == 0 && !averaged, "train step: begin_average() ",
                        averaged ? "a second time" : "between add() and update()");
    // What is overwritten is kept first.
    const TensorView values = parameters.values().slice(0, 0, parameters.trainable_numel());
    const TensorView buffers = parameters.evaluation_buffer_arena();
    if (buffers.numel() > 0) {
      synchronize();  // before a copy to the host, which does not look after the communicator
      kept_buffers.resize(static_cast<std::size_t>(buffers.numel()));
      copy_now(context, buffers, TensorView(std::span<double>(kept_buffers), buffers.shape));
    }
    ops::strided_copy(context, values, parameters.gradients());
    averaged = true;
    try {
      const MovingAverage average = average_of(parameters);
      for (const auto& [begin, end] : own_pieces) {
        ops::strided_copy(context, parameters.state_range(average.weights, begin, end), values.slice(0, begin, end));
      }
      for (auto bucket = static_cast<int>(division.shards.size()) - 1; bucket >= 0; --bucket) {
        shard_updated(bucket);
      }
      reducer->finish_gather();
      parameters.round_weights(context);
      if (buffers.numel() > 0) {
        ops::strided_copy(context, average.buffers, buffers);
      }
    } catch (...) {
      try {
        end_average();
      } catch (...) {  // the first error is what the caller gets
      }
      throw;
    }
  }

  void require_not_averaged(const char* call) const {
    require<StateError>(!averaged, "train step: ", call, " between begin_average() and end_average()");
  }

  void end_average() {
    require<StateError>(averaged, "train step: end_average() without begin_average() before");
    averaged = false;
    ops::strided_copy(context, parameters.gradients(), parameters.values().slice(0, 0, parameters.trainable_numel()));
    parameters.round_weights(context);
    const TensorView buffers = parameters.evaluation_buffer_arena();
    if (buffers.numel() > 0) {
      copy_now(context, TensorView(std::span<double>(kept_buffers), buffers.shape), buffers);
    }
  }

  void add(const Batch& batch, bool last, double rate) {
    require_not_averaged("a step");
    const Rows rows = rows_of(batch, plans.train.layout());
    require<UsageError>(options.count_samples == (batch.global_valid == 0), "the batch says global_valid ",
                        batch.global_valid, ", expected ",
                        options.count_samples ? "0: this step counts its samples (count_samples)"
                                              : "the samples of all ranks: this step does not count them");
    require<StateError>(virtual_ranks == 0 || added < virtual_ranks, "train step: micro-batch ", added + 1,
                        " of a step, expected one for each of the ", virtual_ranks, " virtual ranks of this rank");
    require<StateError>(added == 0 || plans.accumulate.has_value() || virtual_ranks > 0,
                        "train step: a second micro-batch, expected one (TrainStepOptions::microbatches is 1)");
    try {
      doing("waiting for the device before step", steps + 1);
      samples += static_cast<double>(rows.valid);
      int state = 0;
      recorded(record.input, [&] {
        state = pipeline.begin(
            batch,
            {.learning_rate = rate,
             .sample_weight = options.count_samples ? weight : 1.0 / static_cast<double>(batch.global_valid),
             .valid = rows.valid,
             .epoch = batch.epoch,
             .weight_sum = sum_of_weights()},
            first_id());
      });
      doing("computing step", steps + 1);
      if (last) {
        begin_marks(state);
      }
      if (virtual_ranks > 0) {
        run_virtual(state);
      } else {
        run(state, added == 0, last);
      }
    } catch (...) {
      abandon();
      throw;
    }
    Metrics& sums = trained[static_cast<std::size_t>(virtual_ranks > 0 ? added : 0)];
    if (last && check) {
      check->keep(context, steps + 1);
    }
    pipeline.end(static_cast<double>(rows.valid), sums, steps + 1, last ? weight_sum() : std::nullopt);
    ++added;
    ids += virtual_ranks > 0 ? 0 : 1;
    if (last) {
      finish_step();
    }
  }

  /// The weight sum of a step's last micro-batch, summed over the ranks; an empty view when the step does not count.
  [[nodiscard]] std::optional<TensorView> weight_sum() const {
    return options.count_samples ? parameters.weight_sum() : TensorView();
  }

  /// True when the plans read weights and write their sum.
  [[nodiscard]] bool weighs() const { return options.plan.weights != LossWeights::none; }

  /// The sum of the weights of this rank's samples, when the host counts them.
  [[nodiscard]] double sum_of_weights() const { return samples * weight; }

  /// The first id of samples that came without ids: unique within a run.
  [[nodiscard]] std::int64_t first_id() const {
    const std::int64_t first = virtual_ranks > 0 ? (ids * ranks.grad.size() + ranks.grad.rank()) * virtual_ranks + added
                                                 : ids * ranks.grad.size() + ranks.grad.rank();
    return first * options.max_batch;
  }

  void finish_step() {
    ++steps;
    summed_state = -1;
    take_average();
    ids += virtual_ranks > 0 ? 1 : 0;
    added = 0;
    samples = 0;
  }

  void update(double rate) {
    require<StateError>(added > 0, "train step: update() without a batch, expected add() before");
    require<StateError>(virtual_ranks == 0 || added == virtual_ranks, "train step: update() after ", added,
                        " micro-batches, expected one for each of the ", virtual_ranks, " virtual ranks of this rank");
    // The optimizer reads the learning rate in the state of the last micro-batch.
    const int state = pipeline.last_state();
    const TensorView& learning_rate = pipeline.state(state).view(StateField::learning_rate);
    ops::fill(context, rate, learning_rate);
    begin_marks(state);
    begin_reduction(state);
    try {
      const int gradients = static_cast<int>(parameters.trainable().size());
      if (options.count_samples) {
        if (!weighs()) {
          ops::fill(context, sum_of_weights(), parameters.weight_sum());
        }
        reducer->gradient_written(gradients);
      }
      for (int parameter = 0; parameter < gradients; ++parameter) {
        for (int write = 0; write < parameters.parameters()[static_cast<std::size_t>(parameter)].writes; ++write) {
          gradient_written(parameter);
        }
      }
      reducer->finish();
      update_parameters(learning_rate);
      if (check) {
        check->keep(context, steps + 1);
      }
      pipeline.end_step(*weight_sum());
    } catch (...) {
      reducer->abandon_step();
      abandon();
      throw;
    }
    finish_step();
  }

  /// What the reducer sums.
  [[nodiscard]] TensorView reduced() const {
    return options.count_samples ? parameters.gradients_and_weight_sum() : parameters.gradients();
  }

  void update(const Batch& batch, double rate) {
    add(batch, virtual_ranks == 0, rate);
    if (virtual_ranks > 0) {
      update(rate);
    }
  }

  void abandon() {
    pipeline.forget(added);
    if (marks && summed_state >= 0) {  // its buckets may stay where they are
      marks->forget(summed_state);
      summed_state = -1;
    }
    if (tree) {
      tree->restart();
    }
    added = 0;
    samples = 0;
  }

  [[nodiscard]] StepLoss loss() {
    const MicrobatchPipeline::Finished& finished = pipeline.finished();
    return {finished.step == 0 ? 0 : finished.metrics.loss(), finished.step};
  }

  std::unique_ptr<comm::Communicator> alone;  ///< of one rank
  Context& context;
  StepRanks ranks;
  TrainStepOptions options;
  std::int64_t virtual_ranks;                       ///< of this rank; 0: TrainStepOptions::virtual_ranks is off
  double weight;                                    ///< of a sample, when the step counts
  std::unique_ptr<MemoryResource> gradient_memory;  ///< that NCCL has registered; nullptr: the context's
  Buffer gradient_arena;                            ///< there
  ParameterSet parameters;
  SyncGuard idle_parameters;  ///< waits for queued work on their memory when a later member throws
  Division division;
  std::shared_ptr<comm::BucketSum> sum;  ///< of the reducer
  Optimizer optimizer;
  MicrobatchPipeline pipeline;
  std::optional<Stream> beside_worker;  ///< of the context beside, on a host
  std::unique_ptr<Context> beside;      ///< TrainStepOptions::weights_beside, else nullptr
  MicrobatchPlans plans;
  Buffer workspace;
  std::optional<comm::BucketMarks> marks;  ///< of a GPU's steps, for a watchdog
  int summed_state = -1;                   ///< of the step that is being enqueued, once its buckets may be summed
  std::unique_ptr<comm::GradientReducer> reducer;
  std::optional<comm::GradientTree> tree;  ///< of the virtual ranks
  std::optional<GradientCheck> check;      ///< TrainStepOptions::check_gradients
  std::function<void(int)> gradient_written;
  Optimizer::SumOverRanks sum_over_ranks;
  std::function<void(int)> shard_updated;
  std::string graph_obstacle;
  std::vector<Graph> graphs;   ///< by state and place in the step; empty when steps are not captured
  std::array<bool, 4> warm{};  ///< by place in the step: has run once
  Choices choices;             ///< of all plans
  std::int64_t steps = 0;
  std::int64_t steps_before = 0;            ///< of the run, for the moving average
  std::int64_t scheduled_before = 0;        ///< the same by the schedule
  std::vector<ops::ArenaPiece> own_pieces;  ///< ParameterSet::state_pieces()
  bool averaged = false;                    ///< between begin_average() and end_average()
  std::vector<double> kept_buffers;         ///< meanwhile
  std::int64_t added = 0;                   ///< micro-batches of this step
  std::int64_t ids = 0;                     ///< micro-batches so far, of all steps; of each virtual rank
  double samples = 0;                       ///< of this step, of this rank
  Batch given;                              ///< of add() and update() with fields
  std::vector<Metrics> trained;             ///< one, or one for each virtual rank
  std::vector<Metrics> evaluated;
  std::size_t next_evaluated = 0;
  std::unique_ptr<SpanRecorder> for_tool = SpanRecorder::for_tool();
  struct Record {
    CallRecord train;
    CallRecord accumulate;
    int input = 0;  ///< names
    int update = 0;
    int average = 0;
    int graph = 0;
  } record;       ///< nothing is recorded unless train has a recorder
  Event drained;  ///< of synchronize()
  SyncGuard idle;
  SyncGuard idle_beside;  ///< destroyed first
};

TrainStep::TrainStep(Context& context, const Model& model, const TrainStepOptions& options)
    : impl_(std::make_unique<Impl>(context, nullptr, model, options)) {}

TrainStep::TrainStep(Context& context, const StepRanks& ranks, const Model& model, const TrainStepOptions& options)
    : impl_(std::make_unique<Impl>(context, &ranks, model, options)) {}

TrainStep::~TrainStep() = default;

void TrainStep::add(const Batch& batch) {
  impl_->add(batch, false, 0);
}
void TrainStep::check(const Batch& batch) {
  static_cast<void>(impl_->rows_of(batch, layout()));
  static_cast<void>(wait_loss());
}
void TrainStep::add(std::initializer_list<FieldView> fields) {
  impl_->given.fields.assign(fields);
  impl_->add(impl_->given, false, 0);
}
void TrainStep::update(double rate) {
  impl_->update(rate);
}
void TrainStep::update(const Batch& batch, double rate) {
  impl_->update(batch, rate);
}
void TrainStep::update(std::initializer_list<FieldView> fields, double rate) {
  impl_->given.fields.assign(fields);
  impl_->update(impl_->given, rate);
}
void TrainStep::abandon() {
  impl_->abandon();
}

StepLoss TrainStep::loss() {
  impl_->pipeline.poll();
  return impl_->loss();
}
StepLoss TrainStep::wait_loss() {
  impl_->doing("waiting for the device after step", impl_->steps);
  impl_->pipeline.flush();
  return impl_->loss();
}
std::int64_t TrainStep::steps() const {
  return impl_->steps;
}
std::int64_t TrainStep::added() const {
  return impl_->added;
}

std::int64_t TrainStep::microbatches() const {
  return impl_->ids;
}
int TrainStep::ranks() const {
  return impl_->ranks.grad.size();
}
std::int64_t TrainStep::tree_arenas() const {
  return impl_->tree ? impl_->tree->arenas() : 0;
}
std::size_t TrainStep::tree_bytes() const {
  return impl_->tree ? impl_->tree->bytes() : 0;
}
void TrainStep::continue_from(std::int64_t steps, std::int64_t microbatches) {
  require<StateError>(impl_->added == 0, "train step: continue_from() between add() and update()");
  impl_->require_not_averaged("continue_from()");
  impl_->pipeline.flush();
  impl_->steps = steps;
  impl_->steps_before = 0;
  impl_->scheduled_before = 0;
  impl_->ids = microbatches;
}

void TrainStep::average_behind(std::int64_t updates, std::int64_t scheduled) {
  impl_->steps_before = updates - impl_->steps;
  impl_->scheduled_before = scheduled - impl_->steps;
}

void TrainStep::begin_average() {
  impl_->begin_average();
}
void TrainStep::end_average() {
  impl_->end_average();
}
void TrainStep::require_not_averaged(const char* call) const {
  impl_->require_not_averaged(call);
}

void TrainStep::evaluate(const Batch& batch) {
  Impl& s = *impl_;
  require<StateError>(s.added == 0, "train step: evaluate() between add() and update()");
  const Impl::Rows rows = s.rows_of(batch, s.plans.evaluate.layout());
  const int state = s.pipeline.begin(
      batch, {.learning_rate = 0, .sample_weight = 1, .valid = rows.valid, .epoch = batch.epoch, .weight_sum = 0});
  s.plans.evaluate.use(s.pipeline.state(state));
  s.plans.evaluate.run(s.context);
  s.pipeline.end(static_cast<double>(rows.valid), s.evaluated[s.next_evaluated]);
  s.next_evaluated = (s.next_evaluated + 1) % s.evaluated.size();
}

Metrics TrainStep::take_evaluated() {
  impl_->pipeline.flush();
  impl_->next_evaluated = 0;
  return taken(impl_->evaluated);
}

Metrics TrainStep::take_trained() {
  impl_->pipeline.flush();
  return taken(impl_->trained);
}

std::span<const Metrics> TrainStep::metrics_of(std::int64_t step) {
  impl_->pipeline.poll();
  return impl_->pipeline.metrics_of(step);
}

int TrainStep::steps_under_way() const {
  return impl_->context.stream().is_inline() ? 0 : 2;
}

void TrainStep::broadcast(int root) {
  Impl& s = *impl_;
  s.require_not_averaged("broadcast()");
  for (const State& state : s.parameters.states().all()) {
    if (state.view.numel() > 0 && (state.sharing == Sharing::same || state.sharing == Sharing::of_rank)) {
      s.ranks.grad.broadcast(s.context.stream(), state.view, root);
    }
  }
  s.parameters.round_weights(s.context);
  s.synchronize();
}

TensorView TrainStep::register_state(const StateSpec& spec) {
  return impl_->parameters.register_state(impl_->context, spec);
}

void TrainStep::require_same_state(comm::Communicator& control, const std::string& more) {
  Impl& s = *impl_;
  s.synchronize();  // a copy to pageable memory waits without checking the communicator
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << more;
  text << s.parameters.states().text();
  for (const State& state : s.parameters.states().all()) {
    if (state.sharing == Sharing::same) {
      text << state.name << " with hash " << hash_of(s.context, state.view) << '\n';
    }
  }
  comm::require_same_on_all_ranks(control, text.str());
}

void TrainStep::check_replicas(comm::Communicator& control) {
  Impl& s = *impl_;
  s.synchronize();
  const auto differing = [&](const TensorView& view) {  // ranks that have other bits than rank 0
    const std::vector<std::uint64_t> hashes = gathered(control, hash_of(s.context, view));
    std::string ranks;
    for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
      ranks += hashes[rank] == hashes[0] ? "" : concat(ranks.empty() ? "" : ", ", rank);
    }
    return ranks;
  };
  if (differing(s.parameters.values()).empty()) {
    return;
  }
  for (std::size_t i = 0; i < s.parameters.parameters().size(); ++i) {
    const std::string ranks = differing(s.parameters.value(static_cast<int>(i)));
    require<comm::CollectiveError<comm::ReplicaError>>(ranks.empty(), "the replicas differ after step ", s.steps,
                                                       ": parameter '", s.parameters.parameters()[i].spec.name,
                                                       "' of rank(s) ", ranks, " is not that of rank 0");
  }
  throw comm::CollectiveError<comm::ReplicaError>(
      concat("the replicas differ after step ", s.steps, ": in the padding behind a parameter"));
}

std::string TrainStep::non_finite_gradients(std::int64_t step, comm::Communicator& control) {
  Impl& s = *impl_;
  require<StateError>(s.check.has_value(),
                      "train step: non_finite_gradients() without TrainStepOptions::check_gradients");
  s.pipeline.poll();
  require<StateError>(!s.pipeline.metrics_of(step).empty(), "train step: non_finite_gradients(", step,
                      "), expected one of the last steps that are done, up to ", s.pipeline.finished().step);
  return s.check->finite(step) ? std::string() : s.check->text(step, control);
}

void TrainStep::synchronize() {
  impl_->synchronize();
}

void TrainStep::record_into(SpanRecorder* recorder) {
  impl_->record_into(recorder);
}

SpanRecorder* TrainStep::recorder() const {
  return impl_->record.train.recorder;
}

std::size_t TrainStep::spans_of_a_step() const {
  const Impl& s = *impl_;
  // Of a micro-batch its calls and its input; of a bucket the point, the sum, the exchange, a wait for each of these
  // and one before a layer; the update, the moving average and two waits.
  const auto microbatches =
      static_cast<std::size_t>(std::max({s.options.microbatches, s.virtual_ranks, std::int64_t{1}}));
  return microbatches * (s.plans.train.calls().size() + 1) + 6 * s.division.buckets.size() + 4;
}

ParameterSet& TrainStep::parameters() {
  return impl_->parameters;
}
const Plan& TrainStep::train_plan() const {
  return impl_->plans.train;
}
const Plan& TrainStep::evaluation_plan() const {
  return impl_->plans.evaluate;
}
const StepLayout& TrainStep::layout() const {
  return impl_->plans.train.layout();
}
const Choices& TrainStep::choices() const {
  return impl_->choices;
}
comm::GradientReducer& TrainStep::reducer() {
  return *impl_->reducer;
}
Optimizer& TrainStep::optimizer() {
  return impl_->optimizer;
}
Context& TrainStep::context() {
  return impl_->context;
}
const std::string& TrainStep::graph_obstacle() const {
  return impl_->graph_obstacle;
}
MemoryResource& TrainStep::host_memory() {
  return impl_->pipeline.host_memory();
}
void TrainStep::wait_for_copies() {
  impl_->pipeline.wait_for_copies();
}

std::size_t TrainStep::planned_bytes() const {
  const Impl& s = *impl_;
  return s.parameters.bytes() + s.optimizer.bytes() + s.workspace.bytes() + s.pipeline.bytes() + s.reducer->bytes() +
         tree_bytes() + (s.check ? s.check->bytes() : 0);
}

}  // namespace lockstep::nn
