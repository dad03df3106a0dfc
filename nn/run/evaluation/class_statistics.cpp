#include <lockstep/nn/run/evaluation/class_statistics.hpp>

#include <algorithm>
#include <span>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

constexpr std::size_t kNumbers = 5;  // numbers per ClassReport::Sample that ranks exchange

/// Copies the first `rows` rows of a field to `into` on the host, converted to type T.
template <class T>
void take(CpuContext& host, const Batch& batch, StateField field, std::int64_t rows, std::vector<T>& into) {
  into.resize(static_cast<std::size_t>(rows));
  const TensorView view = batch.view(field).slice(0, 0, rows);
  copy(host, view, TensorView(std::span(into), view.shape));
}

}  // namespace

bool ClassStatistics::can_watch(const Trainer& trainer) {
  const StepLayout& layout = trainer.evaluation_plan().layout();
  return !layout.regression && layout.weights == LossWeights::none && layout.output.rank() == 1 &&
         layout.output[0] >= 2 && layout.output[0] <= ClassReport::kMostClasses;
}

ClassStatistics::ClassStatistics(Trainer& trainer, const Ranks& ranks, std::size_t most_worst)
    : trainer_(trainer),
      ranks_(ranks),
      classes_(0),
      most_worst_(most_worst),
      host_({.threads = 1}),
      inline_stream_(Stream::host_inline()) {
  require<UsageError>(can_watch(trainer), "class watch: a model with outputs ",
                      trainer.evaluation_plan().layout().output, " of ", trainer.evaluation_plan().layout().model,
                      ", expected 2 to ", ClassReport::kMostClasses, " classes, one label a sample and no weights");
  classes_ = static_cast<int>(trainer.evaluation_plan().layout().output[0]);
  report_ = ClassReport(classes_, most_worst_);
  logits_.resize(static_cast<std::size_t>(classes_));
}

ClassStatistics::~ClassStatistics() {
  for (const Slot& slot : slots_) {
    if (slot.waiting) {
      try {
        slot.copied->synchronize();
      } catch (...) {  // ignored, because the next user of the stream gets the error
      }
    }
  }
}

void ClassStatistics::on_evaluation_begin(const EvaluationBegin& /*event*/) {
  count_all();  // discards the outputs of an earlier evaluation that ended with an error
  report_ = ClassReport(classes_, most_worst_);
  reduced_ = false;
}

void ClassStatistics::on_evaluation_batch(const EvaluationBatch& event) {
  const std::int64_t rows = event.batch.valid;
  if (rows == 0) {
    return;
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kBehind;
  count(slot);
  const TensorView output = event.output.slice(0, 0, rows);
  if (slot.outputs.bytes() < output.bytes()) {
    slot.outputs = Buffer(event.output.bytes(), trainer_.train_step().host_memory(), inline_stream_);
  }
  take(host_, event.batch, StateField::labels, rows, slot.labels);
  take(host_, event.batch, StateField::sample_ids, rows, slot.ids);
  slot.rows = rows;
  slot.dtype = output.dtype;
  Context& context = trainer_.context();
  if (!slot.copied) {
    slot.copied.emplace(context.device());
  }
  slot.waiting = true;  // set before copy(), because copy() may already write to the slot before it throws
  copy(context, output, TensorView(slot.outputs.data(), output.dtype, Device::cpu(), output.shape));
  context.stream().record(*slot.copied);
}

void ClassStatistics::on_evaluation_end(const EvaluationEvent& /*event*/) {
  (void)report();
}

void ClassStatistics::count(Slot& slot) {
  if (!slot.waiting) {
    return;
  }
  comm::wait(*slot.copied, ranks_.grad);
  slot.waiting = false;
  const Shape row{std::int64_t{classes_}};
  std::byte* at = slot.outputs.data();
  for (std::size_t i = 0; i < static_cast<std::size_t>(slot.rows); ++i) {
    const TensorView stored(at, slot.dtype, Device::cpu(), row);
    copy(host_, stored, TensorView(std::span(logits_), row));
    report_.add(slot.ids[i], slot.labels[i], logits_);
    at += stored.bytes();
  }
}

void ClassStatistics::count_all() {
  for (std::size_t i = 0; i < kBehind; ++i) {
    count(slots_[(next_ + i) % kBehind]);
  }
}

const ClassReport& ClassStatistics::report() {
  if (!reduced_) {
    count_all();
    trainer_.doing("adding up the classes of all ranks after step");
    reduce();
    reduced_ = true;
  }
  return report_;
}

void ClassStatistics::reduce() {
  std::vector<std::int64_t> counts = report_.confusion;
  counts.insert(counts.end(), report_.not_finite.begin(), report_.not_finite.end());
  for (const ClassReport::Bin& bin : report_.bins) {
    counts.insert(counts.end(), {bin.samples, bin.correct, bin.confidence});
  }
  ranks_.control.all_reduce(inline_stream_, TensorView(std::span(counts), {static_cast<std::int64_t>(counts.size())}));
  std::vector<double> own;
  for (const ClassReport::Sample& sample : report_.worst) {
    own.insert(own.end(), {static_cast<double>(sample.id), static_cast<double>(sample.label),
                           static_cast<double>(sample.predicted), sample.loss, sample.confidence});
  }
  own.resize(kNumbers * most_worst_, -1);  // unused entries get the id -1
  const std::vector<double> all = own.empty() ? own : comm::all_gather_values(ranks_.control, own);
  ClassReport sum(classes_, most_worst_);
  auto next = counts.begin();
  const auto read = [&](std::vector<std::int64_t>& into) {
    std::copy_n(next, into.size(), into.begin());
    next += static_cast<std::ptrdiff_t>(into.size());
  };
  read(sum.confusion);
  read(sum.not_finite);
  for (ClassReport::Bin& bin : sum.bins) {
    bin = {.samples = next[0], .correct = next[1], .confidence = next[2]};
    next += 3;
  }
  for (std::size_t i = 0; i < all.size(); i += kNumbers) {
    if (all[i] >= 0) {
      sum.keep({.id = static_cast<std::int64_t>(all[i]),
                .label = static_cast<std::int32_t>(all[i + 1]),
                .predicted = static_cast<std::int32_t>(all[i + 2]),
                .loss = all[i + 3],
                .confidence = all[i + 4]});
    }
  }
  report_ = std::move(sum);
}

std::vector<RunMetric> ClassStatistics::metrics() {
  return {{.name = "calibration_error",
           .of_evaluation = [this](const EvaluationEvent&) { return MetricPart(report().calibration_error()); }},
          {.name = "worst_class_accuracy",
           .of_evaluation = [this](const EvaluationEvent&) { return MetricPart(report().worst_class_accuracy()); }}};
}

}  // namespace lockstep::nn
