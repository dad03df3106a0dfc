#pragma once

#include <array>
#include <memory>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>

namespace lockstep::nn {

/// Records when the parts of a step run, as spans in the caller's SpanRecorder. Without such a recorder, uses a
/// recorder of its own if a profiling tool is attached to the process, and otherwise records nothing. Only
/// record_into() allocates memory.
class StepTrace {
 public:
  /// Spans that this class records. The plans and the reducer record all other spans of a step.
  enum Span : std::size_t { input, update, average, graph };

  /// From now on, plans, reducer and step record into `other`. If `other` is nullptr, they record for an attached
  /// profiling tool, or not at all if none is attached. Adds names to the recorder, which must outlive the work on the
  /// streams.
  void record_into(SpanRecorder* other, const MicrobatchPlans& plans, comm::GradientReducer& reducer) {
    SpanRecorder* const recorder = other != nullptr ? other : for_tool_.get();
    train_ = accumulate_ = {};
    reducer.record_into(recorder);
    if (recorder == nullptr) {
      return;
    }
    train_ = plans.train.name_calls(*recorder);
    accumulate_ = plans.accumulate ? plans.accumulate->name_calls(*recorder) : CallRecord();
    names_ = {recorder->add_name({.text = "input", .kind = SpanKind::input}),
              recorder->add_name({.text = "update", .kind = SpanKind::update}),
              recorder->add_name({.text = "moving average", .kind = SpanKind::update}),
              recorder->add_name({.text = "step as a CUDA graph", .kind = SpanKind::graph})};
  }
  [[nodiscard]] SpanRecorder* recorder() const { return train_.recorder; }  ///< recorder in use, or nullptr
  /// Returns the record for the calls of MicrobatchPlans::train if `first` is true, otherwise of
  /// MicrobatchPlans::accumulate.
  [[nodiscard]] const CallRecord& calls(bool first) const { return first ? train_ : accumulate_; }

  /// Runs `work`, which enqueues on `compute`, and records the enqueued work as one span.
  template <class Work>
  void span(Stream& compute, Span name, Work&& work) const {
    SpanRecorder::Scope scope(recorder(), compute, SpanRecorder::Lane::compute, names_[name]);
    work();
    scope.end();
  }

 private:
  std::unique_ptr<SpanRecorder> for_tool_ = SpanRecorder::for_tool();
  CallRecord train_;
  CallRecord accumulate_;
  std::array<int, 4> names_{};  ///< index of each Span's name in the recorder
};

}  // namespace lockstep::nn
