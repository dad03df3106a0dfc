#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan_options.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

struct TapeOptions {
  std::int64_t max_batch = 1024;  ///< largest number of samples in one forward()
  std::int64_t slots = 1;         ///< largest number of passes whose backward() is still to come
  PlanOptions plan{};  ///< plan.dtype must be weight_dtype() of the parameters; `loss` and `weights` are ignored
  /// Arena to which backward() adds the parameters' gradients. Must have the type and size of
  /// ParameterSet::gradients(), and be kAlignment-aligned. If not given, backward() adds to ParameterSet::gradients().
  TensorView gradients{};
  /// true: the derivatives are those of Inference::run(): batch norm reads the running statistics of evaluation, and
  /// dropout returns its input unchanged. The output of forward() has the same bits as the output of Inference::run(),
  /// but forward() keeps the activations for backward.
  bool inference_pass = false;
  bool parameter_gradients = true;  ///< false: parameters are constants, and backward() computes dL/d(input) only
  bool vjp = false;  ///< true: vjp() may be called; not needed if parameter_gradients and recompute are off
  /// true: jvp() may be called. The constructor throws UnsupportedError with the layer's name if the model has a layer
  /// without tangents (attention, embedding, max pool).
  bool jvp = false;
  /// Number of the tape's stream of random numbers for dropout, 0 to 2^31 - 1. Tapes with different stream numbers draw
  /// different masks, also on different ranks.
  std::int64_t stream = 0;
};

/// Differentiates a model inside a program that computes the loss itself, for example after the time steps of a solver.
/// A pass is one forward() and its backward(). A slot is memory for the activations of one pass. forward() keeps in a
/// slot the activations that backward() needs. backward() turns dL/d(output) into dL/d(parameters) and dL/d(input):
///
///   nn::Tape tape(context, model, parameters, {.max_batch = n, .slots = steps});
///   for (k = 0; k < steps; ++k) { pass[k] = tape.forward(x, y);  x = solver(x, y); }
///   for (k = steps; k-- > 0;)   { dx = adjoint(dx, dy);          tape.backward(pass[k], dy, dx); }
///
/// A pass is a training pass: batch norm uses the statistics of the samples of one forward(), and dropout is active.
/// With TapeOptions::inference_pass, a pass is an inference pass. The gradients of the parameters are sums (not means)
/// over samples and passes, added in the order of the calls of backward(). backward() may be called for the passes in
/// any order.
///
/// All work is enqueued on the context's stream. No call waits, except for copies from and to pageable host memory.
/// After the constructor nothing is allocated. Only one thread at a time may use a tape. Several tapes may compute at
/// once with the same parameters, if each tape has its own context and its own gradients (TapeOptions::gradients),
/// nobody writes the parameters meanwhile, and the model has no batch norm (whose passes write running statistics).
class Tape {
 public:
  /// Context and parameters must outlive the tape. Throws UsageError for options out of range, for parameters whose
  /// weight_dtype() is not options.plan.dtype, for a model whose input is not numbers (InputKind::values), and for vjp
  /// or jvp with plan.recompute.
  Tape(Context& context, const Model& model, ParameterSet& parameters, const TapeOptions& options = {});
  ~Tape();  ///< waits for the stream
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Enqueues out = model(in) for up to max_batch samples, and keeps the activations in a slot. Returns the unique
  /// number of this pass. Views and axes are as in Inference::run(); `out` is optional. Throws StateError if no slot is
  /// free, ShapeError if the views do not fit the model, DTypeError if `out` has an integer type, DeviceError for
  /// memory of another device, UsageError for too many samples. After an error no slot is in use for this pass.
  std::int64_t forward(const TensorView& in, const TensorView& out, std::string_view in_axes = {},
                       std::string_view out_axes = {});
  /// Enqueues the backward of a pass, and frees the slot of this pass. `out_gradient` is dL/d(output) in the output's
  /// shape. Adds dL/d(parameters) to the gradients. Writes dL/d(input) to `in_gradient`, in the input's shape, if
  /// `in_gradient` is given. Throws UsageError if no slot holds pass `pass`, StateError if the parameters may have
  /// changed since the pass (ParameterSet::version()), and ShapeError for wrong shapes. After such an error the slot is
  /// still in use.
  void backward(std::int64_t pass, const TensorView& out_gradient, const TensorView& in_gradient = {},
                std::string_view out_axes = {}, std::string_view in_axes = {});
  /// Enqueues in_gradient = J^T out_gradient where J = d(output)/d(input) is the Jacobian of a pass, in the shapes of
  /// backward(). The slot stays in use and the gradients of parameters do not change, so vjp() may be called several
  /// times per pass. Throws StateError without TapeOptions::vjp, and the errors of backward().
  void vjp(std::int64_t pass, const TensorView& out_gradient, const TensorView& in_gradient,
           std::string_view out_axes = {}, std::string_view in_axes = {});
  /// Enqueues out_tangent = J in_tangent, where `in_tangent` has the input's shape and `out_tangent` the output's.
  /// Throws StateError without TapeOptions::jvp. In all other respects, jvp() is like vjp().
  void jvp(std::int64_t pass, const TensorView& in_tangent, const TensorView& out_tangent,
           std::string_view in_axes = {}, std::string_view out_axes = {});
  /// Throws the errors of backward() for these arguments, and does nothing else.
  void check(std::int64_t pass, const TensorView& out_gradient, const TensorView& in_gradient = {},
             std::string_view out_axes = {}, std::string_view in_axes = {});
  /// Frees the slot of a pass without a backward; kAllPasses frees the slots of all passes. Throws UsageError as
  /// backward() does.
  static constexpr std::int64_t kAllPasses = -1;
  void release(std::int64_t pass);

  [[nodiscard]] std::int64_t free_slots() const;
  [[nodiscard]] std::size_t slot_bytes() const;  ///< bytes that each slot takes
  [[nodiscard]] std::size_t bytes() const;       ///< bytes of all slots and of the workspace

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
