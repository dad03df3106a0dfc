#include <lockstep/app/stop_signals.hpp>

#include <csignal>
#include <string_view>

#include <unistd.h>

#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

// These variables are global, because they cannot be passed to a signal handler.
std::atomic<int> received{0};
std::atomic<bool> recorded{false};
std::atomic<bool> speaks{false};

extern "C" void on_stop_signal(int number) {
  if (recorded.load(std::memory_order_relaxed)) {
    received.store(number, std::memory_order_relaxed);
    return;
  }
  if (speaks.load(std::memory_order_relaxed)) {
    constexpr std::string_view kLine = "lockstep: stopped by a signal before training began; nothing was written\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  }
  ::_exit(exit_code::kStopped);
}

}  // namespace

void watch_stop_signals() {
  // Only rank 0 prints, or a process without a launcher. If the launcher's variables contradict each other, the process
  // prints too, and a Session reports the error later.
  try {
    speaks = comm::detect_launch(comm::process_environment()).rank <= 0;
  } catch (const Error&) {
    speaks = true;
  }
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(number, on_stop_signal);
  }
  std::signal(SIGXFSZ, SIG_IGN);  // makes write() fail at the limit of ulimit -f, as on a full disk
}

void ignore_stop_signals() {
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGUSR1, SIG_IGN);
  std::signal(SIGINT, SIG_DFL);
}

const std::atomic<int>& record_stop_signals() {
  recorded = true;
  watch_stop_signals();
  return received;
}

}  // namespace lockstep::nn
