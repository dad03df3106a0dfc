#pragma once

#include <lockstep/nn/run/training_run.hpp>

namespace lockstep::nn::detail {

/// The arguments of run_training(), for the classes that do its work.
struct RunArguments {
  Trainer& trainer;
  comm::Communicator& control;
  const RunIdentity& identity;
  const RunOptions& options;
  BestBy best;  ///< RunOptions::best with defaults filled in by resolved()
  RunObserver& observer;
};

}  // namespace lockstep::nn::detail
