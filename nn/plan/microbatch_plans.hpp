#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Endings of a call's key in Choices, for its choices in micro-batches that add to gradients, and in evaluation.
inline constexpr const char* kAccumulating = " accumulate";
inline constexpr const char* kEvaluating = " evaluate";

/// The plans of a rank's micro-batches, over one workspace. batch: samples of the largest micro-batch. microbatches:
/// number of micro-batches per step. options.choices may hold choices for the calls of `accumulate` and `evaluate`,
/// under keys with the endings above; otherwise these calls use the choices of `train`. Where such a choice cannot be
/// planned, the provider's first guess is used.
struct MicrobatchPlans {
  MicrobatchPlans(Context& context, const Model& model, std::int64_t batch, std::int64_t microbatches,
                  const PlanOptions& options);

  Plan train;                      ///< plan of the first micro-batch of a step
  std::optional<Plan> accumulate;  ///< plan of the other micro-batches, if there are several
  Plan evaluate;

  /// Library calls and choices of all plans, with the endings above in their keys. choose_libraries() takes
  /// library_plans().
  [[nodiscard]] std::vector<LibraryPlan> library_plans() const;
  [[nodiscard]] Choices choices() const;
  [[nodiscard]] std::size_t workspace_bytes() const;  ///< largest workspace of the plans
  void bind(ParameterSet& parameters, StepState& state, Buffer& workspace);
};

}  // namespace lockstep::nn
