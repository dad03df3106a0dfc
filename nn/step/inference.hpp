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
  std::int64_t max_batch = 1024;  ///< largest number of samples in one run()
  /// plan.dtype must be weight_dtype() of the parameters. If Inference uses no plans (see Inference), all other plan
  /// options are ignored.
  PlanOptions plan{};
};

/// A view of the caller's samples. `axes` has one letter per axis of `view`, as in nn/batch/batch.hpp.
struct SampleView {
  TensorView view{};
  std::string_view axes{};
};

/// Computes a model's outputs for any number of samples up to InferenceOptions::max_batch. The constructor does all
/// planning and allocation.
///
/// On the host, a chain of linear layers and activations is computed in one pass without plans, if ops::Mlp supports
/// the layers (kernels/mlp.hpp). This pass reads and writes f32 and f64 views in place. For all other models, the
/// object has plans for a few batch sizes, which share one workspace. run() splits its samples into these sizes.
///
/// The object only reads the parameters. Several objects, each with its own context and thread, may share one
/// ParameterSet as long as nobody writes the parameters. Batch norm uses the evaluation statistics.
///
/// A sample's result does not depend on how many other samples are computed with it. Exception: without AVX-512, oneDNN
/// uses other loops for other numbers of samples, and the last bits can differ.
class Inference {
 public:
  /// Context and parameters must outlive this object. Throws UsageError if max_batch is below 1, or if the parameters
  /// have a type other than plan.dtype or belong to a model other than `model`.
  Inference(Context& context, const Model& model, const ParameterSet& parameters, const InferenceOptions& options = {});
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  /// Enqueues out = model(in) on the context's stream. Views have logical shapes, and any strides and types. Their
  /// memory must be on the host or on the context's device. `in_axes` and `out_axes` have one letter per axis, as in
  /// nn/batch/batch.hpp. If the letters are empty, the view has the model's order of axes. Memory between the elements
  /// of `out` is not written. If a check fails, nothing has been enqueued. Throws ShapeError if the views do not fit
  /// the model, or have different numbers of samples. Throws UsageError for more than max_batch samples. Copies from
  /// and to pageable host memory block the calling thread, as copy() describes.
  void run(const TensorView& in, const TensorView& out, std::string_view in_axes = {}, std::string_view out_axes = {});

  /// Enqueues out[i] = model(in[i]) for many views, with up to max_batch samples in all. Checks all views before
  /// anything is enqueued. With several views, an error names the wrong view. Also throws UsageError if the numbers of
  /// inputs and outputs differ. Allocates only if there are more views than in any earlier call.
  void run(std::span<const SampleView> in, std::span<const SampleView> out);

  /// Enqueues the last run() again, on memory at other addresses with the same types, shapes, strides and axes. For a
  /// small model on the host, this takes less time than run(). Returns false, and does nothing, if the last run() had
  /// several views or copied a view, or if the new memory cannot be read and written in place. The caller must then
  /// call run().
  [[nodiscard]] bool run_again(const void* in, void* out);
  [[nodiscard]] bool runs_again() const;  ///< returns false if run_again() would return false for any memory

  [[nodiscard]] std::int64_t max_batch() const;
  [[nodiscard]] std::size_t bytes() const;  ///< bytes of workspace, input and output, without the plans' own memory

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
