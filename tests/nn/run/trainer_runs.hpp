#pragma once

#include <atomic>
#include <cmath>
#include <functional>
#include <optional>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/support/files.hpp"

/// Helpers that the tests of Trainer share. They run trainers with one small model and one small data set on ranks that
/// are threads.
namespace lockstep::nn {

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline DataSplit small_data() {
  return open_data(
      {.seed = 5, .synthetic = {.train_size = 70, .test_size = 31, .height = 12, .width = 12, .classes = 4}});
}

/// Options for a trainer on each rank. The ranks are threads.
struct TrainerSetup {
  int ranks = 1;
  TrainerOptions options{.global_batch = 11};
  std::function<void(TrainerOptions&, int)> change{};  ///< changes the options of a rank
  Model model = cifar_resnet(8, 4, 12, 12);
  std::optional<TrainingData> data{};  ///< none: small_data()
  Stream* compute = nullptr;           ///< compute stream; none: an inline stream
  bool overlap = false;                ///< gradients are summed on a worker
  bool started = true;
};

/// Runs body(trainer, control) or body(trainer) on the ranks of `setup`. Returns the text of each rank's exception, as
/// comm::run_ranks() does.
template <class Body>
std::vector<std::string> with_trainers(const TrainerSetup& setup, Body&& body) {
  const DataSplit small = small_data();
  const TrainingData data = setup.data ? *setup.data : TrainingData(small);
  return comm::run_ranks(setup.ranks, [&](comm::Communicator& grad, comm::Communicator& control) {
    CpuContext context({.threads = 1, .stream = setup.compute});
    Stream worker = setup.overlap ? Stream::host_worker("comm") : Stream::host_inline();
    TrainerOptions options = setup.options;
    if (setup.change) {
      setup.change(options, grad.rank());
    }
    Trainer trainer(context, {grad, control, setup.overlap ? worker : context.stream()}, setup.model, data, options);
    if (setup.started) {
      trainer.start();
    }
    if constexpr (std::is_invocable_v<Body&, Trainer&>) {
      body(trainer);
    } else {
      body(trainer, control);
    }
  });
}

/// Runs body on `ranks` ranks with trainers that are not started. change(options, rank) changes the options of a rank.
/// Returns the text of each rank's exception.
template <class Body>
std::vector<std::string> with_trainers(int ranks, const std::function<void(TrainerOptions&, int)>& change,
                                       Body&& body) {
  return with_trainers({.ranks = ranks, .change = change, .started = false}, body);
}

/// Runs body on trainers that are started; no rank may throw.
template <class Body>
void on_trainers(const TrainerSetup& setup, Body&& body, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  comm::expect_none_failed(with_trainers(setup, body), file, line);
}

inline void steps(Trainer& trainer, int count) {
  for (int i = 0; i < count; ++i) {
    trainer.step();
  }
}

/// Settings of a whole run in which the tests differ.
struct RunSetup {
  int ranks = 1;
  std::uint64_t seed = 1;
  std::int64_t epochs = 2;
  std::int64_t steps = 0;
  std::string dir{};     ///< folder of the checkpoints
  std::string resume{};  ///< checkpoint to go on from
  std::int64_t total_steps = 12;
  bool evaluate_only = false;
  bool augment = true;
  std::int64_t stop_at = 0;  ///< step whose report makes the run stop; 0: no step
  OptimizerOptions optimizer{};
  int top_k = 0;
  DType dtype = DType::f32;
  std::int64_t accumulate = 1;
  Strategy strategy = Strategy::ddp;
  comm::SumOptions sums{};
  std::int64_t virtual_ranks = 0;
  std::function<std::shared_ptr<comm::BucketSum>()> hook{};  ///< makes the hook of a rank
  bool overlap = true;
  bool keep_last = false;
  std::int64_t shuffle_chunk = 0;
  std::int64_t log_every = 3;
  std::int64_t checkpoint_every = 0;
  int keep = 0;
  MovingAverageOptions average{};
};

inline TrainerOptions options_of(const RunSetup& setup) {
  const DataSplit data = small_data();
  TrainerOptions options{.global_batch = 11,
                         .accumulate = setup.accumulate,
                         .keep_last = setup.keep_last,
                         .shuffle_chunk = setup.shuffle_chunk};
  options.step.seed = setup.seed;
  options.step.plan.augment = {.pad = setup.augment ? 2 : 0,
                               .flip = setup.augment,
                               .mean = data.statistics.mean,
                               .std = data.statistics.std,
                               .seed = setup.seed};
  options.step.plan.top_k = setup.top_k;
  options.step.plan.dtype = setup.dtype;
  options.step.buckets.bucket_bytes = 20000;
  options.step.optimizer = setup.optimizer;
  options.step.strategy = setup.strategy;
  options.step.sums = setup.sums;
  options.step.sums.hook = setup.hook ? setup.hook() : nullptr;
  options.step.virtual_ranks = setup.virtual_ranks;
  options.step.average = setup.average;
  options.schedule.total_steps = setup.total_steps;
  if (setup.optimizer.kind == OptimizerKind::adam || setup.optimizer.kind == OptimizerKind::adamw) {
    options.schedule.base = 1e-3;
  }
  return options;
}

inline RunIdentity identity_of(const RunSetup& setup) {
  RunIdentity identity;
  identity.model = "resnet8";
  identity.seed = setup.seed;
  identity.ranks = setup.virtual_ranks > 0 ? static_cast<int>(setup.virtual_ranks) : setup.ranks;
  identity.global_batch = 11;
  identity.options["optimizer"] = name_of(setup.optimizer);
  if (setup.virtual_ranks > 0) {
    identity.options["virtual_ranks"] = std::to_string(setup.virtual_ranks);
  }
  return identity;
}

/// Keeps the event of the last epoch. On one rank, sets `stop` at the report of step `stop_at`.
class Watch final : public RunObserver {
 public:
  Watch(std::int64_t stop_at, std::atomic<int>& stop) : stop_at_(stop_at), stop_(stop) {}
  void on_report(const ReportEvent& event) override {
    if (event.step == stop_at_) {
      stop_ = 1;
    }
  }
  void on_epoch_end(const EpochEvent& event) override { last = event; }
  EpochEvent last;

