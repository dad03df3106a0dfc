#include "bench/support/load.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <thread>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::bench {

struct Load::State {
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> pieces{0};
  std::atomic<bool> ended{false};
  std::exception_ptr failure;
  std::thread thread;
  Clock::time_point begin;
  std::int64_t before = 0;  ///< pieces at begin
};

Load::Load() = default;

Load::~Load() {
  end();
}

void Load::end() noexcept {
  if (state_) {
    state_->stop = true;
    state_->thread.join();
    state_.reset();
  }
}

bool Load::stopped() const {
  return state_->stop;
}

void Load::done() {
  ++state_->pieces;
}

void Load::start() {
  require<StateError>(state_ == nullptr, "load: started twice");
  state_ = std::make_unique<State>();
  State& state = *state_;
  state.thread = std::thread([this, &state] {
    try {
      run();
    } catch (...) {
      state.failure = std::current_exception();
    }
    state.ended = true;
  });
  while (state.pieces == 0 && !state.ended) {
    std::this_thread::yield();
  }
  state.before = state.pieces;
  state.begin = Clock::now();
}

double Load::stop() {
  require<StateError>(state_ != nullptr, "load: stopped before it was started");
  const std::int64_t pieces = state_->pieces - state_->before;
  const double seconds = seconds_since(state_->begin);
  state_->stop = true;
  state_->thread.join();
  const std::exception_ptr failure = state_->failure;
  state_.reset();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return static_cast<double>(pieces) / seconds;
}

Line measure_beside(comm::Communicator& ranks, Load& load, const std::function<Measurement()>& measure) {
  const Clock::time_point begin = Clock::now();
  const double alone = measure().samples.median();
  const std::vector<double> times = comm::all_gather_value(ranks, seconds_since(begin));
  load.start();
  std::this_thread::sleep_for(std::chrono::duration<double>(times.front()));
  const double rate_alone = load.stop();
  load.start();
  Line line;
  line.measurement = measure();
  const double rate = load.stop();
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // not one piece was finished
  const std::vector<double> slowdowns = comm::all_gather_value(ranks, rate > 0 ? rate_alone / rate : kUnknown);
  line.counters = {{"alone_ns", alone * 1e9},
                   {"slowdown", line.measurement.samples.median() / alone},
                   {"load_slowdown", *std::max_element(slowdowns.begin(), slowdowns.end())}};
  return line;
}

}  // namespace lockstep::bench
