#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// What the trainer of a run is made from.
struct PreparedTraining {
  ResolvedTraining resolved;
  RunIdentity identity;
  std::optional<ChoiceReport> tuned;  ///< rank 0's report; none: nothing was chosen
};

/// Makes the trainer from options and inputs: resolves the numbers, the identity of the run and the library choices.
/// Collective. Everything that the constructor is given must outlive this object.
class TrainerMaker {
 public:
  /// saved: the checkpoint that is resumed or evaluated, or none. make() fills `made` and `trainer`.
  TrainerMaker(const RunSite& site, const std::optional<CheckpointState>& saved, PreparedTraining& made,
               std::optional<Trainer>& trainer)
      : site_(site), o_(site.options), saved_(saved), made_(made), trainer_(trainer) {}

  /// Call once. Throws the errors of Session::agree().
  void make(const TrainingInputs& inputs);

 private:
  void resolve_options(const TrainingInputs& inputs);
  /// An evaluation takes mean and std of `trained_with`, so that images are normalised as in the model's training. A
  /// run that begins with its weights (--init) only warns if they differ. source: where the state is from.
  void take_statistics(const RunIdentity& trained_with, const std::string& source, ops::AugmentDesc& augment) const;
  /// Returns rank 0's file of costs, so that all ranks plan with the same costs.
  [[nodiscard]] std::string cost_text();
  void identify(const TrainingInputs& inputs);
  /// Returns which ranks share a node, because nodes decide the order of divided sums: ", ranks of nodes 0-1 2-3".
  /// Collective.
  [[nodiscard]] std::string nodes_text();
  /// Sets the library choices: the checkpoint's if they are valid here (choices_hold()), because they are a part of the
  /// run; else, if calls are to be timed, rank 0's for all ranks.
  void choose_calls(const Model& model);

  const RunSite& site_;
  const TrainingOptions& o_;
  const std::optional<CheckpointState>& saved_;
  PreparedTraining& made_;
  std::optional<Trainer>& trainer_;
};

}  // namespace lockstep::nn::detail
