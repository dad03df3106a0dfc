#include <lockstep/nn/run/trainer.hpp>

#include <cstddef>
#include <span>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/run/detail/rank_contract.hpp>
#include <lockstep/nn/run/detail/rank_share.hpp>
#include <lockstep/nn/run/detail/test_run.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

Metrics sum_over_ranks(comm::Communicator& control, const Metrics& own, bool in_tree) {
  std::vector<Metrics> all(static_cast<std::size_t>(control.size()));
  for (double Metrics::*part :
       {&Metrics::loss_sum, &Metrics::correct, &Metrics::top_k_correct, &Metrics::samples, &Metrics::weight}) {
    const std::vector<double> parts = comm::all_gather_value(control, own.*part);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      all[rank].*part = parts[rank];
    }
  }
  if (in_tree) {
    return sum_in_tree(all);
  }
  Metrics sum;  // summed in a fixed order, so that every rank gets the same bits
  for (const Metrics& each : all) {
    sum += each;
  }
  return sum;
}

/// Throws an error unless the samples of the data set fit the model.
void require_fields(const Dataset& dataset, const StepLayout& layout) {
  std::vector<FieldView> sample;
  for (const SampleField& field : dataset.fields()) {
    Shape one{1};
    for (const std::int64_t extent : field.shape) {
      one.push_back(extent);
    }
    sample.push_back({field.field, TensorView(nullptr, field.dtype, Device::cpu(), one)});
  }
  (void)samples_of(layout, sample, true);
}

/// Supplies the batches of a trainer's steps. A loader reads the training set, and a preprocessor completes the batches
/// on the device. A TrainingFeed must be destroyed before the TrainStep, because the loader uses host memory of the
/// TrainStep.
class TrainingFeed {
 public:
  TrainingFeed(Context& context, TrainStep& step, const detail::RankShare& share)
      : context_(context), step_(step), share_(share) {}
  [[nodiscard]] bool is_open() const { return loader_ != nullptr; }
  /// Makes a loader that starts at the position of share_. The caller must have waited for all queued work of the step.
  void open() {
    step_.wait_for_copies();
    if (finisher_ != nullptr) {
      finisher_->wait_for_copies();
    } else if (share_.device_preprocessing() != nullptr) {
      finisher_ = share_.device_preprocessing()->preprocessor(context_, share_.training().capacity());
    }
    loader_.reset();
    LoaderOptions from_here = share_.loader_options();
    from_here.epoch = share_.position().epoch;
    from_here.batch = share_.position().batch;
    from_here.skipped = share_.position().skipped;
    loader_ = std::make_unique<Loader>(share_.read_set(), share_.training(), step_.host_memory(), from_here);
  }
  [[nodiscard]] const Batch& next() { return loader_->next(); }  ///< returns the next batch of the loader
  /// Returns the loaded batch with all fields of the data set. If there is a preprocessor, it has completed the batch.
  [[nodiscard]] const Batch& finished(const Batch& loaded) {
    return finisher_ != nullptr ? finisher_->finish(loaded) : loaded;
  }

 private:
  Context& context_;
  TrainStep& step_;
  const detail::RankShare& share_;
  std::unique_ptr<Loader> loader_;
  /// Reads the loader's memory. So it is declared after the loader, and destroyed before the loader.
  std::unique_ptr<BatchPreprocessor> finisher_;
};

}  // namespace

