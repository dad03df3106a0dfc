#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

enum class PadMode : unsigned char { zero, circular };
enum class ConvPass : unsigned char { forward, backward_data, backward_weights };

/// Extra work that a pass may do for the batch norm before or after the convolution (kernels/batch_norm.hpp): the pass
/// also computes the sums that the norm needs, so that the norm needs no separate pass for these sums. Only plans whose
/// ConvPlan::serves_norm() is true do this work.
///   forward:        the norm reads y. The pass sums y - shift and (y - shift)^2 over all rows.
///   backward_data:  x is the norm's output after a ReLU. The pass writes out = g = (dx [+ addend]) masked by the ReLU,
///                   and sums g and g * xhat over all rows, with xhat = (norm input - mean) * inv_std. A masked element
///                   that is not finite may become NaN instead of 0: cuDNN multiplies by the mask.
struct ConvNorm {
  bool wanted = false;
  bool addend = false;  ///< backward_data: the pass adds another gradient before the mask
  /// backward_data: x is the ReLU of the sum of two norms, so both norms get the gradient g. The pass also sums
  /// g * xhat with the xhat of the second norm.
  bool pair = false;
  auto operator<=>(const ConvNorm&) const = default;  // NOLINT(modernize-use-nullptr): the check takes it for a 0
};

/// A convolution (cross-correlation). Spatial arrays hold spatial_rank entries, outermost first.
///   x: (N, H, W, C)   weights: (K, R, S, C / groups)   bias: (K)   y: (N, P, Q, K), channels last
///   output extent = floor((in + before + after - dilation * (kernel - 1) - 1) / stride) + 1
/// Sums run in accumulation_dtype(dtype): f32 for 16-bit x, y and weights. The bias and the gradient of the weights
/// have this type, too. plan_conv2d() throws UnsupportedError if the chosen provider does not support the desc.
struct ConvDesc {
  int spatial_rank = 2;
  DType dtype = DType::f32;
  std::int64_t batch = 1;
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  std::array<std::int64_t, 3> in_size{1, 1, 1};
  std::array<std::int64_t, 3> kernel{1, 1, 1};
  std::array<std::int64_t, 3> stride{1, 1, 1};
  std::array<std::int64_t, 3> pad_before{0, 0, 0};
  std::array<std::int64_t, 3> pad_after{0, 0, 0};
  std::array<std::int64_t, 3> dilation{1, 1, 1};
  std::int64_t groups = 1;
  PadMode pad_mode = PadMode::zero;
  bool bias = false;                         ///< the forward pass adds a bias (K)
  GradMode grad_mode = GradMode::overwrite;  ///< overwrite: backward replaces its output; accumulate: backward adds
  bool tf32 = false;                         ///< f32 on a GPU: the pass may round factors to TF32 (10-bit fraction)
  ConvNorm norm{};                           ///< not allowed in backward_weights, with a bias, or with accumulate

  [[nodiscard]] Shape x_shape() const;
  [[nodiscard]] Shape weights_shape() const;
  [[nodiscard]] Shape y_shape() const;                ///< throws ShapeError when the window does not fit
  [[nodiscard]] double flops() const;                 ///< returns the operations of one pass, two for each multiply-add
  auto operator<=>(const ConvDesc&) const = default;  // NOLINT(modernize-use-nullptr): the check takes it for a 0
};

/// One pass of one convolution.
struct ConvCall {
  ConvDesc desc;
  ConvPass pass;
  std::string choice{};  ///< the only choice that prepare_conv2d() prepares; if empty, all listed choices
};

/// The additional tensors of a plan that also computes sums for a norm (ConvNorm). C is the number of channels of y in
/// forward, of x in backward_data. The tensors are contiguous. All but mask, addend, x and x2 have
/// accumulation_dtype(desc.dtype).
struct ConvNormOperands {
  TensorView sums{};          ///< out: (2, C), the sums of ConvNorm; (3, C) if norm.pair: row 2 is for the second norm
  TensorView shift{};         ///< forward: (C), any numbers; numbers near the means preserve the precision of the sums
  TensorView addend{};        ///< gradient to add, shape of x; all members from here on are for backward_data only
  TensorView mask{};          ///< u8, relu_mask_bytes(numel of x) bytes, in the form that batch_norm_apply() writes
  TensorView x{};             ///< the norm's input: shape of x, desc.dtype
  TensorView coefficients{};  ///< (4, C), in the form that batch_norm_coefficients() writes
  TensorView x2{};            ///< input of the second norm, if norm.pair; its coefficients are in coefficients2
  TensorView coefficients2{};
};

