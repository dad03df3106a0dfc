#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/comm/gradients/shards.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

class BucketSum;

/// Order in which the gradients of the ranks are added.
enum class SumOrder : unsigned char {
  library,  ///< order of the communicator's all-reduce or reduce-scatter, which depends on ranks, sizes and library
  /// Order 0, 1, 2, ... of the ranks for every element, so the buckets do not change the bits. The all-reduce becomes
  /// an all-to-all, a sum in f64 (on a GPU f32, in runs of 8 ranks; kernels/reduce.hpp) and an all-gather. Takes memory
  /// for the largest bucket.
  ranks,
  tree  ///< like `ranks`, but in the type of the arena, and neighbours in pairs, then pairs of pairs, ...: the upper
        ///< part of a GradientTree. An odd rank waits for the next round. With one rank nothing is sent
};

/// A program's choice of how its gradients are summed (make_bucket_sum.hpp).
struct SumOptions {
  /// Type in which gradients are sent and added. f32 means the type of the arena. With bf16 or f16 (for an arena of
  /// f32), elements are rounded to this type before the all-reduce, and each addition is rounded, too (with
  /// SumOrder::ranks, only each sum); every rank gets the same bits. This halves the bytes and costs one pass before
  /// and one after. The largest f16 number is 65504: sums that may exceed it need a loss scale.
  DType dtype = DType::f32;
  SumOrder order = SumOrder::library;
  std::string compress{};  ///< name of a compressing sum, with an argument ("NAME:4"); empty: no compression
  /// The program's own sum; each rank has its own object, for one reducer at a time.
  std::shared_ptr<BucketSum> hook{};
};

/// Properties of a step that a sum may not support.
struct SumUse {
  bool divided = false;        ///< true: each rank gets the sums of its own shards (ReducerOptions::shards)
  bool virtual_ranks = false;  ///< true: a rank has added the gradients of several virtual ranks in pairs
  bool loss_scale = false;     ///< true: gradients are multiplied by a loss scale
};

/// Fields that a sum may not support: `hook`, `order` and `dtype` of SumOptions, and the fields of SumUse.
enum class SumField : unsigned char { hook, order, dtype, strategy, virtual_ranks, loss_scale };
struct Misfit {
  SumField field = SumField::hook;
  std::string reason{};  ///< may be empty
};

/// A tensor that a sum keeps from step to step. The program owns the memory and saves it. The tensor has one dimension,
/// and the type and device of the gradients.
struct SumState {
  std::string name;           ///< name of the tensor in a checkpoint: "error"
  std::int64_t elements = 0;  ///< number of elements; ignored with of_gradients
  /// true: the tensor has the layout of the gradients and differs between ranks, but only its sum over the ranks
  /// counts. A run that continues with another number of ranks may divide the sum in any way; a run whose checkpoint
  /// lacks the tensor begins with 0. false: the tensor is equal on all ranks.
  bool of_gradients = false;
};

/// Data on which a BucketSum works: the buckets of a reducer and its communication stream.
class SumPlace {
 public:
  SumPlace(Communicator& ranks, Stream& communication, std::span<const GradientRange> gradient_ranges,
           std::span<const Bucket> all_buckets, std::vector<Shards> all_shards, bool divides, const TensorView& arena)
      : communicator(ranks),
        stream(communication),
        ranges(gradient_ranges),
        buckets(all_buckets),
        shards(std::move(all_shards)),
        divided(divides),
        gradients(arena) {}
  Communicator& communicator;
  Stream& stream;
  std::span<const GradientRange> ranges;
  std::span<const Bucket> buckets;
  std::vector<Shards> shards;  ///< parts of each bucket that each rank may add, in elements of the bucket
  bool divided;          ///< true: a rank gets only the sums of its own part and of the rest; false: it gets all sums
  TensorView gradients;  ///< 1-D arena of all gradients; reduce() gets elements [bucket.begin, bucket.end)
  /// Returns the context that computes on the stream. The first call makes it, so prepare() must call this function.
  /// The context lives as long as the reducer. DeviceError if the gradients are not on the stream's device.
  [[nodiscard]] Context& context();

