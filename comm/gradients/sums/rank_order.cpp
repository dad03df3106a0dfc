#include <algorithm>

#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/comm/gradients/sums/detail/ordered_sum.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/strided_copy.hpp>

namespace lockstep::comm {
namespace {

/// SumOrder::ranks.
class RankOrder final : public OrderedSum {
 public:
  explicit RankOrder(DType dtype) : OrderedSum(dtype) {}
  void prepare(SumPlace& place) override {
    OrderedSum::prepare(place);
    Context& context = place.context();
    const DType sent = sent_as(place.gradients.dtype);
    // The host's reduce_rows() does not take f16.
    const DType added_as = sent == DType::f16 && context.device() == Device::cpu() ? DType::f32 : sent;
    const std::int64_t ranks = place.communicator.size();
    std::int64_t most = 0;
    std::size_t bytes = 0;
    for (const Shards& shards : place.shards) {
      for (const std::int64_t each : {shards.part, shards.end - shards.rest}) {
        most = std::max(most, ranks * each);
        const TensorView all(nullptr, added_as, context.device(), Shape{ranks, each});
        bytes = std::max(bytes, ops::reduce_rows_workspace_bytes(context, all));
      }
    }
    if (added_as != sent) {
      widened_ = Tensor::empty(context, Shape{most}, added_as);
    }
    workspace_ = Tensor::empty(context, Shape{static_cast<std::int64_t>(bytes)}, DType::u8);
  }
  void release() noexcept override {
    OrderedSum::release();
    widened_ = workspace_ = Tensor();
  }
  [[nodiscard]] std::size_t bytes() const override {
    std::size_t bytes = OrderedSum::bytes();
    for (const Tensor* each : {&widened_, &workspace_}) {
      bytes += each->view().given() ? each->view().bytes() : 0;
    }
    return bytes;
  }

 private:
  void add(SumPlace& place, const TensorView& received, const TensorView& sums) override {
    TensorView all = received;
    if (widened_.view().given()) {
      all = widened_.view().slice(0, 0, received.numel()).reshape(received.shape);
      ops::strided_copy(place.context(), received, all);
    }
    ops::reduce_rows(place.context(), all, ops::GradMode::overwrite, sums, workspace_.view());
  }
  Tensor widened_;  ///< the gradients of all ranks as f32, where a host adds f16
  Tensor workspace_;
};

}  // namespace

std::shared_ptr<BucketSum> make_rank_order(DType dtype) {
  return std::make_shared<RankOrder>(dtype);
}

}  // namespace lockstep::comm
