#pragma once

#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::nn {

/// The ranks with which a training plan communicates while it runs. Each collective operation is a call of the plan
/// (PlanBuilder::all_gather()), runs on the plan's stream, and is never computed again. All ranks must run plans of the
/// same model, equally often, so that their collective operations match.
struct Exchange {
  comm::Communicator* ranks = nullptr;  ///< communicator of the ranks; must outlive the plan; nullptr: no exchange
  /// Functions that Plan::run() calls just before and just after it enqueues a collective operation. They may wait for
  /// the stream or notify a watchdog. Both functions may throw.
  std::function<void()> before{};
  std::function<void()> after{};
  [[nodiscard]] bool given() const { return ranks != nullptr; }
};

}  // namespace lockstep::nn
