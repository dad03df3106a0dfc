#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/step/step_state.hpp>
#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>

namespace lockstep::nn {

struct Metrics;

/// Brings batches to the device and metrics back, pass by pass, while other passes compute. A pass reads one StepState.
///
///   copy stream     wait done(L - 2) | images, block of scalars, ids and labels -> state | record loaded
///   compute stream                                        wait loaded | the pass | metrics -> host | record done(L)
///
/// On a GPU there are two StepStates, a copy stream and page-locked host memory: the copies of pass L run beside pass
/// L - 1. On the host there is one StepState, and everything goes through the context's stream. Nothing is allocated
/// and no stream is waited for after the constructor; begin() waits for the pass that is two steps back.
///
/// A pass may hold operations of a communicator on the device. Whoever waits here looks after it (comm/wait.hpp), so
/// that a rank that is gone is an error and not a wait without end.
class PassPipeline {
 public:
  /// passes: of a step, at least 1. Context and communicator outlive the pipeline.
  PassPipeline(Context& context, comm::Communicator& communicator, std::int64_t batch, const StepLayout& layout,
               std::int64_t passes);
  ~PassPipeline() = default;  ///< waits for both streams
  PassPipeline(const PassPipeline&) = delete;
  PassPipeline& operator=(const PassPipeline&) = delete;

  [[nodiscard]] int states() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] StepState& state(int index) { return states_[static_cast<std::size_t>(index)]; }

  /// The next pass: sends rows [first, first + count) of the batch and the scalars. `batch` stays as it is until the
  /// begin() two steps later. Work that is enqueued on the context's stream from now on sees them in state(index) of
  /// the index that is returned. DataError when a label of the pass two steps before was out of range.
  int begin(const Batch& batch, std::int64_t first, std::int64_t count, const StepState::Scalars& scalars);
  /// All of the pass is enqueued, of so many samples: its metrics are added to `sums` when they are there.
  void end(double samples, Metrics& sums);
  /// The last `count` passes that ended count for nothing: what is not yet added to their sums never is.
  void forget(std::int64_t count);
  /// Waits for all passes, so that every sum is whole.
  void flush();
  /// Waits for the copy stream: memory that batches came from may go.
  void wait_for_copies();

  /// Where batches should lie to be copied from: page-locked for a GPU.
  [[nodiscard]] MemoryResource& host_memory() { return *host_memory_; }
  [[nodiscard]] std::size_t bytes() const;  ///< of the states and of the host memory they are sent from

 private:
  /// A pass that is under way. Its host memory is written again two steps later.
  struct Pass {
    explicit Pass(Device device) : done(device) {}
    std::byte* block = nullptr;  ///< what the state's packed fields are sent from
    double* metrics = nullptr;
    double samples = 0;
    Metrics* sums = nullptr;  ///< nullptr: nothing to fetch
    Event done;
  };
  void take(Pass& pass);
  [[nodiscard]] Pass& pass(std::uint64_t number) { return passes_[number % passes_.size()]; }

  Context& context_;
  comm::Communicator& communicator_;
  std::unique_ptr<MemoryResource> host_memory_;
  std::optional<CudaContext> copies_;  ///< the copy stream; none on the host
  std::deque<StepState> states_;
  std::deque<Event> loaded_;  ///< of each state
  Stream inline_stream_;
  Event copied_;  ///< of wait_for_copies()
  Buffer host_;
  std::deque<Pass> passes_;  ///< of two steps
  std::uint64_t next_ = 0;   ///< number of the next pass
  std::optional<IdleAtEnd> idle_copies_;
  IdleAtEnd idle_;
};

}  // namespace lockstep::nn
