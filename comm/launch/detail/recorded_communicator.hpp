#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/flight_recorder.hpp>

namespace lockstep::comm::detail {

/// Wraps `inner` so that each collective is recorded in `log` before it is called. send and recv are not recorded,
/// because ranks call different ones, and neither are operations of the communicators that split() returns. `log` must
/// outlive the wrapper.
[[nodiscard]] std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> inner, FlightRecorder& log);

}  // namespace lockstep::comm::detail