struct Trainer::Impl {
  Impl(Context& ctx, const Ranks& r, const Model& m, const TrainingData& d, const TrainerOptions& o)
      : context(ctx),
        ranks(r),
        data(d),
        options(o),
        share(ranks, data, options),
        layers(m.layer_texts()),
        step(ctx, {r.grad, r.comm_stream, r.watchdog, r.statistics}, m, step_options(o, share.capacity())),
        contract(detail::rank_contract(ctx.device(), m, layers, d, o, step.choices())),
        feed(ctx, step, share),
        samples_seen(static_cast<std::size_t>(step.parameters().statistics_rows())),
        idle(ctx.stream()) {
    name_spans();
  }
  ~Impl() {
    try {
      step.wait_for_copies();  // queued copies may still read the feed's memory
    } catch (...) {            // the caller already has this error
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static TrainStepOptions step_options(const TrainerOptions& o, std::int64_t capacity) {
    TrainStepOptions step = o.step;
    step.max_batch = capacity;
    step.microbatches = o.accumulate;
    step.count_samples = o.step.plan.weights != LossWeights::none;
    return step;
  }

  void doing(const char* what) const noexcept { ranks.doing(what, share.position().step); }

  void open_feed() {
    feed.open();
    behind = false;
  }

  [[nodiscard]] Metrics sum_over_ranks(const Metrics& own) const {
    doing("adding up metrics of all ranks after step");
    return nn::sum_over_ranks(ranks.control, own, options.step.virtual_ranks > 0);
  }

  [[nodiscard]] Metrics evaluate(const EvaluationHook& each) {
    const detail::TestRun run{context, ranks, step, share, data.test, options.test_time_augmentation};
    return sum_over_ranks(run.own_sums(each));
  }

  void name_spans() {
    recorder = step.recorder();
    if (recorder == nullptr) {
      return;
    }
    names = {.step = recorder->add_name({.text = "step", .kind = SpanKind::step}),
             .batch = recorder->add_name({.text = "waiting for the loader", .kind = SpanKind::batch}),
             .evaluation = recorder->add_name({.text = "evaluation", .kind = SpanKind::evaluation}),
             .average = recorder->add_name({.text = "evaluation of the average", .kind = SpanKind::evaluation}),
             .checkpoint = recorder->add_name({.text = "checkpoint", .kind = SpanKind::checkpoint})};
  }

  Context& context;
  Ranks ranks;
  TrainingData data;
  TrainerOptions options;
  detail::RankShare share;
  std::map<std::string, std::string> layers;
  TrainStep step;
  std::string contract;
  TrainingFeed feed;
  bool behind = false;  ///< true: a step failed after it took its batch, so the feed is one batch ahead of `share`
  std::vector<double> samples_seen;  ///< number of samples trained on: one element, or one for each virtual rank
  SpanRecorder* recorder = nullptr;  ///< recorder to which the step writes its spans; nullptr: none
  struct Names {
    int step = 0;
    int batch = 0;
    int evaluation = 0;
    int average = 0;  ///< evaluation of the moving average of the weights
    int checkpoint = 0;
  } names;  ///< indices in `recorder` of the names of spans
  /// Waits for queued work, which reads the loader's memory; declared last, so that it is destroyed first.
  SyncGuard idle;
};

Trainer::Trainer(Context& context, const Ranks& ranks, const Model& model, const TrainingData& data,
                 const TrainerOptions& options) {
  (void)run_rules({.ranks = ranks.grad.size(),
                   .global_batch = options.global_batch,
                   .accumulate = options.accumulate,
                   .virtual_ranks = options.step.virtual_ranks});
  const TrainStepOptions& step = options.step;
  require<UsageError>(step.max_batch == 0 && step.microbatches == 0 && step.count_samples,
                      "trainer: of TrainerOptions::step, max_batch is ", step.max_batch, ", microbatches is ",
                      step.microbatches, " and count_samples is ", step.count_samples ? "on" : "off",
                      ", expected 0, 0 and on: the trainer sets them");
  require<UsageError>(!step.plan.accumulate,
                      "trainer: PlanOptions::accumulate is on, expected TrainerOptions::accumulate micro-batches");
  require_schedule(options.schedule);
  require<UsageError>(options.test_time_augmentation == TestTimeAugmentation::none ||
                          (model.input_kind() == InputKind::images && options.step.plan.loss == Loss::cross_entropy &&
                           options.step.plan.weights == LossWeights::none && model.output_shape().rank() == 1),
                      "trainer: test_time_augmentation is ", name_of(options.test_time_augmentation), " for model ",
                      model.name(),
                      ", expected a classifier of u8 images with one label each and no weights of the loss");
  require_views_fit(options.test_time_augmentation, model.input_shape());
  for (const Dataset* set : {&data.train, &data.test}) {
    try {
      StepLayout layout = step_layout(model, options.step.plan);
      layout.two_labels = layout.two_labels && set == &data.train;
      require_fields(*set, layout);
    } catch (Error& error) {
      error.annotate(set->name());
      throw;
    }
  }
  impl_ = std::make_unique<Impl>(context, ranks, model, data, options);
}

Trainer::~Trainer() = default;

void Trainer::start() {
  doing("agreeing on options and parameters after step");
  comm::require_same_on_all_ranks(impl_->ranks.control, impl_->contract + impl_->step.parameters().states().text());
  impl_->step.broadcast(0);
  impl_->open_feed();  // comes last, because it is the only part that may fail on a single rank
}

void Trainer::require_same_state() {
  const Position& at = position();
  impl_->step.require_same_state(impl_->ranks.control, concat("epoch ", at.epoch, ", batch ", at.batch, " after ",
                                                              at.skipped, " samples, step ", at.step, '\n'));
}

void Trainer::step() {
  Impl& s = *impl_;
  require<StateError>(s.feed.is_open(), "trainer: step() is called before start(), expected start() first");
  if (s.behind) {
    s.step.synchronize();
    s.open_feed();
  }
  const std::int64_t done = position().step;
  SpanRecorder::Scope span(s.recorder, s.names.step, done + 1);
  const double rate = learning_rate();
  s.step.average_behind(done, s.share.scheduled());
  s.ranks.doing("reading the batch of step", done + 1);
  SpanRecorder::Scope waiting(s.recorder, s.names.batch);
  const Batch& loaded = s.feed.next();
  waiting.end();
  const std::int64_t last = s.share.microbatches() - 1;
  try {
    const Batch& batch = s.feed.finished(loaded);
    for (std::int64_t i = 0; i < last; ++i) {
      s.step.add(s.share.microbatch_of(batch, i));
    }
    s.step.update(s.share.microbatch_of(batch, last), rate);
  } catch (...) {
    s.behind = true;
    throw;
  }
  span.end();
  for (std::size_t i = 0; i < s.samples_seen.size(); ++i) {
    const bool one = s.options.step.virtual_ranks == 0;
    s.samples_seen[i] +=
        static_cast<double>(one ? loaded.valid : s.share.rows_of(loaded, static_cast<std::int64_t>(i)).count);
  }
  s.share.advance();
}

void Trainer::record_into(SpanRecorder* recorder) {
  impl_->step.record_into(recorder);
  impl_->name_spans();
}

SpanRecorder::Scope Trainer::checkpoint_span() {
  return {impl_->recorder, impl_->names.checkpoint, position().step};
}

const Position& Trainer::position() const {
  return impl_->share.position();
}
std::int64_t Trainer::batches_per_epoch() const {
  return impl_->share.training().batches();
}
std::int64_t Trainer::steps_until(std::int64_t epochs) const {
  return impl_->share.steps_until(epochs);
}
Position Trainer::continued(const Position& saved, std::int64_t global_batch) const {
  return impl_->share.continued(saved, global_batch);
}
double Trainer::learning_rate() const {
  return impl_->options.schedule.at(impl_->share.scheduled());
}

std::int64_t Trainer::skipped_updates() {
  const TensorView& skipped = impl_->step.optimizer().skipped();
  std::int64_t count = 0;
  if (skipped.given()) {
    impl_->step.synchronize();  // synchronize() checks the communicator while it waits; copy() does not
    copy(impl_->context, skipped, TensorView(std::span(&count, 1), Shape{}));
    impl_->step.synchronize();
  }
  return count;
}

std::string Trainer::non_finite_gradients(std::int64_t step) {
  Impl& s = *impl_;
  return s.step.non_finite_gradients(step - (position().step - s.step.steps()), s.ranks.control);
}

Metrics Trainer::take_metrics() {
  doing("waiting for the device after step");
  return impl_->sum_over_ranks(impl_->step.take_trained());
}

std::span<const Metrics> Trainer::metrics_of(std::int64_t step) {
  return impl_->step.metrics_of(step - (position().step - impl_->step.steps()));
}

Metrics Trainer::sum_over_ranks(std::span<const Metrics> own) {
  return impl_->sum_over_ranks(sum_in_tree(own));
}

void Trainer::reduce_buffers() {
  Impl& s = *impl_;
  const std::vector<double> seen = samples_seen();
  double total = 0;
  for (const double samples : seen) {
    total += samples;
  }
  if (total == 0 || s.step.parameters().buffers().empty()) {
    return;  // no training since the evaluation buffers were loaded
  }
  s.step.synchronize();  // synchronize() checks the communicator while it waits; the copies below do not
  doing("gathering statistics of all ranks after step");
  average_statistics(s.context, s.step.parameters(), s.ranks.control, seen);
}

Metrics Trainer::evaluate(const EvaluationHook& each) {
  SpanRecorder::Scope span(impl_->recorder, impl_->names.evaluation, position().step);
  reduce_buffers();
  const Metrics sums = impl_->evaluate(each);
  span.end();
  return sums;
}

Metrics Trainer::evaluate_average(const EvaluationHook& each) {
  SpanRecorder::Scope span(impl_->recorder, impl_->names.average, position().step);
  reduce_buffers();
  impl_->step.begin_average();
  Metrics sums;
  try {
    sums = impl_->evaluate(each);
  } catch (...) {
    try {
      impl_->step.end_average();
    } catch (...) {  // ignored, because the caller gets the evaluation's error
    }
    throw;
  }
  impl_->step.end_average();
  span.end();
  return sums;
}

std::vector<double> Trainer::samples_seen() {
  doing("gathering statistics of all ranks after step");
  return comm::all_gather_values(impl_->ranks.control, impl_->samples_seen);
}

void Trainer::restore(const Position& position, const std::vector<double>& samples_seen) {
  Impl& s = *impl_;
  require<ShapeError>(samples_seen.size() == s.samples_seen.size(), "restore: samples_seen has ", samples_seen.size(),
                      " numbers, expected one for each of the ", s.samples_seen.size(), " ranks");
  s.share.go_to(position);
  s.step.synchronize();
  s.samples_seen = samples_seen;
  s.open_feed();
}

const TrainerOptions& Trainer::options() const {
  return impl_->options;
}
const TrainingData& Trainer::data() const {
  return impl_->data;
}
const std::map<std::string, std::string>& Trainer::layers() const {
  return impl_->layers;
}
int Trainer::ranks() const {
  return impl_->ranks.grad.size();
}
TrainStep& Trainer::train_step() {
  return impl_->step;
}
Context& Trainer::context() const {
  return impl_->context;
}
const TrainStep& Trainer::train_step() const {
  return impl_->step;
}
const comm::GradientReducer& Trainer::reducer() const {
  return impl_->step.reducer();
}
std::size_t Trainer::planned_bytes() const {
  return impl_->step.planned_bytes() + impl_->share.planned_bytes(impl_->context.device());
}

void Trainer::doing(const char* what) const noexcept {
  impl_->doing(what);
}

}  // namespace lockstep::nn
