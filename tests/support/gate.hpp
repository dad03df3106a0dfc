#pragma once

#include <future>

namespace lockstep::testing {

/// A task that blocks its stream until open(). The destructor opens it, too, so that a failing test ends.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }
  void open() {
    if (!opened_) {
      opened_ = true;
      promise_.set_value();
    }
  }
  [[nodiscard]] auto task() const {
    return [future = future_] { future.wait(); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
  bool opened_ = false;
};

}  // namespace lockstep::testing
