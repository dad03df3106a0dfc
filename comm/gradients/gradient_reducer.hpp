#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/comm/gradients/shards.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

class BucketBreadcrumbs;  // bucket_breadcrumbs.hpp

/// Seconds of gradient communication, summed over the steps. Steps captured into a Graph are not timed and do not
/// count.
struct ReducerStatistics {
  std::int64_t steps = 0;
  double total_s = 0;  ///< from start to end of each sum, with the conversions of 16-bit buckets; and of each gather
  /// How long the compute stream waited in finish(), wait_for_started() and finish_gather(); equals total_s when
  /// nothing overlaps.
  double exposed_s = 0;
  [[nodiscard]] double hidden_s() const { return total_s > exposed_s ? total_s - exposed_s : 0; }
  struct PerBucket {
    std::int64_t bytes = 0;  ///< that travel; negative: a sum that does not say
    double total_s = 0;
  };
  std::vector<PerBucket> buckets;
};

struct ReducerOptions {
  /// One per bucket, or none. With shards every rank gets only the sums of its own part, and of the elements from
  /// Shards::rest to the end of the bucket; the other parts of the gradients are then undefined (ZeRO's stage 1,
  /// Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.1).
  std::vector<Shards> shards{};
  /// How a bucket is summed (make_bucket_sum.hpp). None: by the communicator's all-reduce, with shards by its
  /// reduce-scatter. UsageError for a sum that does not divide beside shards.
  std::shared_ptr<BucketSum> sum{};
};

/// Sums gradients over ranks, bucket by bucket, while backward still computes (as PyTorch DDP does). It uses only
/// streams, events and a communicator, so the same code runs over MPI on hosts and over NCCL on GPUs.
///
///   compute:  .. write gradients of bucket k | record R[k] | .. backward goes on ..        | wait D[last] | update
///   comm:                             wait R[k] | all_reduce(k) | record D[k] | wait R[k+1] ..
///
/// Buckets start strictly in order, so every rank issues the same sequence. A step allocates nothing. With comm ==
/// compute, or an inline comm stream, nothing overlaps: every bucket is reduced when it becomes ready. A step may be
/// captured from the compute stream into a Graph, with a communicator that can_be_captured(): the communication stream
/// is forked from it by R[0] and joined to it by finish().
class GradientReducer {
 public:
  /// arena: the gradient arena, 1-D. communicator, streams and arena must outlive the reducer. The sum
  /// allocates here, once. ShapeError for shards that are not those of the buckets; DTypeError and DeviceError for an
  /// arena whose type or device the sum does not take.
  GradientReducer(Communicator& communicator, Stream& compute, Stream& comm, std::vector<GradientRange> gradients,
                  std::vector<Bucket> buckets, const TensorView& arena, const ReducerOptions& options = {});
  /// Waits for the communication stream, also when an exception unwinds a step: afterwards the arena may be freed.
  ~GradientReducer();

  [[nodiscard]] const std::vector<GradientRange>& gradients() const;
  [[nodiscard]] const std::vector<Bucket>& buckets() const;
  [[nodiscard]] bool overlaps() const;  ///< false: the caller or the compute stream waits for every bucket
  [[nodiscard]] DType sent_as() const;  ///< the type that is sent: the arena's, or 16 bits
  [[nodiscard]] std::int64_t gradient_bytes() const;  ///< of a rank's gradients, as they lie in the buckets
  /// What they are when they travel in a step; negative: a sum that does not say.
  [[nodiscard]] std::int64_t sent_bytes() const;
  [[nodiscard]] std::size_t bytes() const;  ///< of the sum's own memory, without the arena
  /// Starts a step with no gradient written. StateError when the previous step was neither finished nor abandoned.
  void begin_step();
  /// Says that a write of gradient `index` (in ready order) was enqueued on the compute stream. StateError naming the
  /// tensor when it was written more often than declared, or outside a step.
  void gradient_written(int index);
  [[nodiscard]] int started() const;  ///< buckets of this step, or of the last one, that are enqueued
  /// The compute stream waits for what has started: buckets of this step or of one that was abandoned, and gathers.
  /// What is enqueued on it afterwards may use this reducer's communicator: on every rank it lies between the same
  /// buckets, and no two operations of the communicator are under way at once.
  void wait_for_started();
  /// The compute stream waits for all buckets. StateError naming the gradients that were never written.
  void finish();
  /// Between finish() and the next step, with shards. The compute stream has written this rank's part of bucket k of
  /// `arena`, which has the gradients' layout: all ranks get each other's parts, on the communication stream, so that
  /// parts can be sent while later ones are computed. The same buckets in the same order on every rank.
  void gather(int bucket, const TensorView& arena);
  /// The compute stream waits for all gathers.
  void finish_gather();
  /// values (contiguous, on the compute stream's device) = their sums over the ranks, for the compute stream; between
  /// finish() and the next step.
  void sum(const TensorView& values);
  /// Ends a step after an error in the middle of it, so that the next one can begin; does nothing outside a step. Work
  /// that was enqueued stays enqueued: buckets that have started are reduced, the others are not. The ranks' calls must
  /// still match afterwards: all ranks abandon the step with the same buckets started, as when a capture fails, of
  /// which nothing runs.
  void abandon_step();

  /// From now on notes when each bucket is ready, is reduced and is gathered, and when the compute stream waits.
  /// Between steps; adds names. The recorder must outlive the streams' work; nullptr: no more.
  void record_into(SpanRecorder* recorder);
  /// From now on marks on the communication stream how far it has come, also in steps that are captured; nullptr: no
  /// more. Between steps; the marks are those of this reducer's buckets and must outlive the streams' work.
  void mark_into(BucketBreadcrumbs* marks);

  [[nodiscard]] ReducerStatistics statistics() const;  ///< of finished steps; call it when the streams are idle

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
