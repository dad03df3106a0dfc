#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::comm {

/// Shows how far a GPU has come with the buckets of a step; another host thread may read this while the device works or
/// hangs. The host's own calls do not show it: the host is up to two steps ahead, and enqueues a captured step with one
/// call. So the communication stream itself copies a number into page-locked memory before and after the sum of each
/// bucket, also in a captured step. These copies have 4 bytes, on a stream that computes nothing.
///
/// Each step that is under way has a place. A graph is captured for one place. The host says which step uses a place
/// next, after the device has finished the place's previous step.
class BucketBreadcrumbs {
 public:
  /// Buckets are in the order in which they start. compute: a GPU's context, used once, for memory and a copy of 8
  /// bytes a bucket. comm: a stream of that GPU. Both must outlive this object; this object must outlive graphs that
  /// captured its copies. Allocates and waits. UsageError unless places >= 1.
  BucketBreadcrumbs(Context& compute, Stream& comm, const std::vector<GradientRange>& gradients,
                    const std::vector<Bucket>& buckets, int places);
  BucketBreadcrumbs(const BucketBreadcrumbs&) = delete;
  BucketBreadcrumbs& operator=(const BucketBreadcrumbs&) = delete;

  /// From now on before_sum() and after_sum() write to `place`.
  void use(int place) noexcept { place_ = place; }
  void before_sum(int bucket);  ///< enqueues the copy on the communication stream; allocates nothing
  void after_sum(int bucket);

  /// The host is about to enqueue `step` (1 or more) at `place`, whose previous step has ended on the device.
  void begin(int place, std::int64_t step) noexcept;
  void forget(int place) noexcept;  ///< the step at `place` will not be enqueued

  /// Describes the oldest step that the device has not finished: "on the device step 16: summing bucket 2 of 3", "...
  /// step 16: computing gradients of bucket 1 of 3, fc.weight to layer4.1.conv2.weight", "... step 17: all 3 buckets
  /// are summed". Empty before the first step. Any thread may call it; does not wait for the device.
  [[nodiscard]] std::string text() const;

 private:
  void copy_number(std::int32_t number);
  [[nodiscard]] std::int32_t* word(int place) const;

  CudaContext context_;             ///< enqueues on the communication stream
  std::vector<std::string> names_;  ///< first and last gradient of each bucket: "first to last"
  PinnedMemoryResource host_memory_;
  Stream host_stream_;
  Buffer numbers_;  ///< i32 (2 * buckets + 1) on the device: 0, 1, 2, ...
  Buffer words_;    ///< one i32 per place on the host, each in its own cache line
  int place_ = 0;
  mutable std::mutex mutex_;         ///< guards steps_; a thread that holds it never waits
  std::vector<std::int64_t> steps_;  ///< step at each place; 0: none
  SyncGuard idle_;                   ///< destroyed first: waits for the device, which writes words_
};

}  // namespace lockstep::comm
