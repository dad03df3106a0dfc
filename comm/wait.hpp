#pragma once

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

/// Blocks the caller until the event is complete, and rethrows the stream's failure, as Event::synchronize(). Meanwhile
/// it calls Communicator::check(): a rank that is gone becomes an error here, where the communicator notices, instead
/// of an endless wait. Checks often for 100 us, then every 50 us. Only the thread that uses the communicator calls
/// this.
void wait(const Event& event, Communicator& communicator);
/// The same, for at most this many seconds: false when they end first.
[[nodiscard]] bool wait_for(const Event& event, Communicator& communicator, double seconds);
/// Records `event` on the stream and waits for it: for all work enqueued so far.
void wait(Stream& stream, Event& event, Communicator& communicator);

}  // namespace lockstep::comm
