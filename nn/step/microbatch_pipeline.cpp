#include <lockstep/nn/step/microbatch_pipeline.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/comm/wait.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

std::unique_ptr<MemoryResource> memory_for_copies(Device device) {
  if (device.kind == DeviceKind::cuda) {
    return std::make_unique<PinnedMemoryResource>(device);
  }
  return std::make_unique<HostMemoryResource>();
}

}  // namespace

MicrobatchPipeline::MicrobatchPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch,
                                       const StepLayout& layout, std::int64_t slots, bool empty_steps)
    : context_(context),
      communicator_(communicator),
      empty_steps_(empty_steps),
      host_memory_(memory_for_copies(context.device())),
      inline_stream_(Stream::host_inline()),
      copied_(context.device()),
      given_(context.device()),
      idle_(context.stream()) {
  if (context.device().kind == DeviceKind::cuda) {
    copies_.emplace(context.device(), CudaContextOptions{.memory = &context.memory()});
    idle_copies_.emplace(copies_->stream());
  }
  for (int i = 0; i < (copies_ ? 2 : 1); ++i) {
    states_.emplace_back(context, batch, layout);
    loaded_.emplace_back(context.device());
  }
  const std::size_t block_bytes = align_up(states_.front().packed().bytes(), kAlignment);
  require<UsageError>(slots >= 2, "micro-batches under way: ", slots, ", expected at least 2");
  const auto count = static_cast<std::size_t>(slots);
  open_.reserve(count);
  for (Kept& kept : kept_) {
    kept.parts.reserve(count);
  }
  host_ = Buffer(count * (block_bytes + kAlignment), *host_memory_, inline_stream_);
  for (std::size_t i = 0; i < count; ++i) {
    Slot& made = slots_.emplace_back(context.device());
    made.block = host_.data() + i * block_bytes;
    made.metrics = reinterpret_cast<double*>(host_.data() + count * block_bytes + i * kAlignment);
  }
  if (copies_) {
    for (Event& event : loaded_) {
      context.stream().record(event);
      copies_->stream().wait(event);
    }
  }
}

void MicrobatchPipeline::take(Slot& slot) {
  if (!slot.pending) {
    return;
  }
  comm::wait(slot.done, communicator_);
  slot.pending = false;
  if (slot.sums == nullptr) {
    return;
  }
  const bool weighted = states_.front().layout().weights != LossWeights::none;
  if (!slot.counted) {
    slot.counted = true;
    const Metrics here{.loss_sum = slot.metrics[0],
                       .correct = slot.metrics[1],
                       .top_k_correct = slot.metrics[StepState::kTopK],
                       .samples = slot.samples,
                       .weight = weighted ? slot.metrics[StepState::kWeight] : slot.samples};
    if (open_step_ != slot.step) {
      open_step_ = slot.step;
      open_.clear();
    }
    const double bad = slot.metrics[2];
    require<DataError>(bad == 0, bad, " labels of a batch are no class, expected 0 to the number of classes - 1");
    if (slot.step != 0 && (open_.empty() || open_.back().sums != slot.sums)) {
      open_.push_back({.sums = slot.sums});
    }
    (slot.step == 0 ? *slot.sums : open_.back().metrics) += here;
  }
  if (slot.ends_step) {
    const double* weight = slot.metrics + StepState::kMetrics;
    const double sum = slot.weight_dtype == DType::u8    ? 1
                       : slot.weight_dtype == DType::f64 ? *weight
                                                         : double{*reinterpret_cast<const float*>(weight)};
    const bool divides = sum > 0 && std::isfinite(sum);
    Kept& kept = kept_[static_cast<std::size_t>(slot.step % kStepsKept)];
    kept.step = slot.step;
    kept.parts.clear();
    for (const Part& part : open_) {
      kept.parts.push_back(divides ? part.metrics : Metrics{});  // a step that changed nothing has empty metrics
      *part.sums += kept.parts.back();
    }
    open_.clear();
    if (finished_.step != slot.step) {
      before_ = finished_;
    }
    finished_ = {.step = slot.step, .metrics = sum_in_tree(kept.parts)};
    if (sum == 0 && empty_steps_) {
      return;
    }
    require<DataError>(weighted || sum != 0, "step ", slot.step,
                       " had no samples that count on any rank, expected at least one; it changed nothing");
    require<DataError>(divides, "step ", slot.step, ": the weights of its samples sum to ", sum / slot.sample_weight,
                       " over all ranks, expected a positive, finite number; it changed nothing");
  }
}

