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

/// A product c (m, n) = activation(op(a) op(b) [+ bias (n), in every row]), or, with accumulate, c += op(a) op(b).
///   a: (m, k), or (k, m) if transpose_a;  b: (k, n), or (n, k) if transpose_b;  all row-major and contiguous
/// If batch is above 0, a, b and c have a leading axis of extent batch, and each index of this axis has a separate
/// product. Sums run in accumulation_dtype(dtype), which is also the type of the bias. Bias and activation are applied
/// before c is rounded; only cuBLASLt rounds the bias to c's type first.
///
/// On the host, the choice "reference" adds the products of a sum in the order of k. So the bits of a row of c depend
/// neither on m nor on the number of threads. In tests on processors with AVX-512, this held for "onednn", too. relu of
/// NaN gives NaN in lockstep's own loops and kernels, but 0 in oneDNN (observed) and cuBLASLt (as reported).
struct MatmulDesc {
  DType dtype = DType::f32;
  std::int64_t batch = 0;  ///< number of separate products; 0: one product, without a leading axis
  std::int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false;
  bool transpose_b = false;
  bool bias = false;                             ///< true: a bias is added; not allowed with accumulate
  Activation activation = Activation::identity;  ///< must be identity with accumulate
  GradMode grad_mode = GradMode::overwrite;  ///< overwrite: c becomes the product; accumulate: c grows by the product
  bool accumulator_output = false;           ///< true: c has type accumulation_dtype(dtype), f32 for 16-bit a and b
  bool tf32 = false;  ///< true: with f32 on a GPU, a and b may be rounded to TF32 (10 bits after the point)
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

/// A matrix product planned for one device. A plan that calls cuBLASLt or oneDNN owns the descriptors for these calls;
/// no plan owns tensor memory.
class MatmulPlan {
 public:
  virtual ~MatmulPlan() = default;
  [[nodiscard]] const MatmulDesc& desc() const { return desc_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;
  /// Returns true if every run of the plan gives the same bits (with the planned thread count).
  [[nodiscard]] virtual bool deterministic() const = 0;
  [[nodiscard]] virtual std::string choice() const = 0;  ///< name with which plan_matmul() makes this plan again
  /// Returns the name of the code that runs, for example "brg:avx512_core", if the plan's choice names only a library,
  /// and this library selects the code. Otherwise returns choice().
  [[nodiscard]] virtual std::string implementation() const { return choice(); }
  /// Enqueues the product. The arguments are those of matmul(), which has checked them.
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
/// Returns true if the product should also apply the activation. Two conditions must hold. First, matmul_choices() must
/// begin with the same provider with and without the activation, because another provider would be slower. Second, a
/// relu of this provider must keep NaN, because relu must not hide a NaN that training has produced. If a condition
/// fails, apply the activation in a separate pass.
[[nodiscard]] bool fuses_activation(Context& context, const MatmulDesc& desc);
/// Plans the product with the given choice, or with the first of matmul_choices() if `choice` is empty. Throws
/// UsageError for an unknown choice, UnsupportedError if the choice does not support the product, and ShapeError or
/// UsageError for an invalid `desc`.
[[nodiscard]] std::unique_ptr<MatmulPlan> plan_matmul(Context& context, const MatmulDesc& desc,
                                                      const std::string& choice = {});

/// Enqueues a planned matmul; allocates nothing and does not wait. `plan` must live until the device has done the work.
/// `c` must overlap no other tensor. `workspace` is u8, has at least plan.workspace_bytes() bytes, and is aligned to 64
/// bytes.
void matmul(Context& context, const MatmulPlan& plan, const TensorView& a, const TensorView& b, const TensorView& bias,
            const TensorView& c, const TensorView& workspace);

}  // namespace lockstep::ops
