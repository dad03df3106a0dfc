#include <lockstep/nn/plan/microbatch_plans.hpp>

#include <algorithm>
#include <string_view>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/matmul.hpp>

namespace lockstep::nn {
namespace {

PlanOptions like(const Plan& train, const PlanOptions& options, std::string_view ending) {
  PlanOptions later = options;
  later.choices = train.choices();
  later.choices_required = false;
  // A key that ends with `ending` is for a call of `accumulate` or `evaluate`; the ending is removed here.
  for (const auto& [call, choice] : options.choices) {
    if (call.ends_with(ending)) {
      later.choices[call.substr(0, call.size() - ending.size())] = choice;
    }
  }
  return later;
}

std::optional<Plan> accumulating(Context& context, const Model& model, const Plan& train, std::int64_t microbatches,
                                 const PlanOptions& options) {
  if (microbatches == 1) {
    return std::nullopt;
  }
  PlanOptions later = like(train, options, kAccumulating);
  later.accumulate = true;
  return std::optional<Plan>(std::in_place, context, model, Mode::train, train.batch(), later);
}

}  // namespace

MicrobatchPlans::MicrobatchPlans(Context& context, const Model& model, std::int64_t batch, std::int64_t microbatches,
                                 const PlanOptions& options)
    : train(context, model, Mode::train, batch, options),
      accumulate(accumulating(context, model, train, microbatches, options)),
      evaluate(context, model, Mode::evaluate, batch, like(train, options, kEvaluating)) {}

std::vector<LibraryPlan> MicrobatchPlans::library_plans() const {
  std::vector<LibraryPlan> all = train.library_plans();
  const auto add = [&](const Plan& plan, const char* ending) {
    for (const LibraryPlan& library : plan.library_plans()) {
      all.push_back({library.key + ending, library.plan});
    }
  };
  if (accumulate) {
    add(*accumulate, kAccumulating);
  }
  add(evaluate, kEvaluating);
  return all;
}

Choices MicrobatchPlans::choices() const {
  Choices all;
  for (const LibraryPlan& library : library_plans()) {
    all[library.key] = std::visit([](const auto& plan) { return plan->choice(); }, library.plan);
  }
  return all;
}

std::size_t MicrobatchPlans::workspace_bytes() const {
  return std::max({train.workspace_bytes(), evaluate.workspace_bytes(),
                   accumulate ? accumulate->workspace_bytes() : std::size_t{0}});
}

void MicrobatchPlans::bind(ParameterSet& parameters, StepState& state, Buffer& workspace) {
  train.bind(parameters, state, workspace);
  if (accumulate) {
    accumulate->bind(parameters, state, workspace);
  }
  evaluate.bind(parameters, state, workspace);
}

}  // namespace lockstep::nn
