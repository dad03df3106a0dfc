#include <lockstep/nn/step/detail/plan_contest.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {

namespace {

/// The step of `a` is clearly longer than that of `b`.
bool slower(const std::vector<Turn>& a, const std::vector<Turn>& b) {
  constexpr double kLeast = 0.01;  // of the step
  constexpr double kErrors = 4;
  constexpr std::size_t kLeastRounds = 5;
  const std::size_t rounds = std::min(a.size(), b.size());
  if (rounds < kLeastRounds) {
    return false;
  }
  const auto n = static_cast<double>(rounds);
  double mean = 0;
  double step = 0;
  for (std::size_t i = 0; i < rounds; ++i) {
    mean += (a[i].step_s - b[i].step_s) / n;
    step += b[i].step_s / n;
  }
  double squares = 0;
  for (std::size_t i = 0; i < rounds; ++i) {
    const double off = a[i].step_s - b[i].step_s - mean;
    squares += off * off;
  }
  return mean > kLeast * step && mean > kErrors * std::sqrt(squares / (n - 1) / n);
}

/// Those that go on, the least exposed first: at most `most`, and the one with the shortest step.
std::vector<std::size_t> best_of(const std::vector<std::size_t>& field, std::size_t most,
                                 std::span<const std::size_t> buckets, const std::vector<std::vector<Turn>>& turns) {
  const std::size_t fastest = *std::min_element(field.begin(), field.end(), [&](std::size_t a, std::size_t b) {
    return typical(turns[a], &Turn::step_s) < typical(turns[b], &Turn::step_s);
  });
  std::vector<std::size_t> left;
  for (const std::size_t plan : field) {
    if (!slower(turns[plan], turns[fastest])) {
      left.push_back(plan);
    }
  }
  std::stable_sort(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(typical(turns[a], &Turn::exposed_s), buckets[a]) <
           std::pair(typical(turns[b], &Turn::exposed_s), buckets[b]);
  });
  if (left.size() > most) {
    const bool last = std::find(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(most), fastest) ==
                      left.begin() + static_cast<std::ptrdiff_t>(most);
    left.resize(most);
    if (last) {
      left.push_back(fastest);
    }
  }
  return left;
}

}  // namespace

double typical(const std::vector<Turn>& turns, double Turn::*value) {
  std::vector<double> values;
  values.reserve(turns.size());
  for (const Turn& turn : turns) {
    values.push_back(turn.*value);
  }
  return trimmed_mean(std::move(values));
}

double trimmed_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t off = values.size() / 5;
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(off);
  const auto end = values.end() - static_cast<std::ptrdiff_t>(off);
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

Estimate exposed_of(std::span<const Turn> turns) {
  Estimate of;
  const auto n = static_cast<double>(turns.size());
  for (const Turn& turn : turns) {
    of.mean += turn.exposed_s / n;
  }
  double squares = 0;
  for (const Turn& turn : turns) {
    squares += (turn.exposed_s - of.mean) * (turn.exposed_s - of.mean);
  }
  of.error = turns.size() > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  return of;
}

ContestResult hold_contest(std::span<const std::size_t> buckets, const ContestOptions& options,
                           const std::function<void(std::size_t, int)>& make,
                           const std::function<std::vector<Turn>()>& collect) {
  constexpr double kTie = 0.01;
  constexpr double kError = 0.05;
  constexpr int kLeastTurns = 6;
  constexpr int kLeastSteps = 16;
  ContestResult result;
  result.turns.resize(buckets.size());
  const auto take_turns = [&](const std::vector<std::size_t>& plans) {
    for (const std::size_t plan : plans) {
      make(plan, options.turn);
      result.steps += options.turn;
    }
    std::vector<Turn> made = collect();
    require<StateError>(made.size() == plans.size(), "plan contest: collected ", made.size(), " turns, expected ",
                        plans.size());
    return made;
  };
  std::vector<std::size_t> field(std::min(buckets.size(), static_cast<std::size_t>(options.steps / options.turn)));
  std::iota(field.begin(), field.end(), std::size_t{0});
  int stages = 0;
  while ((std::size_t{1} << stages) < field.size()) {
    ++stages;
  }
  for (int stage = 0; stage < stages && field.size() > 1; ++stage) {
    const int a_round = static_cast<int>(field.size()) * options.turn;
    const int left = options.steps - result.steps;
    const int rounds = std::max((left / (stages - stage)) / a_round, left >= a_round ? 1 : 0);
    std::vector<std::size_t> order;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < field.size(); ++i) {
        order.push_back(field[(i + static_cast<std::size_t>(round)) % field.size()]);
      }
    }
    const std::vector<Turn> made = take_turns(order);
    for (std::size_t i = 0; i < order.size(); ++i) {
      result.turns[order[i]].push_back(made[i]);
    }
    const bool last = stage + 1 == stages;
    field = best_of(field, last ? field.size() : (field.size() + 1) / 2, buckets, result.turns);
  }
  if (field.empty()) {
    return result;
  }
  result.best = field.front();
  if (field.size() > 1) {
    const double most = (1 + kTie) * typical(result.turns[field.front()], &Turn::exposed_s);
    for (const std::size_t plan : field) {
      if (typical(result.turns[plan], &Turn::exposed_s) <= most && buckets[plan] < buckets[result.best]) {
        result.best = plan;
      }
    }
  }
  const int a_batch = std::max(kLeastTurns, kLeastSteps / options.turn);
  for (int left = options.confirm_steps / options.turn; left > 0;) {
    const int turns = std::min(left, a_batch);
    left -= turns;
    const std::vector<Turn> made = take_turns(std::vector<std::size_t>(static_cast<std::size_t>(turns), result.best));
    result.confirmed.insert(result.confirmed.end(), made.begin(), made.end());
    const Estimate known = exposed_of(result.confirmed);
    if (known.error <= kError * known.mean) {
      break;
    }
  }
  return result;
}

}  // namespace lockstep::nn::detail
