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
  /// Order 0, 1, 2, ... of the ranks for every element, so that the result does not depend on the buckets. In place of
  /// an all-reduce, the ranks run an all-to-all, a sum in f64 (on a GPU, in f32 within groups of 8 ranks;
  /// kernels/reduce.hpp) and an all-gather. This takes additional memory of the size of the largest bucket.
  ranks,
  /// Like `ranks`, but adds in the type of the arena and in a binary tree: neighbouring ranks in pairs, then pairs of
  /// pairs, and so on. This tree continues the tree of GradientTree. A rank without a partner waits for the next round.
  /// A single rank sends nothing.
  tree
};

/// A program's choice of how its gradients are summed (make_bucket_sum.hpp).
struct SumOptions {
  /// Type in which gradients are sent and added. f32 means the type of the arena. With bf16 or f16 (for an arena of
  /// f32), elements are rounded to this type before they are sent. SumOrder::library rounds each addition, too;
  /// SumOrder::ranks rounds only the complete sums. Every rank gets the same bits. The 16-bit types halve the sent
  /// bytes, but take one pass over the gradients before the all-reduce and one pass after it. The largest f16 number is
  /// 65504.
  DType dtype = DType::f32;
  SumOrder order = SumOrder::library;
  std::string compress{};  ///< name of a sum that compresses, with its argument ("NAME:4"); empty: no compression
  /// A BucketSum that the program itself implements. Each rank has its own object, which serves one reducer at a time.
  std::shared_ptr<BucketSum> hook{};
};

/// Properties of training steps that a BucketSum may not support.
struct SumUse {
  bool divided = false;        ///< true: each rank gets the sums of its own shards (ReducerOptions::shards)
  bool virtual_ranks = false;  ///< true: each rank adds the gradients of several virtual ranks in pairs
  bool loss_scale = false;     ///< true: gradients are multiplied by a loss scale
};

/// Fields that some kinds of BucketSum do not support. `hook`, `order` and `dtype` are fields of SumOptions; the others
/// are fields of SumUse, where `strategy` stands for SumUse::divided.
enum class SumField : unsigned char { hook, order, dtype, strategy, virtual_ranks, loss_scale };
struct Misfit {
  SumField field = SumField::hook;
  std::string reason{};  ///< explanation for the user; may be empty
};

/// A tensor that a BucketSum keeps from step to step. The program owns the memory and saves the tensor in checkpoints.
/// The tensor has one dimension, and the type and device of the gradients.
struct SumState {
  std::string name;           ///< name of the tensor in a checkpoint: "error"
  std::int64_t elements = 0;  ///< number of elements; ignored if of_gradients is true
  /// If false, the tensor is equal on all ranks. If true, the tensor has the layout of the parameters' gradients, and
  /// each rank has its own values. Only their sum over the ranks may affect the results, because a run that continues
  /// with another number of ranks divides this sum between its ranks in any way. A run whose checkpoint lacks the
  /// tensor begins with 0.
  ///
  /// The arena of a reducer may be longer than the tensor: one more range holds the sum of the samples' weights, by
  /// which a step divides its gradients. A BucketSum must sum this range exactly, without compression.
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
  std::vector<Shards> shards;  ///< division of each bucket between the ranks; indexes count from the bucket's begin
  bool divided;                ///< true: a rank gets only the sums of own() and rest(); false: a rank gets all sums
  TensorView gradients;        ///< 1-D arena of all gradients; reduce() gets elements [bucket.begin, bucket.end)
  /// Returns a context that computes on `stream`. The first call makes the context, so BucketSum::prepare() must make
  /// the first call. The context lives as long as the reducer. Throws DeviceError if `gradients` are on another device.
  [[nodiscard]] Context& context();

  /// `of` is a tensor of bucket `bucket`. own() returns this rank's part of `of`, and parts() returns the parts of all
  /// ranks. rest() returns the elements after all parts, which every rank owns (Shards::rest).
  [[nodiscard]] TensorView own(int bucket, const TensorView& of) const;
  [[nodiscard]] TensorView parts(int bucket, const TensorView& of) const;
  [[nodiscard]] TensorView rest(int bucket, const TensorView& of) const;
  [[nodiscard]] std::int64_t largest() const;  ///< number of elements of the largest bucket

