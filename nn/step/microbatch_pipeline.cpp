#include <lockstep/nn/step/microbatch_pipeline.hpp>

#include <utility>

#include <lockstep/comm/wait.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

bool on_gpu(const Context& context) {
  return context.device().kind == DeviceKind::cuda;
}

std::unique_ptr<MemoryResource> memory_for_copies(const Context& context) {
  if (on_gpu(context)) {
    return std::make_unique<PinnedMemoryResource>(context.device());
  }
  return std::make_unique<HostMemoryResource>();
}

}  // namespace

PassPipeline::PassPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch,
                           const StepLayout& layout, std::int64_t passes)
    : context_(context),
      communicator_(communicator),
      host_memory_(memory_for_copies(context)),
      inline_stream_(Stream::host_inline()),
      copied_(context.device()),
      idle_(context.stream()) {
  if (on_gpu(context)) {
    copies_.emplace(context.device(), CudaContextOptions{.stream = nullptr, .memory = &context.memory()});
    idle_copies_.emplace(copies_->stream());
  }
  for (int i = 0; i < (copies_ ? 2 : 1); ++i) {
    states_.emplace_back(context, batch, layout);
    loaded_.emplace_back(context.device());
  }
  const std::size_t block_bytes = align_up(states_.front().packed().bytes(), kAlignment);
  const std::size_t count = 2 * static_cast<std::size_t>(passes);
  host_ = Buffer(count * (block_bytes + kAlignment), *host_memory_, inline_stream_);
  for (std::size_t i = 0; i < count; ++i) {
    Pass& made = passes_.emplace_back(context.device());
    made.block = host_.data() + i * block_bytes;
    made.metrics = reinterpret_cast<double*>(host_.data() + count * block_bytes + i * kAlignment);
  }
  if (copies_) {  // the states are filled on the context's stream
    for (Event& event : loaded_) {
      context.stream().record(event);
      copies_->stream().wait(event);
    }
  }
}

void PassPipeline::take(Pass& pass) {
  if (pass.sums == nullptr) {
    return;
  }
  Metrics& sums = *std::exchange(pass.sums, nullptr);
  comm::wait(pass.done, communicator_);
  require<DataError>(pass.metrics[2] == 0, pass.metrics[2], " labels of a batch are outside [0, classes)");
  sums.loss_sum += pass.metrics[0];
  sums.correct += pass.metrics[1];
  sums.top_k_correct += pass.metrics[3];
  sums.samples += pass.samples;
}

int PassPipeline::begin(const Batch& batch, std::int64_t first, std::int64_t count, const StepState::Scalars& scalars) {
  Pass& now = pass(next_);
  take(now);
  const auto index = static_cast<std::size_t>(next_ % states_.size());
  StepState& state = states_[index];
  state.pack(now.block, scalars, batch.sample_ids.slice(0, first, first + count),
             batch.labels.slice(0, first, first + count));
  Context& copies = copies_ ? *copies_ : context_;
  if (copies_ && next_ >= states_.size()) {
    copies.stream().wait(pass(next_ - states_.size()).done);  // it has read the state
  }
  copy(copies, batch.images.slice(0, first, first + count), state.view(StateField::images).slice(0, 0, count));
  const TensorView packed = state.packed();
  copy(copies, TensorView(now.block, DType::u8, Device::cpu(), packed.shape), packed);
  if (copies_) {
    copies.stream().record(loaded_[index]);
    context_.stream().wait(loaded_[index]);
  }
  return static_cast<int>(index);
}

void PassPipeline::end(double samples, Metrics& sums) {
  Pass& now = pass(next_);
  const TensorView& metrics = state(static_cast<int>(next_ % states_.size())).view(StateField::metrics);
  copy(context_, metrics, TensorView(now.metrics, metrics.dtype, Device::cpu(), metrics.shape));
  context_.stream().record(now.done);
  now.samples = samples;
  now.sums = &sums;
  ++next_;
}

void PassPipeline::forget(std::int64_t count) {
  for (std::int64_t i = 1; i <= count; ++i) {
    pass(next_ - static_cast<std::uint64_t>(i)).sums = nullptr;
  }
}

void PassPipeline::flush() {
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    take(pass(next_ + i));
  }
}

void PassPipeline::wait_for_copies() {
  comm::wait(copies_ ? copies_->stream() : context_.stream(), copied_, communicator_);
}

std::size_t PassPipeline::bytes() const {
  std::size_t bytes = host_.bytes();
  for (const StepState& state : states_) {
    bytes += state.bytes();
  }
  return bytes;
}

}  // namespace lockstep::nn
