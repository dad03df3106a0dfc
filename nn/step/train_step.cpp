#include <lockstep/nn/step/train_step.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/model/flat_vector.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/nn/step/microbatch_pipeline.hpp>
#include <lockstep/nn/step/parts/gradient_check.hpp>
#include <lockstep/nn/step/parts/replicas.hpp>
#include <lockstep/nn/step/parts/step_average.hpp>
#include <lockstep/nn/step/parts/step_graphs.hpp>
#include <lockstep/nn/step/parts/step_progress.hpp>
#include <lockstep/nn/step/parts/step_trace.hpp>
#include <lockstep/nn/step/parts/virtual_ranks.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

/// Returns the memory for a step's parameters. This is `lent`, except that the gradients are in the buffer `gradients`
/// unless this buffer is empty. `gradients` must be memory that is registered with NCCL.
ParameterArenas with_gradients(ParameterArenas lent, const Buffer& gradients) {
  if (gradients.bytes() > 0) {
    lent.gradients =
        TensorView(gradients.data(), DType::u8, gradients.device(), {static_cast<std::int64_t>(gradients.bytes())});
  }
  return lent;
}

/// Makes a second context on the step's device for gradients of weights (TrainStepOptions::weights_beside). On a host,
/// `worker` becomes this context's stream.
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

/// The buckets of a step's gradients, their division over the ranks (zero1), and the algorithm that sums a bucket.
struct GradientBuckets {
  /// With zero1, divides the optimizer's states of `set`. Adds to `set` the states of gradient compression, if o.sums
  /// has one.
  GradientBuckets(Context& context, ParameterSet& set, const comm::Communicator& ranks, const TrainStepOptions& o)
      : gradients(gradient_ranges(set)) {
    const std::int64_t trainable = set.trainable_numel();
    if (o.count_samples) {
      gradients.push_back({"sum of the weights of samples", trainable, trainable + kArenaStep, 1});
    }
    comm::BucketOptions sizes = o.buckets;
    const DType travels = o.sums.dtype == DType::f32 ? ops::accumulation_dtype(o.plan.dtype) : o.sums.dtype;
    sizes.element_bytes = static_cast<std::int64_t>(size_of(travels));
    buckets = comm::plan_buckets(gradients, sizes);
    const bool divided = o.strategy == Strategy::zero1;
    if (divided) {
      for (const comm::Bucket& bucket : buckets) {  // the weight sum comes after the parameters and is not divided
        shards.push_back(comm::shards_of(bucket.begin, std::min(bucket.end, trainable), ranks.size()));
      }
      set.shard_states(shards, ranks.rank(), ranks.size());
    }
    comm::SumOptions sums = o.sums;
    if (o.virtual_ranks > 0 && sums.hook == nullptr && sums.compress.empty()) {
      sums.order = comm::SumOrder::tree;
    }
    const bool scales = o.optimizer.loss_scale.scales();
    sum = comm::make_bucket_sum(sums, {.divided = divided, .virtual_ranks = o.virtual_ranks > 0, .loss_scale = scales},
                                o.seed);
    std::vector<TensorView> kept;
    for (const comm::SumState& state : sum->state(gradients)) {
      const std::int64_t elements = state.of_gradients ? trainable : state.elements;
      kept.push_back(set.add(context, {.name = "compression " + state.name,
                                       .view = TensorView(nullptr, set.dtype(), context.device(), {elements}),
                                       .sharing = state.of_gradients ? Sharing::sum_of_ranks : Sharing::same,
                                       .layout = state.of_gradients ? StateLayout::parameters : StateLayout::tensor,
                                       .saved_as = (state.of_gradients ? "." : "compression_") + state.name,
                                       .missing = Missing::kept_unlike}));
    }
    sum->keep_in(kept);
  }
  /// Range of each trainable parameter's gradient in the arena. With TrainStepOptions::count_samples, one more range at
  /// the end holds the sum of the samples' weights (ParameterSet::weight_sum()).
  std::vector<comm::GradientRange> gradients;
  std::vector<comm::Bucket> buckets;
  std::vector<comm::Shards> shards;      ///< division of each bucket over the ranks; empty without zero1
  std::shared_ptr<comm::BucketSum> sum;  ///< algorithm that sums a bucket; its states are in the parameter set
};

