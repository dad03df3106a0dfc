#include <lockstep/nn/run/checkpoints/best_checkpoints.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>

#include <lockstep/runtime/files/atomic_folder.hpp>

namespace lockstep::nn {

BestBy resolved(BestBy best, bool average, bool regression) {
  if (best.metric.empty()) {
    best.metric = average ? (regression ? kAverageLoss : kAverageAccuracy) : regression ? "test_loss" : "test_accuracy";
  }
  best.lowest =
      best.metric == "test_loss" || best.metric == kAverageLoss || (best.metric != "test_accuracy" && best.lowest);
  return best;
}

std::optional<double> finite_value(const RunProgress& progress, const std::string& metric) {
  const auto own = [&](const std::string& name) -> std::optional<double> {
    const auto found = progress.metrics.find(name);
    return found == progress.metrics.end() ? std::nullopt : std::optional(found->second);
  };
  const auto finite = [](std::optional<double> value) { return value && std::isfinite(*value); };
  const std::optional<double> value = metric == "test_loss"       ? progress.test_loss
                                      : metric == "test_accuracy" ? progress.test_accuracy
                                                                  : own(metric);
  const bool valid = metric == "test_accuracy"    ? finite(progress.test_loss)
                     : metric == kAverageAccuracy ? finite(own(kAverageLoss))
                                                  : true;
  return valid && finite(value) ? value : std::nullopt;
}

std::vector<BestCheckpoints::Found> BestCheckpoints::ranking(const CheckpointStore& store,
                                                             std::vector<std::int64_t>* left_behind) const {
  std::vector<Found> found;
  for (const std::int64_t step : store.best_steps()) {
    const std::optional<RunProgress> progress = store.progress_of(CheckpointStore::best_name(step));
    if (!progress || progress->position.step != step) {
      continue;  // a damaged checkpoint, or a user's folder with such a name
    }
    if (step <= begin_ || own_.count(step) > 0) {
      found.push_back({step, finite_value(*progress, by_.metric)});
    } else if (left_behind != nullptr) {
      left_behind->push_back(step);
    }
  }
  // The sort is stable and the steps ascend, so of equal values the earlier step comes first.
  std::stable_sort(found.begin(), found.end(), [this](const Found& a, const Found& b) {
    return a.value && (!b.value || by_.better(*a.value, *b.value));
  });
  return found;
}

bool BestCheckpoints::takes(const CheckpointStore& store, std::int64_t step, double value) const {
  if (keep_ < 2) {
    return false;
  }
  const std::vector<Found> found = ranking(store, nullptr);
  const auto ahead = std::count_if(found.begin(), found.end(), [&](const Found& other) {
    return other.step != step && other.value && !by_.better(value, *other.value);
  });
  return ahead < keep_;
}

void BestCheckpoints::retire_others(const CheckpointStore& store) const {
  if (keep_ < 2) {
    return;
  }
  const auto path_of = [&](std::int64_t step) { return store.path(CheckpointStore::best_name(step)); };
  for (const std::int64_t step : store.best_steps()) {
    // Repairs the folder, in case an earlier process was killed while it wrote or deleted here.
    recover_folder(path_of(step));
  }
  std::vector<std::int64_t> others;
  const std::vector<Found> found = ranking(store, &others);
  for (std::size_t rank = static_cast<std::size_t>(keep_); rank < found.size(); ++rank) {
    others.push_back(found[rank].step);
  }
  for (const std::int64_t step : others) {
    remove_folder(path_of(step));
  }
}

BestOfResumed best_of_resumed(const CheckpointStore& store, const RunProgress& progress, const BestBy& by,
                              bool rolls_back) {
  if (!progress.best) {
    return {};
  }
  const auto same_kind = [&](const std::optional<RunProgress>& other) {
    return other && other->best_by == progress.best_by && other->best;
  };
  const std::optional<RunProgress> best = store.progress_of(CheckpointStore::kBest);
  if (same_kind(best) && best->best == progress.best &&
      (!rolls_back || best->position.step <= progress.position.step)) {
    return {.value = progress.best};
  }
  for (const std::int64_t step : store.best_steps()) {
    const std::string name = CheckpointStore::best_name(step);
    const std::optional<RunProgress> there =
        std::filesystem::is_symlink(store.path(name)) ? std::nullopt : store.progress_of(name);
    if (same_kind(there) && there->since_best == 0 && there->best == progress.best && there->position.step == step &&
        step <= progress.position.step) {
      return {.value = progress.best, .copy_from = store.path(name)};
    }
  }
  if (!same_kind(best)) {
    return {};
  }
  if (best->position.step > progress.position.step) {
    return {.value = rolls_back ? std::nullopt : progress.best};
  }
  return {.value = by.better(*best->best, *progress.best) ? best->best : std::nullopt};
}

}  // namespace lockstep::nn
