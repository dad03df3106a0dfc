#include <lockstep/nn/run/training_run.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <lockstep/comm/host_exchange.hpp>

namespace lockstep::nn {

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of training and exposed communication since the last lap.
class Stopwatch {
 public:
  explicit Stopwatch(Trainer& trainer) : trainer_(trainer) { restart(); }
  void restart() {
    begin_ = now_s();
    exposed_begin_ = exposed();
  }
  [[nodiscard]] double seconds() const { return now_s() - begin_; }
  [[nodiscard]] double exposed_s() const { return exposed() - exposed_begin_; }

 private:
  [[nodiscard]] double exposed() const { return trainer_.reducer().statistics().exposed_s; }
  Trainer& trainer_;
  double begin_ = 0;
  double exposed_begin_ = 0;
};

void add(Metrics& sum, const Metrics& part) {
  sum.loss_sum += part.loss_sum;
  sum.correct += part.correct;
  sum.top_k_correct += part.top_k_correct;
  sum.samples += part.samples;
}

}  // namespace

RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer) {
  struct Amount {
    const char* name;
    std::int64_t value;
    std::int64_t least;
  };
  const Position& begin = trainer.position();
  std::string same = concat("checkpoints ", options.checkpoint_dir.empty() ? "off" : "on", "\nepoch ", begin.epoch,
                            ", batch ", begin.batch, ", step ", begin.step, '\n');
  for (const Amount& amount :
       {Amount{"epochs", options.epochs, 0}, Amount{"steps", options.steps, 0},
        Amount{"log_every", options.log_every, 1}, Amount{"checkpoint_every", options.checkpoint_every, 0}}) {
    require<UsageError>(amount.value >= amount.least, "training run: ", amount.name, " is ", amount.value,
                        ", expected at least ", amount.least);
    same += concat(amount.name, ' ', amount.value, '\n');
  }
  comm::require_same_on_all_ranks(control, same);

  const std::int64_t per_epoch = trainer.batches_per_epoch();
  const bool timed = !trainer.graph_obstacle().empty();
  const auto steps_done = [&] { return options.steps > 0 && trainer.position().step >= options.steps; };
  const auto save = [&](const char* name) {
    if (!options.checkpoint_dir.empty()) {
      progress.position = trainer.position();
      progress.samples_seen = trainer.samples_seen();
      save_checkpoint(options.checkpoint_dir + "/" + name, trainer, control, identity, progress);
    }
  };

  RunResult result{
      .end = RunEnd::finished, .test_accuracy = progress.test_accuracy, .best_accuracy = progress.best_accuracy};
  bool stopped = false;
  while (trainer.position().epoch < options.epochs && !steps_done()) {
    if (stopped) {  // at the last step of an epoch: its evaluation, event and checkpoints belong to it
      result.end = RunEnd::stopped;
      return result;
    }
    const std::int64_t epoch = trainer.position().epoch;
    Metrics epoch_metrics;
    double train_s = 0;
    double exposed_s = 0;
    const double epoch_begin = now_s();
    Stopwatch watch(trainer);
    std::int64_t steps_in_lap = 0;
    while (trainer.position().epoch == epoch && !steps_done()) {
      const double learning_rate = trainer.learning_rate();
      trainer.step();
      ++steps_in_lap;
      const Position& at = trainer.position();
      const bool last = at.epoch != epoch || steps_done();
      if (!last && at.step % options.log_every != 0) {
        continue;
      }
      const Metrics lap = trainer.take_metrics();
      const double seconds = watch.seconds();
      const double lap_exposed_s = watch.exposed_s();
      add(epoch_metrics, lap);
      train_s += seconds;
      exposed_s += lap_exposed_s;
      trainer.doing("reporting after step");
      observer.on_step({.epoch = epoch,
                        .step = at.step,
                        .batch = at.epoch == epoch ? at.batch : per_epoch,
                        .loss = lap.loss(),
                        .accuracy = lap.accuracy(),
                        .learning_rate = learning_rate,
                        .images_per_second = lap.samples / seconds,
                        .comm_exposed_s = timed ? lap_exposed_s / static_cast<double>(steps_in_lap) : -1});
      steps_in_lap = 0;
      trainer.doing("waiting for other ranks after step");
      // A signal reaches the ranks at different steps: they agree here.
      const double stop = options.stop != nullptr && options.stop->load(std::memory_order_relaxed) != 0 ? 1 : 0;
      const std::vector<double> stops = comm::all_gather_value(control, stop);
      stopped = std::any_of(stops.begin(), stops.end(), [](double s) { return s != 0; });
      if (stopped && !last) {
        save("last");
        result.end = RunEnd::stopped;
        return result;
      }
      if (!last && options.checkpoint_every > 0 && at.step % options.checkpoint_every < options.log_every) {
        save("last");
      }
      watch.restart();
    }
    const Metrics test = trainer.evaluate();
    progress.test_accuracy = test.accuracy();
    const bool best = progress.test_accuracy > progress.best_accuracy && std::isfinite(test.loss());
    progress.best_accuracy = best ? progress.test_accuracy : progress.best_accuracy;
    const std::int64_t skipped_updates = trainer.skipped_updates();
    trainer.doing("reporting after step");
    observer.on_epoch({.epoch = epoch + 1,
                       .step = trainer.position().step,
                       .train_loss = epoch_metrics.loss(),
                       .train_accuracy = epoch_metrics.accuracy(),
                       .test_loss = test.loss(),
                       .test_accuracy = test.accuracy(),
                       .top_k = trainer.evaluation_plan().top_k(),
                       .test_top_k_accuracy = test.top_k_accuracy(),
                       .images_per_second = epoch_metrics.samples / train_s,
                       .comm_exposed_s = timed ? exposed_s : -1,
                       .seconds = now_s() - epoch_begin,
                       .skipped_updates = skipped_updates,
                       .best = best});
    save("last");
    if (best) {
      save("best");
    }
    result.test_accuracy = progress.test_accuracy;
    result.best_accuracy = progress.best_accuracy;
  }
  return result;
}

}  // namespace lockstep::nn