/// Returns the optimizer's options. With check_gradients, the optimizer also skips updates whose gradients are not
/// finite.
OptimizerOptions optimizer_options(const TrainStepOptions& o) {
  OptimizerOptions options = o.optimizer;
  options.skip_non_finite = options.skip_non_finite || o.check_gradients;
  return options;
}

/// Returns the weight of a sample: 1 / (max_batch * ranks), rounded down to a power of two. Sums of such weights have
/// no rounding error, and weighted sums of gradients have about the magnitude of mean gradients.
double power_of_two_weight(std::int64_t max_batch, std::int64_t ranks) {
  return std::exp2(-std::ceil(std::log2(static_cast<double>(max_batch) * static_cast<double>(ranks))));
}

/// Returns the reason why micro-batches with these options cannot be captured, or an empty text if they can. With
/// CudaGraph::on, throws a UsageError with the reason instead of returning it.
std::string capture_obstacle(const TrainStepOptions& options, Device device, const comm::Communicator& gradients,
                             const comm::BucketSum& sum) {
  std::string found = graph_obstacle(device, gradients, options.cuda_graph);
  const bool virtuals = options.virtual_ranks > 0;
  if (!found.empty() || (!virtuals && sum.can_be_captured())) {
    return found;
  }
  const std::string hook = "the gradient hook " + sum.name();
  require<UsageError>(options.cuda_graph != CudaGraph::on, "cuda graph is on with ", virtuals ? "virtual ranks" : hook,
                      ", expected off", virtuals ? "" : ": the hook decides on the host");
  return virtuals ? "a rank computes several virtual ones" : hook + " decides on the host";
}

/// Returns the sum of all elements of `sums` and sets them to zero.
Metrics taken(std::vector<Metrics>& sums) {
  const Metrics sum = sum_in_tree(sums);
  std::fill(sums.begin(), sums.end(), Metrics{});
  return sum;
}

}  // namespace