 private:
  std::unique_ptr<Context> context_;
};

/// A way to sum the gradients of a bucket over the ranks: an all-reduce, sums in a fixed order, compression, or a hook
/// of the program. A GradientReducer calls reduce() for one bucket after the other, in the same order on all ranks.
/// Each rank has its own BucketSum, for one reducer at a time.
class BucketSum {
 public:
  BucketSum() = default;
  BucketSum(const BucketSum&) = delete;
  BucketSum& operator=(const BucketSum&) = delete;
  virtual ~BucketSum() = default;

  /// Returns one line that names this kind of sum, with the numbers that change its result ("own scale 2"). Errors, a
  /// program's first lines and checkpoints contain this line. Empty if SumOptions::dtype and order describe the sum
  /// completely.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns the first field that is set but not supported by this BucketSum. By default, only a loss scale is
  /// supported.
  [[nodiscard]] virtual std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use) const;
  /// Returns true if this BucketSum supports SumPlace::divided == true.
  [[nodiscard]] virtual bool divides() const { return false; }

  /// Returns the tensors that this BucketSum keeps from step to step. A checkpoint holds no other data of this object.
  [[nodiscard]] virtual std::vector<SumState> state(std::span<const GradientRange> /*ranges*/) const { return {}; }
  /// Receives the memory of the tensors of state(), in the same order, before prepare(). The memory outlives this
  /// object.
  virtual void keep_in(std::span<const TensorView> state);
  /// Sets the tensors of state() to their first values at the start of a run. The tensors are 0 before this call.
  /// Called after prepare(). Waits for the stream of `context`.
  virtual void initialise(Context& context);

  /// Allocates memory and plans the work. The reducer's constructor calls this once; it may fail on one rank alone.
  virtual void prepare(SumPlace& place);
  /// Frees the objects that this BucketSum has made with SumPlace::context(), because the context is destroyed
  /// afterwards. The reducer's destructor calls release() once, after all work on the stream is complete.
  virtual void release() noexcept {}
  /// Replaces `gradients` by their sum over the ranks, or by an approximation of this sum with the same bits on every
  /// rank. `gradients` are this rank's gradients of bucket `bucket` (1-D, contiguous, in the arena's type). reduce()
  /// must only enqueue work on place.stream: it must not allocate or wait. All ranks must make the same calls of the
  /// communicator.
  ///
  /// If a gradient of any rank is not finite, the result must not be finite, and the tensors of state() must not
  /// change, because the optimizer then skips the update.
  ///
  /// An exception of reduce() ends the step on this rank only. The reducer puts name() and the bucket before the
  /// exception's text. An error in enqueued work is thrown at the stream's next use.
  virtual void reduce(SumPlace& place, int bucket, const TensorView& gradients) = 0;
  /// Returns the bytes that reduce() passes to the communicator for a bucket; negative if unknown.
  [[nodiscard]] virtual std::int64_t sent_bytes(int /*bucket*/) const { return -1; }
  /// Returns the type in which gradients of type `gradients` are sent.
  [[nodiscard]] virtual DType sent_as(DType gradients) const { return gradients; }
  /// Returns true if a Graph may capture and launch reduce(). If true, reduce() must decide nothing on the host.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }
  [[nodiscard]] virtual std::size_t bytes() const { return 0; }  ///< bytes of memory, without the tensors of state()
};

/// Makes a hook from a function, which must do the work that BucketSum::reduce() describes.
///
///   comm::make_gradient_hook("own", [](const TensorView& gradients, Stream& stream, comm::Communicator& ranks) {
///     ranks.all_reduce(stream, gradients);
///   });
using HookFunction = std::function<void(const TensorView& gradients, Stream& stream, Communicator& communicator)>;
[[nodiscard]] std::shared_ptr<BucketSum> make_gradient_hook(std::string name, HookFunction reduce);

}  // namespace lockstep::comm
