#include <lockstep/nn/run/observer.hpp>

namespace lockstep::nn {

RunObservers& RunObservers::add(RunObserver& observer) {
  observers_.push_back(&observer);
  return *this;
}

void RunObservers::on_run_begin(const RunBegin& event) {
  for (RunObserver* each : observers_) {
    each->on_run_begin(event);
  }
}
void RunObservers::on_epoch_begin(const EpochBegin& event) {
  for (RunObserver* each : observers_) {
    each->on_epoch_begin(event);
  }
}
void RunObservers::on_step_begin(const StepEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_step_begin(event);
  }
}
void RunObservers::on_step_end(const StepEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_step_end(event);
  }
}
void RunObservers::on_non_finite(const NonFiniteEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_non_finite(event);
  }
}
void RunObservers::on_report(const ReportEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_report(event);
  }
}
void RunObservers::on_evaluation_begin(const EvaluationBegin& event) {
  for (RunObserver* each : observers_) {
    each->on_evaluation_begin(event);
  }
}
void RunObservers::on_evaluation_batch(const EvaluationBatch& event) {
  for (RunObserver* each : observers_) {
    each->on_evaluation_batch(event);
  }
}
void RunObservers::on_evaluation_end(const EvaluationEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_evaluation_end(event);
  }
}
void RunObservers::on_epoch_end(const EpochEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_epoch_end(event);
  }
}
void RunObservers::on_checkpoint_begin(const CheckpointEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_checkpoint_begin(event);
  }
}
void RunObservers::on_checkpoint_end(const CheckpointEvent& event) {
  for (RunObserver* each : observers_) {
    each->on_checkpoint_end(event);
  }
}
void RunObservers::on_run_end(const RunResult& result) {
  for (RunObserver* each : observers_) {
    each->on_run_end(result);
  }
}

}  // namespace lockstep::nn
