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

/// Model and data that a program gives to a run, and texts that describe them. All ranks must give the same inputs.
struct TrainingInputs {
  Model model;
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  BaseRate rate{};             ///< base of the learning rate for --lr auto
  ops::AugmentDesc augment{};  ///< augmentation of images; --seed replaces the seed
  /// true: evaluations also normalise images by `augment`; false: they take mean and std from the checkpoint.
  bool statistics_given = false;
  bool two_labels = false;                 ///< true: each training batch mixes samples (PlanOptions::two_labels)
  std::string samples = "samples";         ///< word for samples in printed lines
  std::vector<std::string> class_names{};  ///< name of the class of each label; empty: printed classes have numbers
  std::string model_text{};                ///< description of the model in the header; empty: name of the model
  std::vector<std::pair<std::string, std::string>> about{};  ///< label and text of each header line about the data
  std::map<std::string, std::string> options{};  ///< program's entries of RunIdentity::options, which affect results
  Json::Object config{};                         ///< additional fields for config.json
  std::vector<RunMetric> metrics{};
  BestBy best{};
  /// Called with the trainer's options after the command line has set them, for example to set another loss or
  /// optimizer.
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
/// Rank 0 writes to standard output. Collective: every rank calls all functions in the same order. Errors are printed
/// once and thrown on every rank, as by Session::agree(). Session and rank context must outlive this object.
class TrainingProgram {
 public:
  /// Finds the checkpoint that --resume or --evaluate names, and reads the identity of its run. Throws UsageError if
  /// another run holds the lock of the folder of results, and DataError if the checkpoint cannot be read.
  TrainingProgram(comm::Session& session, comm::RankContext& place, const TrainingOptions& options);
  ~TrainingProgram();
  TrainingProgram(const TrainingProgram&) = delete;
  TrainingProgram& operator=(const TrainingProgram&) = delete;

  /// Returns the identity, with the name of the model, of the run whose checkpoint --evaluate names. Returns nullptr
  /// without --evaluate. Returns nullptr, too, if --evaluate names a file of parameters, because such a file does not
  /// name a model.
  [[nodiscard]] const RunIdentity* evaluated() const;
  /// Returns true if run() reads all parameters (with --init, all except the last layer's) from a checkpoint or a file.
  /// Then the initial values of the model do not matter. The answer is the same on every rank.
  [[nodiscard]] bool takes_parameters() const;

  /// Shows the plan, evaluates or trains, as the options say, and returns the exit code. Call run() once. This object
  /// keeps the inputs as long as the trainer. `observer`, if not nullptr, gets the events of the run on every rank. On
  /// rank 0, the console gets each event before `observer`.
  int run(TrainingInputs inputs, RunObserver* observer = nullptr);

  [[nodiscard]] Trainer& trainer();  ///< throws StateError before the call of run()
  /// Returns the results of the run, or nullptr if nothing was trained (--dry-run, --evaluate).
  [[nodiscard]] const RunResult* result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
