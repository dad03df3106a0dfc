#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// What TrainerMaker::make() determines besides the trainer: the resolved options, the identity of the run, and the
/// report about library choices.
struct PreparedTraining {
  ResolvedTraining resolved;
  RunIdentity identity;
  std::optional<ChoiceReport> tuned;  ///< report of rank 0 about timed library choices; no value: no calls were timed
};

/// Makes the trainer. Before that resolves the options, and decides the identity of the run and the library choices.
/// Collective. All arguments of the constructor must outlive this object.
class TrainerMaker {
 public:
  /// `saved` is the state of the checkpoint that is resumed or evaluated, if any. make() writes `made` and `trainer`.
  TrainerMaker(const RunSite& site, const std::optional<CheckpointState>& saved, PreparedTraining& made,
               std::optional<Trainer>& trainer)
      : site_(site), o_(site.options), saved_(saved), made_(made), trainer_(trainer) {}

  /// Makes the trainer. Call make() once. Throws the errors of Session::agree().
  void make(const TrainingInputs& inputs);

 private:
  void resolve_options(const TrainingInputs& inputs);
  /// Compares mean and std of the images in `augment` with those in `trained_with`, the identity of a stored run. An
  /// evaluation uses the values of `trained_with`, so that images are normalised as in training. A run with --init only
  /// warns of differences. `source` names the stored run in messages.
  void take_statistics(const RunIdentity& trained_with, const std::string& source, ops::AugmentDesc& augment) const;
  /// Returns on all ranks the text of the cost file (--cost) that rank 0 reads, so that all ranks plan with the same
  /// costs.
  [[nodiscard]] std::string cost_text();
  void identify(const TrainingInputs& inputs);
  /// Returns which ranks share a node: ", ranks of nodes 0-1 2-3". The order of additions in sums depends on the nodes.
  /// Collective.
  [[nodiscard]] std::string nodes_text();
  /// Sets the library choices. Uses the choices of the checkpoint if they are valid for this run (choices_hold()).
  /// Otherwise, if the options ask for timing, rank 0 times the calls, and all ranks use rank 0's choices.
  void choose_calls(const Model& model);

  const RunSite& site_;
  const TrainingOptions& o_;
  const std::optional<CheckpointState>& saved_;
  PreparedTraining& made_;
  std::optional<Trainer>& trainer_;
};

}  // namespace lockstep::nn::detail
