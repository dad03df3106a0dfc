#include "measure/load.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <thread>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::measure {

struct Load::Impl {
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> pieces{0};
  std::atomic<bool> ended{false};
  std::exception_ptr failure;
  std::thread thread;
  Clock::time_point begin;
  std::int64_t before = 0;  ///< number of pieces of work that were done at `begin`
};

Load::Load() = default;

Load::~Load() {
  end();
}

void Load::end() noexcept {
  if (impl_) {
    impl_->stop = true;
    impl_->thread.join();
    impl_.reset();
  }
}

bool Load::stopped() const {
  return impl_->stop;
}

void Load::done() {
  ++impl_->pieces;
}

void Load::start() {
  require<StateError>(impl_ == nullptr, "load: started twice");
  impl_ = std::make_unique<Impl>();
  Impl& state = *impl_;
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
  require<StateError>(impl_ != nullptr, "load: stopped before it was started");
  const std::int64_t pieces = impl_->pieces - impl_->before;
  const double seconds = seconds_since(impl_->begin);
  impl_->stop = true;
  impl_->thread.join();
  const std::exception_ptr failure = impl_->failure;
  impl_.reset();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return static_cast<double>(pieces) / seconds;
}

Beside measure_beside(comm::Communicator& ranks, Load& load, const std::function<Samples()>& take) {
  const Clock::time_point begin = Clock::now();
  const double alone = take().median();
  const std::vector<double> times = comm::all_gather_value(ranks, seconds_since(begin));
  load.start();
  std::this_thread::sleep_for(std::chrono::duration<double>(times.front()));
  const double rate_alone = load.stop();
  load.start();
  const Samples samples = take();
  const double rate = load.stop();
  // NaN means that the load finished no piece of work.
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> slowdowns = comm::all_gather_value(ranks, rate > 0 ? rate_alone / rate : kUnknown);
  return {.samples = samples,
          .alone_seconds = alone,
          .slowdown = samples.median() / alone,
          .load_slowdown = *std::max_element(slowdowns.begin(), slowdowns.end())};
}

}  // namespace lockstep::measure
