#pragma once

#include <memory>

#include <lockstep/c/model.hpp>
#include <lockstep/nn/step/tape.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::c {

/// The object of a handle of type lockstep_tape.
struct TapeObject {
  std::shared_ptr<Learned> learned;
  std::shared_ptr<ContextObject> context;    ///< context of the model's handle, on which the tape computes
  std::shared_ptr<TrainerObject> trainer{};  ///< trainer to whose gradients the tape adds, or null
  Buffer own{};                              ///< memory of the tape's own gradients, or empty
  TensorView gradients{};                    ///< arena of the tape's own gradients, in `own`
  std::unique_ptr<nn::Tape> tape{};
  bool infers = false;  ///< true: the tape computes inference passes, not training passes
};

}  // namespace lockstep::c
