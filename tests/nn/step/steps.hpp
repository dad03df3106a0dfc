#pragma once

#include <algorithm>
#include <map>
#include <span>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/step/train_step.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/support/guarded.hpp"

/// What the tests of steps without a Trainer share.
namespace lockstep::nn {

inline std::vector<double> normal_numbers(std::int64_t n, std::uint64_t seed) {
  Random random(seed, RandomUse::test);
  std::vector<double> numbers(static_cast<std::size_t>(n));
  std::generate(numbers.begin(), numbers.end(), [&] { return random.normal(); });
  return numbers;
}

/// All that lasts from step to step.
inline std::map<std::string, std::vector<double>> numbers_of(const ParameterSet& set) {
  std::map<std::string, std::vector<double>> all;
  for (const State& each : set.states().all()) {
    all[each.name] = testing::to_doubles(each.view);
  }
  return all;
}

/// Images of 6 x 6 and labels below 3, of step `number` and a rank.
struct Images {
  explicit Images(std::int64_t number, std::int64_t rank = 0, std::int64_t n = 6)
      : x(normal_numbers(n * 108, static_cast<std::uint64_t>(number * 100 + rank))) {
    for (std::int64_t i = 0; i < n; ++i) {
      labels.push_back(static_cast<std::int32_t>((i + rank) % 3));
    }
  }
  [[nodiscard]] Batch batch() {
    const auto n = static_cast<std::int64_t>(labels.size());
    Batch made;
    made.fields = {{StateField::values, TensorView(std::span(x), {n, 6, 6, 3})},
                   {StateField::labels, TensorView(std::span(labels), {n})}};
    return made;
  }
  void train(TrainStep& step) { step.update(batch(), 0.05); }
  std::vector<double> x;
  std::vector<std::int32_t> labels;
};

struct ContextOfStep {
  CpuContext own_context;
};

/// A TrainStep with a context of its own.
class Step : private ContextOfStep, public TrainStep {
 public:
  Step(const Model& model, const TrainStepOptions& options) : TrainStep(own_context, model, options) {}
  /// As one of some ranks.
  Step(comm::Communicator& grad, const Model& model, const TrainStepOptions& options)
      : TrainStep(own_context, {grad, own_context.stream()}, model, options) {}
  /// Parameters, when all steps are done.
  [[nodiscard]] std::vector<double> values() {
    synchronize();
    return testing::to_doubles(parameters().values());
  }
  [[nodiscard]] std::map<std::string, std::vector<double>> lasting() {
    synchronize();
    return numbers_of(parameters());
  }
};

}  // namespace lockstep::nn
