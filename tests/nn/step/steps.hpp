#pragma once

#include <algorithm>
#include <map>
#include <span>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/step/train_step.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/support/guarded.hpp"

/// Functions that tests of steps without a Trainer share.
namespace lockstep::nn {

inline std::vector<double> normal_numbers(std::int64_t n, std::uint64_t seed) {
  Random random(seed, RandomUse::test);
  std::vector<double> numbers(static_cast<std::size_t>(n));
  std::generate(numbers.begin(), numbers.end(), [&] { return random.normal(); });
  return numbers;
}

/// Returns all values that are kept from step to step, by name.
inline std::map<std::string, std::vector<double>> numbers_of(const ParameterSet& set) {
  std::map<std::string, std::vector<double>> all;
  for (const State& each : set.states().all()) {
    all[each.name] = testing::to_doubles(each.view);
  }
  return all;
}

/// Images of 6 x 6 and labels below 3, for step `number` of a rank.
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

/// The numbers of a batch: images or tokens, and labels.
struct AnyData {
  AnyData(const Model& model, std::int64_t rows) : shape{rows} {
    for (const std::int64_t extent : model.input_shape()) {
      shape.push_back(extent);
    }
    Random random(5, RandomUse::test);
    const bool is_text = model.input_kind() == InputKind::tokens;
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      values.push_back(static_cast<float>(random.normal()));
      tokens.push_back(static_cast<std::int32_t>(random.below(11)));
    }
    const TensorView all = is_text ? TensorView(std::span(tokens), shape) : TensorView(std::span(values), shape);
    field = {is_text ? StateField::tokens : StateField::values, all};
    labels.resize(static_cast<std::size_t>(is_text ? shape.numel() : rows));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<std::int32_t>(i % 3);
    }
    label_shape = is_text ? shape : Shape{rows};
  }
  [[nodiscard]] Batch batch(std::int64_t begin, std::int64_t count) {
    Batch made;
    made.fields = {{field.field, field.view.slice(0, begin, begin + count)},
                   {StateField::labels, TensorView(std::span(labels), label_shape).slice(0, begin, begin + count)}};
    return made;
  }
  Shape shape, label_shape;
  std::vector<float> values;
  std::vector<std::int32_t> tokens, labels;
  FieldView field;
};

struct ContextOfStep {
  explicit ContextOfStep(int threads = 0) : own_context({.threads = threads}) {}
  CpuContext own_context;
};

/// A TrainStep with its own context.
class Step : private ContextOfStep, public TrainStep {
 public:
  Step(const Model& model, const TrainStepOptions& options) : TrainStep(own_context, model, options) {}
  /// Makes the step of one of several ranks, each of which computes with one thread.
  Step(comm::Communicator& grad, const Model& model, const TrainStepOptions& options)
      : ContextOfStep(1), TrainStep(own_context, {grad, own_context.stream()}, model, options) {}
  /// Waits for all steps. Returns the parameters.
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
