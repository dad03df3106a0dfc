#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// One field of a batch: the name of the field and a view of its numbers. The view has the logical shape of the field
/// (without padding), any strides and any element type of lockstep, and lies on the host or on the computing device.
///
/// `axes` has one letter for each axis of the view, outermost first: n samples, c channels or features, d planes,
/// h rows, w columns, t positions. If several axes have the letter n, they count the samples together, in row-major
/// order. An axis whose letter is missing has extent 1. If `axes` is empty, the view has the model's order: samples
/// first, channels last ("nhwc", "ntc", "nc", "nt", "n").
struct FieldView {
  StateField field = StateField::values;
  TensorView view{};
  std::string axes{};
};

/// The samples that one call of a training step or an evaluation computes. A loader reads batches from a data set.
struct Batch {
  static constexpr std::int64_t kAllRows = -1;

  std::vector<FieldView> fields;
  std::int64_t valid = kAllRows;  ///< number of leading samples that count in losses and metrics; kAllRows: all
  /// Number of valid samples of the step over all ranks and micro-batches. 0 means that the caller does not know the
  /// number; the step then sums `valid` over the ranks (TrainStepOptions::count_samples).
  std::int64_t global_valid = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;  ///< number of this batch in the epoch, from 0
  bool last_of_epoch = false;

  [[nodiscard]] const FieldView* find(StateField field) const;   ///< returns nullptr if the batch has no such field
  [[nodiscard]] const TensorView& view(StateField field) const;  ///< throws UsageError if the batch has no such field
};

}  // namespace lockstep::nn
