#pragma once

#include <array>
#include <cstdio>
#include <optional>

#include <lockstep/comm/gradients/bucket_breadcrumbs.hpp>
#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/watchdog.hpp>

namespace lockstep::nn {

/// Reports a rank's progress within a step to its watchdog: the work that the host does, and the buckets that a GPU has
/// summed. Without a watchdog, all calls do nothing. Only watch_device() allocates memory and waits.
class StepProgress {
 public:
  explicit StepProgress(comm::Watchdog* watchdog) : watchdog_(watchdog) {}
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;
  /// Must run after the destructors of the reducer and of captured steps, because their queued work writes to `marks_`.
  ~StepProgress() {
    if (marks_) {
      watchdog_->forget_device(this);
    }
  }

  /// After this call, the reducer enqueues a mark for each of its buckets on `comm`. The watchdog reads the marks to
  /// find which buckets the GPU has summed. `places` is the number of StepStates of the pipeline; each step in progress
  /// uses one StepState. Does nothing on a host.
  void watch_device(Context& compute, Stream& comm, comm::GradientReducer& reducer, int places) {
    if (watchdog_ != nullptr && comm.device().kind == DeviceKind::cuda) {
      marks_.emplace(compute, comm, reducer.gradients(), reducer.buckets(), places);
      reducer.mark_into(&*marks_);
      watchdog_->watch_device(this, [this] { return marks_->text(); });
    }
  }

  /// Reports the work that the host begins: `what` and the step's number, for example "computing step" and 7.
  void doing(const char* what, std::int64_t step) const noexcept {
    if (watchdog_ != nullptr) {
      watchdog_->begin(what, step);
    }
  }
  /// Reports that backward has enqueued a write of gradient number `gradient` of the reducer.
  void written(const comm::GradientReducer& reducer, int gradient) const noexcept {
    if (watchdog_ != nullptr) {
      std::array<char, 96> text{};
      std::snprintf(text.data(), text.size(), "%d of %zu buckets enqueued, %s", reducer.started(),
                    reducer.buckets().size(), reducer.gradients()[static_cast<std::size_t>(gradient)].name.c_str());
      watchdog_->where(text.data());
    }
  }

  /// Reports that the host begins to enqueue the sums of step `step`. `place` is the index of the StepState that the
  /// step's last micro-batch uses.
  void begin_sums(int place, std::int64_t step) noexcept {
    if (marks_) {
      marks_->begin(place, step);
      place_ = place;
    }
  }
  /// Work that is enqueued or captured after this call belongs to the step whose begin_sums() had this `place`.
  void use(int place) noexcept {
    if (marks_) {
      marks_->use(place);
    }
  }
  void end_sums() noexcept { place_ = -1; }  ///< reports that all sums of the step are enqueued
  /// Reports that the remaining sums of the step will not be enqueued. The watchdog then expects no more marks of this
  /// step.
  void forget_sums() noexcept {
    if (place_ >= 0) {
      marks_->forget(place_);
      place_ = -1;
    }
  }

 private:
  comm::Watchdog* watchdog_;
  std::optional<comm::BucketBreadcrumbs> marks_;
  int place_ = -1;  ///< place of begin_sums() until the step ends; otherwise -1, and always -1 without marks
};

}  // namespace lockstep::nn
