#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/comm/gradients/sums/detail/rounded_sum.hpp>

namespace lockstep::comm {
namespace {

/// The communicator's reduce-scatter: a rank gets the sums of its part of the bucket. The rest of a bucket is too short
/// to be divided, and an all-reduce sums it.
class ReduceScatter final : public RoundedSum {
 public:
  explicit ReduceScatter(DType dtype) : RoundedSum(dtype) {}
  [[nodiscard]] bool divides() const override { return true; }

 private:
  void sum(SumPlace& place, int bucket, const TensorView& /*gradients*/, const TensorView& sent) override {
    const Shards& shards = place.shards[static_cast<std::size_t>(bucket)];
    if (shards.part > 0) {
      place.communicator.reduce_scatter(place.stream, place.parts(bucket, sent), place.own(bucket, sent));
    }
    if (shards.rest < shards.end) {
      place.communicator.all_reduce(place.stream, place.rest(bucket, sent));
    }
  }
};

}  // namespace

std::shared_ptr<BucketSum> make_reduce_scatter(DType dtype) {
  return std::make_shared<ReduceScatter>(dtype);
}

}  // namespace lockstep::comm
