#include <lockstep/nn/run/trainer.hpp>

#include <algorithm>
#include <cstddef>
#include <locale>
#include <span>
#include <sstream>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/jpeg_decoder.hpp>
#include <lockstep/nn/data/deferred.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

Metrics sum_over_ranks(comm::Communicator& control, const Metrics& own, bool in_tree) {
  // In a fixed order, so that every rank has the same bits.
  const std::vector<double> losses = comm::all_gather_value(control, own.loss_sum);
  const std::vector<double> correct = comm::all_gather_value(control, own.correct);
  const std::vector<double> top_k_correct = comm::all_gather_value(control, own.top_k_correct);
  const std::vector<double> samples = comm::all_gather_value(control, own.samples);
  const std::vector<double> weights = comm::all_gather_value(control, own.weight);
  std::vector<Metrics> all;
  for (std::size_t r = 0; r < losses.size(); ++r) {
    all.push_back({losses[r], correct[r], top_k_correct[r], samples[r], weights[r]});
  }
  if (in_tree) {
    return sum_in_tree(all);
  }
  Metrics sum;
  for (const Metrics& each : all) {
    sum += each;
  }
  return sum;
}

/// Everything that must be equal on all ranks, one item a line.
std::string contract(const Model& model, const std::map<std::string, std::string>& layers, const TrainingData& data,
                     const TrainerOptions& options, const Choices& choices) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << "version " << version() << '\n' << "model " << model.name() << '\n';
  for (const Model::Parameter& parameter : model.parameters()) {
    text << "parameter " << parameter.spec.name << ' ' << parameter.spec.shape << ' ' << options.step.plan.dtype
         << (parameter.spec.trainable ? "" : " frozen") << '\n';
  }
  for (const auto& [name, layer] : layers) {
    text << "layer " << name << ' ' << layer << '\n';
  }
  for (const BufferSpec& buffer : model.buffers()) {
    text << "buffer " << buffer.name << ' ' << buffer.shape << '\n';
  }
  text << "training samples " << data.train.size() << '\n'
       << "test samples " << data.test.size() << '\n'
       << "seed " << options.step.seed << '\n'
       << "global_batch " << options.global_batch << '\n'
       << "buckets " << options.step.buckets.bucket_bytes << ' ' << options.step.buckets.tail_bytes << ' '
       << options.step.buckets.head_bytes << ' ' << options.step.buckets.backward_s << ' '
       << options.step.buckets.all_reduce.text() << "\nbucket plan"
       << (options.step.buckets.ends.empty() ? " none" : "");
  for (const int end : options.step.buckets.ends) {
    text << ' ' << end;
  }
  text << '\n';
  TrainerOptions described = options;
  Schema schema;
  describe(schema, described);
  for (const Option& option : schema.options()) {
    if (option.shared) {
      text << option.name << ' ' << option.text() << '\n';
    }
  }
  for (const auto& [name, value] : option_texts(options, data)) {
    text << name << ' ' << value << '\n';
  }
  for (const auto& [call, choice] : choices) {
    text << "choice for " << call << ' ' << choice << '\n';
  }
  return text.str();
}

/// A sample of the data set is one of the model.
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

}  // namespace

