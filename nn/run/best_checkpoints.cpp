#include <lockstep/nn/run/best_checkpoints.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>

namespace lockstep::nn {

namespace {

constexpr std::string_view kBegin = "best-";

/// N of BEGIN + N, or of BEGIN + N + ".tmp-..." and ".old-..."; none of other names.
std::optional<std::int64_t> number_of(std::string_view name, std::string_view begin) {
  if (!name.starts_with(begin)) {
    return std::nullopt;
  }
  name.remove_prefix(begin.size());
  const std::string_view digits = name.substr(0, name.find('.'));
  const std::string_view rest = name.substr(digits.size());
  std::int64_t number = -1;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc() && stop == digits.data() + digits.size() && std::to_string(number) == digits;
  const bool ours = rest.empty() || rest.starts_with(".tmp-") || rest.starts_with(".old-");
  return whole && number >= 0 && ours ? std::optional(number) : std::nullopt;
}

}  // namespace

std::vector<std::int64_t> numbered_folders(const std::string& dir, std::string_view begin) {
  std::set<std::int64_t> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto number = number_of(entry->path().filename().string(), begin)) {
      numbers.insert(*number);
    }
  }
  return {numbers.begin(), numbers.end()};
}

BestBy resolved(BestBy best, bool average, bool regression) {
  if (best.metric.empty()) {
    best.metric = average ? (regression ? kAverageLoss : kAverageAccuracy) : regression ? "test_loss" : "test_accuracy";
  }
  best.lowest =
      best.metric == "test_loss" || best.metric == kAverageLoss || (best.metric != "test_accuracy" && best.lowest);
  return best;
}

std::optional<double> sound_value(const RunProgress& progress, const std::string& metric) {
  const auto own = [&](const std::string& name) -> std::optional<double> {
    const auto found = progress.metrics.find(name);
    return found == progress.metrics.end() ? std::nullopt : std::optional(found->second);
  };
  const auto finite = [](std::optional<double> value) { return value && std::isfinite(*value); };
  const std::optional<double> value = metric == "test_loss"       ? progress.test_loss
                                      : metric == "test_accuracy" ? progress.test_accuracy
                                                                  : own(metric);
  const bool sound = metric == "test_accuracy"    ? finite(progress.test_loss)
                     : metric == kAverageAccuracy ? finite(own(kAverageLoss))
                                                  : true;
  return sound && finite(value) ? value : std::nullopt;
}

std::string BestCheckpoints::name(std::int64_t step) {
  return concat(kBegin, step);
}

std::vector<std::int64_t> BestCheckpoints::steps_in(const std::string& dir) {
  return numbered_folders(dir, kBegin);
}

std::vector<BestCheckpoints::Found> BestCheckpoints::ranking(const std::string& dir,
                                                             std::vector<std::int64_t>* left_behind) const {
  std::vector<Found> found;
  for (const std::int64_t step : steps_in(dir)) {
    try {
      const CheckpointState state = read_checkpoint_state(concat(dir, '/', name(step)));
      if (state.progress.position.step != step) {
        continue;  // somebody has given it this name
      }
      if (step <= begin_ || own_.count(step) > 0) {
        found.push_back({step, sound_value(state.progress, by_.metric)});
      } else if (left_behind != nullptr) {
        left_behind->push_back(step);
      }
    } catch (const DataError&) {
      continue;
    }
  }
  // Stable: by ascending steps where values are equal.
  std::stable_sort(found.begin(), found.end(), [this](const Found& a, const Found& b) {
    return a.value && (!b.value || better(*a.value, *b.value));
  });
  return found;
}

bool BestCheckpoints::takes(const std::string& dir, std::int64_t step, double value) const {
  if (keep_ < 2) {
    return false;
  }
  const std::vector<Found> found = ranking(dir, nullptr);
  const auto ahead = std::count_if(found.begin(), found.end(), [&](const Found& other) {
    return other.step != step && other.value && !better(value, *other.value);
  });
  return ahead < keep_;
}

void BestCheckpoints::remove_others(const std::string& dir) const {
  if (keep_ < 2) {
    return;
  }
  for (const std::int64_t step : steps_in(dir)) {
    recover_folder(concat(dir, '/', name(step)));  // what a kill in here or in a writer has left
  }
  std::vector<std::int64_t> others;
  const std::vector<Found> found = ranking(dir, &others);
  for (std::size_t rank = static_cast<std::size_t>(keep_); rank < found.size(); ++rank) {
    others.push_back(found[rank].step);
  }
  for (const std::int64_t step : others) {
    remove_folder(concat(dir, '/', name(step)));
  }
}

}  // namespace lockstep::nn
