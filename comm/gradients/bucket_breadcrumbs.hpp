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

/// Shows how far a GPU has come with the buckets of a step. Any host thread may call text() while the device works or
/// hangs. The host's calls do not show this progress: the host is up to two steps ahead, and enqueues a captured step
/// with one call. So the communication stream itself copies a number into page-locked memory before and after the sum
/// of each bucket, also in a captured step. Each copy has only 4 bytes.
///
/// Each step that is under way has its own place: the page-locked memory holds one number for each place. The copies of
/// a captured graph always go to the same place. The host gives a place to a new step with begin(), after the device
/// has finished the previous step of that place.
class BucketBreadcrumbs {
 public:
  /// Buckets must be in the order in which their sums start. `compute` is the context of a GPU; this object uses it
  /// only for memory, and once to copy 8 bytes for each bucket. `comm` is a stream of that GPU. `compute` and `comm`
  /// must outlive this object. This object must outlive graphs that captured its copies. The constructor allocates
  /// memory and waits for the GPU. Throws UsageError if `places` is below 1.
  BucketBreadcrumbs(Context& compute, Stream& comm, const std::vector<GradientRange>& gradients,
                    const std::vector<Bucket>& buckets, int places);
  BucketBreadcrumbs(const BucketBreadcrumbs&) = delete;
  BucketBreadcrumbs& operator=(const BucketBreadcrumbs&) = delete;

  /// Sets the number in page-locked memory (index `place`) that before_sum() and after_sum() overwrite from now on.
  void use(int place) noexcept { place_ = place; }
  void before_sum(int bucket);  ///< enqueues the copy before the sum on the communication stream; allocates nothing
  void after_sum(int bucket);

  /// Records that the host is about to enqueue `step` (1 or more) at `place`. The device must have finished the
  /// previous step at `place`.
  void begin(int place, std::int64_t step) noexcept;
  void forget(int place) noexcept;  ///< records that the step at `place` will not be enqueued

  /// Describes the oldest step that the device has not finished, or the newest step if all are finished: "on the device
  /// step 16: summing bucket 2 of 3", "... step 16: computing gradients of bucket 1 of 3, fc.weight to
  /// layer4.1.conv2.weight", "... step 17: all 3 buckets are summed". Empty before the first step. Any thread may call
  /// text(); it does not wait for the device.
  [[nodiscard]] std::string text() const;

 private:
  void copy_number(std::int32_t number);
  [[nodiscard]] std::int32_t* word(int place) const;

  CudaContext context_;             ///< context that enqueues on the communication stream
  std::vector<std::string> names_;  ///< first and last gradient of each bucket, as "first to last"
  PinnedMemoryResource host_memory_;
  Stream host_stream_;
  Buffer numbers_;  ///< source of the copies: the i32 numbers 0 to 2 * buckets, on the device
  Buffer words_;    ///< destinations of the copies: one i32 in host memory for each place, in its own cache line
  int place_ = 0;
  mutable std::mutex mutex_;         ///< guards steps_; never held while a thread waits for the device
  std::vector<std::int64_t> steps_;  ///< number of the step that uses each element of words_; 0: no step
  SyncGuard idle_;                   ///< destroyed first, because it waits for the device, which writes words_
};

}  // namespace lockstep::comm
