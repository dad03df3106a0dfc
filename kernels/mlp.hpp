#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// One layer of an Mlp: y = activation(weight x + bias).
struct MlpLayer {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  Activation activation = Activation::identity;
};

/// Numbers that decide how the host computes an Mlp (kernels/cpu/mlp.cpp).
struct MlpCosts {
  /// Least number of samples at which the lanes of a register hold samples instead of outputs.
  std::int64_t least_by_columns = 1;
  std::int64_t grain = 1;  ///< least number of blocks of samples for each thread
};

/// Description of a chain of small linear layers, which mlp_forward() computes in one pass: the outputs of a layer stay
/// in registers and in the first-level cache. The mlp ops run on the host only, in f32 or f64.
class Mlp {
 public:
  static constexpr std::size_t kMostLayers = 16;
  static constexpr std::int64_t kMostWidth = 256;                  ///< largest number of inputs or outputs of a layer
  static constexpr std::size_t kMostBytes = std::size_t{1} << 18;  ///< largest size in bytes of the packed parameters
  static constexpr std::size_t kAlignment = 64;

  /// Returns true if four conditions hold: there is at least one layer; each layer takes the outputs of the layer
  /// before; the number of layers, their widths and packed_bytes() are within the limits above; dtype is f32 or f64.
  [[nodiscard]] static bool supports(DType dtype, std::span<const MlpLayer> layers);
  /// Throws UsageError unless supports() is true.
  Mlp(DType dtype, std::span<const MlpLayer> layers);

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::span<const MlpLayer> layers() const { return std::span(layers_).first(count_); }
  [[nodiscard]] std::int64_t widest() const { return widest_; }             ///< largest width of a layer, with padding
  [[nodiscard]] std::size_t packed_bytes() const { return packed_bytes_; }  ///< size of the packed parameters
  [[nodiscard]] std::int64_t least_by_columns() const { return costs_.least_by_columns; }
  [[nodiscard]] std::int64_t grain() const { return costs_.grain; }

 private:
  DType dtype_;
  std::array<MlpLayer, kMostLayers> layers_{};  ///< not on the heap, so that the first call touches fewer pages
  std::size_t count_;
  std::int64_t widest_ = 0;
  std::size_t packed_bytes_;
  MlpCosts costs_;
};

/// Describes the samples of a view (.., features) of any strides, in row-major order.
struct MlpSamples {
  struct Axis {
    std::int64_t extent, stride;
  };
  explicit MlpSamples(const TensorView& view);
  /// Returns true if the values of one feature are contiguous, sample after sample.
  [[nodiscard]] bool samples_beside() const { return axes == 1 && axis[0].stride == 1; }

  DType dtype;
  /// Number of entries of `axis`; axes that can be merged into one axis (no gap between them) count as one.
  int axes = 0;
  std::int64_t count;  ///< number of samples
  std::int64_t features;
  std::int64_t step;                         ///< stride of the features' axis, in elements
  std::array<Axis, Shape::kMaxRank> axis{};  ///< axes of samples, innermost first
};

/// A checked call of mlp_forward() without the addresses of x and y. mlp_run() runs the call with any addresses.
struct MlpCall {
  /// Throws the errors of mlp_forward() for these views, except errors about the addresses of x and y.
  MlpCall(const Mlp& of, const TensorView& packed, const TensorView& x, const TensorView& y);

  const Mlp* mlp;
  const void* parameters;
  MlpSamples from, to;
};

/// Packs the parameters of layer `layer` into `packed`, in the order in which mlp_forward() reads them. weight:
/// (outputs, inputs) of any strides; bias: (outputs) of any stride, or not given: zeros; both of the mlp's type.
/// packed: u8, (mlp.packed_bytes()), aligned to Mlp::kAlignment. `mlp` must outlive the work.
void mlp_pack(Context& context, const Mlp& mlp, int layer, const TensorView& weight, const TensorView& bias,
              const TensorView& packed);

/// Computes the outputs of any number of samples. `packed` holds the parameters of all layers.
///
///   x: (.., inputs of the first layer); all axes but the last one count the samples, in row-major order
///   y: (.., outputs of the last layer); it may divide its samples into other axes than x
///
/// x and y are f32 or f64, whatever the mlp's type, with any strides, and share no memory. The op writes only elements
/// of y, not the memory between these elements. `mlp` must outlive the work.
///
/// A sum begins at 0, and adds its products one by one in the order of the inputs, with fused multiply-add where the
/// processor has it. Then the sum is added to the bias. The "reference" choice of matmul gives the same bits. The bits
/// of a sample depend neither on the number of samples, nor on the strides, nor on the number of threads. Unused lanes
/// of registers repeat values of used lanes, so that they raise no additional floating-point exceptions.
void mlp_forward(Context& context, const Mlp& mlp, const TensorView& packed, const TensorView& x, const TensorView& y);

/// Does mlp_forward() for a checked call with the addresses x and y, which must be multiples of the size of an element.
void mlp_run(Context& context, const MlpCall& call, const void* x, void* y);

namespace backend {  // the functions that mlp.cpp calls after its checks
OnContext<CpuContext, decltype(ops::mlp_pack)> mlp_pack;
OnContext<CpuContext, decltype(ops::mlp_run)> mlp_run;
/// Returns the number of elements of a layer's packed parameters, with padding.
[[nodiscard]] std::int64_t mlp_packed_elements(DType dtype, const MlpLayer& layer);
[[nodiscard]] MlpCosts mlp_costs(DType dtype, std::span<const MlpLayer> layers);
}  // namespace backend

}  // namespace lockstep::ops
