#include <lockstep/nn/trainer.hpp>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include <lockstep/comm/text.hpp>
#include <lockstep/runtime/copy.hpp>
#include <lockstep/runtime/version.hpp>

namespace lockstep::nn {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// Metrics travel to the host one step late: a ring of two host slots, each with the event that completes it.
class MetricsRing {
 public:
  explicit MetricsRing(Device device) : slots_{Slot(device), Slot(device)} {}

  /// Fetches the slot that this step will reuse, then enqueues the copy of this step's metrics.
  void push(Context& context, const TensorView& metrics, double samples, Metrics& sums) {
    Slot& slot = slots_[next_ % 2];
    take(slot, sums);
    copy(context, metrics, TensorView(std::span<double>(slot.values), {3}));
    context.stream().record(slot.ready);
    slot.samples = samples;
    slot.pending = true;
    ++next_;
  }
  void flush(Metrics& sums) {
    take(slots_[next_ % 2], sums);
    take(slots_[(next_ + 1) % 2], sums);
  }

 private:
  struct Slot {
    explicit Slot(Device device) : ready(device) {}
    std::array<double, 3> values{};
    double samples = 0;
    bool pending = false;
    Event ready;
  };
  static void take(Slot& slot, Metrics& sums) {
    if (!slot.pending) {
      return;
    }
    slot.pending = false;
    slot.ready.synchronize();
    require<DataError>(slot.values[2] == 0, slot.values[2], " labels of a batch are outside [0, classes)");
    sums.loss_sum += slot.values[0];
    sums.correct += slot.values[1];
    sums.samples += slot.samples;
  }
  std::array<Slot, 2> slots_;
  std::uint64_t next_ = 0;
};

Metrics sum_over_ranks(comm::Communicator& control, const Metrics& own) {
  // In rank order, so that every rank has the same bits.
  const std::vector<double> losses = comm::all_gather_value(control, own.loss_sum);
  const std::vector<double> correct = comm::all_gather_value(control, own.correct);
  const std::vector<double> samples = comm::all_gather_value(control, own.samples);
  Metrics sum;
  for (std::size_t r = 0; r < losses.size(); ++r) {
    sum.loss_sum += losses[r];
    sum.correct += correct[r];
    sum.samples += samples[r];
  }
  return sum;
}

/// Everything that must be equal on all ranks, one item a line.
std::string contract(const Model& model, const DataSplit& data, const TrainerOptions& options) {
  std::ostringstream text;
  text << "version " << version() << '\n' << "model " << model.name() << '\n';
  for (const Model::Parameter& parameter : model.parameters()) {
    text << "parameter " << parameter.spec.name << ' ' << parameter.spec.shape << ' ' << options.plan.dtype << '\n';
  }
  for (const BufferSpec& buffer : model.buffers()) {
    text << "buffer " << buffer.name << ' ' << buffer.shape << '\n';
  }
  text.precision(17);
  text << "seed " << options.seed << '\n'
       << "global batch " << options.global_batch << '\n'
       << "momentum " << options.sgd.momentum << " nesterov " << options.sgd.nesterov << '\n'
       << "weight decay " << options.weight_decay << " on all " << options.decay_all << '\n'
       << "schedule " << static_cast<int>(options.schedule.kind) << ' ' << options.schedule.base << ' '
       << options.schedule.warmup_steps << ' ' << options.schedule.total_steps << '\n'
       << "label smoothing " << options.plan.label_smoothing << '\n'
       << "augmentation " << options.plan.augment.pad << ' ' << options.plan.augment.flip << '\n'
       << "keep last " << options.keep_last << '\n'
       << "buckets " << options.buckets.bucket_bytes << ' ' << options.buckets.tail_bytes << ' '
       << options.buckets.head_bytes << '\n'
       << "training data " << data.train->name() << ' ' << data.train->size() << ' ' << data.train->fingerprint()
       << '\n'
       << "test data " << data.test->name() << ' ' << data.test->size() << ' ' << data.test->fingerprint() << '\n';
  return text.str();
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

}  // namespace

void require_same_on_all_ranks(comm::Communicator& control, const std::string& text) {
  const std::vector<std::string> texts = comm::all_gather_text(control, text);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) {
      continue;
    }
    const auto first = lines_of(texts[0]);
    const auto other = lines_of(texts[r]);
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string a = i < first.size() ? first[i] : "nothing";
      const std::string b = i < other.size() ? other[i] : "nothing";
      require<UsageError>(a == b, "the ranks do not agree: rank 0 has '", a, "', rank ", r, " has '", b,
                          "'; start every rank with the same program, options and data");
    }
  }
}

