#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Endings of a call's name in Choices: its choice in the micro-batches that add to gradients, and in evaluation.
inline constexpr const char* kAccumulating = " accumulate";
inline constexpr const char* kEvaluating = " evaluate";

/// The plans of a rank's micro-batches, over one workspace. `batch`: samples of the largest micro-batch;
/// `microbatches`: their number per step. options.choices may hold other choices for a call in the second and third
/// plan, under its name with one of the endings above; otherwise the choice of `train` applies. Where such a choice
/// cannot be planned, the provider's first guess is used.
struct MicrobatchPlans {
  MicrobatchPlans(Context& context, const Model& model, std::int64_t batch, std::int64_t microbatches,
                  const PlanOptions& options);

  Plan train;                      ///< the first micro-batch of a step
  std::optional<Plan> accumulate;  ///< the others, when there are several
  Plan evaluate;

  /// Calls and choices of all plans, under the names above; choose_libraries() takes library_plans().
  [[nodiscard]] std::vector<LibraryPlan> library_plans() const;
  [[nodiscard]] Choices choices() const;
  [[nodiscard]] std::size_t workspace_bytes() const;  ///< of the plan that needs the most
  void bind(ParameterSet& parameters, StepState& state, Buffer& workspace);
};

}  // namespace lockstep::nn
