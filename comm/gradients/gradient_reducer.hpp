#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Seconds of gradient communication, summed over steps since the last reset. Steps that were captured into a Graph
/// are not timed and do not count.
struct ReducerStatistics {
  std::int64_t steps = 0;
  double total_s = 0;    ///< from the start to the end of each all-reduce, with the conversions of 16-bit buckets
  double exposed_s = 0;  ///< the compute stream waited in finish(); all of total_s when nothing overlaps
  [[nodiscard]] double hidden_s() const { return total_s > exposed_s ? total_s - exposed_s : 0; }
  struct PerBucket {
    std::int64_t bytes = 0;
    double total_s = 0;
  };
  std::vector<PerBucket> buckets;
};

struct ReducerOptions {
  /// bf16 or f16: the arena is f32, and a bucket travels as its elements rounded to this type, which also adds (each
  /// addition rounded); every rank gets the same bits. Half the bytes, for one pass before and one after. f16 ends at
  /// 65504: sums that may pass it want a loss scale. f32: as the arena is.
  DType reduce_dtype = DType::f32;
};

/// Sums gradients over ranks, bucket by bucket, while backward still computes (the core of DDP). Knows only streams,
/// events and a communicator: the same code runs over MPI on hosts and over NCCL on GPUs.
///
///   compute:  .. write gradients of bucket k | record R[k] | .. backward goes on ..        | wait D[last] | update
///   comm:                             wait R[k] | all_reduce(k) | record D[k] | wait R[k+1] ..
///
/// Buckets start strictly in order, so every rank issues the same sequence. A step allocates nothing. With
/// comm == compute (or an inline comm stream) nothing overlaps and every bucket is reduced where it becomes ready.
/// A step may be captured from the compute stream into a Graph, with a communicator that can_be_captured(): the
/// communication stream is forked from it by R[0] and joined to it by finish().
class GradientReducer {
 public:
  /// arena: the gradient arena, 1-D. communicator, streams and arena outlive the reducer. With a 16-bit reduce_dtype it
  /// takes memory for the largest bucket, once; DTypeError unless the arena is f32.
  GradientReducer(Communicator& communicator, Stream& compute, Stream& comm, std::vector<GradientRange> gradients,
                  std::vector<Bucket> buckets, const TensorView& arena, const ReducerOptions& options = {});
  /// Waits for the communication stream: the arena may be freed after it, also when an exception unwinds a step.
  ~GradientReducer();

  [[nodiscard]] const std::vector<Bucket>& buckets() const;
  [[nodiscard]] DType sent_as() const;      ///< what travels: the 16-bit reduce_dtype, or the arena's type
  [[nodiscard]] std::size_t bytes() const;  ///< of memory of its own, beside the arena
  /// Forgets what is ready. StateError when the step before was neither finished nor given up.
  void begin_step();
  /// A write of gradient `index` (ready order) was enqueued on the compute stream. StateError naming the tensor when
  /// it was written more often than declared or outside a step.
  void gradient_written(int index);
  /// The compute stream waits for all buckets. StateError naming the gradients that were never written.
  void finish();
  /// Gives the step up after an error in the middle of it, so that the next one can begin; nothing outside a step. What
  /// was enqueued stays so: buckets that have started are reduced, the others are not. The ranks' calls must match
  /// afterwards too: all of them give up with the same buckets started, as when a capture fails, of which nothing runs.
  void abandon_step();

  [[nodiscard]] ReducerStatistics statistics() const;  ///< of finished steps; call when the streams are idle
  void reset_statistics();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
