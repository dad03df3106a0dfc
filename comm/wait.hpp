#pragma once

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

/// Blocks the caller until the event is complete and rethrows what its stream failed with, as Event::synchronize(), but
/// looks after the communicator meanwhile (Communicator::check()): a rank that is gone becomes an error here, where
/// the communicator notices, instead of a wait without end. Looks often for 100 us, then every 50 us. The caller is the
/// thread that uses the communicator.
void wait(const Event& event, Communicator& communicator);
/// The same, for so many seconds: false when they are over first.
[[nodiscard]] bool wait_for(const Event& event, Communicator& communicator, double seconds);
/// Waits for all work that was enqueued on a stream; `event` is recorded there.
void wait(Stream& stream, Event& event, Communicator& communicator);

}  // namespace lockstep::comm
