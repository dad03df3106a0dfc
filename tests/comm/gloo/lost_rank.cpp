// A program of ranks of which one is lost: lost_rank MODE RANK.
//   die           between two operations, while the others are in one
//   die_sending   in the middle of large sums on the communication stream
//   die_at_end    when the others have nothing left to do
//   stop          is stopped; the watchdog of the others waits 2 s

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
