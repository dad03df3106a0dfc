#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/comm/launch/rank_context.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// What a program brings to a run: its model, its data, and names for them. The same on every rank.
struct TrainingInputs {
  Model model;
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  BaseRate rate{};             ///< base rate of --lr auto
  ops::AugmentDesc augment{};  ///< augmentation of images; its seed is --seed
  /// true: evaluations, too, normalise images by `augment`, not by the numbers that the checkpoint was trained with.
  bool statistics_given = false;
  bool two_labels = false;                 ///< true: training batches are mixtures (PlanOptions::two_labels)
  std::string samples = "samples";         ///< word for samples
  std::vector<std::string> class_names{};  ///< names by label; empty: classes are numbered
  std::string model_text{};                ///< model's text in the header; empty: the model's name
  std::vector<std::pair<std::string, std::string>> about{};  ///< header lines about the data: label, text
  std::map<std::string, std::string> options{};  ///< other options that decide the numbers, for RunIdentity::options
  Json::Object config{};                         ///< other fields of config.json
  std::vector<RunMetric> metrics{};
  BestBy best{};
  /// Changes the trainer's options, after those of the command line: the loss of a regression, an optimizer of your
  /// own.
  std::function<void(TrainerOptions& options)> change{};
};

/// What training programs share between their options and the end of a run: the folder of results and its lock, the
/// checkpoint to continue from or to evaluate, buckets by cost, library choices, watchdog, trainer, header, console,
/// log, signals (SIGTERM, SIGINT and SIGUSR1 stop the run with a checkpoint), the last lines and the exit code.
///
///   nn::TrainingProgram program(session, place, options.training);
///   ... open the data and make the model ...
///   return program.run({.model = model, .train = train, .test = test});
///
/// Writes to standard output on rank 0. Collective: every rank makes all calls in the same order. Errors are those of
/// Session::agree(): printed once, thrown on every rank. Session and rank context must outlive this object.
class TrainingProgram {
 public:
  /// Finds the checkpoint that --resume or --evaluate names, and reads the identity of its run. UsageError when another
  /// run holds the folder, DataError for a checkpoint that cannot be read.
  TrainingProgram(comm::Session& session, comm::RankContext& place, const TrainingOptions& options);
  ~TrainingProgram();
  TrainingProgram(const TrainingProgram&) = delete;
  TrainingProgram& operator=(const TrainingProgram&) = delete;

  /// Returns the run whose checkpoint is only evaluated; it names the model. nullptr: no checkpoint is evaluated, or a
  /// file of parameters, which names no model.
  [[nodiscard]] const RunIdentity* evaluated() const;
  /// Returns whether run() takes all parameters, except the last layer's with --init, from a checkpoint or a file: the
  /// model's initial values do not matter then. The same on every rank.
  [[nodiscard]] bool takes_parameters() const;

  /// Does what the options say: shows the plan, evaluates, or trains. Returns the exit code. Call once. The inputs are
  /// kept as long as the trainer. `observer`, if given, follows the run on every rank, after the console.
  int run(TrainingInputs inputs, RunObserver* observer = nullptr);

  [[nodiscard]] Trainer& trainer();  ///< throws StateError before run()
  /// Returns what the run reached; nullptr if nothing was trained (--dry-run, --evaluate).
  [[nodiscard]] const RunResult* result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
