#pragma once

#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::nn {

/// The ranks with which a training plan communicates while it runs. A collective operation is a call of the plan
/// (PlanBuilder::all_gather()). It has a place in the order of the calls, runs on the plan's stream, and is never
/// computed again. All ranks must run plans of the same model, equally often, so that their exchanges match.
struct Exchange {
  comm::Communicator* ranks = nullptr;  ///< communicator, which must outlive the plan; nullptr: no exchange
  /// Functions that run() calls before and after it enqueues a collective operation, for waits of the stream and for a
  /// watchdog. Both functions may throw.
  std::function<void()> before{};
  std::function<void()> after{};
  [[nodiscard]] bool given() const { return ranks != nullptr; }
};

}  // namespace lockstep::nn
