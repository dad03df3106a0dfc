#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/step/parts/step_trace.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>

namespace lockstep::nn {

/// Runs training micro-batches. If possible, each micro-batch is captured into a CUDA graph and runs as one launch. A
/// micro-batch has one of four places in its step: it is the first or not, and it is the last or not. There is one
/// graph for each StepState (inputs of a micro-batch on the device) and each place.
///
/// The first run at a place is not captured, so that libraries can initialise. The second run captures the graphs of
/// this place for all StepStates. Only these two runs allocate memory. No run waits.
class StepGraphs {
 public:
  /// Function that enqueues the micro-batch whose inputs are in StepState number `state`. The function must make the
  /// same calls in every step. All numbers that change between steps must be in the StepState, where the device reads
  /// them.
  using Enqueue = std::function<void(int state, bool first, bool last)>;
  /// The text `obstacle` is the reason why graphs cannot be used. If the text is empty, runs are captured on `compute`.
  /// The stream, the trace and everything that captured work uses must outlive this object.
  StepGraphs(Stream& compute, const StepTrace& trace, std::string obstacle, int states, Enqueue enqueue)
      : compute_(compute),
        trace_(trace),
        obstacle_(std::move(obstacle)),
        enqueue_(std::move(enqueue)),
        graphs_(obstacle_.empty() ? 4 * static_cast<std::size_t>(states) : 0) {}

  void run(int state, bool first, bool last) {
    const std::size_t place = (first ? 2U : 0U) + (last ? 1U : 0U);
    if (graphs_.empty() || !warm_[place]) {
      enqueue_(state, first, last);
      warm_[place] = true;
      return;
    }
    const std::size_t wanted = 4 * static_cast<std::size_t>(state) + place;
    if (!graphs_[wanted].given()) {
      try {
        for (std::size_t i = place; i < graphs_.size(); i += 4) {
          graphs_[i] = Graph::capture(compute_, [&] { enqueue_(static_cast<int>(i / 4), first, last); });
          graphs_[i].upload(compute_);
        }
      } catch (Error& error) {
        error.annotate("the step as a CUDA graph (cuda_graph off does without)");
        throw;
      }
    }
    trace_.span(compute_, StepTrace::graph, [&] { graphs_[wanted].launch(compute_); });
  }
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }

 private:
  Stream& compute_;
  const StepTrace& trace_;
  std::string obstacle_;
  Enqueue enqueue_;
  std::vector<Graph> graphs_;   ///< index: 4 * state + place; empty if nothing is captured
  std::array<bool, 4> warm_{};  ///< for each place: true after the first run
};

}  // namespace lockstep::nn
