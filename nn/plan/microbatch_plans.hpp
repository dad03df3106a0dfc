#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// Endings of keys in Choices for the calls of MicrobatchPlans::accumulate and MicrobatchPlans::evaluate.
inline constexpr const char* kAccumulating = " accumulate";
inline constexpr const char* kEvaluating = " evaluate";

/// The plans that a rank runs for its micro-batches. All plans use one workspace. `batch` is the number of samples of
/// the largest micro-batch, and `microbatches` the number of micro-batches per step. options.choices may hold choices
/// for the calls of `accumulate` and `evaluate`, under keys that end with kAccumulating and kEvaluating. Without such a
/// key, the call uses the choice of `train`. If the choice cannot be planned, the call uses the provider's default
/// algorithm.
struct MicrobatchPlans {
  MicrobatchPlans(Context& context, const Model& model, std::int64_t batch, std::int64_t microbatches,
                  const PlanOptions& options);

  Plan train;                      ///< plan of the first micro-batch of a step
  std::optional<Plan> accumulate;  ///< plan of all micro-batches but the first; empty if there is only one
  Plan evaluate;

  /// library_plans() and choices() return the library calls and the choices of all three plans. The keys of calls of
  /// `accumulate` and `evaluate` end with kAccumulating and kEvaluating. Pass library_plans() to choose_libraries().
  [[nodiscard]] std::vector<LibraryPlan> library_plans() const;
  [[nodiscard]] Choices choices() const;
  [[nodiscard]] std::size_t workspace_bytes() const;  ///< size of the largest workspace among the plans
  void bind(ParameterSet& parameters, StepState& state, Buffer& workspace);
};

}  // namespace lockstep::nn
