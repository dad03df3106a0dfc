#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// A view with shared ownership of its memory. Copying a Tensor shares the memory; only copy() copies data.
class Tensor {
 public:
  Tensor() = default;
  /// Makes an uninitialised, contiguous tensor from the context's memory resource. Resource and stream must outlive
  /// the tensor.
  [[nodiscard]] static Tensor empty(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor zeros(Context& context, const Shape& shape, DType dtype);

  // The factories below compute each element on the host, independently of the other elements. The bits depend only on
  // the arguments, not on threads or device. Values are computed in f64 and rounded to the element type (f16 and bf16
  // through f32). The factories throw UsageError if a finite value is out of the type's range or, for integers, not
  // whole.
  //
  // With a CpuContext, the work is enqueued and uses the context's threads. With a CudaContext, this thread and
  // OpenMP's threads compute the elements and copy them in pieces, and the call returns after the tensor is complete.
  // For tensors that are filled in every step, use ops::fill.

  [[nodiscard]] static Tensor ones(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor full(Context& context, const Shape& shape, double value, DType dtype);
  /// Makes a tensor with the ceil((end - begin) / step) elements begin, begin + step, .. All elements are below `end`,
  /// or, for a negative step, above `end`. Element i is begin + i * step, so errors do not add up. If f64 cannot hold
  /// the step exactly, rounding may give one more element. Whole numbers are exact up to 2048 in f16 and up to 256 in
  /// bf16; larger numbers are rounded. In i64 and u64 whole numbers are exact up to 2^53; larger numbers are refused.
  /// UsageError if step is 0 or leads away from `end`.
  [[nodiscard]] static Tensor arange(Context& context, double begin, double end, double step, DType dtype);
  [[nodiscard]] static Tensor eye(Context& context, std::int64_t rows, std::int64_t columns, DType dtype);
  /// Makes a tensor of uniform numbers in [0, 1). Element i is the i-th uniform() of Random(seed, RandomUse::tensor,
  /// sequence, 0). It is truncated to the type's bits (53 in f64, 24 in f32, 11 in f16, 8 in bf16), because rounding
  /// could give 1. Different values of `sequence` give different tensors for one seed. DTypeError for integers.
  [[nodiscard]] static Tensor rand(Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                                   std::uint64_t sequence = 0);
  /// Makes a tensor of normal numbers with mean 0 and variance 1. Element i is the i-th normal() of Random(seed,
  /// RandomUse::tensor, sequence, 1). DTypeError for integers. Logarithm and cosine are the C library's; another
  /// version of that library may change the last bit.
  [[nodiscard]] static Tensor randn(Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                                    std::uint64_t sequence = 0);

  // The *_like functions make a contiguous tensor with the view's shape and type on the context's device. The view's
  // device does not matter.
  [[nodiscard]] static Tensor empty_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor zeros_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor ones_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor full_like(Context& context, const TensorView& view, double value);
  [[nodiscard]] static Tensor rand_like(Context& context, const TensorView& view, std::uint64_t seed,
                                        std::uint64_t sequence = 0);
  [[nodiscard]] static Tensor randn_like(Context& context, const TensorView& view, std::uint64_t seed,
                                         std::uint64_t sequence = 0);

  /// Takes ownership of foreign memory, such as a DLPack tensor with its deleter. `release` runs exactly once, on the
  /// thread that destroys the last tensor that shares the memory. `release` must not throw, and may be empty. If
  /// adopt() itself throws (std::bad_alloc), `release` has not run and the caller still owns the memory.
  [[nodiscard]] static Tensor adopt(const TensorView& view, std::function<void()> release);

  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor): a tensor is a view
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] Device device() const { return view_.device; }

  /// Returns this tensor on the context's device and in the given type. If this tensor already has both, the result
  /// shares its memory. Otherwise the result is a contiguous copy, which is complete when the context's stream has
  /// executed the copy (copy.hpp says what can be copied). From a GPU to the host, use the overload with two contexts
  /// (DeviceError names both devices).
  [[nodiscard]] Tensor to(Context& context) const { return to(context, dtype()); }
  [[nodiscard]] Tensor to(Context& context, DType dtype) const;
  /// Allocates from `target` and copies on the stream of `carrier`, which is a context of the source's or the target's
  /// device. For example, x.to(cpu, cuda) copies x from the GPU; the copy is complete after the stream of `cuda` has
  /// executed it.
  [[nodiscard]] Tensor to(Context& target, Context& carrier) const;

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
