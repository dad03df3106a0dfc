// Apart from watchdog.cpp: who makes a watchdog without a Session links none, nor MPI.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>

namespace lockstep::comm {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kForAbort(10);

/// Between a rank's line and the end of the job: other ranks, which noticed later, print theirs.
Seconds for_others(double seconds) {
  return Seconds(std::clamp(seconds / 10, 2.0, 30.0));
}

/// Whatever the rank hangs in, MPI and the C library's streams included, the process ends.
[[noreturn]] void end_job(Session& session, const std::string& text, Seconds grace) noexcept {
  try {
    std::thread([grace] {
      std::this_thread::sleep_for(grace + kForAbort);
      std::_Exit(exit_code::kWatchdog);
    }).detach();
  } catch (...) {  // no thread left: MPI_Abort alone
  }
  detail::write_error(session.size() > 1 ? session.rank() : -1, text);
  std::this_thread::sleep_for(grace);
  session.abort(exit_code::kWatchdog);
}

}  // namespace

Watchdog::Watchdog(Session& session, double seconds)
    : Watchdog(seconds, [&session, seconds](const std::string& text) { end_job(session, text, for_others(seconds)); }) {
}

}  // namespace lockstep::comm