 private:
  std::int64_t stop_at_;
  std::atomic<int>& stop_;
};

/// Results of a run on rank 0.
struct RunOutcome {
  Metrics metrics;  ///< metrics of the evaluation at the end
  RunResult result{};
  EpochEvent last{};  ///< event of the last epoch
};

/// Runs the training that `setup` describes, or only evaluates the model of setup.dir.
inline RunOutcome train(const RunSetup& setup) {
  RunOutcome outcome;
  const TrainerSetup trainers{.ranks = setup.ranks,
                              .change = [&](TrainerOptions& options, int) { options = options_of(setup); },
                              .overlap = setup.overlap};
  on_trainers(trainers, [&](Trainer& trainer, comm::Communicator& control) {
    RunOutcome own;
    RunProgress progress;
    const RunIdentity identity = identity_of(setup);
    if (!setup.resume.empty()) {
      EXPECT_EQ(resume_checkpoint(setup.resume, trainer, control, identity, progress), "");
    }
    if (setup.evaluate_only) {
      load_model(setup.dir, trainer.context(), trainer.parameters());
    } else {
      std::atomic<int> stop{0};
      // Only the last rank stops: a signal may reach one rank alone.
      Watch observer(control.rank() == control.size() - 1 ? setup.stop_at : 0, stop);
      const RunOptions run{.epochs = setup.epochs,
                           .steps = setup.steps,
                           .log_every = setup.log_every,
                           .checkpoint_dir = setup.dir,
                           .checkpoint_every = setup.checkpoint_every,
                           .keep = setup.keep,
                           .stop = &stop,
                           .stop_within = 0};
      own.result = run_training(trainer, control, identity, run, progress, observer);
      own.last = observer.last;
    }
    own.metrics = trainer.evaluate();
    if (control.rank() == 0) {
      outcome = own;
    }
  });
  return outcome;
}

class TrainerTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  /// Expects that each of `files` has the same bytes in the checkpoints `a` and `b`; with same = false, that each
  /// differs.
  void expect_files(const std::string& a, const std::string& b, bool same = true) const {
    for (const std::string& file : files) {
      EXPECT_EQ(file_text(path(a) + file) == file_text(path(b) + file), same) << a << " and " << b << ": " << file;
    }
  }
  /// Trains a run in `whole`, and in `part` a run that is resumed after `steps` steps. Expects that both write the same
  /// files.
  void expect_resumes(RunSetup setup, std::int64_t steps = 8) const {
    setup.dir = path("whole");
    train(setup);
    setup.dir = path("part");
    setup.steps = steps;
    train(setup);
    setup.steps = 0;
    setup.resume = path("part/last");
    train(setup);
    expect_files("whole/last", "part/last");
  }
  std::vector<std::string> files{"/model.safetensors", "/optimizer.safetensors"};

 private:
  testing::TemporaryFolder folder_;
};

/// Returns all bytes of a checkpoint.
inline std::string checkpoint_bytes(const std::string& dir) {
  std::string bytes;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    bytes += file_text(dir + "/" + name) + "|";
  }
  if (file_exists(dir + "/" + kAverageFile)) {
    bytes += file_text(dir + "/" + kAverageFile);
  }
  return bytes;
}

/// Resumes the checkpoint `from` on `ranks` ranks, saves it again as `to` and makes one more step. Expects that the
/// ranks then hold the same state and that loss(trainer) is finite.
inline void resume_and_save_again(int ranks, const std::string& from, const std::string& to,
                                  const std::function<void(TrainerOptions&, int)>& change,
                                  const std::function<double(Trainer&)>& loss) {
  on_trainers({.ranks = ranks, .change = change}, [&](Trainer& trainer, comm::Communicator& control) {
    RunProgress progress;
    (void)resume_checkpoint(from, trainer, control, nn::identity_of(trainer), progress);
    save_checkpoint(to, trainer, control, nn::identity_of(trainer), progress);
    trainer.step();
    EXPECT_TRUE(std::isfinite(loss(trainer)));
    trainer.require_same_state();
  });
}

inline void expect_all_say(const std::vector<std::string>& failures, const std::string& text) {
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find(text), std::string::npos) << "'" << failure << "' lacks '" << text << "'";
  }
}

}  // namespace lockstep::nn
