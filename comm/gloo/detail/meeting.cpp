#include <lockstep/comm/gloo/detail/meeting.hpp>

#include <utility>

namespace lockstep::comm::detail::rendezvous {

std::string Meeting::place() const {
  const bool v6 = options.host.find(':') != std::string::npos;
  return concat(v6 ? "[" : "", options.host, v6 ? "]:" : ":", options.port);
}

std::string Meeting::with_origin() const {
  return options.origin.empty() ? "" : concat(" (", options.origin, ")");
}

Clock::time_point Meeting::report_time() const {
  return std::min(options.on_wait && !reported_wait ? after(options.word_after_s) : deadline(), deadline());
}

void Meeting::report_lost(const std::string& text) {
  bool first = false;
  change([&] {
    first = lost.empty() && !ended;
    lost = first ? text : lost;
  });
  const std::lock_guard lock(callbacks_mutex);
  if (first) {
    for (const auto& [key, callback] : std::exchange(callbacks, {})) {
      callback();
    }
  }
}

void Meeting::received_abort(int rank, int code) {
  if (rank == options.rank) {
    change([&] { aborted = true; });
  } else if (options.on_abort) {
    options.on_abort(rank, code);
  } else {
    report_lost(concat("rank ", rank, " gave up with code ", code));
  }
}

void Meeting::end() {
  change([&] { stop = true; });
  wake.give();
  if (thread.joinable()) {
    thread.join();
  }
}

}  // namespace lockstep::comm::detail::rendezvous