std::map<std::string, std::string> option_texts(const TrainerOptions& options, const TrainingData& data) {
  const auto text = [](const auto&... values) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out.precision(17);
    const char* separator = "";
    ((out << std::exchange(separator, " ") << values), ...);
    return out.str();
  };
  const ops::AugmentDesc& augment = options.step.plan.augment;
  std::string milestones;
  for (const std::int64_t milestone : options.schedule.milestones) {
    milestones += concat(milestones.empty() ? "" : " ", milestone);
  }
  std::map<std::string, std::string> texts{{"dtype", text(options.step.plan.dtype)},
                                           {"learning_rate", text(options.schedule.base)},
                                           {"schedule", text(name_of(options.schedule.kind))},
                                           {"warmup_steps", text(options.schedule.warmup_steps)},
                                           {"total_steps", text(options.schedule.total_steps)},
                                           {"milestones", milestones},
                                           {"gamma", text(options.schedule.gamma)},
                                           {"optimizer", name_of(options.step.optimizer)},
                                           {"clip_norm", text(options.step.optimizer.clip_norm)},
                                           {"skip_non_finite", text(options.step.optimizer.skip_non_finite)},
                                           {"weight_decay", text(options.step.weight_decay)},
                                           {"decay_norm_and_bias", text(options.step.decay_all)},
                                           {"loss", text(name_of(options.step.plan.loss))},
                                           {"huber_delta", text(options.step.plan.huber_delta)},
                                           {"dropout_seed", text(options.step.plan.dropout_seed)},
                                           {"label_smoothing", text(options.step.plan.label_smoothing)},
                                           {"pad", text(augment.pad)},
                                           {"flip", text(augment.flip)},
                                           {"mean", text(augment.mean[0], augment.mean[1], augment.mean[2])},
                                           {"std", text(augment.std[0], augment.std[1], augment.std[2])},
                                           {"augmentation_seed", text(augment.seed)},
                                           {"keep_last", text(options.keep_last)},
                                           {"training_data", text(data.train.fingerprint())},
                                           {"test_data", text(data.test.fingerprint())}};
  TrainerOptions plain;
  TrainerOptions described = options;
  Schema defaults;
  Schema schema;
  describe(defaults, plain);
  describe(schema, described);
  for (const Option& option : schema.options()) {
    if (option.numbers && option.text() != defaults.find(option.name)->text()) {
      texts[option.name] = option.text();
    }
  }
  if (const std::string groups = text_of(options.step.groups); !groups.empty()) {
    texts["parameter_groups"] = groups;
  }
  if (options.step.average.on()) {
    texts["ema"] = text_of(options.step.average);
  }
  const Schedule& schedule = options.schedule;
  if (schedule.end != 0) {
    texts["learning_rate_at_end"] = text(schedule.end);
  }
  if (schedule.kind == Schedule::Kind::polynomial) {
    texts["power"] = text(schedule.power);
  }
  if (schedule.warmup_factor) {
    texts["warmup"] = text(name_of(schedule.warmup), *schedule.warmup_factor);
  }
  if (options.step.sync_batch_norm) {
    texts["sync_batch_norm"] = text(options.step.sync_batch_norm);
  }
  if (options.step.optimizer.loss_scale.scales()) {
    texts["loss_scale"] = text_of(options.step.optimizer.loss_scale);
  }
  if (options.step.optimizer.clip_value > 0) {
    texts["clip_value"] = text(options.step.optimizer.clip_value);
  }
  texts.merge(comm::sum_texts(options.step.sums));
  if (options.step.strategy != Strategy::ddp) {
    texts["strategy"] = std::string(name_of(options.step.strategy));
  }
  if (options.step.plan.two_labels) {
    texts["two_labels"] = text(options.step.plan.two_labels);
  }
  if (options.step.plan.weights != LossWeights::none) {
    texts["loss_weights"] = text(name_of(options.step.plan.weights));
  }
  if (options.test_views != TestViews::none) {
    texts["test_views"] = text(name_of(options.test_views));
  }
  if (augment.flip && augment.alternate) {
    texts["flip_mode"] = "alternate";
  }
  if (augment.pad > 0 && augment.reflect) {
    texts["pad_mode"] = "reflect";
  }
  if (options.pictures == PicturesOn::nvjpeg) {
    texts["jpeg"] = ops::jpeg_decoder_version();
  }
  if (options.step.plan.tf32) {
    texts["tf32"] = text(options.step.plan.tf32);
  }
  const OptimizerOptions& optimizer = options.step.optimizer;
  if (optimizer.rule) {
    texts["optimizer_settings"] = optimizer.rule->settings();
    return texts;
  }
  if (optimizer.kind == OptimizerKind::sgd || optimizer.kind == OptimizerKind::lars) {
    texts["momentum"] = text(optimizer.momentum);
    texts["nesterov"] = text(optimizer.nesterov);
  } else {
    texts["betas"] = text(optimizer.beta1, optimizer.beta2);
  }
  if (optimizer.kind == OptimizerKind::muon) {
    texts["momentum"] = text(optimizer.momentum);
    texts["nesterov"] = text(optimizer.nesterov);
  }
  if (optimizer.kind != OptimizerKind::sgd) {
    texts["epsilon"] = text(optimizer.epsilon);
  }
  if (optimizer.kind == OptimizerKind::lars) {
    texts["trust_coefficient"] = text(optimizer.trust_coefficient);
  }
  return texts;
}

