#pragma once

#include <lockstep/comm/gradients/sums/detail/rounded_sum.hpp>

namespace lockstep::comm {

/// Sums in an order that the library does not choose: each rank gets all ranks' gradients of its part of the bucket,
/// adds them, and all-gathers the sums unless the bucket is divided. The rest of a bucket is added by every rank.
class OrderedSum : public RoundedSum {
 public:
  [[nodiscard]] bool divides() const override { return true; }
  void prepare(SumPlace& place) override;
  void release() noexcept override;
  [[nodiscard]] std::size_t bytes() const override;

 protected:
  using RoundedSum::RoundedSum;
  /// sums (n) = the sum over the ranks of received (ranks, n), which may be overwritten.
  virtual void add(SumPlace& place, const TensorView& received, const TensorView& sums) = 0;
  void sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) override;

 private:
  void add_received(SumPlace& place, const TensorView& sums);
  Tensor received_;  ///< gradients of all ranks, for the largest bucket
};

}  // namespace lockstep::comm
