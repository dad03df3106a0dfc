// Kept apart from watchdog.cpp, so that a program whose watchdog has no Session links neither Session nor MPI.
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

/// The time between this rank's line and the end of the job, in which ranks that noticed later print theirs.
Seconds for_others(double seconds) {
  return Seconds(std::clamp(seconds / 10, 2.0, 30.0));
}

/// Ends the process whatever the rank hangs in, MPI and the C library's streams included.
[[noreturn]] void end_job(Session& session, const std::string& text, Seconds grace) noexcept {
  try {
    std::thread([grace] {
      std::this_thread::sleep_for(grace + kForAbort);
      std::_Exit(exit_code::kWatchdog);
    }).detach();
  } catch (...) {  // no thread could be started: only MPI_Abort is left
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
