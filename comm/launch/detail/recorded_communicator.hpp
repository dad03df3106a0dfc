#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/flight_recorder.hpp>

namespace lockstep::comm::detail {

/// Wraps `inner` so that each collective is recorded in `log` before it is called. Calls of send and recv are not
/// recorded, because they differ between ranks. Operations of the communicators that split() returns are not recorded
/// either. `log` must outlive the wrapper.
[[nodiscard]] std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> inner, FlightRecorder& log);

}  // namespace lockstep::comm::detail
