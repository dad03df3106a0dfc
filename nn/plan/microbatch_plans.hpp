#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Behind the name of a call in Choices: its choice in the micro-batches of a step that add to gradients, and in
/// evaluation.
inline constexpr const char* kAccumulating = " accumulate";
inline constexpr const char* kEvaluating = " evaluate";

/// The plans of the micro-batches that a rank runs in training, over one workspace. `batch` is the samples of the
/// largest micro-batch, `microbatches` those of a step. options.choices may hold other choices for a call in later
/// plans, under its name with one of the endings above; where it does not, that of `train` is taken. What of these
/// cannot be planned is the provider's first guess.
struct MicrobatchPlans {
  MicrobatchPlans(Context& context, const Model& model, std::int64_t batch, std::int64_t microbatches,
                  const PlanOptions& options);

  Plan train;                      ///< the first micro-batch of a step
  std::optional<Plan> accumulate;  ///< the others, when there are several
  Plan evaluate;

  /// Calls and choices of all plans by the names above; library_plans() is what choose_libraries() takes.
  [[nodiscard]] std::vector<LibraryPlan> library_plans() const;
  [[nodiscard]] Choices choices() const;
  [[nodiscard]] std::size_t workspace_bytes() const;  ///< of the plan that needs most
  void bind(ParameterSet& parameters, StepState& state, Buffer& workspace);
};

}  // namespace lockstep::nn
