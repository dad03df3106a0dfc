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

/// Plans of a rank's micro-batches, over one workspace. `batch` is the number of samples of the largest micro-batch,
/// and `microbatches` the number of micro-batches per step. options.choices may hold choices for the calls of
/// `accumulate` and `evaluate`, under keys with the endings above; otherwise these calls use the choices of `train`. If
/// such a choice cannot be planned, the provider's first guess replaces it.
struct MicrobatchPlans {
  MicrobatchPlans(Context& context, const Model& model, std::int64_t batch, std::int64_t microbatches,
                  const PlanOptions& options);

  Plan train;                      ///< plan of the first micro-batch of a step
  std::optional<Plan> accumulate;  ///< plan of the other micro-batches, if there are several
  Plan evaluate;

  /// Return the library calls and the choices of all plans, with the endings above in their keys. choose_libraries()
  /// takes library_plans().
  [[nodiscard]] std::vector<LibraryPlan> library_plans() const;
  [[nodiscard]] Choices choices() const;
  [[nodiscard]] std::size_t workspace_bytes() const;  ///< largest workspace of the plans
  void bind(ParameterSet& parameters, StepState& state, Buffer& workspace);
};

}  // namespace lockstep::nn
