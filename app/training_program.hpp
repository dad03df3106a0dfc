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

/// A program's model and data for a run, and names for them. The inputs must be the same on every rank.
struct TrainingInputs {
  Model model;
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  BaseRate rate{};             ///< base rate of --lr auto
  ops::AugmentDesc augment{};  ///< augmentation of images, whose seed is --seed
  /// true: evaluations also normalise images by `augment`, instead of the numbers that the checkpoint was trained with.
  bool statistics_given = false;
  bool two_labels = false;                 ///< true: training batches are mixtures of samples (PlanOptions::two_labels)
  std::string samples = "samples";         ///< word for samples
  std::vector<std::string> class_names{};  ///< names by label; empty: classes are numbered
  std::string model_text{};                ///< text about the model in the header; empty: the model's name
  std::vector<std::pair<std::string, std::string>> about{};  ///< header lines about the data: label, text
  std::map<std::string, std::string> options{};  ///< other options that decide the numbers, for RunIdentity::options
  Json::Object config{};                         ///< additional fields of config.json
  std::vector<RunMetric> metrics{};
  BestBy best{};
  /// Changes the trainer's options after the command line has set them, for example the loss of a regression or an
  /// optimizer of your own.
  std::function<void(TrainerOptions& options)> change{};
};

/// Runs a training program from its options to its end: the folder of results and its lock, the checkpoint to continue
/// from or to evaluate, buckets by cost, library choices, watchdog, trainer, header, console, log, signals (SIGTERM,
/// SIGINT and SIGUSR1 stop the run with a checkpoint), the last lines and the exit code.
///
///   nn::TrainingProgram program(session, place, options.training);
///   ... open the data and make the model ...
///   return program.run({.model = model, .train = train, .test = test});
///
/// Writes to standard output on rank 0. Collective: every rank makes all calls in the same order. Session::agree()
/// prints errors once and throws them on every rank. Session and rank context must outlive this object.
class TrainingProgram {
 public:
  /// Finds the checkpoint that --resume or --evaluate names, and reads the identity of its run. UsageError if another
  /// run holds the folder. DataError for a checkpoint that cannot be read.
  TrainingProgram(comm::Session& session, comm::RankContext& place, const TrainingOptions& options);
  ~TrainingProgram();
  TrainingProgram(const TrainingProgram&) = delete;
  TrainingProgram& operator=(const TrainingProgram&) = delete;

  /// Returns the identity of the run whose checkpoint is evaluated; it names the model. Returns nullptr if no
  /// checkpoint is evaluated, or for a file of parameters, which names no model.
  [[nodiscard]] const RunIdentity* evaluated() const;
  /// Returns whether run() takes all parameters (with --init, all except the last layer's) from a checkpoint or a file.
  /// The model's initial values then do not matter. The answer is the same on every rank.
  [[nodiscard]] bool takes_parameters() const;

  /// Shows the plan, evaluates or trains, as the options say. Returns the exit code. Call it once. The inputs are kept
  /// as long as the trainer. `observer`, if given, follows the run on every rank, after the console.
  int run(TrainingInputs inputs, RunObserver* observer = nullptr);

  [[nodiscard]] Trainer& trainer();  ///< throws StateError before run()
  /// Returns the results of the run, or nullptr if nothing was trained (--dry-run, --evaluate).
  [[nodiscard]] const RunResult* result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
