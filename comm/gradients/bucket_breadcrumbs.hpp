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

/// How far a GPU has come with the buckets of a step, for another thread of the host to read while the device works or
/// hangs. What the host has enqueued says nothing about that: it is up to two steps ahead, and of a captured step it
/// makes one call. So the communication stream itself copies a number into page-locked memory before and after the sum
/// of each bucket, as part of a captured step, too. These are copies of 4 bytes on a stream that computes nothing.
///
/// Steps that are under way at the same time have a place each: graphs are captured for a place, and the host says
/// which step a place is given to, after the device has finished the one before.
class BucketBreadcrumbs {
 public:
  /// For buckets in the order in which they start. compute: of a GPU, whose memory and stream it uses for 8 bytes a
  /// bucket, once. comm: a stream of that GPU. Both must outlive this object, and it what was captured. Allocates and
  /// waits. UsageError unless places >= 1.
  BucketBreadcrumbs(Context& compute, Stream& comm, const std::vector<GradientRange>& gradients,
                    const std::vector<Bucket>& buckets, int places);
  BucketBreadcrumbs(const BucketBreadcrumbs&) = delete;
  BucketBreadcrumbs& operator=(const BucketBreadcrumbs&) = delete;

  /// What is enqueued from now on is that of a step at `place`.
  void use(int place) noexcept { place_ = place; }
  void before_sum(int bucket);  ///< enqueued on the communication stream, as the next; allocates nothing
  void after_sum(int bucket);

  /// The host is about to enqueue `step` (1 or more) at `place`, whose last step has ended on the device.
  void begin(int place, std::int64_t step) noexcept;
  void forget(int place) noexcept;  ///< that step is not going to be enqueued

  /// The oldest step that the device has not finished: "on the device step 16: summing bucket 2 of 3", "... step 16:
  /// computing gradients of bucket 1 of 3, fc.weight to layer4.1.conv2.weight", "... step 17: all 3 buckets are
  /// summed". Empty before the first step. From any thread; does not wait for the device.
  [[nodiscard]] std::string text() const;

 private:
  void copy_number(std::int32_t number);
  [[nodiscard]] std::int32_t* word(int place) const;

  CudaContext context_;             ///< on the communication stream
  std::vector<std::string> names_;  ///< of the gradients of each bucket: "first to last"
  PinnedMemoryResource host_memory_;
  Stream host_stream_;
  Buffer numbers_;  ///< i32 (2 * buckets + 1) on the device: 0, 1, 2, ...
  Buffer words_;    ///< for each place an i32 on the host, in a cache line of its own
  int place_ = 0;
  mutable std::mutex mutex_;         ///< of the next line; nobody waits while holding it
  std::vector<std::int64_t> steps_;  ///< at each place; 0: none
  SyncGuard idle_;                   ///< destroyed first: the device writes words_
};

}  // namespace lockstep::comm