int MicrobatchPipeline::begin(const Batch& batch, const StepState::Scalars& scalars, std::int64_t first_id) {
  if (begun_) {  // an error occurred after begin(), so queued work may still read the slot
    wait_for_copies();
    comm::wait(context_.stream(), given_, communicator_);
  }
  Slot& now = slot(next_);
  take(now);
  begun_ = true;
  now.sample_weight = scalars.sample_weight;
  const auto index = static_cast<std::size_t>(next_ % states_.size());
  const StepState& state = states_[index];
  // Host fields that already have the type and layout of the StepState's field are copied in the same block as the
  // scalars. Returns the batch's field if the block can hold the field, or nullptr if the field needs a copy of its
  // own.
  const auto in_block = [&](StateField field) -> const FieldView* {
    const FieldView* from = batch.find(field);
    const TensorView& to = state.view(field);
    const bool fits = from != nullptr && from->axes.empty() && from->view.device == Device::cpu() &&
                      from->view.dtype == to.dtype && from->view.is_contiguous() && from->view.bytes() <= to.bytes();
    return fits ? from : nullptr;
  };
  const FieldView* ids = in_block(StateField::sample_ids);
  const FieldView* labels = in_block(StateField::labels);
  state.pack(now.block, scalars, ids != nullptr ? ids->view : TensorView(),
             labels != nullptr ? labels->view : TensorView());
  if (batch.find(StateField::sample_ids) == nullptr) {
    state.number_samples(now.block, first_id);
  }
  Context& copies = copies_ ? *copies_ : context_;
  if (copies_ && next_ >= states_.size()) {
    copies.stream().wait(slot(next_ - states_.size()).done);  // the work that reads this state must have ended
  }
  if (copies_ && std::any_of(batch.fields.begin(), batch.fields.end(),
                             [](const FieldView& field) { return field.view.device.kind == DeviceKind::cuda; })) {
    context_.stream().record(given_);  // the field is complete when the work now on the context's stream has ended
    copies.stream().wait(given_);
  }
  const TensorView packed = state.packed();
  copy(copies, TensorView(now.block, DType::u8, Device::cpu(), packed.shape), packed);
  for (const FieldView& field : batch.fields) {
    if (&field != ids && &field != labels) {
      ingest(copies, state, field);
    }
  }
  if (copies_) {
    copies.stream().record(loaded_[index]);
    context_.stream().wait(loaded_[index]);
  }
  return static_cast<int>(index);
}

void MicrobatchPipeline::fetch_weight(Slot& slot, const TensorView& weight_sum) {
  slot.weight_dtype = DType::u8;
  if (weight_sum.given()) {
    slot.weight_dtype = weight_sum.dtype;
    copy(context_, weight_sum,
         TensorView(slot.metrics + StepState::kMetrics, weight_sum.dtype, Device::cpu(), Shape{}));
  }
}

void MicrobatchPipeline::end(double samples, Metrics& sums, std::int64_t step,
                             const std::optional<TensorView>& weight_sum) {
  Slot& now = slot(next_);
  const TensorView& metrics = state(static_cast<int>(next_ % states_.size())).view(StateField::metrics);
  copy(context_, metrics, TensorView(now.metrics, metrics.dtype, Device::cpu(), metrics.shape));
  fetch_weight(now, weight_sum.value_or(TensorView()));
  context_.stream().record(now.done);
  now.samples = samples;
  now.sums = &sums;
  now.pending = true;
  now.counted = false;
  now.step = step;
  now.ends_step = weight_sum.has_value();
  ++next_;
  begun_ = false;
}

void MicrobatchPipeline::end_step(const TensorView& weight_sum) {
  Slot& last = slot(next_ - 1);
  fetch_weight(last, weight_sum);
  context_.stream().record(last.done);
  last.pending = true;  // set again, because take() may have cleared the flag since end()
  last.ends_step = true;
}

void MicrobatchPipeline::forget(std::int64_t count) {
  const auto most = static_cast<std::int64_t>(std::min<std::uint64_t>(next_, slots_.size()));
  for (std::int64_t i = 1; i <= std::min(count, most); ++i) {
    Slot& given_up = slot(next_ - static_cast<std::uint64_t>(i));
    given_up.sums = nullptr;
    if (open_step_ == given_up.step) {
      open_.clear();
    }
    if (given_up.step != 0 && finished_.step == given_up.step) {
      finished_ = before_;
      kept_[static_cast<std::size_t>(given_up.step % kStepsKept)].step = 0;
    }
  }
}

void MicrobatchPipeline::poll() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {  // oldest slot first
    Slot& oldest = slot(next_ + i);
    if (oldest.pending && !oldest.done.complete()) {
      return;
    }
    take(oldest);
  }
}

void MicrobatchPipeline::flush() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    take(slot(next_ + i));
  }
}

void MicrobatchPipeline::wait_for_copies() {
  comm::wait(copies_ ? copies_->stream() : context_.stream(), copied_, communicator_);
}

std::size_t MicrobatchPipeline::bytes() const {
  return host_.bytes() + states_.size() * states_.front().bytes();
}

}  // namespace lockstep::nn
