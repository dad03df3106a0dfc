#include <algorithm>
#include <span>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "measure/load.hpp"

namespace lockstep::measure {
namespace {

class AllReduceLoad final : public Load {
 public:
  AllReduceLoad(comm::Communicator& communicator, Context& context, std::int64_t bytes)
      : communicator_(communicator),
        context_(context),
        data_(Tensor::zeros(context, Shape{std::max<std::int64_t>(bytes / 4, 1)}, DType::f32)) {
    context_.synchronize();
  }
  ~AllReduceLoad() override { end(); }

 private:
  void run() override {
    // The first element counts the ranks that want to stop; all other elements stay zero.
    float enders = 0;
    const TensorView on_host{std::span(&enders, 1), Shape{1}};
    const TensorView first = data_.view().slice(0, 0, 1);
    do {
      enders = stopped() ? 1.0F : 0.0F;
      copy(context_, on_host, first);
      communicator_.all_reduce(context_.stream(), data_);
      copy_now(context_, first, on_host);
      done();
    } while (enders != static_cast<float>(communicator_.size()));
  }

  comm::Communicator& communicator_;
  Context& context_;
  Tensor data_;
};

}  // namespace

std::unique_ptr<Load> all_reduce_load(comm::Communicator& communicator, Context& context, std::int64_t bytes) {
  require<UsageError>(communicator.size() > 1, "all-reduces as a load need several ranks, here is one");
  // On a GPU, can_overlap() is enough: only the load uses the NCCL communicator, because the ranks agree on numbers of
  // iterations over MPI.
  const bool on_gpu = context.device().kind == DeviceKind::cuda;
  require<StateError>(on_gpu ? communicator.can_overlap() : communicator.any_thread(),
                      "all-reduces as a load need a communicator that a thread may use while other threads use theirs "
                      "(MPI_THREAD_MULTIPLE)");
  return std::make_unique<AllReduceLoad>(communicator, context, bytes);
}

}  // namespace lockstep::measure