std::vector<comm::GradientRange> gradient_ranges(const ParameterSet& set) {
  std::vector<comm::GradientRange> ranges;
  const auto infos = set.trainable();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const Shape shape = infos[i].spec.stored_shape();
    const std::int64_t rows = shape.rank() >= 2 ? shape[0] : 0;
    ranges.push_back({.name = infos[i].spec.name,
                      .begin = infos[i].offset,
                      .end = i + 1 < infos.size() ? infos[i + 1].offset : set.trainable_numel(),
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
        options(checked_options(o, ranks.grad.size())),
        virtual_ranks(o.virtual_ranks / ranks.grad.size()),
        weight(power_of_two_weight(o.max_batch, std::max<std::int64_t>(ranks.grad.size(), o.virtual_ranks))),
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
                    .statistics_rows = virtual_ranks.rows()}),
        idle_parameters(ctx.stream()),
        buckets(ctx, parameters, ranks.grad, o),
        optimizer(ctx, parameters, optimizer_options(o), o.count_samples ? parameters.weight_sum() : TensorView()),
        pipeline(ctx, ranks.grad, o.max_batch, step_layout(model, o.plan), 2 * most_microbatches(), o.empty_steps),
        beside(o.weights_beside ? context_beside(ctx, beside_worker) : nullptr),
        plans(ctx, model, o.max_batch,
              virtual_ranks.count() > 0 ? 1
              : o.microbatches == 0     ? 2
                                        : o.microbatches,
              plan_options()),
        workspace(plans.workspace_bytes(), ctx),
        progress(ranks.watchdog),
        reducer(std::make_unique<comm::GradientReducer>(
            ranks.grad, ctx.stream(), ranks.comm_stream, buckets.gradients, buckets.buckets,
            o.count_samples ? parameters.gradients_and_weight_sum() : parameters.gradients(),
            comm::ReducerOptions{.shards = buckets.shards, .sum = buckets.sum})),
        gradient_written([this](int parameter) {
          if (check) {
            check->written(context, parameter);
          }
          progress.doing("reducing gradients of step", steps + 1);
          progress.written(*reducer, parameter);
          reducer->gradient_written(parameter);
          progress.doing("computing step", steps + 1);
          progress.written(*reducer, parameter);
        }),
        sum_over_ranks([this](const TensorView& values) { reducer->sum(values); }),
        shard_updated([this](int bucket) { reducer->gather(bucket, parameters.values()); }),
        graphs(ctx.stream(), trace, capture_obstacle(o, ctx.device(), ranks.grad, *buckets.sum), pipeline.states(),
               [this](int state, bool first, bool last) { enqueue(state, first, last); }),
        choices(plans.choices()),
        average(ctx, parameters, o.average, *reducer, static_cast<int>(buckets.shards.size())),
        trained(static_cast<std::size_t>(virtual_ranks.rows())),
        evaluated(trained.size()),
        drained(ctx.device()),
        idle(ctx.stream()),
        idle_beside(beside != nullptr ? beside->stream() : ctx.stream()) {
    virtual_ranks.allocate(ctx, parameters);
    if (o.check_gradients) {
      check.emplace(ctx, parameters, optimizer.gradient_norm(), pipeline.host_memory());
    }
    plans.bind(parameters, pipeline.state(0), workspace);
    parameters.initialise(ctx, o.seed);
    buckets.sum->initialise(ctx);
    trace.record_into(nullptr, plans, *reducer);
    // A single rank has no bucket sums to watch, and marks would only add copies between its kernels.
    if (ranks.grad.size() > 1) {
      progress.watch_device(ctx, ranks.comm_stream, *reducer, pipeline.states());
    }
  }

  /// Returns the planned number of micro-batches per step. If TrainStepOptions::microbatches is 0, a step may have
  /// more.
  [[nodiscard]] std::int64_t most_microbatches() const { return std::max(options.microbatches, virtual_ranks.rows()); }

  [[nodiscard]] PlanOptions plan_options() {
    PlanOptions plan = options.plan;
    plan.scaled_loss = options.optimizer.loss_scale.scales();
    plan.cooperative = plan.cooperative && ranks.grad.size() == 1;
    plan.beside = beside.get();
    plan.sync_batch_norm = options.sync_batch_norm && ranks.grad.size() > 1;
    const comm::Communicator& grad = ranks.grad;
    comm::Communicator& own = ranks.statistics != nullptr ? *ranks.statistics : ranks.grad;
    require<UsageError>(!plan.sync_batch_norm || (own.size() == grad.size() && own.rank() == grad.rank()),
                        "train step: statistics is rank ", own.rank(), " of ", own.size(), ", expected rank ",
                        grad.rank(), " of ", grad.size(), " as grad");
    plan.exchange.ranks = &own;
    plan.exchange.before = [this] {
      progress.doing("exchanging tensors of the plan in step", steps + 1);
      if (ranks.statistics == nullptr || context.device().kind == DeviceKind::cuda) {
        reducer->wait_for_started();
      }
    };
    plan.exchange.after = [this] { progress.doing("computing step", steps + 1); };
    return plan;
  }

  /// Returns the number of samples of `batch` that count.
  [[nodiscard]] std::int64_t valid_rows(const Batch& batch, const StepLayout& layout) const {
    const std::int64_t rows = samples_of(layout, batch.fields, true);
    require<UsageError>(rows <= options.max_batch, "the batch has ", rows, " samples, expected at most ",
                        options.max_batch, " (max_batch)");
    require<UsageError>(batch.valid == Batch::kAllRows || (batch.valid >= 0 && batch.valid <= rows), "the batch has ",
                        rows, " samples, of which ", batch.valid, " are to count, expected 0 to ", rows);
    return batch.valid == Batch::kAllRows ? rows : batch.valid;
  }

  /// Enqueues the training work for the micro-batch in StepState number `state`. The calls are the same in every step,
  /// so that a graph can repeat them. All numbers that change are in the StepState, where the device reads them.
  void enqueue(int state, bool first, bool last) {
    Plan& plan = first ? plans.train : *plans.accumulate;
    plan.use(pipeline.state(state));
    const CallRecord& calls = trace.calls(first);
    if (!last) {
      plan.run(context, {}, calls);
      return;
    }
    sum_gradients(state, [&] {
      if (options.count_samples && !weighs()) {
        ops::strided_copy(context, pipeline.state(state).view(StateField::weight_sum), parameters.weight_sum());
        reducer->gradient_written(static_cast<int>(parameters.trainable().size()));
      }
      plan.run(context, gradient_written, calls);
      if (weighs()) {  // the plan's calls have written the weight sum
        reducer->gradient_written(static_cast<int>(parameters.trainable().size()));
      }
      progress.doing("waiting for the gradients of step", steps + 1);
    });
    update_parameters(pipeline.state(state).view(StateField::learning_rate));
  }

  /// Calls write(), which enqueues the computation of the gradients, and enqueues the sums of the gradients over the
  /// ranks. `state` is the number of the StepState of the step's last micro-batch.
  template <class Write>
  void sum_gradients(int state, Write&& write) {
    if (check) {
      check->begin(context);
    }
    progress.use(state);
    reducer->begin_step();
    try {
      write();
      reducer->finish();
    } catch (...) {
      reducer->abandon_step();
      throw;
    }
  }

  /// Enqueues the update of the parameters with the summed gradients. `learning_rate` is an f64 scalar on the device.
  void update_parameters(const TensorView& learning_rate) {
    if (buckets.shards.empty()) {
      trace.span(context.stream(), StepTrace::update, [&] { optimizer.update(context, learning_rate); });
      return;
    }
    progress.doing("exchanging the parameters of step", steps + 1);
    trace.span(context.stream(), StepTrace::update,
               [&] { optimizer.update_shards(context, learning_rate, sum_over_ranks, shard_updated); });
    reducer->finish_gather();
    parameters.round_weights(context);
  }

  void add(const Batch& batch, bool last, double rate) {
    average.require_ended("a step");
    require<StateError>(!reduced, "train step: add() after reduce(), expected apply() or abandon() before");
    require<StateError>(!loss_is_given(), "train step: add() with a given loss, expected given_gradients()");
    const std::int64_t valid = valid_rows(batch, plans.train.layout());
    require<UsageError>(options.count_samples == (batch.global_valid == 0), "the batch says global_valid ",
                        batch.global_valid, ", expected ",
                        options.count_samples ? "0: this step counts its samples (count_samples)"
                                              : "the samples of all ranks: this step does not count them");
    const std::int64_t several = virtual_ranks.count();
    require<StateError>(several == 0 || added < several, "train step: micro-batch ", added + 1,
                        " of a step, expected one for each of the ", several, " virtual ranks of this rank");
    require<StateError>(added == 0 || plans.accumulate.has_value() || several > 0,
                        "train step: a second micro-batch, expected one (TrainStepOptions::microbatches is 1)");
    try {
      progress.doing("waiting for the device before step", steps + 1);
      samples += static_cast<double>(valid);
      int state = 0;
      trace.span(context.stream(), StepTrace::input, [&] {
        state = pipeline.begin(
            batch,
            {.learning_rate = rate,
             .sample_weight = options.count_samples ? weight : 1.0 / static_cast<double>(batch.global_valid),
             .valid = valid,
             .epoch = batch.epoch,
             .weight_sum = sum_of_weights()},
            first_id());
      });
      progress.doing("computing step", steps + 1);
      if (last) {
        progress.begin_sums(state, steps + 1);
      }
      if (several > 0) {
        plans.train.use(pipeline.state(state));
        virtual_ranks.run(context, parameters, plans.train, added, trace.calls(true));
      } else {
        graphs.run(state, added == 0, last);
      }
    } catch (...) {
      abandon();
      throw;
    }
    if (last && check) {
      check->keep(context, steps + 1);
    }
    pipeline.end(static_cast<double>(valid), trained[static_cast<std::size_t>(virtual_ranks.row_of(added))], steps + 1,
                 last ? weight_sum() : std::nullopt);
    ++added;
    microbatches += several > 0 ? 0 : 1;
    if (last) {
      finish_step();
    }
  }

  /// Returns the view of the step's weight sum over all ranks, or a view without memory if the step does not count
  /// samples. The pipeline gets this view with the step's last micro-batch.
  [[nodiscard]] std::optional<TensorView> weight_sum() const {
    return options.count_samples ? parameters.weight_sum() : TensorView();
  }

  /// Returns true if the loss has weights. In this case, the plans write the weight sum.
  [[nodiscard]] bool weighs() const { return options.plan.weights != LossWeights::none; }

  /// Returns the sum of the weights of this rank's samples in the current step, for a loss without weights.
  [[nodiscard]] double sum_of_weights() const { return samples * weight; }

  /// Returns the id of the next micro-batch's first sample, for batches without ids. These ids are unique within a run.
  [[nodiscard]] std::int64_t first_id() const {
    const std::int64_t of_rank = (microbatches * ranks.grad.size() + ranks.grad.rank()) * virtual_ranks.rows();
    return (of_rank + virtual_ranks.row_of(added)) * options.max_batch;
  }

  void finish_step() {
    ++steps;
    parameters.changed();
    progress.end_sums();
    average.take(steps, trace);
    microbatches += virtual_ranks.count() > 0 ? 1 : 0;
    added = 0;
    samples = 0;
    reduced = false;
  }

  [[nodiscard]] bool loss_is_given() const { return options.plan.loss == Loss::given; }

  /// Begins a step for Loss::given (the program computes the gradients), unless a step is in progress. Sets all
  /// gradients to zero.
  void begin_given(const char* call) {
    require<StateError>(!reduced, "train step: ", call, " after reduce(), expected apply() or abandon()");
    if (added > 0) {
      return;
    }
    static_cast<void>(pipeline.begin(Batch{}, {.learning_rate = 0, .sample_weight = 1, .valid = 0}));
    ops::fill(context, 0, parameters.gradients());
    pipeline.end(0, trained.front(), steps + 1);
    ++added;
    ++microbatches;
  }

  /// Ends the step: sums the gradients of its micro-batches over the ranks. Also updates the parameters if `rate` has a
  /// value.
  void end_step(const char* call, std::optional<double> rate) {
    if (loss_is_given()) {
      begin_given(call);
    }
    require<StateError>(added > 0, "train step: ", call, " without a batch, expected add() before");
    require<StateError>(!reduced, "train step: ", call, " after reduce(), expected apply() or abandon()");
    const std::int64_t several = virtual_ranks.count();
    require<StateError>(several == 0 || added == several, "train step: ", call, " after ", added,
                        " micro-batches, expected one for each of the ", several, " virtual ranks of this rank");
    const int state = pipeline.last_state();
    const TensorView& learning_rate = pipeline.state(state).view(StateField::learning_rate);
    if (rate) {
      ops::fill(context, *rate, learning_rate);
    }
    progress.begin_sums(state, steps + 1);
    try {
      sum_gradients(state, [&] {
        const int gradients = static_cast<int>(parameters.trainable().size());
        if (options.count_samples) {
          if (!weighs()) {
            // With Loss::given, the weight sum over all ranks must be 1, because the optimizer divides the gradients by
            // this sum.
            const double own = ranks.grad.rank() == 0 ? 1 : 0;
            ops::fill(context, loss_is_given() ? own : sum_of_weights(), parameters.weight_sum());
          }
          reducer->gradient_written(gradients);
        }
        for (int parameter = 0; parameter < gradients; ++parameter) {
          for (int write = 0; write < parameters.trainable()[static_cast<std::size_t>(parameter)].writes; ++write) {
            gradient_written(parameter);
          }
        }
      });
      if (rate) {
        update_parameters(learning_rate);
      }
      if (check) {
        check->keep(context, steps + 1);
      }
      pipeline.end_step(*weight_sum());
    } catch (...) {
      abandon();
      throw;
    }
    reduced = true;
    if (rate) {
      finish_step();
    }
  }

  void apply(double rate) {
    require<StateError>(reduced, "train step: apply() without reduce(), expected reduce() before");
    if (applied_rate.bytes() == 0) {
      applied_rate = Buffer(sizeof(double), context);
    }
    // The rate must not be written to this step's last StepState, because a later micro-batch may already overwrite
    // this StepState.
    const TensorView learning_rate(applied_rate.data(), DType::f64, context.device(), Shape{});
    try {
      ops::fill(context, rate, learning_rate);
      update_parameters(learning_rate);
    } catch (...) {
      abandon();
      throw;
    }
    finish_step();
  }

  /// Returns the factor by which the numbers in the gradient arena must be multiplied to get the gradients of
  /// read_gradients(). Waits for the device if the factor depends on the weight sum.
  [[nodiscard]] double gradient_factor() {
    if (!options.count_samples || (loss_is_given() && !reduced)) {
      return 1;
    }
    if (!reduced) {
      return 1 / weight;
    }
    double sum = 0;
    copy_now(context, parameters.weight_sum(), TensorView(std::span(&sum, 1), Shape{}));
    return sum > 0 && std::isfinite(sum) ? 1 / sum : 0;
  }
  void require_gradients(const char* call) const {
    require<StateError>(added > 0, "train step: ", call, " without gradients, expected ",
                        loss_is_given() ? "a backward pass" : "add()", " before");
  }

  void abandon() {
    pipeline.forget(added);
    progress.forget_sums();
    virtual_ranks.restart();
    added = 0;
    samples = 0;
    reduced = false;
  }

  std::unique_ptr<comm::Communicator> alone;  ///< communicator of this rank alone, for a step without StepRanks
  Context& context;
  StepRanks ranks;
  TrainStepOptions options;
  VirtualRanks virtual_ranks;
  double weight;  ///< weight of a sample if the step counts samples
  /// Memory that is registered with NCCL; nullptr: the gradients use the context's memory.
  std::unique_ptr<MemoryResource> gradient_memory;
  Buffer gradient_arena;  ///< gradients in gradient_memory; empty if gradient_memory is nullptr
  ParameterSet parameters;
  SyncGuard idle_parameters;  ///< waits for queued work on the parameters if the constructor of a later member throws
  GradientBuckets buckets;
  Optimizer optimizer;
  MicrobatchPipeline pipeline;
  std::optional<Stream> beside_worker;  ///< stream of `beside` on a host; empty on a GPU
  std::unique_ptr<Context> beside;      ///< context of the side stream (weights_beside), or nullptr
  MicrobatchPlans plans;
  Buffer workspace;
  Buffer applied_rate;  ///< learning rate of apply() on the device; empty before the first apply()
  StepProgress progress;
  std::unique_ptr<comm::GradientReducer> reducer;
  std::optional<GradientCheck> check;  ///< empty without TrainStepOptions::check_gradients
  std::function<void(int)> gradient_written;
  Optimizer::SumOverRanks sum_over_ranks;
  std::function<void(int)> shard_updated;
  StepTrace trace;
  StepGraphs graphs;
  Choices choices;
  StepAverage average;
  std::int64_t steps = 0;         ///< TrainStep::steps()
  std::int64_t added = 0;         ///< number of micro-batches since the last update: TrainStep::added()
  std::int64_t microbatches = 0;  ///< number of micro-batches of all steps: TrainStep::microbatches()
  double samples = 0;             ///< number of this rank's samples in the current step
  bool reduced = false;           ///< true between reduce() and apply()
  Batch given;                    ///< batch for the overloads of add() and update() that take fields
  std::vector<Metrics> trained;   ///< metric sums of training: one element, or one for each virtual rank
  std::vector<Metrics> evaluated;
  std::size_t next_evaluated = 0;
  Event drained;  ///< recorded by synchronize()
  SyncGuard idle;
  SyncGuard idle_beside;  ///< destroyed first; waits for queued work
};