struct Trainer::State {
  State(Context& ctx, const Ranks& r, const Model& m, const DataSplit& d, const TrainerOptions& o)
      : context(ctx),
        ranks(r),
        options(o),
        capacity((o.global_batch + r.grad.size() - 1) / r.grad.size()),
        parameters(ctx, m, o.plan.dtype, {.weight_decay = o.weight_decay, .decay_all = o.decay_all, .memory = nullptr}),
        sgd(ctx, parameters, o.sgd),
        step_state(ctx, capacity, m.input_shape(), o.plan.dtype, o.plan.uint8_input),
        train(ctx, m, Mode::train, capacity, o.plan),
        evaluation(ctx, m, Mode::evaluate, capacity, o.plan),
        workspace(std::max(train.workspace_bytes(), evaluation.workspace_bytes()), ctx),
        reducer(r.grad, ctx.stream(), r.comm_stream, gradient_ranges(parameters),
                comm::plan_buckets(gradient_ranges(parameters), with_element_bytes(o)), parameters.gradients()),
        written([this](int parameter) { reducer.written(parameter); }),
        ring(ctx.device()),
        data(d) {
    train.bind(parameters, step_state, workspace);
    evaluation.bind(parameters, step_state, workspace);
  }

  static comm::BucketOptions with_element_bytes(const TrainerOptions& o) {
    comm::BucketOptions buckets = o.buckets;
    buckets.element_bytes = static_cast<std::int64_t>(size_of(o.plan.dtype));
    return buckets;
  }

  [[nodiscard]] Sampler sampler(const Dataset& dataset, bool training) const {
    return Sampler({.size = dataset.size(),
                    .batch_size = options.global_batch,
                    .ranks = ranks.grad.size(),
                    .rank = ranks.grad.rank(),
                    .shuffle = training,
                    .keep_last = !training || options.keep_last,
                    .seed = options.seed});
  }

  [[nodiscard]] LoaderOptions loader_options() const {
    return {.workers = options.loader_workers, .prefetch = options.prefetch, .epoch = 0, .batch = 0};
  }

  /// Copies a batch into the step state and sets the scalars that go with it.
  void load(const Batch& batch, double learning_rate) {
    copy(context, batch.images, step_state.view(StateField::images));
    copy(context, batch.labels, step_state.view(StateField::labels));
    copy(context, batch.sample_ids, step_state.view(StateField::sample_ids));
    step_state.set(context, {.learning_rate = learning_rate,
                             .loss_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(batch.global_valid, 1)),
                             .valid = batch.valid,
                             .epoch = batch.epoch});
  }

  Context& context;
  Ranks ranks;
  TrainerOptions options;
  std::int64_t capacity;
  ParameterSet parameters;
  Sgd sgd;
  StepState step_state;
  Plan train;
  Plan evaluation;
  Buffer workspace;
  comm::GradientReducer reducer;
  std::function<void(int)> written;
  MetricsRing ring;
  const DataSplit& data;
  HostMemoryResource host_memory;
  std::unique_ptr<Loader> loader;
  std::string contract;
  Position position;
  std::int64_t batches = 0;
  Metrics window;
  double samples_seen = 0;
};

Trainer::Trainer(Context& context, const Ranks& ranks, const Model& model, const DataSplit& data,
                 const TrainerOptions& options) {
  require<UsageError>(options.global_batch >= ranks.grad.size(), "the batch size is ", options.global_batch,
                      ", expected at least one sample for each of the ", ranks.grad.size(), " ranks");
  state_ = std::make_unique<State>(context, ranks, model, data, options);
  State& s = *state_;
  s.batches = s.sampler(*data.train, true).batches();
  s.contract = contract(model, data, options);
  s.parameters.initialise(context, options.seed);
}

