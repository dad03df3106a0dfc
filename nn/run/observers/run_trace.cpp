#include <lockstep/nn/run/observers/run_trace.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

/// Largest number of host spans from one step to the next: the step, its batch, two evaluations, three checkpoints and
/// a copy for restarts.
constexpr std::size_t kOfHost = 8;

}  // namespace

TraceSteps parse_trace_steps(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto first = number_in<std::int64_t>(text.substr(0, colon));
  const auto last = number_in<std::int64_t>(text.substr(std::min(colon + 1, text.size())));
  require<UsageError>(first && last && *first >= 1 && *first <= *last && *last - *first < TraceSteps::kMost,
                      "--trace-steps is '", text, "', expected A:B with 1 <= A <= B, at most ", TraceSteps::kMost,
                      " steps");
  return {.first = *first, .last = *last};
}

TraceSteps default_trace_steps(std::int64_t steps) {
  const TraceSteps usual;
  const std::int64_t last = std::clamp<std::int64_t>(steps, 1, usual.last);
  return {.first = std::clamp<std::int64_t>(last - (usual.last - usual.first), 1, usual.first), .last = last};
}

RunTrace::RunTrace(Trainer& trainer, comm::Communicator& control, std::string file, const TraceSteps& steps)
    : trainer_(trainer),
      control_(control),
      file_(std::move(file)),
      recorder_(
          trainer.context().device(), trainer.position().step + steps.first, trainer.position().step + steps.last,
          static_cast<std::size_t>(steps.last - steps.first + 1) * (trainer.train_step().spans_of_a_step() + kOfHost)) {
  trainer_.record_into(&recorder_);
}

void RunTrace::start() {
  origin_ns_ = SpanRecorder::now_ns();
  clock_.begin = comm::read_clock(control_, SpanRecorder::now_ns);
}

void RunTrace::on_step_begin(const StepEvent& event) {
  recorder_.begin_step(event.step);
}

void RunTrace::stop() {
  trainer_.record_into(nullptr);
  trainer_.train_step().synchronize();
  spans_ = recorder_.take(trainer_.context().stream());
}

TimelineSummary RunTrace::write() {
  clock_.end = comm::read_clock(control_, SpanRecorder::now_ns);
  const RankTimeline own = rank_timeline(control_.rank(), recorder_, spans_, clock_);
  TimelineSummary summary;
  std::optional<TimelineFile> file;
  try {
    gather_timelines(control_, own, [&](const RankTimeline& part) {
      summary.add(part);
      if (!file) {
        file.emplace(file_, origin_ns_);
      }
      file->add(part);
    });
    if (file) {
      file->finish();
    }
  } catch (const FileError& error) {  // a WriteError instead, because the file was writable when the run began
    throw WriteError(error.what());
  }
  return summary;
}

void RunTrace::save_own() noexcept {
  try {
    Stream& compute = trainer_.context().stream();
    if (compute.device().kind == DeviceKind::cuda) {
      return;
    }
    TimelineFile file(file_, origin_ns_);
    file.add(rank_timeline(control_.rank(), recorder_, recorder_.take(compute), {}));
    file.finish();
  } catch (...) {  // ignored, because the run's own error is reported
  }
}

}  // namespace lockstep::nn
