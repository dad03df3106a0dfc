#include <lockstep/app/detail/run_timeline.hpp>

#include <iostream>

namespace lockstep::nn::detail {

void RunTimeline::start(Trainer& trainer, std::int64_t last, RunObservers& observers) {
  if (o_.trace.empty()) {
    return;
  }
  site_.session.agree([&] {
    observers.add(trace_.emplace(trainer, site_.session.control(), o_.trace,
                                 o_.trace_steps.empty() ? default_trace_steps(last - trainer.position().step)
                                                        : parse_trace_steps(o_.trace_steps)));
  });
  trace_->start();
}

void RunTimeline::save_own() noexcept {
  if (site_.first && trace_) {
    trace_->save_own();
  }
}

void RunTimeline::report() {
  if (!trace_) {
    return;
  }
  std::optional<TimelineSummary> summary;
  site_.session.agree([&] {
    site_.doing("writing the timeline");
    trace_->stop();
  });
  site_.session.agree([&] { summary = trace_->write(); });
  if (site_.first) {
    std::cout << summary->text(o_.trace);
    Json::Object fields = summary->json();
    fields["file"] = o_.trace;
    site_.files.write_event("trace", fields);
  }
}

}  // namespace lockstep::nn::detail
