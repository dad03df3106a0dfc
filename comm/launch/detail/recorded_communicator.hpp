#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/flight_recorder.hpp>

namespace lockstep::comm::detail {

/// `inner`, with each collective noted in `log` before it is called. send and recv are not noted, as ranks call
/// different ones, nor is what a communicator does that was split off. The log must outlive it.
[[nodiscard]] std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> inner, FlightRecorder& log);

}  // namespace lockstep::comm::detail
