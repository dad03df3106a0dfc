#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/comm/gradients/sums/detail/rounded_sum.hpp>

namespace lockstep::comm {
namespace {

/// Makes the sums for SumOrder::library. If all ranks get all sums, calls the communicator's all-reduce. If buckets are
/// divided, calls reduce-scatter, which gives each rank the sums of its part. Elements at the bucket's end that are too
/// few to be divided get an all-reduce.
class Library final : public RoundedSum {
 public:
  Library(DType dtype, bool divided) : RoundedSum(dtype), divided_(divided) {}
  [[nodiscard]] bool divides() const override { return divided_; }

 private:
  void sum(SumPlace& place, int bucket, const TensorView& /*gradients*/, const TensorView& sent) override {
    if (!place.divided) {
      place.communicator.all_reduce(place.stream, sent);
      return;
    }
    if (const TensorView own = place.own(bucket, sent); own.numel() > 0) {
      place.communicator.reduce_scatter(place.stream, place.parts(bucket, sent), own);
    }
    if (const TensorView rest = place.rest(bucket, sent); rest.numel() > 0) {
      place.communicator.all_reduce(place.stream, rest);
    }
  }
  bool divided_;
};

}  // namespace

std::shared_ptr<BucketSum> make_library_sum(DType dtype, bool divided) {
  return std::make_shared<Library>(dtype, divided);
}

}  // namespace lockstep::comm
