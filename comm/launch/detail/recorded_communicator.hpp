#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/flight_recorder.hpp>

namespace lockstep::comm::detail {

/// Wraps `inner` and records each collective in `log` before it is called. send and recv are not recorded, because
/// ranks call different ones; operations of a communicator that was split off are not recorded either. The log must
/// outlive it.
[[nodiscard]] std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> inner, FlightRecorder& log);

}  // namespace lockstep::comm::detail
