#include <lockstep/comm/wait.hpp>

#include <chrono>
#include <limits>
#include <thread>

namespace lockstep::comm {

bool wait_for(const Event& event, Communicator& communicator, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kPatience(100);
  constexpr std::chrono::microseconds kPause(50);
  const Clock::time_point start = Clock::now();
  while (!event.complete()) {
    communicator.check();
    const Clock::duration waited = Clock::now() - start;
    if (std::chrono::duration<double>(waited).count() > seconds) {
      return false;
    }
    if (waited < kPatience) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  event.synchronize();  // returns at once, because the event is complete; throws the stream's failure, if there is one
  return true;
}

void wait(const Event& event, Communicator& communicator) {
  static_cast<void>(wait_for(event, communicator, std::numeric_limits<double>::infinity()));
}

void wait(Stream& stream, Event& event, Communicator& communicator) {
  stream.record(event);
  wait(event, communicator);
}

}  // namespace lockstep::comm
