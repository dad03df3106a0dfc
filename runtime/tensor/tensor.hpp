#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// A view plus shared ownership of the memory behind it. Copying a Tensor shares the storage; only copy() copies data.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised, contiguous, from the context's memory resource (which, with its stream, must outlive the tensor).
  [[nodiscard]] static Tensor empty(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor zeros(Context& context, const Shape& shape, DType dtype);

  // The factories from here on make elements on the host, on any part of the tensor by itself: the bits depend on the
  // arguments alone, not on threads or device. A CpuContext enqueues the work and uses its threads. For a CudaContext
  // the numbers are made by this thread and OpenMP's, copied in pieces, and the call returns when the tensor is there:
  // what is filled in every step is for ops::fill. Values are computed in f64 and rounded to the element type (f16 and
  // bf16 through f32). UsageError when a value does not fit the type: finite but beyond its range, or, for integers,
  // not whole.

  [[nodiscard]] static Tensor ones(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor full(Context& context, const Shape& shape, double value, DType dtype);
  /// begin, begin + step, .. up to before `end`: ceil((end - begin) / step) elements, begin + i * step each, so that
  /// errors do not add up; with steps that f64 cannot hold exactly, rounding may give one more. In f16 whole numbers
  /// are exact up to 2048, in bf16 up to 256, and are rounded beyond; in i64 and u64 up to 2^53, and are refused
  /// beyond. UsageError when step is 0 or leads away from end.
  [[nodiscard]] static Tensor arange(Context& context, double begin, double end, double step, DType dtype);
  [[nodiscard]] static Tensor eye(Context& context, std::int64_t rows, std::int64_t columns, DType dtype);
  /// Uniform in [0, 1): element i is the i-th uniform() of Random(seed, RandomUse::tensor, sequence, 0), cut (not
  /// rounded, which could give 1) to the bits of the type: 53 in f64, 24 in f32, 11 in f16, 8 in bf16. `sequence` tells
  /// apart the tensors of one seed. DTypeError for integers.
  [[nodiscard]] static Tensor rand(Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                                   std::uint64_t sequence = 0);
  /// Mean 0, variance 1: element i is the i-th normal() of Random(seed, RandomUse::tensor, sequence, 1). DTypeError for
  /// integers. Logarithm and cosine are the C library's: another version of it may change the last bit.
  [[nodiscard]] static Tensor randn(Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                                    std::uint64_t sequence = 0);

  // Of the shape and type of a view, contiguous and on the context's device, wherever the view is.
  [[nodiscard]] static Tensor empty_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor zeros_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor ones_like(Context& context, const TensorView& view);
  [[nodiscard]] static Tensor full_like(Context& context, const TensorView& view, double value);
  [[nodiscard]] static Tensor rand_like(Context& context, const TensorView& view, std::uint64_t seed,
                                        std::uint64_t sequence = 0);
  [[nodiscard]] static Tensor randn_like(Context& context, const TensorView& view, std::uint64_t seed,
                                         std::uint64_t sequence = 0);

  /// Foreign memory, such as a DLPack tensor and its deleter: `release` runs exactly once, when the last tensor that
  /// shares it is gone, on the thread that dropped it; it throws nothing and may be empty. Where adopt() itself throws
  /// (std::bad_alloc), `release` has not run and the memory stays the caller's.
  [[nodiscard]] static Tensor adopt(const TensorView& view, std::function<void()> release);

  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor): a tensor is a view
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] Device device() const { return view_.device; }

  /// This tensor on the context's device and in the given type: the same storage when it is there already, else a
  /// contiguous copy (complete when the context's stream has passed it; copy.hpp says what can be copied). From a GPU
  /// to the host: the overload with two contexts (DeviceError names both devices).
  [[nodiscard]] Tensor to(Context& context) const { return to(context, dtype()); }
  [[nodiscard]] Tensor to(Context& context, DType dtype) const;
  /// The memory is `target`'s, the copy is enqueued on the stream of `carrier`, which is on the device of either end:
  /// x.to(cpu, cuda) fetches x from the GPU and is complete when the stream of cuda has passed it.
  [[nodiscard]] Tensor to(Context& target, Context& carrier) const;

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
