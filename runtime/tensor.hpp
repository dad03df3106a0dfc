#pragma once

#include <functional>
#include <memory>

#include <lockstep/runtime/context.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep {

/// A view plus shared ownership of the memory behind it. Copying a Tensor shares the storage; only copy() copies data.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised, contiguous, from the context's memory resource (which, with its stream, must outlive the tensor).
  [[nodiscard]] static Tensor empty(Context& context, const Shape& shape, DType dtype);
  [[nodiscard]] static Tensor zeros(Context& context, const Shape& shape, DType dtype);
  /// Foreign memory: `release` runs once, when the last tensor that shares it is gone. It may be empty.
  [[nodiscard]] static Tensor adopt(const TensorView& view, std::function<void()> release);

  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor): a tensor is a view
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] Device device() const { return view_.device; }

  /// This tensor on the context's device: the same storage when it is there already, else a contiguous copy
  /// (complete when the context's stream has passed it).
  [[nodiscard]] Tensor to(Context& context) const;

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
