#include <lockstep/nn/run/detail/run_stop.hpp>

#include <algorithm>
#include <atomic>

#include <lockstep/comm/host_exchange.hpp>

namespace lockstep::nn::detail {

void RunStop::look() {
  const std::int64_t step = run_.trainer.position().step;
  if ((run_.options.stop == nullptr && run_.options.max_seconds <= 0) || step < next_look_) {
    return;
  }
  run_.trainer.doing("waiting for other ranks after step");
  const double seconds = std::max(0.0, now_s() - looked_);
  constexpr double kStop = -1;
  constexpr double kTime = -2;
  const bool stop = run_.options.stop != nullptr && run_.options.stop->load(std::memory_order_relaxed) != 0;
  const bool late = run_.options.max_seconds > 0 && now_s() - begin_ >= run_.options.max_seconds;
  double longest = 0;
  for (const double answer : comm::all_gather_value(run_.control, stop ? kStop : late ? kTime : seconds)) {
    if (answer < 0 && end_ != RunEnd::stopped) {
      end_ = answer == kStop ? RunEnd::stopped : RunEnd::out_of_time;
    }
    longest = std::max(longest, answer);
  }
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, step - looked_at_));
  const double until = longest > 0 ? run_.options.stop_within * steps / longest : 1;
  // The ranks exchange messages again after at most twice as many steps as were just measured. A few quick steps
  // between evaluations do not predict the time of many steps.
  next_look_ = step + static_cast<std::int64_t>(std::clamp(until, 1.0, std::min(2 * steps, 1e6)));
  looked_ = now_s();
  looked_at_ = step;
}

}  // namespace lockstep::nn::detail
