#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "measure/load.hpp"

namespace lockstep::measure {
namespace {

/// Returns the product to run. It is larger on a GPU, because there a small product would end before the next product
/// is enqueued.
ops::MatmulDesc product_for(Device device) {
  ops::MatmulDesc desc;
  desc.m = desc.n = desc.k = device.kind == DeviceKind::cuda ? 2048 : 512;
  return desc;
}

class MatmulLoad final : public Load {
 public:
  explicit MatmulLoad(Context& context)
      : context_(context),
        plan_(ops::plan_matmul(context, product_for(context.device()))),
        a_(Tensor::zeros(context, plan_->desc().a_shape(), DType::f32)),
        b_(Tensor::zeros(context, plan_->desc().b_shape(), DType::f32)),
        c_(Tensor::zeros(context, plan_->desc().c_shape(), DType::f32)),
        workspace_(Tensor::empty(context, Shape{static_cast<std::int64_t>(plan_->workspace_bytes())}, DType::u8)),
        ends_{Event(context.device()), Event(context.device())} {
    context_.synchronize();
  }
  ~MatmulLoad() override { end(); }

 private:
  void run() override {
    // The next product is enqueued before the wait for this one, so that the device always has work.
    for (std::size_t i = 0; !stopped(); ++i) {
      ops::matmul(context_, *plan_, a_, b_, {}, c_, workspace_);
      context_.stream().record(ends_[i % 2]);
      if (i > 0) {
        ends_[(i - 1) % 2].synchronize();
        done();
      }
    }
    context_.synchronize();
  }

  Context& context_;
  std::unique_ptr<ops::MatmulPlan> plan_;
  Tensor a_, b_, c_, workspace_;
  Event ends_[2];
};

}  // namespace

bool can_load_matmul(Context& context) {
  return !ops::matmul_choices(context, product_for(context.device())).empty();
}

std::unique_ptr<Load> matmul_load(Context& context) {
  return std::make_unique<MatmulLoad>(context);
}

}  // namespace lockstep::measure
