#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// What the trainer of a run is made by.
struct PreparedTraining {
  ResolvedTraining resolved;
  RunIdentity identity;
  std::optional<ChoiceReport> tuned;  ///< what rank 0 found; none: nothing was chosen
};

/// From options and inputs to the trainer: numbers of the inputs, the identity of the run, library choices. Collective.
/// What it is given outlives it.
class TrainerMaker {
 public:
  /// saved: the checkpoint that is resumed or evaluated; none: neither. `made` and `trainer` are what make() fills.
  TrainerMaker(const RunSite& site, const std::optional<CheckpointState>& saved, PreparedTraining& made,
               std::optional<Trainer>& trainer)
      : site_(site), o_(site.options), saved_(saved), made_(made), trainer_(trainer) {}

  /// Once. Errors are those of Session::agree().
  void make(const TrainingInputs& inputs);

 private:
  void resolve_options(const TrainingInputs& inputs);
  /// A model is evaluated on images that are normalised as those that it was trained on. What begins with its weights
  /// (--init) is told where that is not so. source: where the state is from.
  void take_statistics(const RunIdentity& trained_with, const std::string& source, ops::AugmentDesc& augment) const;
  /// Rank 0's file of costs, so that all ranks plan with one model.
  [[nodiscard]] std::string cost_text();
  void identify(const TrainingInputs& inputs);
  /// Which ranks are on one node, which decides the order of divided sums: ", ranks of nodes 0-1 2-3". Collective.
  [[nodiscard]] std::string nodes_text();
  /// Library choices: those of the checkpoint where they hold (choices_hold()), as they are a part of the run; else
  /// rank 0's for all, where they are to be timed.
  void choose_calls(const Model& model);

  const RunSite& site_;
  const TrainingOptions& o_;
  const std::optional<CheckpointState>& saved_;
  PreparedTraining& made_;
  std::optional<Trainer>& trainer_;
};

}  // namespace lockstep::nn::detail