TrainStep::TrainStep(Context& context, const Model& model, const TrainStepOptions& options)
    : impl_(std::make_unique<Impl>(context, nullptr, model, options)) {}

TrainStep::TrainStep(Context& context, const StepRanks& ranks, const Model& model, const TrainStepOptions& options)
    : impl_(std::make_unique<Impl>(context, &ranks, model, options)) {}

TrainStep::~TrainStep() = default;

void TrainStep::add(const Batch& batch) {
  impl_->add(batch, false, 0);
}
void TrainStep::add(std::initializer_list<FieldView> fields) {
  impl_->given.fields.assign(fields);
  add(impl_->given);
}
void TrainStep::check(const Batch& batch) {
  static_cast<void>(impl_->valid_rows(batch, layout()));
  static_cast<void>(wait_loss());
}
void TrainStep::update(double rate) {
  impl_->end_step("update()", rate);
}
void TrainStep::reduce() {
  impl_->end_step("reduce()", std::nullopt);
}
void TrainStep::apply(double rate) {
  impl_->apply(rate);
}
TensorView TrainStep::given_gradients() {
  require<StateError>(impl_->loss_is_given(), "train step: given_gradients() with the loss ",
                      name_of(impl_->options.plan.loss), ", expected given");
  impl_->begin_given("given_gradients()");
  return impl_->parameters.gradients();
}
bool TrainStep::reduced() const {
  return impl_->reduced;
}
void TrainStep::read_gradients(const TensorView& vector) {
  Impl& s = *impl_;
  s.require_gradients("read_gradients()");
  read_flat(s.context, s.parameters, FlatPart::gradients, vector, s.gradient_factor());
}
void TrainStep::write_gradients(const TensorView& vector) {
  Impl& s = *impl_;
  s.require_gradients("write_gradients()");
  write_flat(s.context, s.parameters, FlatPart::gradients, vector,
             s.options.count_samples && !s.reduced && !s.loss_is_given() ? s.weight : 1);
  if (s.options.count_samples && s.reduced) {
    ops::fill(s.context, 1, s.parameters.weight_sum());
  }
}
void TrainStep::update(const Batch& batch, double rate) {
  const bool several = impl_->virtual_ranks.count() > 0;
  impl_->add(batch, !several, rate);
  if (several) {
    update(rate);
  }
}
void TrainStep::update(std::initializer_list<FieldView> fields, double rate) {
  impl_->given.fields.assign(fields);
  update(impl_->given, rate);
}
void TrainStep::abandon() {
  impl_->abandon();
}

