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

class BucketBreadcrumbs;  // declared in bucket_breadcrumbs.hpp

/// Seconds of gradient communication, summed over the steps. Steps captured into a Graph are neither timed nor counted.
struct ReducerStatistics {
  std::int64_t steps = 0;
  /// Time from start to end of each sum, with the conversions of 16-bit buckets, and of each gather.
  double total_s = 0;
  /// Time that the compute stream waited in finish(), wait_for_started() and finish_gather(); total_s if nothing
  /// overlaps.
  double exposed_s = 0;
  [[nodiscard]] double hidden_s() const { return total_s > exposed_s ? total_s - exposed_s : 0; }
  struct PerBucket {
    std::int64_t bytes = 0;  ///< bytes that are sent; negative: the sum does not know the number
    double total_s = 0;
  };
  std::vector<PerBucket> buckets;
};

struct ReducerOptions {
  /// Division of each bucket between the ranks; empty for no division. With shards, every rank gets only the sums of
  /// its own part, and of the elements from Shards::rest to the end of the bucket. The other parts of the gradients are
  /// then undefined (ZeRO's stage 1, Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
  /// Parameter Models", section 5.1).
  std::vector<Shards> shards{};
  /// Sum of a bucket (make_bucket_sum.hpp). nullptr: the communicator's all-reduce, or with shards its reduce-scatter.
  /// UsageError for shards with a sum that does not divide.
  std::shared_ptr<BucketSum> sum{};
};

/// Sums gradients over ranks, bucket by bucket, while backward still computes (as PyTorch DDP does). Uses only streams,
/// events and a communicator, so the same code runs over MPI on hosts and over NCCL on GPUs. R and D are events:
///
///   compute:  .. write gradients of bucket k | record R[k] | .. backward goes on ..        | wait D[last] | update
///   comm:                             wait R[k] | all_reduce(k) | record D[k] | wait R[k+1] ..
///
/// Buckets start strictly in order, so every rank issues the same sequence. A step allocates nothing. If comm ==
/// compute, or if comm is an inline stream, nothing overlaps: every bucket is reduced when it becomes ready. With a
/// communicator that can_be_captured(), a step may be captured from the compute stream into a Graph: R[0] forks the
/// communication stream from the compute stream, and finish() joins them.
class GradientReducer {
 public:
  /// `arena` is the 1-D gradient arena. Communicator, streams and arena must outlive the reducer. The constructor
  /// allocates the sum's memory. ShapeError for shards that do not match the buckets; DTypeError and DeviceError for an
  /// arena whose type or device the sum does not take.
  GradientReducer(Communicator& communicator, Stream& compute, Stream& comm, std::vector<GradientRange> gradients,
                  std::vector<Bucket> buckets, const TensorView& arena, const ReducerOptions& options = {});
  /// Waits for the communication stream, also when an exception unwinds a step. Afterwards the arena may be freed.
  ~GradientReducer();

  [[nodiscard]] const std::vector<GradientRange>& gradients() const;
  [[nodiscard]] const std::vector<Bucket>& buckets() const;
  [[nodiscard]] bool overlaps() const;  ///< false: the caller or the compute stream waits for every bucket
  [[nodiscard]] DType sent_as() const;  ///< type in which gradients are sent: the arena's type, or 16 bits
  [[nodiscard]] std::int64_t gradient_bytes() const;  ///< size of a rank's gradients in the buckets
  /// Returns the bytes of gradients that are sent in a step; negative if the sum does not know.
  [[nodiscard]] std::int64_t sent_bytes() const;
  [[nodiscard]] std::size_t bytes() const;  ///< size of the sum's own memory, without the arena
  /// Starts a step with no gradient written. StateError unless the previous step was finished or abandoned.
  void begin_step();
  /// Says that a write of gradient `index` (in ready order) was enqueued on the compute stream. StateError, with the
  /// tensor's name, if the tensor was written more often than declared, or outside a step.
  void gradient_written(int index);
  [[nodiscard]] int started() const;  ///< number of buckets that this step, or the last one, has enqueued
  /// Makes the compute stream wait for the started buckets of this step or of an abandoned step, and for gathers. Later
  /// work on the compute stream may use this reducer's communicator: every rank enqueues that work between the same
  /// buckets, and no two operations of the communicator are under way at once.
  void wait_for_started();
  /// Makes the compute stream wait for all buckets. StateError with the names of gradients that were never written.
  void finish();
  /// Gathers bucket `bucket` of `arena`, which has the gradients' layout, after the compute stream has written this
  /// rank's part. For reducers with shards, between finish() and the next step. All ranks get each other's parts on the
  /// communication stream, so parts can be sent while later parts are computed. All ranks must call it for the same
  /// buckets in the same order.
  void gather(int bucket, const TensorView& arena);
  /// Makes the compute stream wait for all gathers.
  void finish_gather();
  /// Replaces `values` (contiguous, on the compute stream's device) by the sums of values over the ranks. The compute
  /// stream waits for the sums. Call it between finish() and the next step.
  void sum(const TensorView& values);
  /// Ends a step after an error in the middle of the step, so that the next step can begin. Does nothing outside a
  /// step. Enqueued work stays enqueued: buckets that have started are reduced, the others are not. The ranks' calls
  /// must still match afterwards, so all ranks must abandon the step with the same buckets started. An example is a
  /// failed capture, because none of its work runs.
  void abandon_step();

  /// Records from now on when each bucket is ready, reduced and gathered, and when the compute stream waits. Adds names
  /// to the recorder. Only between steps. The recorder must outlive the streams' work; nullptr ends the recording.
  void record_into(SpanRecorder* recorder);
  /// Marks from now on how far the communication stream has come, also in captured steps; nullptr ends the marks. Call
  /// it only between steps. The marks must be made for this reducer's buckets and outlive the streams' work.
  void mark_into(BucketBreadcrumbs* marks);

  /// Times of finished steps; call it only while the streams are idle.
  [[nodiscard]] ReducerStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
