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

/// Copies micro-batches to the device and metrics back while other micro-batches compute. A plan reads its micro-batch
/// from one StepState.
///
///   copy stream     wait done(L - 2) | block of scalars, ids and labels, the other fields -> state | record loaded
///   compute stream                                            wait loaded | compute | metrics -> host | record done(L)
///
/// On a GPU there are two StepStates, a copy stream and page-locked host memory: the copies of micro-batch L run while
/// L - 1 is computed. On the host there is one StepState, and everything goes through the context's stream. The
/// constructor allocates all memory. begin() waits only for the micro-batch that is `slots` back.
///
/// The computation may include operations of a communicator on the device. Waits here also check the communicator
/// (comm/wait.hpp), so that a lost rank becomes an error instead of an endless wait.
class MicrobatchPipeline {
 public:
  /// slots: number of micro-batches that may be under way, at least 2: those of two steps. empty_steps:
  /// TrainStepOptions::empty_steps. Context and communicator must outlive this object.
  MicrobatchPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch, const StepLayout& layout,
                     std::int64_t slots, bool empty_steps = false);
  ~MicrobatchPipeline() = default;  ///< waits for both streams
  MicrobatchPipeline(const MicrobatchPipeline&) = delete;
  MicrobatchPipeline& operator=(const MicrobatchPipeline&) = delete;

  [[nodiscard]] int states() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] StepState& state(int index) { return states_[static_cast<std::size_t>(index)]; }

  /// Begins the next micro-batch: sends the scalars and the fields of `batch` to a state; ignores the batch's `valid`.
  /// The fields' memory must not change until the begin() two steps later. Samples without ids are numbered from
  /// first_id. Returns the index of the state: work enqueued on the context's stream from now on sees everything in
  /// state(index). DataError when a label of the micro-batch that is `slots` back was out of range; ShapeError as in
  /// ingest().
  int begin(const Batch& batch, const StepState::Scalars& scalars, std::int64_t first_id = 0);
  /// Ends a micro-batch of `samples` samples, whose work is all enqueued. When its metrics arrive, they are added to
  /// `sums`; the metrics of one step are first added up for each `sums`, then by sum_in_tree() for finished().
  /// weight_sum: given when this micro-batch completes the step: a scalar on the device (the sum over all ranks times
  /// the sample_weight of begin()), or an empty view. A sum that is not a positive, finite number is a DataError of a
  /// later call.
  void end(double samples, Metrics& sums, std::int64_t step = 0, const std::optional<TensorView>& weight_sum = {});
  /// Completes the step with the micro-batch that ended last. For a weight sum that was enqueued after that
  /// micro-batch.
  void end_step(const TensorView& weight_sum);
  /// Returns the index of the state of the micro-batch that ended last.
  [[nodiscard]] int last_state() const { return static_cast<int>((next_ - 1) % states_.size()); }
  /// Takes the metrics that have arrived; does not wait.
  void poll();
  /// The newest step whose metrics have arrived: its number, and the sums over this rank's samples.
  struct Finished {
    std::int64_t step = 0;
    Metrics metrics{};
  };
  [[nodiscard]] const Finished& finished() const { return finished_; }
  /// Returns the sums of a completed step, one of the last kStepsKept: one element for each `sums` of end(); empty for
  /// any other step. Valid until the next call.
  static constexpr std::int64_t kStepsKept = 8;
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step) const {
    const Kept& kept = kept_[static_cast<std::size_t>(step % kStepsKept)];
    return step > 0 && kept.step == step ? std::span<const Metrics>(kept.parts) : std::span<const Metrics>();
  }
  /// Discards the last `count` micro-batches that ended: metrics that are not yet in their sums are never added.
  void forget(std::int64_t count);
  /// Waits for all micro-batches, so that every sum is complete.
  void flush();
  /// Waits for the copy stream: afterwards the caller may free the memory of batches.
  void wait_for_copies();

  /// The memory in which batches should lie for fast copies: page-locked memory for a GPU.
  [[nodiscard]] MemoryResource& host_memory() { return *host_memory_; }
  [[nodiscard]] std::size_t bytes() const;  ///< bytes of the states and of their source in host memory

 private:
  /// A micro-batch under way. Its host memory is reused two steps later.
  struct Slot {
    explicit Slot(Device device) : done(device) {}
    std::byte* block = nullptr;  ///< source of the state's packed fields
    double* metrics = nullptr;
    double samples = 0;
    double sample_weight = 1;
    Metrics* sums = nullptr;  ///< destination of the metrics; nullptr: micro-batch was discarded
    bool pending = false;     ///< true until `done` was waited for: the host memory is in use
    bool counted = false;     ///< true: the metrics were fetched
    std::int64_t step = 0;
    bool ends_step = false;
    DType weight_dtype = DType::u8;  ///< type of the weight sum after the metrics; u8: there is none
    Event done;
  };
  void take(Slot& slot);
  void fetch_weight(Slot& slot, const TensorView& weight_sum);
  [[nodiscard]] Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }

  Context& context_;
  comm::Communicator& communicator_;
  bool empty_steps_;
  std::unique_ptr<MemoryResource> host_memory_;
  std::optional<CudaContext> copies_;  ///< the copy stream; none on the host
  std::deque<StepState> states_;
  std::deque<Event> loaded_;  ///< by state: its fields have arrived
  Stream inline_stream_;
  Event copied_;  ///< recorded by wait_for_copies()
  Buffer host_;
  std::deque<Slot> slots_;  ///< enough for two steps
  std::uint64_t next_ = 0;  ///< number of the next micro-batch
  bool begun_ = false;      ///< true between begin() and end(): queued work may use the slot
  /// Metrics of step open_step_ that were fetched, and the sums to which they will be added.
  struct Part {
    Metrics* sums = nullptr;
    Metrics metrics{};
  };
  std::vector<Part> open_;
  std::int64_t open_step_ = 0;
  Finished finished_;
  struct Kept {
    std::int64_t step = 0;
    std::vector<Metrics> parts{};
  };
  std::array<Kept, kStepsKept> kept_{};
  Event given_;  ///< recorded by begin(): fields that lie on the device are complete
  std::optional<SyncGuard> idle_copies_;
  SyncGuard idle_;
};

}  // namespace lockstep::nn
