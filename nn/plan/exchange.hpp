#pragma once

#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::nn {

/// The ranks with which a training plan communicates while it runs. A collective operation is a call of the plan
/// (PlanBuilder::all_gather()). It has a place in the order of the calls, runs on the plan's stream, and is never
/// computed again. All ranks must run plans of the same model, equally often, so that their exchanges match.
struct Exchange {
  comm::Communicator* ranks = nullptr;  ///< the ranks; must outlive the plan. nullptr: the plan exchanges nothing
  /// Functions called before and after an exchange is enqueued, for waits of the stream and for a watchdog. Both may
  /// throw.
  std::function<void()> before{};
  std::function<void()> after{};
  [[nodiscard]] bool given() const { return ranks != nullptr; }
};

}  // namespace lockstep::nn
