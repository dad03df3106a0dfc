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
  /// Time of all bucket sums and all gathers. The time of a sum includes conversions to and from a 16-bit type.
  double total_s = 0;
  /// Time for which the compute stream waited in finish(), wait_for_started() and finish_gather(). Equal to total_s if
  /// communication cannot overlap with computation.
  double exposed_s = 0;
  [[nodiscard]] double hidden_s() const { return total_s > exposed_s ? total_s - exposed_s : 0; }
  struct PerBucket {
    std::int64_t bytes = 0;  ///< bytes of the bucket that this rank sends in a step; negative if unknown
    double total_s = 0;
  };
  std::vector<PerBucket> buckets;
};

struct ReducerOptions {
  /// Division of each bucket between the ranks, one Shards object for each bucket. If the vector is empty, nothing is
  /// divided, and every rank gets all sums. Otherwise a rank gets only the sums of its own part of a bucket, and of the
  /// elements from Shards::rest to the end of the bucket. The rank's other gradients are then undefined (ZeRO's stage
  /// 1, Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.1).
  std::vector<Shards> shards{};
  /// Object that sums a bucket (make_bucket_sum.hpp). If it is nullptr, the reducer calls the communicator's
  /// all-reduce, or with shards its reduce-scatter. The reducer's constructor throws UsageError if there are shards
  /// and sum->divides() is false.
  std::shared_ptr<BucketSum> sum{};
};

/// Sums gradients over ranks, bucket by bucket, while backward still computes (as PyTorch DDP does). Uses only streams,
/// events and a communicator, so the same code runs over MPI on hosts and over NCCL on GPUs. R and D are events:
///
///   compute:  .. write gradients of bucket k | record R[k] | .. backward goes on ..        | wait D[last] | update
///   comm:                             wait R[k] | all_reduce(k) | record D[k] | wait R[k+1] ..
///
/// Buckets start strictly in order, so every rank issues the same sequence. A step allocates nothing. If comm ==
/// compute, or if comm is an inline stream, nothing overlaps: computation waits until each bucket is reduced. With a
/// communicator that can_be_captured(), a step may be captured from the compute stream into a Graph: R[0] forks the
/// communication stream from the compute stream, and finish() joins them.
class GradientReducer {
 public:
  /// Takes `arena`, the 1-D gradient arena. Communicator, streams and arena must outlive the reducer. Allocates the
  /// memory of options.sum. Throws ShapeError for shards that do not match the buckets, and DTypeError or DeviceError
  /// for an arena whose type or device the sum does not support.
  GradientReducer(Communicator& communicator, Stream& compute, Stream& comm, std::vector<GradientRange> gradients,
                  std::vector<Bucket> buckets, const TensorView& arena, const ReducerOptions& options = {});
  /// Waits for the communication stream, also when an exception unwinds a step. Afterwards the arena may be freed.
  ~GradientReducer();

  [[nodiscard]] const std::vector<GradientRange>& gradients() const;
  [[nodiscard]] const std::vector<Bucket>& buckets() const;
  [[nodiscard]] bool overlaps() const;  ///< false if the caller or the compute stream waits for every bucket
  [[nodiscard]] DType sent_as() const;  ///< type in which gradients are sent: the arena's type, bf16 or f16
  [[nodiscard]] std::int64_t gradient_bytes() const;  ///< number of bytes of all buckets on this rank
  /// Returns the number of bytes of gradients that this rank sends in a step; negative if unknown.
  [[nodiscard]] std::int64_t sent_bytes() const;
  [[nodiscard]] std::size_t bytes() const;  ///< BucketSum::bytes() of the bucket sum; excludes the gradient arena
  /// Starts a step in which no gradient is written yet. Throws StateError if the previous step is still open.
  void begin_step();
  /// Records that a write of gradient `index` (in ready order) was enqueued on the compute stream. Throws StateError,
  /// with the tensor's name, outside a step and if the tensor was written more often than declared.
  void gradient_written(int index);
  [[nodiscard]] int started() const;  ///< number of buckets started in the open step, else in the last step
  /// Makes the compute stream wait for the started buckets of this step or of an abandoned step, and for gathers. So
  /// later work on the compute stream may use this reducer's communicator without running two operations at once. All
  /// ranks must enqueue that work between the same two buckets.
  void wait_for_started();
  /// Makes the compute stream wait for all buckets. Throws StateError if gradients were not written, with their names.
  void finish();
  /// Gathers bucket `bucket` of `arena`, a tensor with the layout of the gradients: every rank gets the parts that the
  /// other ranks own. The gather is enqueued on the communication stream and begins after the compute stream has
  /// written this rank's part, so parts can be sent while later parts are computed. Call gather() only for reducers
  /// with shards, between finish() and the next step. All ranks must call gather() for the same buckets in the same
  /// order.
  void gather(int bucket, const TensorView& arena);
  /// Makes the compute stream wait for all gathers.
  void finish_gather();
  /// Replaces `values` (contiguous, on the compute stream's device) by the sums of `values` over the ranks. The compute
  /// stream waits for the sums. Call it between finish() and the next step.
  void sum(const TensorView& values);
  /// Ends a step after an error in the middle of the step, so that the next step can begin. Does nothing outside a
  /// step. Enqueued work stays enqueued: buckets that have started are reduced, all other buckets are not. The ranks'
  /// calls must still match afterwards, so all ranks must abandon the step with the same buckets started. A failed
  /// capture fulfils this condition, because none of its work runs on any rank.
  void abandon_step();

  /// Starts to record into `recorder` the times at which each bucket is ready, reduced and gathered, and at which the
  /// compute stream waits. Adds names to `recorder`, which must outlive the streams' work. nullptr ends the recording.
  /// Call this function only between steps; otherwise it throws StateError.
  void record_into(SpanRecorder* recorder);
  /// Starts to mark in `marks` how far the communication stream has come, also in captured steps. nullptr ends the
  /// marking. Call this function only between steps. `marks` must be made for this reducer's buckets and outlive the
  /// streams' work.
  void mark_into(BucketBreadcrumbs* marks);

  /// Returns the times of the finished steps. Call it only while the streams are idle.
  [[nodiscard]] ReducerStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
