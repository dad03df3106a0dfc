#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/nn/step/step_state.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// One field of a batch: which one, and the numbers. The view has the logical shape of the field (no padding), any
/// strides and any of our types, and lies on the host or on the device that computes.
///
/// axes: a letter for each axis of the view, outermost first: n samples, c channels or features, d h w space, t
/// positions. Several n join into one axis of samples, in the order in which they stand; letters that are missing have
/// extent 1. Empty: as the model counts, samples first and channels last ("nhwc", "ntc", "nc", "nt", "n").
struct FieldView {
  StateField field = StateField::values;
  TensorView view{};
  std::string axes{};
};

/// Samples that are computed together: what a data set gives, a loader reads, a step trains on.
struct Batch {
  static constexpr std::int64_t kAllRows = -1;

  std::vector<FieldView> fields;
  std::int64_t valid = kAllRows;  ///< the first so many samples count
  /// Samples of all ranks and micro-batches of the step together, where the caller knows them; 0: the step counts.
  std::int64_t global_valid = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;  ///< in the epoch
  bool last_of_epoch = false;

  [[nodiscard]] const FieldView* find(StateField field) const;   ///< nullptr when the batch has no such field
  [[nodiscard]] const TensorView& view(StateField field) const;  ///< UsageError when the batch has no such field
};

}  // namespace lockstep::nn
