#include <lockstep/nn/run/detail/step_results.hpp>

#include <string>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/nn/run/detail/clock.hpp>
#include <lockstep/nn/run/detail/run_metrics.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {

void StepResults::begin_epoch() {
  epoch_ = run_.trainer.position().epoch;
  epoch_sums_ = {};
  epoch_train_s_ = 0;
  epoch_exposed_s_ = 0;
  restart_lap(now_s());
  lap_sums_.clear();
  reported_ = run_.trainer.position().step;
  next_step_ = reported_ + 1;
}

void StepResults::enqueued(const StepEvent& step, std::int64_t batch, bool last) {
  if (last || step.step % run_.options.log_every == 0) {
    due(waiting_++) = {
        .step = step.step, .batch = batch, .learning_rate = step.learning_rate, .steps = step.step - reported_};
    reported_ = step.step;
  }
  if (last) {
    wait_and_report();
    return;
  }
  collect();
  while (waiting_ > 0 && due(0).step + lag_ <= step.step) {
    report();
  }
  check_gradients(step.step - lag_);
}

void StepResults::finish() {
  if (waiting_ > 0 || run_.trainer.options().step.check_gradients) {
    wait_and_report();
  }
}

void StepResults::wait_and_report() {
  run_.trainer.doing("waiting for the device after step");
  (void)run_.trainer.train_step().wait_loss();
  collect();
  while (waiting_ > 0) {
    report();
  }
  check_gradients(run_.trainer.position().step);
}

void StepResults::describe_epoch(EpochEvent& event) const {
  event.train_loss = epoch_sums_.loss();
  event.train_accuracy = accuracy_of(run_.trainer, epoch_sums_);
  event.samples_per_second = epoch_sums_.samples / epoch_train_s_;
  event.comm_exposed_s = timed_ ? epoch_exposed_s_ : -1;
}

void StepResults::restart_lap(double now) {
  lap_begin_ = now;
  lap_exposed_begin_ = run_.trainer.reducer().statistics().exposed_s;
}

void StepResults::collect() {
  std::int64_t steps = 0;  // total number of steps in the reports that became complete in this call
  for (auto step = run_.trainer.metrics_of(next_step_); !step.empty(); step = run_.trainer.metrics_of(next_step_)) {
    lap_sums_.resize(step.size());
    for (std::size_t part = 0; part < step.size(); ++part) {
      lap_sums_[part] += step[part];
    }
    for (std::size_t i = 0; i < waiting_; ++i) {
      if (Report& report = due(i); report.step == next_step_) {
        report.there = true;
        report.sums = std::exchange(lap_sums_, {});
        steps += report.steps;
      }
    }
    ++next_step_;
  }
  if (steps == 0) {
    return;
  }
  const double now = now_s();
  const double seconds = now - lap_begin_;
  const double exposed_s = run_.trainer.reducer().statistics().exposed_s - lap_exposed_begin_;
  for (std::size_t i = 0; i < waiting_; ++i) {
    if (Report& report = due(i); report.there && report.seconds < 0) {
      const double part = static_cast<double>(report.steps) / static_cast<double>(steps);
      report.seconds = seconds * part;
      report.exposed_s = exposed_s * part;
    }
  }
  restart_lap(now);
}

void StepResults::report() {
  const Report first = due(0);
  first_due_ = (first_due_ + 1) % due_.size();
  --waiting_;
  require<StateError>(first.there, "training run: the metrics of step ", first.step, " are not there after step ",
                      run_.trainer.position().step, ", expected them with each step");
  const Metrics sums = run_.trainer.sum_over_ranks(first.sums);
  epoch_sums_ += sums;
  epoch_train_s_ += first.seconds;
  epoch_exposed_s_ += first.exposed_s;
  ReportEvent event{.epoch = epoch_,
                    .step = first.step,
                    .batch = first.batch,
                    .loss = sums.loss(),
                    .accuracy = accuracy_of(run_.trainer, sums),
                    .learning_rate = first.learning_rate,
                    .samples_per_second = sums.samples / first.seconds,
                    .comm_exposed_s = timed_ ? first.exposed_s / static_cast<double>(first.steps) : -1,
                    .metrics = {}};
  event.metrics = own_metrics(run_.control, run_.options.metrics, event);
  run_.trainer.doing("reporting after step");
  run_.observer.on_report(event);
  if (lag_ == 0) {
    restart_lap(now_s());  // the device was idle during the report, so this time does not count as training
  }
}

void StepResults::check_gradients(std::int64_t through) {
  const TrainerOptions& options = run_.trainer.options();
  while (options.step.check_gradients && checked_ < through) {
    ++checked_;
    const std::string text = run_.trainer.non_finite_gradients(checked_);
    if (text.empty()) {
      continue;
    }
    const OptimizerOptions& optimizer = options.step.optimizer;
    require<comm::CollectiveError<GradientError>>(
        optimizer.skip_non_finite || optimizer.clip_norm > 0 || optimizer.loss_scale.scales(), "step ", checked_,
        ": gradients are not finite: ", text);
    run_.observer.on_non_finite({.step = checked_, .gradients = text});
  }
}

}  // namespace lockstep::nn::detail