Trainer::~Trainer() = default;

void Trainer::start() {
  require_same_on_all_ranks(state_->ranks.control, state_->contract);
  broadcast_state();
}

void Trainer::step() {
  State& s = *state_;
  if (!s.loader) {
    LoaderOptions loader = s.loader_options();
    loader.epoch = s.position.epoch;
    loader.batch = s.position.batch;
    s.loader = std::make_unique<Loader>(*s.data.train, s.sampler(*s.data.train, true), s.host_memory, loader);
  }
  const Batch& batch = s.loader->next();
  s.load(batch, learning_rate());
  s.reducer.begin_step();
  s.train.run(s.context, s.written);
  s.reducer.finish();
  s.sgd.update(s.context, s.step_state.view(StateField::learning_rate));
  s.ring.push(s.context, s.step_state.view(StateField::metrics), static_cast<double>(batch.valid), s.window);
  s.samples_seen += static_cast<double>(batch.valid);
  ++s.position.step;
  if (++s.position.batch == s.batches) {
    s.position.batch = 0;
    ++s.position.epoch;
  }
}

const Position& Trainer::position() const {
  return state_->position;
}
std::int64_t Trainer::batches_per_epoch() const {
  return state_->batches;
}
double Trainer::learning_rate() const {
  return state_->options.schedule.at(state_->position.step);
}

Metrics Trainer::take_metrics() {
  State& s = *state_;
  s.ring.flush(s.window);
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
  s.context.synchronize();
}

Metrics Trainer::evaluate() {
  State& s = *state_;
  reduce_buffers();
  Metrics own;
  const Sampler sampler = s.sampler(*s.data.test, false);
  Loader loader(*s.data.test, sampler, s.host_memory, s.loader_options());
  MetricsRing ring(s.context.device());
  for (std::int64_t i = 0; i < sampler.batches(); ++i) {
    const Batch& batch = loader.next();
    s.load(batch, 0);
    s.evaluation.run(s.context);
    ring.push(s.context, s.step_state.view(StateField::metrics), static_cast<double>(batch.valid), own);
  }
  ring.flush(own);
  return sum_over_ranks(s.ranks.control, own);
}

std::vector<double> Trainer::samples_seen() {
  return comm::all_gather_value(state_->ranks.control, state_->samples_seen);
}

std::vector<double> Trainer::gather_rank_buffers() {
  State& s = *state_;
  const std::int64_t n = s.parameters.buffer_arena().numel();
  std::vector<double> own(static_cast<std::size_t>(n));
  std::vector<double> all(static_cast<std::size_t>(n * s.ranks.control.size()));
  copy(s.context, s.parameters.buffer_arena(), TensorView(std::span<double>(own), {n}));
  s.context.synchronize();
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
  std::vector<double> host = own_buffers;
  copy(s.context, TensorView(std::span<double>(host), {n}), s.parameters.buffer_arena());
  s.context.synchronize();
  s.position = position;
  s.samples_seen = samples_seen;
  s.loader.reset();
}

void Trainer::broadcast_state() {
  State& s = *state_;
  const auto send = [&](const TensorView& view) {
    if (view.numel() > 0) {
      s.ranks.grad.broadcast(s.context.stream(), view, 0);
    }
  };
  send(s.parameters.values());
  for (const std::string& name : s.parameters.state_names()) {
    send(s.parameters.state(name));
  }
  send(s.parameters.buffer_arena());
  send(s.parameters.evaluation_buffer_arena());
  s.context.synchronize();
}

ParameterSet& Trainer::parameters() {
  return state_->parameters;
}
const Plan& Trainer::train_plan() const {
  return state_->train;
}
const Plan& Trainer::evaluation_plan() const {
  return state_->evaluation;
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

std::size_t Trainer::planned_bytes() const {
  const State& s = *state_;
  const Dataset& data = *s.data.train;
  const auto image = static_cast<std::size_t>(data.image_bytes() + 12);
  return s.parameters.bytes() + s.workspace.bytes() + s.step_state.bytes() +
         static_cast<std::size_t>(s.options.prefetch + 2) * static_cast<std::size_t>(s.capacity) * image;
}

}  // namespace lockstep::nn
