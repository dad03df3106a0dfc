#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// One field of a batch: its name and its numbers. The view has the logical shape of the field (without padding), any
/// strides and any element type of lockstep, and lies on the host or on the computing device.
///
/// axes: one letter per axis of the view, outermost first: n samples, c channels or features, d h w space, t positions.
/// Several n are joined into one axis of samples, in their order; missing letters have extent 1. Empty: the model's
/// order, samples first and channels last ("nhwc", "ntc", "nc", "nt", "n").
struct FieldView {
  StateField field = StateField::values;
  TensorView view{};
  std::string axes{};
};

/// Samples that are computed together: a data set provides them, a loader reads them, a step trains on them.
struct Batch {
  static constexpr std::int64_t kAllRows = -1;

  std::vector<FieldView> fields;
  std::int64_t valid = kAllRows;  ///< only the first `valid` samples count
  /// Number of samples of all ranks and micro-batches of the step, if the caller knows it; 0: the step counts them.
  std::int64_t global_valid = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;  ///< in the epoch
  bool last_of_epoch = false;

  [[nodiscard]] const FieldView* find(StateField field) const;   ///< nullptr when the batch has no such field
  [[nodiscard]] const TensorView& view(StateField field) const;  ///< UsageError when the batch has no such field
};

}  // namespace lockstep::nn
