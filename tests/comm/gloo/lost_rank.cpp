// A program of several ranks, one of which is lost: lost_rank MODE RANK. RANK: rank that is lost. MODE:
// die           RANK is killed between two operations, while the other ranks wait in an operation
// die_sending   RANK is killed in the middle of large sums on the communication stream
// die_at_end    RANK is killed after the other ranks have ended their work
// stop          RANK is stopped by SIGSTOP; the watchdog of the other ranks waits 2 s

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <lockstep/comm/launch/session.hpp>

#include "../view_of.hpp"

namespace {

using namespace lockstep;
using comm::view_of;

int run(comm::Session& session, const std::string& mode, int lost) {
  Stream stream = Stream::host_inline();
  std::vector<float> small(3, 1.0F);
  std::vector<float> large(std::size_t{16} << 20, 0.0F);
  session.inline_ops().barrier(stream);
  if (comm::Watchdog* watchdog = session.watchdog()) {
    watchdog->begin("computing step", 7);
  }
  if (session.rank() == lost && mode == "die_sending") {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      ::raise(SIGKILL);
    }).detach();
  } else if (session.rank() == lost) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::raise(mode == "stop" ? SIGSTOP : SIGKILL);
  }
  if (mode == "die_at_end") {
    return 0;
  }
  for (;;) {
    if (mode == "die_sending") {
      session.grad().all_reduce(session.communication_stream(), view_of(large));
      session.communication_stream().synchronize();
    } else {
      session.inline_ops().all_reduce(stream, view_of(small));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  const int lost = argc > 2 ? std::atoi(argv[2]) : 0;
  return comm::run_program(
      argc, argv, [&](comm::Session& session, int, char**) { return run(session, mode, lost); },
      mode == "stop" ? 2 : 0);
}
