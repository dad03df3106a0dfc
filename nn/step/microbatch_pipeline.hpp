#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

/// Copies micro-batches to the device, and their metrics back to the host, while the device computes other
/// micro-batches. A plan reads a micro-batch from a StepState. On a GPU, there are two StepStates, a copy stream, and
/// page-locked host memory. The events `loaded` and `done` order the work for micro-batch number L on the two streams:
///
///   copy stream     wait for `done` of micro-batch L - 2 | copy fields and scalars to the StepState | record `loaded`
///   compute stream  wait for `loaded` | compute | copy metrics to the host | record `done`
///
/// So micro-batch L is copied while micro-batch L - 1 is computed. On the host, there is one StepState, and all work
/// runs on the context's stream. The constructor allocates all memory. Its parameter `slots` is the largest number of
/// micro-batches in progress: begin() waits only for micro-batch L - `slots`.
///
/// The computation may contain collectives on the device. If a rank is lost, these collectives never end. All waits of
/// this class therefore also check the communicator (comm/wait.hpp), and throw an error if a rank is lost.
class MicrobatchPipeline {
 public:
  /// `slots` is the largest number of micro-batches in progress: twice the number of micro-batches per step, at least
  /// 2. empty_steps is TrainStepOptions::empty_steps. Context and communicator must outlive this object.
  MicrobatchPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch, const StepLayout& layout,
                     std::int64_t slots, bool empty_steps = false);
  ~MicrobatchPipeline() = default;  ///< waits for both streams
  MicrobatchPipeline(const MicrobatchPipeline&) = delete;
  MicrobatchPipeline& operator=(const MicrobatchPipeline&) = delete;

  [[nodiscard]] int states() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] StepState& state(int index) { return states_[static_cast<std::size_t>(index)]; }

  /// Begins the next micro-batch: copies `scalars` and the fields of `batch` to a StepState. Scalars::valid, not
  /// batch.valid, says how many samples count. Samples without ids get ids from first_id on. The caller must not change
  /// the fields' memory until the begin() that comes `slots` calls later has returned. Returns the index of the
  /// StepState. Work that the caller enqueues on the context's stream after this call may read the fields in
  /// state(index). Throws DataError if a label of the micro-batch begun `slots` micro-batches earlier was out of range.
  /// Throws ShapeError as ingest() does.
  int begin(const Batch& batch, const StepState::Scalars& scalars, std::int64_t first_id = 0);
  /// Ends a micro-batch of `samples` samples. All work of the micro-batch must be enqueued. When the micro-batch's
  /// metrics arrive, they are added to `sums`. If a step's metrics go to several `sums`, finished() adds these with
  /// sum_in_tree().
  ///
  /// For the last micro-batch of a step, `weight_sum` must have a value: a scalar on the device, or a view without
  /// memory. The scalar is the sum of the sample weights over all ranks, times the sample_weight of begin(). If the
  /// scalar is not a positive, finite number, a call after the metrics have arrived throws DataError.
  void end(double samples, Metrics& sums, std::int64_t step = 0, const std::optional<TensorView>& weight_sum = {});
  /// Marks the last ended micro-batch as the end of its step, and sets its weight sum. For a step whose weight sum is
  /// enqueued only after end().
  void end_step(const TensorView& weight_sum);
  [[nodiscard]] int last_state() const { return static_cast<int>((next_ - 1) % states_.size()); }
  /// Adds metrics that have arrived on the host to the `sums` that end() was given for their micro-batch. Does not
  /// wait.
  void poll();
  /// The newest step whose metrics have arrived, and the sums of the metrics over this rank's samples.
  struct Finished {
    std::int64_t step = 0;
    Metrics metrics{};
  };
  [[nodiscard]] const Finished& finished() const { return finished_; }
  /// Returns the sums of a completed step, one element for each `sums` of end(). Only the last kStepsKept steps have
  /// sums; for all others, the span is empty. The span is valid until the next call.
  static constexpr std::int64_t kStepsKept = 8;
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step) const {
    const Kept& kept = kept_[static_cast<std::size_t>(step % kStepsKept)];
    return step > 0 && kept.step == step ? std::span<const Metrics>(kept.parts) : std::span<const Metrics>();
  }
  /// Discards the last `count` ended micro-batches. Their metrics are not added to the `sums` of end(), unless they
  /// already were. If the discarded micro-batches completed step s, finished() then returns step s - 1, and
  /// metrics_of(s) is empty.
  void forget(std::int64_t count);
  /// Waits for all micro-batches. The `sums` of all calls of end() are then complete.
  void flush();
  /// Waits for the copy stream. The caller may then free or change the memory of batches.
  void wait_for_copies();

  /// Returns a resource of host memory from which copies to the device are fast: page-locked memory for a GPU.
  [[nodiscard]] MemoryResource& host_memory() { return *host_memory_; }
  [[nodiscard]] std::size_t bytes()
      const;  ///< bytes of the StepStates, and of the host memory from which batches are copied

 private:
  /// A micro-batch in progress. A micro-batch two steps later uses the same host memory.
  struct Slot {
    explicit Slot(Device device) : done(device) {}
    std::byte* block = nullptr;  ///< host memory that is copied to the StepState's packed fields
    double* metrics = nullptr;
    double samples = 0;
    double sample_weight = 1;
    Metrics* sums = nullptr;  ///< destination of the metrics; nullptr after forget()
    bool pending = false;     ///< true: `block` may be in use, because nothing has waited for `done` yet
    bool counted = false;     ///< true: the metrics were already added
    std::int64_t step = 0;
    bool ends_step = false;
    DType weight_dtype = DType::u8;  ///< type of the weight sum, which is stored after the metrics; u8: none
    Event done;
  };
  void take(Slot& slot);
  void fetch_weight(Slot& slot, const TensorView& weight_sum);
  [[nodiscard]] Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }

  Context& context_;
  comm::Communicator& communicator_;
  bool empty_steps_;
  std::unique_ptr<MemoryResource> host_memory_;
  std::optional<CudaContext> copies_;  ///< context of the copy stream; empty on the host
  std::deque<StepState> states_;
  std::deque<Event> loaded_;  ///< for each state: recorded when its fields have arrived
  Stream inline_stream_;
  Event copied_;  ///< recorded by wait_for_copies()
  Buffer host_;
  std::deque<Slot> slots_;
  std::uint64_t next_ = 0;  ///< number of the next micro-batch
  bool begun_ = false;      ///< true between begin() and end(), while queued work may use the slot
  /// Metrics of step open_step_ that have arrived, and the sums to which they are added when the step is complete.
  struct Part {
    Metrics* sums = nullptr;
    Metrics metrics{};
  };
  std::vector<Part> open_;
  std::int64_t open_step_ = 0;
  Finished finished_;
  Finished before_;  ///< value of finished() before step finished_.step completed
  struct Kept {
    std::int64_t step = 0;
    std::vector<Metrics> parts{};
  };
  std::array<Kept, kStepsKept> kept_{};
  Event given_;  ///< recorded by begin(); the copy stream waits for it if a field is on the device
  std::optional<SyncGuard> idle_copies_;
  SyncGuard idle_;
};

}  // namespace lockstep::nn
