#include <lockstep/comm/clock.hpp>

#include <cmath>
#include <limits>
#include <span>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

ClockReading read_clock(Communicator& communicator, const std::function<std::int64_t()>& now, int questions) {
  require<UsageError>(questions >= 1, "clock: ", questions, " questions, expected at least 1");
  Stream stream = Stream::host_inline();
  std::int64_t message = 0;
  const TensorView view(std::span(&message, 1), {1});
  if (communicator.rank() == 0) {
    for (int rank = 1; rank < communicator.size(); ++rank) {
      for (int i = 0; i < questions; ++i) {
        communicator.recv(stream, view, rank);
        message = now();
        communicator.send(stream, view, rank);
      }
    }
    return {.own_ns = now()};
  }
  ClockReading best;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < questions; ++i) {
    const std::int64_t asked = now();
    communicator.send(stream, view, 0);
    communicator.recv(stream, view, 0);
    const std::int64_t answered = now();
    const std::int64_t trip = answered - asked;
    if (trip < shortest) {
      shortest = trip;
      const std::int64_t halfway = asked + trip / 2;
      best = {.own_ns = halfway, .offset_ns = message - halfway, .error_ns = trip / 2 + 1};
    }
  }
  return best;
}

std::int64_t AlignedClock::at_rank0(std::int64_t own_ns) const {
  const std::int64_t between = end.own_ns - begin.own_ns;
  if (between <= 0) {
    return own_ns + begin.offset_ns;
  }
  const double part = static_cast<double>(own_ns - begin.own_ns) / static_cast<double>(between);
  const auto drift = static_cast<double>(end.offset_ns - begin.offset_ns);
  return own_ns + begin.offset_ns + static_cast<std::int64_t>(std::llround(drift * part));
}

}  // namespace lockstep::comm
