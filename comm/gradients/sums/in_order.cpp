#include <algorithm>

#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/comm/gradients/sums/detail/rounded_sum.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

/// Sums in a fixed order, whatever library the communicator uses. Each rank receives all ranks' gradients for its own
/// part of a bucket, and adds them. The undivided rest of the bucket (Shards::rest) is added on every rank. Unless
/// SumPlace::divided is true, an all-gather then gives every rank all sums.
class InOrder : public RoundedSum {
 public:
  using RoundedSum::RoundedSum;
  [[nodiscard]] bool divides() const override { return true; }
  void prepare(SumPlace& place) override {
    RoundedSum::prepare(place);
    const std::int64_t ranks = place.communicator.size();
    for (const Shards& shards : place.shards) {
      add_up_to(place, {ranks, shards.part});
      add_up_to(place, {ranks, shards.end - shards.rest});
    }
    received_ = Tensor::empty(place.context(), Shape{most_}, sent_as(place.gradients.dtype));
  }
  void release() noexcept override {
    RoundedSum::release();
    received_ = Tensor();
  }
  [[nodiscard]] std::size_t bytes() const override { return RoundedSum::bytes() + bytes_of(received_); }

 protected:
  /// Adds the rows of `received`, one row of gradients for each rank, into the vector `sums`. May overwrite `received`.
  virtual void add(SumPlace& place, const TensorView& received, const TensorView& sums) = 0;
  virtual void add_up_to(SumPlace& /*place*/, const Shape& received) { most_ = std::max(most_, received.numel()); }
  [[nodiscard]] std::int64_t most() const { return most_; }  ///< largest number of elements that are received at once
  void sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) override {
    const auto received = [&](const TensorView& sums) {
      return received_.view().slice(0, 0, place.communicator.size() * sums.numel());
    };
    const auto add_to = [&](const TensorView& sums) {
      add(place, received(sums).reshape({place.communicator.size(), sums.numel()}), sums);
    };
    // The sums are written to the arena, whose type is at least as wide as the sent type. If the sent type has 16 bits,
    // only copy_own() below rounds the sums to 16 bits.
    const TensorView own = place.own(bucket, gradients);
    if (own.numel() > 0) {
      place.communicator.all_to_all(place.stream, place.parts(bucket, sent), received(own));
      add_to(own);
    }
    if (const TensorView rest = place.rest(bucket, gradients); rest.numel() > 0) {
      place.communicator.all_gather(place.stream, place.rest(bucket, sent), received(rest));
      add_to(rest);
    }
    if (rounds()) {
      copy_own(place, bucket, gradients, sent);
    }
    if (!place.divided && own.numel() > 0) {
      place.communicator.all_gather(place.stream, place.own(bucket, sent), place.parts(bucket, sent));
    }
  }

 private:
  Tensor received_;  ///< memory for the gradients that this rank receives from all ranks, large enough for every bucket
  std::int64_t most_ = 0;
};

/// Makes the sums for SumOrder::ranks.
class RankOrder final : public InOrder {
 public:
  using InOrder::InOrder;
  void prepare(SumPlace& place) override {
    // On a host, f16 gradients are widened to f32 before they are added, because the host's reduce_rows() has no f16.
    const DType sent = sent_as(place.gradients.dtype);
    added_as_ = sent == DType::f16 && place.stream.device() == Device::cpu() ? DType::f32 : sent;
    InOrder::prepare(place);
    widened_ = added_as_ == sent ? Tensor() : Tensor::empty(place.context(), Shape{most()}, added_as_);
    workspace_ = Tensor::empty(place.context(), Shape{workspace_bytes_}, DType::u8);
  }
  void release() noexcept override {
    InOrder::release();
    widened_ = workspace_ = Tensor();
  }
  [[nodiscard]] std::size_t bytes() const override {
    return InOrder::bytes() + bytes_of(widened_) + bytes_of(workspace_);
  }

 private:
  void add_up_to(SumPlace& place, const Shape& received) override {
    InOrder::add_up_to(place, received);
    const TensorView all(nullptr, added_as_, place.stream.device(), received);
    workspace_bytes_ =
        std::max(workspace_bytes_, static_cast<std::int64_t>(ops::reduce_rows_workspace_bytes(place.context(), all)));
  }
  void add(SumPlace& place, const TensorView& received, const TensorView& sums) override {
    TensorView all = received;
    if (widened_.view().given()) {
      all = widened_.view().slice(0, 0, received.numel()).reshape(received.shape);
      ops::strided_copy(place.context(), received, all);
    }
    ops::reduce_rows(place.context(), all, ops::GradMode::overwrite, sums, workspace_.view());
  }
  DType added_as_ = DType::f32;
  Tensor widened_;  ///< gradients of all ranks, widened to f32; only for f16 gradients on a host
  Tensor workspace_;
  std::int64_t workspace_bytes_ = 0;
};

/// Makes the sums for SumOrder::tree. The sum of 2^k ranks' gradients overwrites the gradients of the first of these
/// ranks.
class Tree final : public InOrder {
 public:
  using InOrder::InOrder;
  void prepare(SumPlace& place) override {
    if (place.communicator.size() > 1) {
      InOrder::prepare(place);
    } else {
      RoundedSum::prepare(place);  // with one rank, received_ needs no memory.  NOLINT(bugprone-parent-virtual-call)
    }
  }

 private:
  void sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) override {
    if (place.communicator.size() > 1) {
      InOrder::sum(place, bucket, gradients, sent);
    } else {
      place.communicator.all_reduce(place.stream, sent);
    }
  }
  void add(SumPlace& place, const TensorView& received, const TensorView& sums) override {
    const std::int64_t ranks = received.shape[0];
    const auto row = [&](std::int64_t rank) { return received.slice(0, rank, rank + 1).reshape({sums.numel()}); };
    for (std::int64_t stride = 1; stride < ranks; stride *= 2) {
      for (std::int64_t rank = 0; rank + stride < ranks; rank += 2 * stride) {
        ops::add(place.context(), row(rank), row(rank + stride), 2 * stride < ranks ? row(rank) : sums);
      }
    }
  }
};

}  // namespace

std::shared_ptr<BucketSum> make_ordered_sum(DType dtype, SumOrder order) {
  if (order == SumOrder::ranks) {
    return std::make_shared<RankOrder>(dtype);
  }
  require<DTypeError>(size_of(dtype) != 2, "gradient sums: gradients travel as ", dtype,
                      " and are added in a tree, expected the arena's type: each sum would be rounded");
  return std::make_shared<Tree>(dtype);
}

}  // namespace lockstep::comm
