#pragma once

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

/// Blocks the caller until the event is complete, and rethrows the stream's failure, as Event::synchronize(). While
/// waiting, it calls Communicator::check(): where the communicator notices that a rank is gone, the wait throws instead
/// of lasting for ever. Checks often for 100 us, then every 50 us. Only the thread that uses the communicator may call
/// wait().
void wait(const Event& event, Communicator& communicator);
/// As wait(), for at most `seconds`. Returns false when the time ends before the event is complete.
[[nodiscard]] bool wait_for(const Event& event, Communicator& communicator, double seconds);
/// Records `event` on the stream and waits for it, that is for all work enqueued so far.
void wait(Stream& stream, Event& event, Communicator& communicator);

}  // namespace lockstep::comm
