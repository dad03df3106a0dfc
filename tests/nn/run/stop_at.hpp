#pragma once

#include <atomic>
#include <cstdint>

#include <lockstep/nn/run/observer.hpp>

namespace lockstep::testing {

/// Sets `stop` (RunOptions::stop) at the end of a step.
class StopAt final : public nn::RunObserver {
 public:
  StopAt(std::int64_t step, std::atomic<int>& stop) : step_(step), stop_(stop) {}
  void on_step_end(const nn::StepEvent& event) override {
    if (event.step == step_) {
      stop_ = 1;
    }
  }

 private:
  std::int64_t step_;
  std::atomic<int>& stop_;
};

}  // namespace lockstep::testing
