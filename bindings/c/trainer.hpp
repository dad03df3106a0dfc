#pragma once

#include <memory>

#include <lockstep/c/comm.hpp>
#include <lockstep/c/model.hpp>
#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::c {

/// The object of a handle of type lockstep_trainer.
struct TrainerObject {
  std::shared_ptr<Learned> learned;
  std::shared_ptr<CommObject> comm;
  std::unique_ptr<comm::Communicator> alone;  ///< replaces `comm` if there is only one rank; otherwise null
  lockstep_trainer_options options{};
  nn::Batch batch{};  ///< batch of the present call; kept between calls for its memory
  std::unique_ptr<nn::TrainStep> step{};
  bool has_gradients = false;  ///< true: the gradients of the last update are still in memory
  bool syncs = false;          ///< true: batch norm uses the statistics of all ranks, so add() is collective

  /// Returns the communicator that exchanges host memory between the ranks that train together.
  [[nodiscard]] comm::Communicator& control() const { return alone != nullptr ? *alone : *comm->communicator; }
  /// Returns the communicator that adds the gradients.
  [[nodiscard]] comm::Communicator& gradients() const {
    return alone == nullptr && comm->gpus != nullptr ? *comm->gpus : control();
  }
};

}  // namespace lockstep::c
