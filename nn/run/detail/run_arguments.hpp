#pragma once

#include <lockstep/nn/run/training_run.hpp>

namespace lockstep::nn::detail {

/// The arguments of run_training(), as its parts use them.
struct RunArguments {
  Trainer& trainer;
  comm::Communicator& control;
  const RunIdentity& identity;
  const RunOptions& options;
  BestBy best;  ///< result of resolved()
  RunObserver& observer;
};

}  // namespace lockstep::nn::detail
