#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Takes the place of a bucket's all-reduce: compression, noise, a sum over some ranks only. A GradientReducer calls it
/// for one bucket after the other, on all ranks in the same order. The hook belongs to the caller, who keeps it alive
/// as long as the reducer, and is for one reducer at a time: each rank has its own.
///
/// What a hook remembers from step to step is its own: checkpoints hold the state of PowerSgd only.
class GradientHook {
 public:
  GradientHook() = default;
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;
  virtual ~GradientHook() = default;

  /// One line: it stands in errors, in the header of a program and in the identity of a run, so it holds the numbers
  /// that decide what the hook does ("powersgd rank 2").
  [[nodiscard]] virtual std::string name() const = 0;
  /// Called once, by the reducer's constructor, which may fail on one rank alone. Here a hook allocates and plans.
  /// context: computes on the communication stream; it lives as long as the reducer. gradients: the arena (n), whose
  /// elements [bucket.begin, bucket.end) reduce() gets.
  virtual void prepare(Context& context, Communicator& communicator, std::span<const GradientRange> ranges,
                       std::span<const Bucket> buckets, const TensorView& gradients);
  /// Called once, by the reducer's destructor, when the stream has passed all work: the context goes, and what the hook
  /// has made with it has to go before.
  virtual void release() noexcept {}
  /// Enqueues on the context's stream what turns this rank's gradients of bucket `bucket` (1-D, contiguous, of the
  /// type of the arena) into what the update gets, in place: their sum over the ranks, or something near it, the same
  /// bits on every rank. It can change no size. The ranks' calls of the communicator must match, and nothing may
  /// allocate or wait. An exception ends the step on this rank with the hook's name and the bucket in front of its
  /// text; the others then wait for this rank as after any rank that fails. Work that the hook has enqueued reports at
  /// the stream's next use.
  virtual void reduce(Context& context, Communicator& communicator, int bucket, const TensorView& gradients) = 0;
  /// Bytes that reduce() hands to the communicator for a bucket; negative: the hook does not say.
  [[nodiscard]] virtual std::int64_t sent_bytes(int bucket) const;
  /// Whether a Graph may capture reduce() and launch it again: it then decides nothing on the host.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }
  [[nodiscard]] virtual std::size_t bytes() const { return 0; }  ///< of the hook's own memory
};

/// A hook of your own from a function: the whole of the contract is that of GradientHook::reduce().
///
///   comm::make_gradient_hook("own", [](const TensorView& gradients, Stream& stream, comm::Communicator& ranks) {
///     ranks.all_reduce(stream, gradients);
///   });
using HookFunction = std::function<void(const TensorView& gradients, Stream& stream, Communicator& communicator)>;
[[nodiscard]] std::shared_ptr<GradientHook> make_gradient_hook(std::string name, HookFunction reduce);

}  // namespace lockstep::comm