/// One pass of one convolution, planned for one device and the context's thread count. A plan that calls cuDNN or
/// oneDNN owns the descriptors for these calls; no plan owns tensor memory. A plan never changes after it is made. Even
/// so, only one thread at a time may call run().
class ConvPlan {
 public:
  virtual ~ConvPlan() = default;
  [[nodiscard]] const ConvDesc& desc() const { return desc_; }
  [[nodiscard]] ConvPass pass() const { return pass_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;
  /// Returns true if every run of the plan gives the same bits (with the planned thread count).
  [[nodiscard]] virtual bool deterministic() const = 0;
  /// Returns the choice: a text with the plan's provider and algorithm. plan_conv2d() with this choice makes the same
  /// plan again.
  [[nodiscard]] virtual std::string choice() const = 0;
  /// Returns the name of the code that runs, for example "brgconv:avx512_core", if the plan's library selects this code
  /// itself. Otherwise returns choice().
  [[nodiscard]] virtual std::string implementation() const { return choice(); }
  /// Returns true if the plan does the extra work of desc().norm. Otherwise the plan computes only the convolution, for
  /// example because no norm is wanted.
  [[nodiscard]] virtual bool serves_norm() const { return false; }
  /// Enqueues the pass. The arguments are those of conv2d(), already checked.
  virtual void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias,
                   const TensorView& out, const TensorView& workspace) const = 0;
  /// Enqueues the pass of a plan whose serves_norm() is true. The arguments are those of conv2d_for_norm(), already
  /// checked.
  virtual void run_for_norm(Context& context, const TensorView& a, const TensorView& b, const TensorView& out,
                            const TensorView& workspace, const ConvNormOperands& norm) const;

 protected:
  ConvPlan(Device device, const ConvDesc& desc, ConvPass pass) : device_(device), desc_(desc), pass_(pass) {}

 private:
  Device device_;
  ConvDesc desc_;
  ConvPass pass_;
};

/// Returns true if `pass` may do the extra work of desc.norm on a GPU. cuDNN 9.19 for an H100 compiles engines for this
/// work only if tensors have 16 bits and numbers of channels are multiples of 8. For backward_data the stride must also
/// be 1.
[[nodiscard]] bool conv_may_serve_norm(const ConvDesc& desc, ConvPass pass);

/// Selects the engines of cuDNN that conv2d_choices() lists. `precompiled` leaves out the engines that cuDNN compiles
/// during planning. These include all engines that do the work of ConvNorm.
enum class Engines : unsigned char { all, precompiled };

struct ConvListing {
  Engines engines = Engines::all;
  /// Receives the error text of each engine, graph or list of engines for which cuDNN returns an error. An engine that
  /// cuDNN reports as not supported adds no text.
  std::vector<std::string>* refused = nullptr;
};

/// Returns the choices that support this pass on the context's device, best guess first: "onednn:nhwc", "reference",
/// ... The part before the colon names the provider; a provider's name alone means the provider's first choice. The
/// choices that do the work of desc.norm, "cudnn:norm:.." and "cuda:norm", come last in the list of their provider.
/// Only a measurement shows whether such a choice is faster than the plain convolution followed by the norm's own pass.
[[nodiscard]] std::vector<std::string> conv2d_choices(Context& context, const ConvDesc& desc, ConvPass pass,
                                                      const ConvListing& listing = {});
/// Prepares the lists of conv2d_choices() for `calls`, and the plan of each choice (or of ConvCall::choice alone). The
/// context keeps these lists and plans, so that plan_conv2d() returns quickly. If the library refuses a choice,
/// plan_conv2d() throws for this choice. Results of previous calls of prepare_conv2d() are dropped, unless a ConvPlan
/// holds them or `calls` name them.
///
/// The work runs on up to `threads` threads, which have ended when this function returns. Only cuDNN needs preparation:
/// compiling an engine takes up to a second.
void prepare_conv2d(Context& context, std::span<const ConvCall> calls, Engines engines, int threads);
/// Plans the pass with the given choice, or with the first of conv2d_choices() when `choice` is empty. Throws
/// UsageError for an unknown choice, UnsupportedError for a choice that does not support the pass, ShapeError for an
/// invalid desc.
[[nodiscard]] std::unique_ptr<ConvPlan> plan_conv2d(Context& context, const ConvDesc& desc, ConvPass pass,
                                                    const std::string& choice = {});

/// Enqueues a planned pass; allocates nothing and does not wait. The plan must live until the device has done the work.
///   forward:           a = x,  b = weights, bias (when desc.bias), out = y
///   backward_data:     a = dy, b = weights, out = dx          (+= when desc.grad_mode is accumulate)
///   backward_weights:  a = x,  b = dy,      out = dweights    (+= when desc.grad_mode is accumulate)
/// All tensors are contiguous, and have the shapes and the dtype of desc; bias and dweights have
/// accumulation_dtype(desc.dtype). (The choices "cudnn:split:.." round dweights to desc.dtype before the conversion to
/// this type.) out must overlap no other tensor. workspace is u8, has at least plan.workspace_bytes() bytes, and is
/// 64-byte aligned. Work on other streams must not use workspace.
void conv2d(Context& context, const ConvPlan& plan, const TensorView& a, const TensorView& b, const TensorView& bias,
            const TensorView& out, const TensorView& workspace);
/// Enqueues a planned pass that also does the work of desc.norm. `norm` holds the tensors for this work. norm.sums and
/// out must overlap no other tensor. For all other arguments the rules of conv2d() hold.
void conv2d_for_norm(Context& context, const ConvPlan& plan, const TensorView& a, const TensorView& b,
                     const TensorView& out, const TensorView& workspace, const ConvNormOperands& norm);

}  // namespace lockstep::ops
