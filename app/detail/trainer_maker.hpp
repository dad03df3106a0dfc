#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// Data from which the trainer of a run is made.
struct PreparedTraining {
  ResolvedTraining resolved;
  RunIdentity identity;
  std::optional<ChoiceReport> tuned;  ///< rank 0's report; none: nothing was timed
};

/// Makes the trainer from options and inputs. First decides the numbers, the identity of the run and the library
/// choices. Collective. All arguments of the constructor must outlive this object.
class TrainerMaker {
 public:
  /// `saved` is the checkpoint that is resumed or evaluated, or empty. make() writes `made` and `trainer`.
  TrainerMaker(const RunSite& site, const std::optional<CheckpointState>& saved, PreparedTraining& made,
               std::optional<Trainer>& trainer)
      : site_(site), o_(site.options), saved_(saved), made_(made), trainer_(trainer) {}

  /// Call it once. Throws the errors of Session::agree().
  void make(const TrainingInputs& inputs);

 private:
  void resolve_options(const TrainingInputs& inputs);
  /// Compares mean and std of the images with those of `trained_with`. An evaluation takes the latter, so that images
  /// are normalised as in the model's training. A run that begins with the weights (--init) only warns if they differ.
  /// `source` names the state in messages.
  void take_statistics(const RunIdentity& trained_with, const std::string& source, ops::AugmentDesc& augment) const;
  /// Returns rank 0's file of costs, so that all ranks plan with the same costs.
  [[nodiscard]] std::string cost_text();
  void identify(const TrainingInputs& inputs);
  /// Returns which ranks share a node: ", ranks of nodes 0-1 2-3". Nodes decide the order of divided sums. Collective.
  [[nodiscard]] std::string nodes_text();
  /// Sets the library choices. If the checkpoint's choices are valid here (choices_hold()), they are taken, because
  /// they are a part of the run. Otherwise, if calls are to be timed, all ranks take rank 0's timed choices.
  void choose_calls(const Model& model);

  const RunSite& site_;
  const TrainingOptions& o_;
  const std::optional<CheckpointState>& saved_;
  PreparedTraining& made_;
  std::optional<Trainer>& trainer_;
};

}  // namespace lockstep::nn::detail
