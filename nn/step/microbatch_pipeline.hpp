#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/step/batch.hpp>
#include <lockstep/nn/step/metrics.hpp>
#include <lockstep/nn/step/step_state.hpp>
#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>

namespace lockstep::nn {

/// Brings micro-batches to the device and metrics back while others compute. A micro-batch is read from one StepState.
///
///   copy stream     wait done(L - 2) | block of scalars, ids and labels, the other fields -> state | record loaded
///   compute stream                                            wait loaded | compute | metrics -> host | record done(L)
///
/// On a GPU there are two StepStates, a copy stream and page-locked host memory: the copies of micro-batch L run beside
/// the computation of L - 1. On the host there is one StepState, and everything goes through the context's stream.
/// Nothing is allocated and no stream is waited for after the constructor; begin() waits for the micro-batch that is
/// `slots` back.
///
/// The computation may hold operations of a communicator on the device. Whoever waits here looks after it
/// (comm/wait.hpp), so that a rank that is gone is an error and not a wait without end.
class MicrobatchPipeline {
 public:
  /// slots: micro-batches that may be under way, at least 2: those of two steps. Context and communicator outlive it.
  MicrobatchPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch, const StepLayout& layout,
                     std::int64_t slots);
  ~MicrobatchPipeline() = default;  ///< waits for both streams
  MicrobatchPipeline(const MicrobatchPipeline&) = delete;
  MicrobatchPipeline& operator=(const MicrobatchPipeline&) = delete;

  [[nodiscard]] int states() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] StepState& state(int index) { return states_[static_cast<std::size_t>(index)]; }

  /// The next micro-batch: sends the scalars and the fields of `batch`; `valid` of the batch is not looked at. The
  /// fields' memory stays as it is until the begin() of two steps later. Where there are no sample ids, they count from
  /// first_id. Work that is enqueued on the context's stream from now on sees all of it in state(index) of the index
  /// that is returned. DataError when a label of the micro-batch that is `slots` back was out of range; ShapeError as
  /// ingest() has it.
  int begin(const Batch& batch, const StepState::Scalars& scalars, std::int64_t first_id = 0);
  /// All of it is enqueued, of so many samples: its metrics are added to `sums` when they are there. weight_sum: with
  /// this micro-batch the step is complete; a scalar on the device, the sum over all ranks times the sample_weight of
  /// begin(), or an empty view. One that is not a positive, finite number is a DataError of a later call.
  void end(double samples, Metrics& sums, std::int64_t step = 0, const std::optional<TensorView>& weight_sum = {});
  /// The step is complete with the micro-batch that ended last; for what was enqueued since.
  void end_step(const TensorView& weight_sum);
  /// The state of the micro-batch that ended last.
  [[nodiscard]] StepState& last_state() { return states_[static_cast<std::size_t>((next_ - 1) % states_.size())]; }
  /// Takes what is there without a wait.
  void poll();
  /// Of the newest step whose metrics are there: its number, and the sums over this rank's samples.
  struct Finished {
    std::int64_t step = 0;
    Metrics metrics{};
  };
  [[nodiscard]] const Finished& finished() const { return finished_; }
  /// The sums of a step that is done, of the last kStepsKept; nullptr: of another one.
  static constexpr std::int64_t kStepsKept = 8;
  [[nodiscard]] const Metrics* metrics_of(std::int64_t step) const {
    const Finished& kept = kept_[static_cast<std::size_t>(step % kStepsKept)];
    return step > 0 && kept.step == step ? &kept.metrics : nullptr;
  }
  /// The last `count` micro-batches that ended count for nothing: what is not yet added to their sums never is.
  void forget(std::int64_t count);
  /// Waits for all of them, so that every sum is whole.
  void flush();
  /// Waits for the copy stream: memory that batches came from may go.
  void wait_for_copies();

  /// Where batches should lie to be copied from: page-locked for a GPU.
  [[nodiscard]] MemoryResource& host_memory() { return *host_memory_; }
  [[nodiscard]] std::size_t bytes() const;  ///< of the states and of the host memory they are sent from

 private:
  /// A micro-batch that is under way. Its host memory is written again two steps later.
  struct Slot {
    explicit Slot(Device device) : done(device) {}
    std::byte* block = nullptr;  ///< what the state's packed fields are sent from
    double* metrics = nullptr;
    double samples = 0;
    double sample_weight = 1;
    Metrics* sums = nullptr;  ///< nullptr: given up, nothing to fetch
    bool pending = false;     ///< `done` was not waited for: the host memory is in use
    bool counted = false;     ///< the metrics were taken
    std::int64_t step = 0;
    bool ends_step = false;
    DType weight_dtype = DType::u8;  ///< of the weight sum behind the metrics; u8: there is none
    Event done;
  };
  void take(Slot& slot);
  void fetch_weight(Slot& slot, const TensorView& weight_sum);
  [[nodiscard]] Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }

  Context& context_;
  comm::Communicator& communicator_;
  std::unique_ptr<MemoryResource> host_memory_;
  std::optional<CudaContext> copies_;  ///< the copy stream; none on the host
  std::deque<StepState> states_;
  std::deque<Event> loaded_;  ///< of each state
  Stream inline_stream_;
  Event copied_;  ///< of wait_for_copies()
  Buffer host_;
  std::deque<Slot> slots_;  ///< of two steps
  std::uint64_t next_ = 0;  ///< number of the next micro-batch
  bool begun_ = false;      ///< begin() without its end(): what is enqueued may use the slot
  Metrics open_;            ///< of step open_step_, as far as they were taken
  std::int64_t open_step_ = 0;
  Finished finished_;
  std::array<Finished, kStepsKept> kept_{};
  Event given_;  ///< of begin(): fields that lie on the device are there
  std::optional<SyncGuard> idle_copies_;
  SyncGuard idle_;
};

}  // namespace lockstep::nn
