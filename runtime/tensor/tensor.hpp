#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// A view plus shared ownership of its memory. Copying a Tensor shares the storage; only copy() copies data.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised and contiguous, from the context's memory resource. Resource and stream must outlive the tensor.
  [[nodiscard]] static Tensor empty(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor zeros(Context& context, const Shape& shape, DType dtype);

  // The factories below compute elements on the host, each independently: the bits depend only on the arguments, not on
  // threads or device. With a CpuContext the work is enqueued and uses its threads. With a CudaContext this thread and
  // OpenMP's threads compute the elements and copy them in pieces, and the call returns when the tensor is complete:
  // use ops::fill for tensors that are filled in every step. Values are computed in f64 and rounded to the element type
  // (f16 and bf16 through f32). UsageError when a finite value is out of the type's range or, for integers, not whole.

  [[nodiscard]] static Tensor ones(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor full(Context& context, const Shape& shape, double value, DType dtype);
  /// begin, begin + step, .. up to but excluding `end`: ceil((end - begin) / step) elements. Element i is begin + i *
  /// step, so that errors do not add up. With a step that f64 cannot hold exactly, rounding may give one more element.
  /// Whole numbers are exact up to 2048 in f16 and up to 256 in bf16, and rounded beyond; in i64 and u64 exact up to
  /// 2^53, and refused beyond. UsageError when step is 0 or leads away from end.
  [[nodiscard]] static Tensor arange(Context& context, double begin, double end, double step, DType dtype);
  [[nodiscard]] static Tensor eye(Context& context, std::int64_t rows, std::int64_t columns, DType dtype);
  /// Uniform in [0, 1): element i is the i-th uniform() of Random(seed, RandomUse::tensor, sequence, 0), truncated to
  /// the bits of the type (53 in f64, 24 in f32, 11 in f16, 8 in bf16), because rounding could give 1. `sequence`
  /// distinguishes the tensors of one seed. DTypeError for integers.
  [[nodiscard]] static Tensor rand(Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                                   std::uint64_t sequence = 0);
  /// Mean 0, variance 1: element i is the i-th normal() of Random(seed, RandomUse::tensor, sequence, 1). DTypeError for
  /// integers. Logarithm and cosine are the C library's: another version of it may change the last bit.
  [[nodiscard]] static Tensor randn(Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                                    std::uint64_t sequence = 0);

  // With the view's shape and type; contiguous, and on the context's device, wherever the view is.
  [[nodiscard]] static Tensor empty_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor zeros_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor ones_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor full_like(Context& context, const TensorView& view, double value);
  [[nodiscard]] static Tensor rand_like(Context& context, const TensorView& view, std::uint64_t seed,
                                        std::uint64_t sequence = 0);
  [[nodiscard]] static Tensor randn_like(Context& context, const TensorView& view, std::uint64_t seed,
                                         std::uint64_t sequence = 0);

  /// Takes ownership of foreign memory, such as a DLPack tensor with its deleter. `release` runs exactly once, when the
  /// last tensor that shares the memory is destroyed, on that thread. It must not throw, and may be empty. When adopt()
  /// itself throws (std::bad_alloc), `release` has not run and the memory stays the caller's.
  [[nodiscard]] static Tensor adopt(const TensorView& view, std::function<void()> release);

  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor): a tensor is a view
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] Device device() const { return view_.device; }

  /// Returns this tensor on the context's device and in the given type: the same storage if it is already there, else a
  /// contiguous copy, complete when the context's stream has passed it (copy.hpp says what can be copied). From a GPU
  /// to the host, use the overload with two contexts (DeviceError names both devices).
  [[nodiscard]] Tensor to(Context& context) const { return to(context, dtype()); }
  [[nodiscard]] Tensor to(Context& context, DType dtype) const;
  /// Allocates from `target` and copies on the stream of `carrier`, which is on the device of either end: x.to(cpu,
  /// cuda) copies x from the GPU and is complete when the stream of `cuda` has passed the copy.
  [[nodiscard]] Tensor to(Context& target, Context& carrier) const;

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
