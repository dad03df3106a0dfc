#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

struct InferenceOptions {
  std::int64_t max_batch = 1024;  ///< largest number of samples of one run()
  PlanOptions plan{};             ///< plan.dtype must be the parameters' dtype
};

/// Samples of the caller: a view, and the letters of the view's axes as in nn/batch/batch.hpp.
struct SampleView {
  TensorView view{};
  std::string_view axes{};
};

/// A model's outputs for any number of samples up to a maximum. Plans of a few sizes share one workspace. A run is
/// split into these plans, and the last plan may have room to spare. The constructor does all planning and allocation.
///
/// The parameters are only read: several objects may share one set, each with its own context and thread, as long as
/// nobody writes the parameters meanwhile. Batch norm uses the statistics of evaluation.
///
/// A sample's result does not depend on how many others are computed with it (tested), with our own kernels and, if the
/// processor has AVX-512, with oneDNN. Without AVX-512 oneDNN uses other loops for other numbers of samples, and last
/// bits differ.
class Inference {
 public:
  /// Context and parameters must outlive this object. UsageError for max_batch below 1, and for parameters of another
  /// type or model.
  Inference(Context& context, const Model& model, const ParameterSet& parameters, const InferenceOptions& options = {});
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  /// Enqueues out = model(in) on the context's stream. Views and axes are as in nn/batch/batch.hpp: logical shapes, any
  /// strides and types, on the host or the context's device; empty letters mean the model's order. Writes `out` only
  /// inside its extents. ShapeError, in the model's terms and before anything is enqueued, when the views do not fit
  /// the model or hold different numbers of samples; UsageError for more than max_batch samples. Copies to and from
  /// pageable host memory wait, as copy() describes.
  void run(const TensorView& in, const TensorView& out, std::string_view in_axes = {}, std::string_view out_axes = {});

  /// Enqueues out[i] = model(in[i]) for many views, computed together up to max_batch. Checks all views before anything
  /// is enqueued; with several views an error names the view. UsageError also when the numbers of outputs and inputs
  /// differ. Allocates only when there are more views than in any call before.
  void run(std::span<const SampleView> in, std::span<const SampleView> out);

  [[nodiscard]] std::int64_t max_batch() const;
  [[nodiscard]] std::size_t bytes() const;  ///< bytes of workspace, input and output, without the plans' own memory

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
