#pragma once

#include <cstdint>
#include <string>

#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::comm {

/// Sums gradients that are sent unchanged, or rounded to 16 bits in a separate buffer as large as the largest bucket.
class RoundedSum : public BucketSum {
 public:
  explicit RoundedSum(DType dtype) : dtype_(dtype) {}
  [[nodiscard]] std::string name() const override { return {}; }
  /// Allocates the buffer if gradients are rounded. Throws DTypeError if an arena that is not f32 would be rounded.
  void prepare(SumPlace& place) override;
  void release() noexcept override { rounded_ = Tensor(); }
  /// Rounds the gradients if they are sent in 16 bits, then calls sum().
  void reduce(SumPlace& place, int bucket, const TensorView& gradients) final;
  [[nodiscard]] std::int64_t sent_bytes(int bucket) const final {
    return sent_bytes_[static_cast<std::size_t>(bucket)];
  }
  [[nodiscard]] DType sent_as(DType gradients) const final { return dtype_ == DType::f32 ? gradients : dtype_; }
  [[nodiscard]] bool can_be_captured() const final { return true; }
  [[nodiscard]] std::size_t bytes() const override { return bytes_of(rounded_); }

 protected:
  /// Sums `sent` over the ranks, in place. `sent` is `gradients` itself or a rounded copy of it. With
  /// SumPlace::divided, only this rank's part of the bucket and the undivided rest (Shards::rest) get sums.
  virtual void sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) = 0;
  [[nodiscard]] bool rounds() const { return rounded_.view().given(); }
  /// Copies this rank's part of a bucket and the undivided rest from `from` to `to`. With SumPlace::divided, this rank
  /// gets only the sums of these elements.
  static void copy_own(SumPlace& place, int bucket, const TensorView& from, const TensorView& to);
  static std::size_t bytes_of(const Tensor& tensor) { return tensor.view().given() ? tensor.view().bytes() : 0; }

 private:
  DType dtype_;
  Tensor rounded_;
  std::vector<std::int64_t> sent_bytes_;  ///< number of bytes that a rank sends for each bucket
};

}  // namespace lockstep::comm