  /// These three return this rank's part of a bucket's tensor, the parts of all ranks, and the rest.
  [[nodiscard]] TensorView own(int bucket, const TensorView& of) const;
  [[nodiscard]] TensorView parts(int bucket, const TensorView& of) const;
  [[nodiscard]] TensorView rest(int bucket, const TensorView& of) const;
  [[nodiscard]] std::int64_t largest() const;  ///< number of elements of the largest bucket

 private:
  std::unique_ptr<Context> context_;
};

/// A way to sum the gradients of a bucket over the ranks: an all-reduce, sums in an order, compression, or a hook of
/// the program. A GradientReducer calls the sum for one bucket after the other, in the same order on all ranks. Each
/// rank has its own object, for one reducer at a time.
class BucketSum {
 public:
  BucketSum() = default;
  BucketSum(const BucketSum&) = delete;
  BucketSum& operator=(const BucketSum&) = delete;
  virtual ~BucketSum() = default;

  /// Returns one line for errors, the header of a program and the identity of a run. The line contains the numbers that
  /// change what the sum does ("own scale 2"). Empty if SumOptions::dtype and order say everything.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns the first field that the sum does not support. By default, only the loss scale is supported.
  [[nodiscard]] virtual std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use) const;
  /// Returns true if the sum supports SumPlace::divided.
  [[nodiscard]] virtual bool divides() const { return false; }

  /// Returns the tensors that the sum keeps from step to step. Checkpoints hold only these tensors.
  [[nodiscard]] virtual std::vector<SumState> state(std::span<const GradientRange> /*ranges*/) const { return {}; }
  /// Receives the memory of the tensors of state(), in the same order, before prepare(). The memory outlives the sum.
  virtual void keep_in(std::span<const TensorView> state);
  /// Sets the tensors of state(), which are 0, to their values at the start of a run. Called after prepare(). Waits for
  /// the context's stream.
  virtual void initialise(Context& context);

  /// Allocates and plans. The reducer's constructor calls this once; it may fail on one rank alone.
  virtual void prepare(SumPlace& place);
  /// Frees the objects that the sum has made with the context, because the context is destroyed afterwards. The
  /// reducer's destructor calls this once, after the stream has passed all work.
  virtual void release() noexcept {}
  /// Enqueues on the stream the work that replaces this rank's gradients of bucket `bucket` (1-D, contiguous, in the
  /// arena's type) in place by the gradients for the update: their sum over the ranks, or an approximation with the
  /// same bits on every rank. The ranks' calls of the communicator must match; nothing may allocate or wait. An
  /// exception ends the step on this rank; name() and the bucket precede its text. Then the other ranks wait for this
  /// rank, as after any rank that fails. An error in enqueued work is thrown at the stream's next use.
  virtual void reduce(SumPlace& place, int bucket, const TensorView& gradients) = 0;
  /// Returns the bytes that reduce() passes to the communicator for a bucket; negative if unknown.
  [[nodiscard]] virtual std::int64_t sent_bytes(int /*bucket*/) const { return -1; }
  /// Returns the type in which gradients of type `gradients` are sent.
  [[nodiscard]] virtual DType sent_as(DType gradients) const { return gradients; }
  /// Returns true if a Graph may capture reduce() and launch it again. reduce() must then decide nothing on the host.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }
  [[nodiscard]] virtual std::size_t bytes() const { return 0; }  ///< bytes of the sum's own memory, without state()
};

/// Makes a hook from a function, which must do the work that BucketSum::reduce() describes.
///
///   comm::make_gradient_hook("own", [](const TensorView& gradients, Stream& stream, comm::Communicator& ranks) {
///     ranks.all_reduce(stream, gradients);
///   });
using HookFunction = std::function<void(const TensorView& gradients, Stream& stream, Communicator& communicator)>;
[[nodiscard]] std::shared_ptr<BucketSum> make_gradient_hook(std::string name, HookFunction reduce);

}  // namespace lockstep::comm
