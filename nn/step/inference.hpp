#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

struct InferenceOptions {
  std::int64_t max_batch = 1024;  ///< most samples of one run()
  PlanOptions plan{};             ///< dtype must be that of the parameters
};

/// Samples of the caller's: a view and the letters of its axes, as in nn/step/batch.hpp.
struct SampleView {
  TensorView view{};
  std::string_view axes{};
};

/// What a model makes of any number of samples up to a maximum. Plans of a few sizes lie over one workspace; a run is
/// split into them, the last one possibly with room to spare. All planning and allocation is in the constructor.
///
/// The parameters are only read, so that several objects may share one set, each on a context and a thread of its own,
/// as long as nobody writes the parameters meanwhile. Where a batch norm averages, it takes the evaluation's
/// statistics.
///
/// With our own kernels and oneDNN the numbers of a sample do not depend on how many others are computed with it (a
/// test says so).
class Inference {
 public:
  /// Context and parameters outlive it. UsageError: max_batch below 1,
  /// parameters of another type or model.
  Inference(Context& context, const Model& model, const ParameterSet& parameters, const InferenceOptions& options = {});
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  /// out = model(in), enqueued on the context's stream. Views and letters of axes as in nn/step/batch.hpp: logical
  /// shapes, any strides and types, on the host or the context's device; empty letters: the model's own order. `out` is
  /// written inside its extents only. ShapeError, in the terms of the model and before anything is enqueued, when they
  /// do not fit it or hold different numbers of samples; UsageError for more than max_batch. Copies to and from
  /// pageable host memory wait as copy() says.
  void run(const TensorView& in, const TensorView& out, std::string_view in_axes = {}, std::string_view out_axes = {});

  /// The same for many views: out[i] = model(in[i]), computed together as far as max_batch goes. All are checked before
  /// anything is enqueued, and the text of a failure names the view where there are several; UsageError also for
  /// another number of outputs than inputs. Allocates once for the largest number of views so far.
  void run(std::span<const SampleView> in, std::span<const SampleView> out);

  [[nodiscard]] std::int64_t max_batch() const;
  /// The plans that n samples are computed with: the number of samples that each has room for.
  [[nodiscard]] std::vector<std::int64_t> split(std::int64_t n) const;
  [[nodiscard]] std::size_t bytes() const;  ///< workspace, input and output, beside the plans' own
  [[nodiscard]] const Plan& plan() const;   ///< the largest one

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