StepLoss TrainStep::loss() {
  impl_->pipeline.poll();
  const MicrobatchPipeline::Finished& finished = impl_->pipeline.finished();
  return {finished.step == 0 ? 0 : finished.metrics.loss(), finished.step};
}
StepLoss TrainStep::wait_loss() {
  impl_->progress.doing("waiting for the device after step", impl_->steps);
  impl_->pipeline.flush();
  return loss();
}

std::int64_t TrainStep::tree_arenas() const {
  return impl_->virtual_ranks.tree_arenas();
}
std::size_t TrainStep::tree_bytes() const {
  return impl_->virtual_ranks.tree_bytes();
}
void TrainStep::continue_from(std::int64_t steps, std::int64_t microbatches) {
  require<StateError>(impl_->added == 0,
                      "train step: continue_from() between add() and update(), expected update() before");
  require_not_averaged("continue_from()");
  impl_->pipeline.flush();
  impl_->steps = steps;
  impl_->average.set_behind(0, 0);
  impl_->microbatches = microbatches;
}

void TrainStep::average_behind(std::int64_t updates, std::int64_t scheduled) {
  impl_->average.set_behind(updates - impl_->steps, scheduled - impl_->steps);
}
void TrainStep::begin_average() {
  impl_->average.begin(impl_->added, [this] { synchronize(); });
}
void TrainStep::end_average() {
  impl_->average.end();
}
void TrainStep::require_not_averaged(const char* call) const {
  impl_->average.require_ended(call);
}

