#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// A product c (m, n) = activation(op(a) op(b) [+ bias (n), broadcast over rows]), or c += op(a) op(b).
///   a: (m, k), or (k, m) when transpose_a;  b: (k, n), or (n, k) when transpose_b; all row-major and contiguous
/// With a batch, a, b and c have a leading axis of that extent, and each entry is a separate product. Sums run in
/// accumulation_dtype(dtype), which is the type of the bias, too; bias and activation are applied before c is rounded.
/// (cuBLASLt rounds the bias to c's type first.) "reference" on the host adds the products of a sum in the order of k:
/// a row of c has the same bits for any m and any number of threads. With AVX-512 the tests find that m does not change
/// the bits of a row of "onednn" either. relu of NaN gives NaN in our own loops and kernels, 0 in oneDNN (observed) and
/// cuBLASLt (as reported).
struct MatmulDesc {
  DType dtype = DType::f32;
  std::int64_t batch = 0;  ///< number of separate products; 0: one product, without a leading axis
  std::int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false;
  bool transpose_b = false;
  bool bias = false;                             ///< not allowed with accumulate
  Activation activation = Activation::identity;  ///< with accumulate only identity is allowed
  GradMode grad_mode = GradMode::overwrite;      ///< says whether the product replaces c or is added to it
  bool accumulator_output = false;               ///< c has accumulation_dtype(dtype): f32 for 16-bit a and b
  bool tf32 = false;  ///< f32 on a GPU: the product may round factors to TF32 (10 bits after the point)
  [[nodiscard]] std::int64_t products() const { return batch == 0 ? 1 : batch; }
  [[nodiscard]] DType c_dtype() const { return accumulator_output ? accumulation_dtype(dtype) : dtype; }
  [[nodiscard]] Shape a_shape() const { return with_batch(transpose_a ? Shape{k, m} : Shape{m, k}); }
  [[nodiscard]] Shape b_shape() const { return with_batch(transpose_b ? Shape{n, k} : Shape{k, n}); }
  [[nodiscard]] Shape c_shape() const { return with_batch({m, n}); }
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(products()) * static_cast<double>(m) * static_cast<double>(n) *
           static_cast<double>(k);
  }
  auto operator<=>(const MatmulDesc&) const = default;  // NOLINT(modernize-use-nullptr): the check takes it for a 0

 private:
  [[nodiscard]] Shape with_batch(const Shape& matrix) const {
    return batch == 0 ? matrix : Shape{batch, matrix[0], matrix[1]};
  }
};

/// A matrix product planned for one device. The plan owns the library's descriptors, but no tensor memory.
class MatmulPlan {
 public:
  virtual ~MatmulPlan() = default;
  [[nodiscard]] const MatmulDesc& desc() const { return desc_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;
  /// True when every run gives the same bits (with the planned thread count).
  [[nodiscard]] virtual bool deterministic() const = 0;
  [[nodiscard]] virtual std::string choice() const = 0;  ///< plan_matmul(.., choice) makes the same plan again
  /// Names what the library runs, for example "brg:avx512_core", if the library decides more than the choice says.
  /// Otherwise returns the choice.
  [[nodiscard]] virtual std::string implementation() const { return choice(); }
  /// Enqueues the product. The arguments are those of matmul(), already checked.
  virtual void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias,
                   const TensorView& c, const TensorView& workspace) const = 0;

 protected:
  MatmulPlan(Device device, const MatmulDesc& desc) : device_(device), desc_(desc) {}

 private:
  Device device_;
  MatmulDesc desc_;
};

/// Returns the choices that support this product on the context's device, best guess first: "onednn", "reference", ...
[[nodiscard]] std::vector<std::string> matmul_choices(Context& context, const MatmulDesc& desc);
/// True when the provider of the best guess for this product without activation can also do the activation, and keeps
/// NaN. If false, a separate pass for the activation is better: a slower provider costs more, and a weight that became
/// NaN should show in the results.
[[nodiscard]] bool fuses_activation(Context& context, const MatmulDesc& desc);
/// Plans the product with the given choice, or with the first of matmul_choices() when `choice` is empty. Throws
/// UsageError for an unknown choice, UnsupportedError for a choice that does not support the product, ShapeError for an
/// invalid desc.
[[nodiscard]] std::unique_ptr<MatmulPlan> plan_matmul(Context& context, const MatmulDesc& desc,
                                                      const std::string& choice = {});

/// Enqueues a planned matmul; allocates nothing and does not wait. The plan must live until the device has done the
/// work. c overlaps no other tensor. workspace is u8, has at least plan.workspace_bytes() bytes, and is 64-byte
/// aligned.
void matmul(Context& context, const MatmulPlan& plan, const TensorView& a, const TensorView& b, const TensorView& bias,
            const TensorView& c, const TensorView& workspace);

}  // namespace lockstep::ops
