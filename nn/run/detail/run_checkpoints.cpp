#include <lockstep/nn/run/detail/run_checkpoints.hpp>

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/run/detail/run_metrics.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn::detail {

namespace {

constexpr const char* kLast = CheckpointStore::kLast;

/// Returns the error text `text` with place.path replaced by place.name, because the user knows only the name.
std::string by_name(std::string text, const RunOptions::Place& place) {
  if (const std::size_t found = text.find(place.path); found != std::string::npos) {
    text.replace(found, place.path.size(), place.name);
  }
  return text;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const RunArguments& run, RunProgress progress)
    : run_(run),
      progress_(std::move(progress)),
      kept_(run.best, run.options.keep_best, run.trainer.position().step),
      writes_(!run.options.checkpoint_dir.empty()),
      keeps_several_(writes_ && run.options.keep_best > 1) {
  if (progress_.best_by != run_.best.metric) {  // the best value in `progress_` belongs to another metric
    progress_.best_by = run_.best.metric;
    progress_.best.reset();
    progress_.since_best = 0;
  }
}

void RunCheckpoints::before_first_step() {
  if (run_.options.checkpoint_first) {
    write(kLast);  // stores the best value even if the folder "best" is still missing
  }
}

bool RunCheckpoints::checkpoint_due() const {
  return run_.options.checkpoint_every > 0 && step() % run_.options.checkpoint_every == 0;
}

bool RunCheckpoints::copy_due() const {
  return run_.options.copy && run_.options.copy_every > 0 && step() % run_.options.copy_every == 0;
}

void RunCheckpoints::take_due() {
  if (checkpoint_due()) {
    save_last();
  } else {
    note_progress();
    run_.options.copy(progress_);
  }
}

void RunCheckpoints::save_last() {
  forget_missing_best();
  write(kLast);
}

bool RunCheckpoints::judge(const EvaluationEvent& test) {
  progress_.test_loss = test.loss;
  progress_.test_accuracy = is_regression(run_.trainer) ? std::nullopt : std::optional(test.accuracy);
  progress_.metrics = test.metrics;
  const std::optional<double> value = finite_value(progress_, run_.best.metric);
  forget_missing_best();
  const bool best = value && (!progress_.best || run_.best.better(*value, *progress_.best));
  progress_.since_best = best ? 0 : progress_.since_best + 1;
  if (best) {
    progress_.best = value;
  }
  return best;
}

void RunCheckpoints::save_evaluated(bool best) {
  // "best" is written before "last", so that a best evaluation in "last" always has its checkpoint. Checkpoints that
  // are no longer among the K best are also deleted before "last" is written. If the run is killed in between, the
  // resumed run repeats this epoch and then deletes them.
  if (const auto value = finite_value(progress_, run_.best.metric); value && among_the_best(*value)) {
    write(CheckpointStore::best_name(step()));
    kept_.written(step());
  }
  if (best) {
    write(CheckpointStore::kBest);
  }
  remove_fallen_out();
  save_last();
}

RunOptions::Place RunCheckpoints::place() const {
  return run_.control.rank() == 0 && run_.options.checkpoint_place
             ? run_.options.checkpoint_place()
             : RunOptions::Place{run_.options.checkpoint_dir, run_.options.checkpoint_dir};
}

void RunCheckpoints::forget_missing_best() {
  if (!writes_ || !progress_.best) {
    return;
  }
  const double missing = run_.control.rank() == 0 && !file_exists(store().path(CheckpointStore::kBest)) ? 1 : 0;
  if (comm::all_gather_value(run_.control, missing).front() != 0) {
    progress_.best.reset();
  }
}

bool RunCheckpoints::among_the_best(double value) {
  const bool takes = keeps_several_ && run_.control.rank() == 0 && kept_.takes(store(), step(), value);
  return keeps_several_ && comm::all_gather_value(run_.control, takes ? 1 : 0).front() != 0;
}

void RunCheckpoints::remove_fallen_out() {
  if (!keeps_several_) {
    return;
  }
  std::string failure;
  const RunOptions::Place folder = place();
  try {
    if (run_.control.rank() == 0) {
      kept_.retire_others(CheckpointStore(folder.path));
    }
  } catch (const std::exception& error) {
    failure = by_name(error.what(), folder);
  }
  const std::string first = comm::broadcast_text(run_.control, failure);
  require<comm::CollectiveError<WriteError>>(first.empty(), first);
}

void RunCheckpoints::note_progress() {
  progress_.position = run_.trainer.position();
  progress_.samples_seen = run_.trainer.samples_seen();
}

void RunCheckpoints::write(std::string_view name) {
  if (!writes_) {
    return;
  }
  const RunOptions::Place folder = place();
  const CheckpointEvent event{.folder = concat(folder.name, '/', name), .step = step()};
  run_.observer.on_checkpoint_begin(event);
  note_progress();
  try {
    save_checkpoint(concat(folder.path, '/', name), run_.trainer, run_.control, run_.identity, progress_,
                    name == kLast ? run_.options.keep : 0);
  } catch (const comm::CollectiveError<WriteError>& error) {
    throw comm::CollectiveError<WriteError>(by_name(error.what(), folder));
  }
  run_.observer.on_checkpoint_end(event);
}

}  // namespace lockstep::nn::detail