void TrainStep::evaluate(const Batch& batch) {
  Impl& s = *impl_;
  require<StateError>(s.added == 0, "train step: evaluate() between add() and update(), expected update() before");
  const std::int64_t valid = s.valid_rows(batch, s.plans.evaluate.layout());
  const int state = s.pipeline.begin(
      batch, {.learning_rate = 0, .sample_weight = 1, .valid = valid, .epoch = batch.epoch, .weight_sum = 0});
  s.plans.evaluate.use(s.pipeline.state(state));
  s.plans.evaluate.run(s.context);
  s.pipeline.end(static_cast<double>(valid), s.evaluated[s.next_evaluated]);
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

void TrainStep::broadcast(int root) {
  Impl& s = *impl_;
  require_not_averaged("broadcast()");
  s.parameters.changed();  // also needed if a broadcast fails
  for (const State& state : s.parameters.states().all()) {
    if (state.view.numel() > 0 && (state.sharing == Sharing::same || state.sharing == Sharing::of_rank)) {
      s.ranks.grad.broadcast(s.context.stream(), state.view, root);
    }
  }
  s.parameters.round_weights(s.context);
  synchronize();
}
void TrainStep::require_same_state(comm::Communicator& control, const std::string& more) {
  synchronize();
  Replicas(impl_->context, impl_->parameters).require_same_state(control, more);
}
void TrainStep::check_replicas(comm::Communicator& control) {
  synchronize();
  Replicas(impl_->context, impl_->parameters).check(control, impl_->steps);
}

std::string TrainStep::non_finite_gradients(std::int64_t step, comm::Communicator& control) {
  Impl& s = *impl_;
  require<StateError>(s.check.has_value(),
                      "train step: non_finite_gradients() without checks, expected TrainStepOptions::check_gradients");
  s.pipeline.poll();
  require<StateError>(!s.pipeline.metrics_of(step).empty(), "train step: non_finite_gradients(", step,
                      "), expected one of the last steps that are done, up to ", s.pipeline.finished().step);
  return s.check->finite(step) ? std::string() : s.check->text(step, control);
}

void TrainStep::synchronize() {
  impl_->progress.doing("waiting for the device after step", impl_->steps);
  comm::wait(impl_->context.stream(), impl_->drained, impl_->ranks.grad);
}

void TrainStep::record_into(SpanRecorder* recorder) {
  require<StateError>(impl_->added == 0,
                      "train step: record_into() between add() and update(), expected update() before");
  impl_->trace.record_into(recorder, impl_->plans, *impl_->reducer);
}
SpanRecorder* TrainStep::recorder() const {
  return impl_->trace.recorder();
}
std::size_t TrainStep::spans_of_a_step() const {
  // A micro-batch has one span for each call and one for its input. A bucket has six spans: ready point, sum, gather,
  // wait for the sum, wait for the gather, and wait before a layer. A step has four more spans: update, moving average
  // and two waits.
  return static_cast<std::size_t>(impl_->most_microbatches()) * (train_plan().calls().size() + 1) +
         6 * impl_->buckets.buckets.size() + 4;
}

std::int64_t TrainStep::steps() const {
  return impl_->steps;
}
std::int64_t TrainStep::added() const {
  return impl_->added;
}
std::int64_t TrainStep::microbatches() const {
  return impl_->microbatches;
}
int TrainStep::ranks() const {
  return impl_->ranks.grad.size();
}
int TrainStep::steps_under_way() const {
  return impl_->context.stream().is_inline() ? 0 : 2;
}
TensorView TrainStep::register_state(const StateSpec& spec) {
  return impl_->parameters.register_state(impl_->context, spec);
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
  return impl_->graphs.obstacle();
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