struct Trainer::Impl {
  Impl(Context& ctx, const Ranks& r, const Model& m, const TrainingData& d, const TrainerOptions& o)
      : context(ctx),
        ranks(r),
        data(d),
        options(o),
        deferred(deferred_of(d.train, o.pictures)),
        train_sampler(sampler_of(d.train, true, r, o)),
        test_sampler(sampler_of(d.test, false, r, o)),
        loader_bytes(Loader::memory_bytes(read_set(), train_sampler, loader_options()) +
                     Loader::memory_bytes(d.test, test_sampler, loader_options())),
        microbatches(o.step.virtual_ranks > 0 ? o.step.virtual_ranks / r.grad.size() : o.accumulate),
        capacity(o.step.virtual_ranks > 0 ? partition_of(o.global_batch, o.step.virtual_ranks, 0).count
                                          : partition_of(train_sampler.capacity(), o.accumulate, 0).count),
        layers(m.layer_texts()),
        step(ctx, {r.grad, r.comm_stream, r.watchdog, r.statistics}, m, step_options(o, capacity)),
        contract(nn::contract(m, layers, d, o, step.choices())),
        samples_seen(static_cast<std::size_t>(step.parameters().statistics_rows())),
        viewed(o.step.plan.top_k),
        idle(ctx.stream()) {
    name_spans();
  }
  ~Impl() {
    try {
      step.wait_for_copies();  // which may read what the finisher made
    } catch (...) {            // the failure was already reported when the stack unwinds
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static std::unique_ptr<DeferredSamples> deferred_of(const Dataset& set, PicturesOn where) {
    if (where == PicturesOn::host) {
      return nullptr;
    }
    std::unique_ptr<DeferredSamples> deferred = set.deferred(where == PicturesOn::nvjpeg);
    require<UsageError>(deferred != nullptr, "trainer: pictures become images on '", name_of(where), "', and ",
                        set.name(), " leaves nothing to a device, expected 'host'");
    return deferred;
  }
  /// What the loader of the training set reads.
  [[nodiscard]] const Dataset& read_set() const { return deferred != nullptr ? *deferred : data.train; }

  static TrainStepOptions step_options(const TrainerOptions& o, std::int64_t capacity) {
    TrainStepOptions step = o.step;
    step.max_batch = capacity;
    step.microbatches = o.accumulate;
    step.count_samples = o.step.plan.weights != LossWeights::none;
    return step;
  }

  static Sampler sampler_of(const Dataset& dataset, bool training, const Ranks& r, const TrainerOptions& o) {
    return Sampler({.size = dataset.size(),
                    .batch_size = o.global_batch,
                    .ranks = r.grad.size(),
                    .rank = r.grad.rank(),
                    .shuffle = training,
                    .keep_last = !training || o.keep_last,
                    .seed = o.step.seed,
                    .parts = o.step.virtual_ranks,
                    .chunk = training ? o.shuffle_chunk : 0});
  }

  [[nodiscard]] LoaderOptions loader_options() const {
    return {.workers = options.loader_workers, .prefetch = options.prefetch, .epoch = 0, .batch = 0};
  }

  void doing(const char* what, std::int64_t number) const noexcept {
    if (ranks.watchdog != nullptr) {
      ranks.watchdog->begin(what, number);
    }
  }

  /// The loader of the training set, from the current position on.
  void open_loader() {
    step.wait_for_copies();
    if (finisher != nullptr) {
      finisher->wait_for_copies();
    } else if (deferred != nullptr) {
      finisher = deferred->finisher(context, train_sampler.capacity());
    }
    loader.reset();
    LoaderOptions from_here = loader_options();
    from_here.epoch = position.epoch;
    from_here.batch = position.batch;
    from_here.skipped = position.skipped;
    loader = std::make_unique<Loader>(read_set(), train_sampler, step.host_memory(), from_here);
    behind = false;
  }

  /// The rows of micro-batch `number` of a batch: those of a virtual rank, where there are any.
  [[nodiscard]] Partition rows_of(const Batch& batch, std::int64_t number) const {
    return options.step.virtual_ranks > 0 ? train_sampler.part_of_share(batch.global_valid, number)
                                          : partition_of(batch.valid, options.accumulate, number);
  }

  /// The next step's place in the schedule, counted from 0.
  [[nodiscard]] std::int64_t scheduled() const {
    if (options.schedule_by_updates) {
      return position.step;
    }
    return position.epoch * train_sampler.batches() + position.skipped / train_sampler.options().batch_size +
           position.batch;
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

  const Batch& next_batch() {
    SpanRecorder::Scope span(recorder, names.batch);
    const Batch& batch = loader->next();
    span.end();
    return batch;
  }

  /// Micro-batch `number` of a batch: as many rows of each field as count. Rows beyond the samples are not read: the
  /// plan masks them.
  const Batch& microbatch_of(const Batch& batch, std::int64_t number) {
    const Partition rows = rows_of(batch, number);
    // A single one takes the zeros behind the samples too.
    const std::int64_t count = microbatches == 1 && options.step.virtual_ranks == 0 ? capacity : rows.count;
    microbatch.fields.resize(batch.fields.size());
    for (std::size_t i = 0; i < batch.fields.size(); ++i) {
      microbatch.fields[i].field = batch.fields[i].field;
      microbatch.fields[i].view = batch.fields[i].view.slice(0, rows.begin, rows.begin + count);
    }
    microbatch.valid = rows.count;
    // Weights are summed over the ranks by the step.
    microbatch.global_valid =
        options.step.plan.weights != LossWeights::none ? 0 : std::max<std::int64_t>(batch.global_valid, 1);
    microbatch.epoch = batch.epoch;
    return microbatch;
  }

  /// The sums over a micro-batch of the mean of its outputs in all views, which takes the place of the plan's output.
  Metrics evaluate_views(const Batch& batch) {
    const Plan& plan = step.evaluation_plan();
    const TensorView images = batch.view(StateField::images);
    viewed.begin(plan.batch(), batch.valid);
    Batch seen = batch;
    view_bytes.resize(static_cast<std::size_t>(images.numel()));
    for (const TestView& view : test_views(options.test_views)) {
      for (FieldView& field : seen.fields) {
        if (field.field == StateField::images) {
          field.view = TensorView(std::span(view_bytes), images.shape);
        }
      }
      show_view(view, images, TensorView(std::span(view_bytes), images.shape));
      step.evaluate(seen);
      step.synchronize();  // before the copy, as in skipped_updates()
      viewed.add(context, view.weight, plan.output());
    }
    viewed.write(context, plan.output());
    return viewed.metrics(batch.view(StateField::labels));
  }

  Context& context;
  Ranks ranks;
  TrainingData data;
  TrainerOptions options;
  std::unique_ptr<DeferredSamples> deferred;  ///< of the training set, where a device finishes its batches
  Sampler train_sampler;
  Sampler test_sampler;
  std::size_t loader_bytes;
  std::int64_t microbatches;  ///< of a step, on this rank
  std::int64_t capacity;      ///< samples of the largest of them
  std::map<std::string, std::string> layers;
  TrainStep step;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<BatchFinisher> finisher;  ///< of deferred; goes before the loader, whose memory it reads
  Batch microbatch;
  bool behind = false;  ///< a step failed, whose batch the loader has given out
  std::string contract;
  Position position;
  std::vector<double> samples_seen;  ///< one, or one for each virtual rank
  ViewedBatch viewed;
  std::vector<std::uint8_t> view_bytes;  ///< images of a micro-batch in a view
  SpanRecorder* recorder = nullptr;      ///< of the step
  struct Names {
    int step = 0;
    int batch = 0;
    int evaluation = 0;
    int average = 0;  ///< its evaluation
    int checkpoint = 0;
  } names;         ///< of the recorder
  SyncGuard idle;  ///< goes first: the loader's memory is read by queued work
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
  require<UsageError>(options.test_views == TestViews::none ||
                          (model.input_kind() == InputKind::images && options.step.plan.loss == Loss::cross_entropy &&
                           options.step.plan.weights == LossWeights::none && model.output_shape().rank() == 1),
                      "trainer: test_views is ", name_of(options.test_views), " for model ", model.name(),
                      ", expected a classifier of u8 images with one label each and no weights of the loss");
  require_views_fit(options.test_views, model.input_shape());
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
  impl_->doing("agreeing on options and parameters after step", impl_->position.step);
  comm::require_same_on_all_ranks(impl_->ranks.control, impl_->contract + impl_->step.parameters().states().text());
  broadcast_state();
  impl_->open_loader();  // last: it may fail on one rank alone
}

void Trainer::require_same_state() {
  const Position& at = impl_->position;
  impl_->step.require_same_state(impl_->ranks.control, concat("epoch ", at.epoch, ", batch ", at.batch, " behind ",
                                                              at.skipped, " samples, step ", at.step, '\n'));
}

void Trainer::step() {
  Impl& s = *impl_;
  require<StateError>(s.loader != nullptr, "trainer: step() before start()");
  if (s.behind) {
    s.step.synchronize();
    s.open_loader();
  }
  SpanRecorder::Scope span(s.recorder, s.names.step, s.position.step + 1);
  const double rate = learning_rate();
  s.step.average_behind(s.position.step, s.scheduled());
  s.doing("reading the batch of step", s.position.step + 1);
  const Batch& loaded = s.next_batch();
  const std::int64_t last = s.microbatches - 1;
  try {
    const Batch& batch = s.finisher != nullptr ? s.finisher->finish(loaded) : loaded;
    for (std::int64_t i = 0; i < last; ++i) {
      s.step.add(s.microbatch_of(batch, i));
    }
    s.step.update(s.microbatch_of(batch, last), rate);
  } catch (...) {
    s.behind = true;
    throw;
  }
  span.end();
  for (std::size_t i = 0; i < s.samples_seen.size(); ++i) {
    const bool one = s.options.step.virtual_ranks == 0;
    s.samples_seen[i] +=
        static_cast<double>(one ? loaded.valid : s.rows_of(loaded, static_cast<std::int64_t>(i)).count);
  }
  ++s.position.step;
  if (++s.position.batch == s.train_sampler.batches(s.position.skipped)) {
    s.position.batch = 0;
    s.position.skipped = 0;
    ++s.position.epoch;
  }
}

void Trainer::record_into(SpanRecorder* recorder) {
  impl_->step.record_into(recorder);
  impl_->name_spans();
}

SpanRecorder::Scope Trainer::checkpoint_span() {
  return {impl_->recorder, impl_->names.checkpoint, impl_->position.step};
}

const Position& Trainer::position() const {
  return impl_->position;
}
std::int64_t Trainer::batches_per_epoch() const {
  return impl_->train_sampler.batches();
}
std::int64_t Trainer::steps_until(std::int64_t epochs) const {
  const Position& at = impl_->position;
  return epochs <= at.epoch ? 0
                            : impl_->train_sampler.batches(at.skipped) - at.batch +
                                  (epochs - at.epoch - 1) * impl_->train_sampler.batches();
}

Position Trainer::continued(const Position& saved, std::int64_t global_batch) const {
  const Sampler& sampler = impl_->train_sampler;
  const std::int64_t size = sampler.options().size;
  const auto possible = [&](bool ok) {
    require<DataError>(ok, "epoch ", saved.epoch, ", batch ", saved.batch, " of ", global_batch, " samples behind ",
                       saved.skipped, ", step ", saved.step, ", expected a position within epochs of ", size,
                       " samples");
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  possible(saved.epoch >= 0 && saved.epoch <= kMost / sampler.batches() && saved.batch >= 0 && saved.step >= 0 &&
           saved.step <= kMost && saved.skipped >= 0 && saved.skipped <= size && global_batch >= 0);
  if (global_batch == impl_->options.global_batch || global_batch == 0) {
    require<DataError>(saved.batch < sampler.batches(saved.skipped), "epoch ", saved.epoch, ", batch ", saved.batch,
                       ", but this run has ", sampler.batches(saved.skipped), " batches an epoch");
    return saved;
  }
  std::int64_t done = 0;
  possible(!__builtin_mul_overflow(saved.batch, global_batch, &done) &&
           !__builtin_add_overflow(done, saved.skipped, &done) && done <= size);
  Position at{.epoch = saved.epoch, .batch = 0, .step = saved.step, .skipped = done};
  if (sampler.batches(done) == 0) {
    ++at.epoch;
    at.skipped = 0;
  }
  return at;
}

double Trainer::learning_rate() const {
  return impl_->options.schedule.at(impl_->scheduled());
}

std::int64_t Trainer::skipped_updates() {
  const TensorView& skipped = impl_->step.optimizer().skipped();
  std::int64_t count = 0;
  if (skipped.given()) {
    impl_->step.synchronize();  // a copy to pageable memory waits by itself, without a look at the communicator
    copy(impl_->context, skipped, TensorView(std::span(&count, 1), Shape{}));
    impl_->step.synchronize();
  }
  return count;
}

std::string Trainer::non_finite_gradients(std::int64_t step) {
  Impl& s = *impl_;
  return s.step.non_finite_gradients(step - (s.position.step - s.step.steps()), s.ranks.control);
}

Metrics Trainer::take_metrics() {
  Impl& s = *impl_;
  s.doing("waiting for the device after step", s.position.step);
  const Metrics own = s.step.take_trained();
  s.doing("adding up metrics of all ranks after step", s.position.step);
  return nn::sum_over_ranks(s.ranks.control, own, s.options.step.virtual_ranks > 0);
}

std::span<const Metrics> Trainer::metrics_of(std::int64_t step) {
  return impl_->step.metrics_of(step - (impl_->position.step - impl_->step.steps()));
}

int Trainer::steps_under_way() const {
  return impl_->step.steps_under_way();
}

Metrics Trainer::sum_over_ranks(std::span<const Metrics> own) {
  impl_->doing("adding up metrics of all ranks after step", impl_->position.step);
  return nn::sum_over_ranks(impl_->ranks.control, sum_in_tree(own), impl_->options.step.virtual_ranks > 0);
}

void Trainer::reduce_buffers() {
  Impl& s = *impl_;
  const std::vector<double> seen = samples_seen();
  double total = 0;
  for (const double samples : seen) {
    total += samples;
  }
  if (total == 0 || s.step.parameters().buffers().empty()) {
    return;  // nothing was trained since the evaluation buffers were loaded
  }
  s.step.synchronize();  // before a copy, as in skipped_updates()
  doing("gathering statistics of all ranks after step");
  average_statistics(s.context, s.step.parameters(), s.ranks.control, seen);
}

Metrics Trainer::evaluate(const EvaluationHook& each) {
  SpanRecorder::Scope span(impl_->recorder, impl_->names.evaluation, impl_->position.step);
  reduce_buffers();
  const Metrics sums = evaluate_test_set(each);
  span.end();
  return sums;
}

Metrics Trainer::evaluate_average(const EvaluationHook& each) {
  SpanRecorder::Scope span(impl_->recorder, impl_->names.average, impl_->position.step);
  reduce_buffers();
  impl_->step.begin_average();
  struct End {
    TrainStep& step;
    bool done = false;
    ~End() {
      if (!done) {  // an error of the evaluation is what the caller gets
        try {
          step.end_average();
        } catch (...) {
        }
      }
    }
  } end{impl_->step};
  const Metrics sums = evaluate_test_set(each);
  end.done = true;
  impl_->step.end_average();
  span.end();
  return sums;
}

Metrics Trainer::evaluate_test_set(const EvaluationHook& each) {
  Impl& s = *impl_;
  (void)s.step.take_evaluated();
  Loader loader(s.data.test, s.test_sampler, s.step.host_memory(), s.loader_options());
  const SyncGuard idle(s.context.stream());  // it waits for the copies
  const bool views = s.options.test_views != TestViews::none;
  std::vector<Metrics> viewed(s.samples_seen.size());  // as the step adds them: one, or one for each virtual rank
  for (std::int64_t i = 0; i < s.test_sampler.batches(); ++i) {
    s.doing("evaluating batch", i + 1);
    const Batch& batch = loader.next();
    for (std::int64_t j = 0; j < s.microbatches; ++j) {
      const Batch& microbatch = s.microbatch_of(batch, j);
      if (views) {
        viewed[static_cast<std::size_t>(j) % viewed.size()] += s.evaluate_views(microbatch);
      } else {
        s.step.evaluate(microbatch);
      }
      if (each) {
        each(microbatch, s.step.evaluation_plan().output());
      }
    }
  }
  s.doing("waiting for the device at the end of the evaluation after step", s.position.step);
  const Metrics of_views = s.step.take_evaluated();  // with a DataError where a label was wrong
  const Metrics own = views ? sum_in_tree(viewed) : of_views;
  s.doing("adding up metrics of all ranks after step", s.position.step);
  return nn::sum_over_ranks(s.ranks.control, own, s.options.step.virtual_ranks > 0);
}

std::vector<double> Trainer::samples_seen() {
  doing("gathering statistics of all ranks after step");
  std::vector<double>& own = impl_->samples_seen;
  const auto n = static_cast<std::int64_t>(own.size());
  std::vector<double> all(own.size() * static_cast<std::size_t>(ranks()));
  Stream inline_stream = Stream::host_inline();
  impl_->ranks.control.all_gather(inline_stream, TensorView(std::span<double>(own), {n}),
                                  TensorView(std::span<double>(all), {n * ranks()}));
  return all;
}

void Trainer::restore(const Position& position, const std::vector<double>& samples_seen) {
  Impl& s = *impl_;
  require<ShapeError>(samples_seen.size() == s.samples_seen.size(), "restore: ", samples_seen.size(),
                      " numbers of samples seen, expected ", s.samples_seen.size());
  const std::int64_t batches = s.train_sampler.batches(position.skipped);
  require<UsageError>(position.epoch >= 0 && position.step >= 0 && position.batch >= 0 && position.batch < batches,
                      "restore: epoch ", position.epoch, ", batch ", position.batch, ", step ", position.step,
                      ", expected a batch from 0 to ", batches - 1, " and nothing negative");
  s.step.synchronize();
  s.position = position;
  s.samples_seen = samples_seen;
  s.open_loader();
}

void Trainer::broadcast_state() {
  impl_->step.broadcast(0);
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
ParameterSet& Trainer::parameters() {
  return impl_->step.parameters();
}
const Plan& Trainer::train_plan() const {
  return impl_->step.train_plan();
}
const Plan& Trainer::evaluation_plan() const {
  return impl_->step.evaluation_plan();
}
const Choices& Trainer::choices() const {
  return impl_->step.choices();
}
const comm::GradientReducer& Trainer::reducer() const {
  return impl_->step.reducer();
}
comm::GradientReducer& Trainer::reducer() {
  return impl_->step.reducer();
}
Context& Trainer::context() {
  return impl_->context;
}
const std::string& Trainer::graph_obstacle() const {
  return impl_->step.graph_obstacle();
}
std::size_t Trainer::planned_bytes() const {
  const Impl& s = *impl_;
  const std::size_t finisher =
      s.deferred != nullptr ? s.deferred->finisher_bytes(s.context.device(), s.train_sampler.capacity()) : 0;
  return s.step.planned_bytes() + s.loader_bytes + finisher;
}

void Trainer::doing(const char* what) const noexcept {
  impl_->doing(what, impl_->position.step);
}

void describe(Schema& schema, TrainerOptions& options) {
  schema.group("Training");
  schema
      .add("accumulate", options.accumulate,
           "micro-batches of one update, whose gradients add up; takes the memory of one")
      .at_least(1)
      .decides_numbers()
      .is_common();
  describe(schema, options.schedule);
  describe(schema, options.step);
  schema.group("Training");
  schema.add("keep_last", options.keep_last, "train on the partial last batch of an epoch too");
  schema
      .add("shuffle_chunk", options.shuffle_chunk,
           "samples that lie side by side in a packed file or in token files and are read together; the order shuffles "
           "chunks of so many, then the samples of 16 chunks; a file that lies class by class is shuffled first "
           "(lockstep-pack --shuffle), or batches hold few classes; 0: any sample may follow any other")
      .at_least(0)
      .decides_numbers();
}

}  // namespace lockstep::nn
