#pragma once

#include <lockstep/nn/run/training_run.hpp>

namespace lockstep::nn::detail {

/// What run_training() is given, for its parts.
struct RunArguments {
  Trainer& trainer;
  comm::Communicator& control;
  const RunIdentity& identity;
  const RunOptions& options;
  BestBy best;  ///< resolved()
  RunObserver& observer;
};

}  // namespace lockstep::nn::detail
