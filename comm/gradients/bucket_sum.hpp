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

/// In which order the gradients of the ranks are added.
enum class SumOrder : unsigned char {
  library,  ///< that of the communicator's all-reduce or reduce-scatter: it depends on ranks, sizes, and the library
  ranks,    ///< rank 0, 1, 2, ..., for every element: the same bits whatever the buckets are. An all-to-all, a sum in
            ///< f64 (on a GPU f32, in runs of 8 ranks; kernels/reduce.hpp) and an all-gather take the place of the
            ///< all-reduce; memory for the largest bucket
  tree      ///< as `ranks`, but neighbours in pairs, then pairs of pairs, ..., in the type of the arena: the upper part
            ///< of a GradientTree. An odd one out waits for the next round. One rank sends nothing
};

/// How a program asks for the sums of its gradients (make_bucket_sum.hpp).
struct SumOptions {
  /// The type in which gradients are sent and added. f32: as the arena is. bf16 or f16 (the arena is then f32):
  /// elements are rounded to this type before the all-reduce, and so is each addition (with SumOrder::ranks, each sum
  /// once); every rank gets the same bits. This halves the bytes and costs one pass before and one after. f16 ends at
  /// 65504: sums that may exceed it need a loss scale.
  DType dtype = DType::f32;
  SumOrder order = SumOrder::library;
  std::string compress{};             ///< the name of a sum of its own, with an argument ("NAME:4"); empty: none
  std::shared_ptr<BucketSum> hook{};  ///< a sum of the program's own; this rank's alone, for one reducer at a time
};

/// What a step does with its gradients besides, as far as a way to sum them may not fit.
struct SumUse {
  bool divided = false;        ///< each rank gets the sums of its own shards (ReducerOptions::shards)
  bool virtual_ranks = false;  ///< a rank has added the gradients of several virtual ranks in pairs
  bool loss_scale = false;     ///< gradients are multiplied by a loss scale
};

/// The fields that a way to sum may not fit: `hook`, `order` and `dtype` of SumOptions, the others of the step.
enum class SumField : unsigned char { hook, order, dtype, strategy, virtual_ranks, loss_scale };
struct Misfit {
  SumField field = SumField::hook;
  std::string reason{};  ///< may be empty
};

/// A tensor that a sum keeps from step to step, in memory of the program, which saves it: one dimension, of the type
/// and on the device of the gradients.
struct SumState {
  std::string name;           ///< "error"; a checkpoint names the tensor by it
  std::int64_t elements = 0;  ///< not used with of_gradients
  /// The layout is that of the gradients. Each rank has its own, and only the sum over the ranks counts: a run that
  /// goes on with other ranks may divide the sum as it likes, and one whose checkpoint lacks the tensor begins with 0.
  /// false: equal on all ranks.
  bool of_gradients = false;
};

/// Where a BucketSum works: the buckets of a reducer and its communication stream.
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
  std::vector<Shards> shards;  ///< of each bucket, in elements of the bucket: which part a rank may add
  bool divided;                ///< a rank gets the sums of its own part and of the rest; false: all sums
  TensorView gradients;        ///< the arena (n); reduce() gets elements [bucket.begin, bucket.end)
  /// Computes on the stream; lives as long as the reducer. The first call makes it, so prepare() must call. DeviceError
  /// when the gradients are not on the stream's device.
  [[nodiscard]] Context& context();

  /// This rank's part of a tensor of a bucket, the parts of all ranks, and the rest.
  [[nodiscard]] TensorView own(int bucket, const TensorView& of) const;
  [[nodiscard]] TensorView parts(int bucket, const TensorView& of) const;
  [[nodiscard]] TensorView rest(int bucket, const TensorView& of) const;
  [[nodiscard]] std::int64_t largest() const;  ///< elements of the largest bucket

 private:
  std::unique_ptr<Context> context_;
};

/// A way to sum the gradients of a bucket over the ranks: all-reduce, sums in an order, compression, a hook of the
/// program. A GradientReducer decides when, and calls it for one bucket after the other, on all ranks in the same
/// order. Each rank has its own, for one reducer at a time.
class BucketSum {
 public:
  BucketSum() = default;
  BucketSum(const BucketSum&) = delete;
  BucketSum& operator=(const BucketSum&) = delete;
  virtual ~BucketSum() = default;

  /// One line: it stands in errors, in the header of a program and in the identity of a run, so it holds the numbers
  /// that decide what the sum does ("own scale 2"). Empty: SumOptions::dtype and order say everything.
  [[nodiscard]] virtual std::string name() const = 0;
  /// The first field that the sum does not go with. A sum of its own goes with none but the loss scale.
  [[nodiscard]] virtual std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use) const;
  /// Whether it takes SumPlace::divided.
  [[nodiscard]] virtual bool divides() const { return false; }

  /// What the sum keeps from step to step; checkpoints hold these tensors only.
  [[nodiscard]] virtual std::vector<SumState> state(std::span<const GradientRange> /*ranges*/) const { return {}; }
  /// The memory of state(), in its order, before prepare(); it outlives the sum.
  virtual void keep_in(std::span<const TensorView> state);
  /// Begins anew: sets the tensors of state(), which are 0. Waits for the context's stream. After prepare().
  virtual void initialise(Context& context);

  /// Called once, by the reducer's constructor, which may fail on one rank alone. Here a sum allocates and plans.
  virtual void prepare(SumPlace& place);
  /// Called once, by the reducer's destructor, when the stream has passed all work: the context goes, and what the sum
  /// has made with it has to go before.
  virtual void release() noexcept {}
  /// Enqueues on the stream what turns this rank's gradients of bucket `bucket` (1-D, contiguous, of the type of the
  /// arena) into what the update gets, in place: their sum over the ranks, or something near it, the same bits on every
  /// rank. It can change no size. The ranks' calls of the communicator must match, and nothing may allocate or wait. An
  /// exception ends the step on this rank with name() and the bucket in front of its text; the others then wait for
  /// this rank as after any rank that fails. Work that is enqueued reports at the stream's next use.
  virtual void reduce(SumPlace& place, int bucket, const TensorView& gradients) = 0;
  /// Bytes that reduce() hands to the communicator for a bucket; negative: the sum does not say.
  [[nodiscard]] virtual std::int64_t sent_bytes(int /*bucket*/) const { return -1; }
  /// The type that is sent, of gradients of that type.
  [[nodiscard]] virtual DType sent_as(DType gradients) const { return gradients; }
  /// Whether a Graph may capture reduce() and launch it again: it then decides nothing on the host.
  [[nodiscard]] virtual bool can_be_captured() const { return false; }
  [[nodiscard]] virtual std::size_t bytes() const { return 0; }  ///< of its own memory, without state()
};

/// A hook of your own from a function: the whole of the contract is that of BucketSum::reduce().
///
///   comm::make_gradient_hook("own", [](const TensorView& gradients, Stream& stream, comm::Communicator& ranks) {
///     ranks.all_reduce(stream, gradients);
///   });
using HookFunction = std::function<void(const TensorView& gradients, Stream& stream, Communicator& communicator)>;
[[nodiscard]] std::shared_ptr<BucketSum> make_gradient_hook(std::string name, HookFunction reduce);

}  // namespace lockstep::comm
