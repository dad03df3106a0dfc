#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/comm/gradients/sums/detail/ordered_sum.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

/// SumOrder::tree: sums of 2^k ranks take the place of their first.
class Tree final : public OrderedSum {
 public:
  Tree() : OrderedSum(DType::f32) {}
  void prepare(SumPlace& place) override {
    if (place.communicator.size() > 1) {
      OrderedSum::prepare(place);
    } else {
      RoundedSum::prepare(place);  // there is nothing to add
    }
  }

 private:
  void sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) override {
    if (place.communicator.size() > 1) {
      OrderedSum::sum(place, bucket, gradients, sent);
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

std::shared_ptr<BucketSum> make_tree(DType dtype) {
  require<DTypeError>(dtype == DType::f32, "sum of gradients: gradients travel as ", dtype,
                      " and are added in a tree, expected the arena's type: each sum would be rounded");
  return std::make_shared<Tree>();
}

}  // namespace lockstep::comm
