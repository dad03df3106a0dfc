#pragma once

#include <lockstep/nn/run/training_run.hpp>

namespace lockstep::nn::detail {

/// The arguments of run_training(), in the form in which its parts pass them on.
struct RunArguments {
  Trainer& trainer;
  comm::Communicator& control;
  const RunIdentity& identity;
  const RunOptions& options;
  BestBy best;  ///< RunOptions::best after resolved()
  RunObserver& observer;
};

}  // namespace lockstep::nn::detail
