#pragma once

#include <cstdint>
#include <string>

#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::comm {

/// A sum that sends gradients as they are, or rounded to 16 bits in a copy as large as the largest bucket.
class RoundedSum : public BucketSum {
 public:
  explicit RoundedSum(DType dtype) : dtype_(dtype) {}
  [[nodiscard]] std::string name() const override { return {}; }
  /// Allocates the copy. DTypeError unless the type is the arena's, or a 16-bit type for an arena of f32.
  void prepare(SumPlace& place) override;
  void release() noexcept override { rounded_ = Tensor(); }
  /// Rounds the gradients if the type asks for it, then calls sum().
  void reduce(SumPlace& place, int bucket, const TensorView& gradients) final;
  [[nodiscard]] std::int64_t sent_bytes(int bucket) const final {
    return sent_bytes_[static_cast<std::size_t>(bucket)];
  }
  [[nodiscard]] DType sent_as(DType gradients) const final { return dtype_ == DType::f32 ? gradients : dtype_; }
  [[nodiscard]] bool can_be_captured() const final { return true; }
  [[nodiscard]] std::size_t bytes() const override { return bytes_of(rounded_); }

 protected:
  /// Sums `sent` over the ranks, in place. `sent` is the gradients or their rounded copy. With SumPlace::divided, only
  /// this rank's part and the rest are summed.
  virtual void sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) = 0;
  [[nodiscard]] bool rounds() const { return rounded_.view().given(); }
  /// Copies this rank's part and the rest of a bucket, which are the result of a divided sum.
  static void copy_own(SumPlace& place, int bucket, const TensorView& from, const TensorView& to);
  static std::size_t bytes_of(const Tensor& tensor) { return tensor.view().given() ? tensor.view().bytes() : 0; }

 private:
  DType dtype_;
  Tensor rounded_;
  std::vector<std::int64_t> sent_bytes_;  ///< bytes that each bucket sends
};

}  // namespace lockstep::comm
