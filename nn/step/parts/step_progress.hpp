#pragma once

#include <array>
#include <cstdio>
#include <optional>

#include <lockstep/comm/gradients/bucket_breadcrumbs.hpp>
#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/watchdog.hpp>

namespace lockstep::nn {

/// Tells a rank's watchdog how far a step has come: the host's work, and the buckets that a GPU sums. Without a
/// watchdog the calls do nothing. Only watch_device() allocates and waits.
class StepProgress {
 public:
  explicit StepProgress(comm::Watchdog* watchdog) : watchdog_(watchdog) {}
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;
  /// Must run after the destructors of the reducer and of captured steps, because their work writes to the marks.
  ~StepProgress() {
    if (marks_) {
      watchdog_->forget_device(this);
    }
  }

  /// Makes the reducer mark its buckets on `comm` from now on; the watchdog reads from the marks how far the GPU has
  /// come. `places` is the number of micro-batch states; each step under way uses one. Does nothing on a host.
  void watch_device(Context& compute, Stream& comm, comm::GradientReducer& reducer, int places) {
    if (watchdog_ != nullptr && comm.device().kind == DeviceKind::cuda) {
      marks_.emplace(compute, comm, reducer.gradients(), reducer.buckets(), places);
      reducer.mark_into(&*marks_);
      watchdog_->watch_device(this, [this] { return marks_->text(); });
    }
  }

  /// Reports the work that the host begins: `what` and the step's number, such as "computing step" and 7.
  void doing(const char* what, std::int64_t step) const noexcept {
    if (watchdog_ != nullptr) {
      watchdog_->begin(what, step);
    }
  }
  /// Reports that backward has written gradient number `gradient` of the reducer.
  void written(const comm::GradientReducer& reducer, int gradient) const noexcept {
    if (watchdog_ != nullptr) {
      std::array<char, 96> text{};
      std::snprintf(text.data(), text.size(), "%d of %zu buckets enqueued, %s", reducer.started(),
                    reducer.buckets().size(), reducer.gradients()[static_cast<std::size_t>(gradient)].name.c_str());
      watchdog_->where(text.data());
    }
  }

  /// Reports that the host begins to enqueue `step`, whose buckets may be summed from now on. `place` is the state of
  /// the step's last micro-batch.
  void begin_sums(int place, std::int64_t step) noexcept {
    if (marks_) {
      marks_->begin(place, step);
      place_ = place;
    }
  }
  /// Tells that work enqueued or captured from now on sums the buckets of the step that has `place` in begin_sums().
  void use(int place) noexcept {
    if (marks_) {
      marks_->use(place);
    }
  }
  void end_sums() noexcept { place_ = -1; }  ///< reports that all work of the step of begin_sums() is enqueued
  /// Reports that the rest of the step of begin_sums() will not be enqueued. Its buckets may then stop at any point.
  void forget_sums() noexcept {
    if (place_ >= 0) {
      marks_->forget(place_);
      place_ = -1;
    }
  }

 private:
  comm::Watchdog* watchdog_;
  std::optional<comm::BucketBreadcrumbs> marks_;
  int place_ = -1;  ///< place given to begin_sums(), until the step ends; at other times, or without marks, -1
};

}  // namespace lockstep::nn
