#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/support/files.hpp"

/// Runs on ranks as threads, which the tests of Trainer share: one small model, one small data set.
namespace lockstep::nn {

class TrainerTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

 private:
  testing::TemporaryFolder folder_;
};

struct RunSetup {
  int ranks = 1;
  std::uint64_t seed = 1;
  std::int64_t epochs = 2;
  std::int64_t steps = 0;
  std::string dir{};     ///< checkpoints
  std::string resume{};  ///< checkpoint to go on from
  std::int64_t total_steps = 12;
  bool evaluate_only = false;
  bool augment = true;
  std::int64_t stop_at = 0;  ///< step at whose report the run is told to stop; 0: never
  RunResult* result = nullptr;
  OptimizerOptions optimizer{};
  int top_k = 0;
  DType dtype = DType::f32;
  std::int64_t accumulate = 1;
  Strategy strategy = Strategy::ddp;
  comm::SumOptions sums{};
  std::int64_t virtual_ranks = 0;
  std::function<std::shared_ptr<comm::BucketSum>()> hook{};  ///< makes that of a rank
  bool overlap = true;
  bool keep_last = false;
  std::int64_t shuffle_chunk = 0;
  std::int64_t log_every = 3;
  std::int64_t checkpoint_every = 0;
  int keep = 0;
  MovingAverageOptions average{};
};

inline DataSplit small_data() {
  DataOptions options;
  options.seed = 5;
  options.synthetic = {.train_size = 70, .test_size = 31, .height = 12, .width = 12, .classes = 4};
  return open_data(options);
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

/// Keeps the last epoch and, on one rank, sets `stop` at the report of step `stop_at`.
class Watch final : public RunObserver {
 public:
  Watch(std::int64_t stop_at, std::atomic<int>& stop) : stop_at_(stop_at), stop_(stop) {}
  void on_report(const ReportEvent& event) override {
    if (event.step == stop_at_) {
      stop_ = 1;
    }
  }
  void on_epoch_end(const EpochEvent& event) override { last_ = event; }
  [[nodiscard]] const EpochEvent& last() const { return last_; }

 private:
  std::int64_t stop_at_;
  std::atomic<int>& stop_;
  EpochEvent last_;
};

/// Trains (or only evaluates) on `ranks` threads; the last evaluation of rank 0.
inline Metrics train(const RunSetup& setup, EpochEvent* last_epoch = nullptr) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  Metrics last;
  const auto failures = comm::run_ranks(setup.ranks, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    Stream worker = setup.overlap ? Stream::host_worker("comm") : Stream::host_inline();
    TrainerOptions options;
    options.global_batch = 11;
    options.accumulate = setup.accumulate;
    options.step.seed = setup.seed;
    options.step.plan.augment = {.pad = setup.augment ? 2 : 0,
                                 .flip = setup.augment,
                                 .mean = data.statistics.mean,
                                 .std = data.statistics.std,
                                 .seed = setup.seed};
    options.step.plan.top_k = setup.top_k;
    options.step.plan.dtype = setup.dtype;
    options.schedule.total_steps = setup.total_steps;
    options.step.buckets.bucket_bytes = 20000;
    options.step.optimizer = setup.optimizer;
    options.step.strategy = setup.strategy;
    options.step.sums = setup.sums;
    options.step.sums.hook = setup.hook ? setup.hook() : nullptr;
    options.step.virtual_ranks = setup.virtual_ranks;
    options.keep_last = setup.keep_last;
    options.shuffle_chunk = setup.shuffle_chunk;
    options.step.average = setup.average;
    if (setup.optimizer.kind == OptimizerKind::adam || setup.optimizer.kind == OptimizerKind::adamw) {
      options.schedule.base = 1e-3;
    }
    Trainer trainer(context, {grad, *control, worker}, model, data, options);
    trainer.start();
    RunProgress progress;
    const RunIdentity identity = identity_of(setup);
    if (!setup.resume.empty()) {
      EXPECT_EQ(resume_checkpoint(setup.resume, trainer, *control, identity, progress), "");
    }
    if (setup.evaluate_only) {
      load_model(setup.dir, context, trainer.parameters());
    } else {
      std::atomic<int> stop{0};
      Watch observer(grad.rank() == grad.size() - 1 ? setup.stop_at : 0, stop);  // a signal may reach one rank alone
      RunOptions run{.epochs = setup.epochs,
                     .steps = setup.steps,
                     .log_every = setup.log_every,
                     .checkpoint_dir = setup.dir,
                     .checkpoint_every = setup.checkpoint_every,
                     .keep = setup.keep,
                     .stop = &stop,
                     .stop_within = 0};
      const RunResult result = run_training(trainer, *control, identity, run, progress, observer);
      if (setup.result != nullptr && grad.rank() == 0) {
        *setup.result = result;
      }
      if (last_epoch != nullptr && grad.rank() == 0) {
        *last_epoch = observer.last();
      }
    }
    const Metrics metrics = trainer.evaluate();
    if (grad.rank() == 0) {
      last = metrics;
    }
  });
  EXPECT_EQ(failures, comm::none_failed(setup.ranks));
  return last;
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// All bytes of a checkpoint.
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

/// Runs body(trainer, control) on `ranks` threads, with options changed by change(options, rank).
template <class Body>
std::vector<std::string> with_trainers(int ranks, const std::function<void(TrainerOptions&, int)>& change,
                                       Body&& body) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  return comm::run_ranks(ranks, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 11;
    change(options, grad.rank());
    Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
    body(trainer, *control);
  });
}

/// On so many ranks resumes the checkpoint `from`, saves it again as `to` and makes one more step; then the ranks hold
/// the same state and loss(trainer) is finite.
inline void resume_and_save_again(int ranks, const std::string& from, const std::string& to,
                                  const std::function<void(TrainerOptions&, int)>& change,
                                  const std::function<double(Trainer&)>& loss) {
  const auto failures = with_trainers(ranks, change, [&](Trainer& trainer, comm::Communicator& control) {
    trainer.start();
    RunProgress progress;
    (void)resume_checkpoint(from, trainer, control, nn::identity_of(trainer), progress);
    save_checkpoint(to, trainer, control, nn::identity_of(trainer), progress);
    trainer.step();
    EXPECT_TRUE(std::isfinite(loss(trainer)));
    trainer.require_same_state();
  });
  EXPECT_EQ(failures, comm::none_failed(ranks));
}

inline void expect_all_say(const std::vector<std::string>& failures, const std::string& text) {
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find(text), std::string::npos) << "'" << failure << "' lacks '" << text << "'";
  }
}

}  // namespace lockstep::nn
