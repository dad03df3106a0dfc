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

/// Copies micro-batches to the device and metrics back while other micro-batches compute. A plan reads a micro-batch
/// from one StepState. L is the number of a micro-batch:
///
///   copy stream     wait done(L - 2) | block of scalars, ids and labels, the other fields -> state | record loaded
///   compute stream                                            wait loaded | compute | metrics -> host | record done(L)
///
/// On a GPU there are two StepStates, a copy stream and page-locked host memory. The copies of micro-batch L run while
/// L - 1 is computed. On the host there is one StepState, and everything runs on the context's stream. The constructor
/// allocates all memory. begin() waits only for the micro-batch that was begun `slots` micro-batches earlier.
///
/// The computation may include operations of a communicator on the device. Waits of this class therefore also check the
/// communicator (comm/wait.hpp), so that a lost rank causes an error instead of an endless wait.
class MicrobatchPipeline {
 public:
  /// `slots` is the number of micro-batches that may be under way: the micro-batches of two steps, so at least 2.
  /// empty_steps is TrainStepOptions::empty_steps. Context and communicator must outlive this object.
  MicrobatchPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch, const StepLayout& layout,
                     std::int64_t slots, bool empty_steps = false);
  ~MicrobatchPipeline() = default;  ///< waits for both streams
  MicrobatchPipeline(const MicrobatchPipeline&) = delete;
  MicrobatchPipeline& operator=(const MicrobatchPipeline&) = delete;

  [[nodiscard]] int states() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] StepState& state(int index) { return states_[static_cast<std::size_t>(index)]; }

  /// Begins the next micro-batch: sends the scalars and the fields of `batch`, except its `valid`, to a state. Samples
  /// without ids are numbered from first_id. The fields' memory must not change until the begin() two steps later.
  /// Returns the index of the state: work enqueued on the context's stream after this call reads all fields in
  /// state(index). DataError if a label of the micro-batch that was begun `slots` micro-batches earlier was out of
  /// range. ShapeError as in ingest().
  int begin(const Batch& batch, const StepState::Scalars& scalars, std::int64_t first_id = 0);
  /// Ends a micro-batch of `samples` samples after all its work is enqueued. When the metrics arrive, they are added to
  /// `sums`. For finished(), the metrics of one step that go to the same `sums` are added up, and sum_in_tree() then
  /// adds these sums. Give weight_sum if this micro-batch completes the step: a scalar on the device (the sum over all
  /// ranks times the sample_weight of begin()), or an empty view. A later call throws DataError if the sum is not a
  /// positive, finite number.
  void end(double samples, Metrics& sums, std::int64_t step = 0, const std::optional<TensorView>& weight_sum = {});
  /// Completes the step with the micro-batch that ended last, for a weight sum that is enqueued after that micro-batch.
  void end_step(const TensorView& weight_sum);
  /// Returns the index of the state of the micro-batch that ended last.
  [[nodiscard]] int last_state() const { return static_cast<int>((next_ - 1) % states_.size()); }
  /// Adds metrics that have arrived on the host to the `sums` that end() was given for them. Does not wait.
  void poll();
  /// The newest step whose metrics have arrived, with the sums over this rank's samples.
  struct Finished {
    std::int64_t step = 0;
    Metrics metrics{};
  };
  [[nodiscard]] const Finished& finished() const { return finished_; }
  /// Returns the sums of a completed step among the last kStepsKept, one element for each `sums` of end(). Returns an
  /// empty span for any other step. The span is valid until the next call.
  static constexpr std::int64_t kStepsKept = 8;
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step) const {
    const Kept& kept = kept_[static_cast<std::size_t>(step % kStepsKept)];
    return step > 0 && kept.step == step ? std::span<const Metrics>(kept.parts) : std::span<const Metrics>();
  }
  /// Discards the last `count` micro-batches that ended. Their metrics, if not yet added to the `sums` of end(), are
  /// never added.
  void forget(std::int64_t count);
  /// Waits for all micro-batches. All `sums` given to end() are then complete.
  void flush();
  /// Waits for the copy stream. The caller may then free the memory of batches.
  void wait_for_copies();

  /// Memory for the caller's batches that makes their copies fast: page-locked memory on a GPU.
  [[nodiscard]] MemoryResource& host_memory() { return *host_memory_; }
  [[nodiscard]] std::size_t bytes() const;  ///< bytes of the states and of their sources in host memory

 private:
  /// A micro-batch under way. Its host memory is used again two steps later.
  struct Slot {
    explicit Slot(Device device) : done(device) {}
    std::byte* block = nullptr;  ///< host memory from which the state's packed fields are copied
    double* metrics = nullptr;
    double samples = 0;
    double sample_weight = 1;
    Metrics* sums = nullptr;  ///< destination of the metrics; nullptr: the micro-batch was discarded
    bool pending = false;     ///< true while the host memory is in use: nobody has waited for `done` yet
    bool counted = false;     ///< true: the metrics were fetched
    std::int64_t step = 0;
    bool ends_step = false;
    DType weight_dtype = DType::u8;  ///< type of the weight sum that follows the metrics; u8: there is no weight sum
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
  std::deque<Event> loaded_;  ///< for each state, the event recorded when the fields of the state have arrived
  Stream inline_stream_;
  Event copied_;  ///< recorded by wait_for_copies()
  Buffer host_;
  std::deque<Slot> slots_;  ///< slots for the micro-batches of two steps
  std::uint64_t next_ = 0;  ///< number of the next micro-batch
  bool begun_ = false;      ///< true between begin() and end(), while queued work may use the slot
  /// Fetched metrics of step open_step_, and the sums to which they will be added.
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
  Event given_;  ///< recorded by begin() when fields on the device are complete
  std::optional<SyncGuard> idle_copies_;
  SyncGuard idle_;
};

}  // namespace lockstep::nn
