#pragma once

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

/// Blocks the caller until `event` is complete, and rethrows the stream's failure, like Event::synchronize(). Calls
/// communicator.check() while it waits, so wait() throws if the communicator notices that a rank is gone. For the first
/// 100 us wait() checks continuously, then every 50 us. Only the thread that uses the communicator may call wait().
void wait(const Event& event, Communicator& communicator);
/// Waits like wait(), but at most `seconds`. Returns false if the time ends before the event is complete.
[[nodiscard]] bool wait_for(const Event& event, Communicator& communicator, double seconds);
/// Records `event` on `stream`, then waits like wait(event, communicator). So the caller waits for all work that was
/// enqueued on `stream` before the call.
void wait(Stream& stream, Event& event, Communicator& communicator);

}  // namespace lockstep::comm
