#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/comm/gradients/sums/detail/rounded_sum.hpp>

namespace lockstep::comm {
namespace {

/// The communicator's all-reduce: every rank gets every sum.
class AllReduce final : public RoundedSum {
 public:
  explicit AllReduce(DType dtype) : RoundedSum(dtype) {}

 private:
  void sum(SumPlace& place, int /*bucket*/, const TensorView& /*gradients*/, const TensorView& sent) override {
    place.communicator.all_reduce(place.stream, sent);
  }
};

}  // namespace

std::shared_ptr<BucketSum> make_all_reduce(DType dtype) {
  return std::make_shared<AllReduce>(dtype);
}

}  // namespace lockstep::comm
