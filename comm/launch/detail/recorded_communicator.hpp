#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/flight_recorder.hpp>

namespace lockstep::comm::detail {

/// Wraps `inner`, and records each collective in `log` before it is called. Does not record send and recv, because
/// ranks call different ones, or operations of a communicator that was split off. The log must outlive the wrapper.
[[nodiscard]] std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> inner, FlightRecorder& log);

}  // namespace lockstep::comm::detail
