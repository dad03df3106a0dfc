#pragma once

#include <array>
#include <cstdint>

#include <lockstep/nn/data/partition.hpp>

namespace lockstep::nn {

/// A pseudo-random permutation of [0, size), keyed by (seed, epoch), without a table: a Feistel network over the next
/// power of two, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
/// Constant time and memory; the same on every machine.
class Permutation {
 public:
  Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size);  ///< UsageError unless size > 0
  [[nodiscard]] std::int64_t operator()(std::int64_t position) const;      ///< position in [0, size)

 private:
  static constexpr int kRounds = 8;
  std::array<std::uint64_t, kRounds> keys_{};
  std::uint64_t size_;
  int left_bits_ = 0;
  int right_bits_ = 0;
};

struct SamplerOptions {
  std::int64_t size = 0;        ///< samples in the data set
  std::int64_t batch_size = 0;  ///< of all ranks together
  int ranks = 1;
  int rank = 0;
  bool shuffle = true;     ///< false: the order of the data set (evaluation)
  bool keep_last = false;  ///< true: the last batch of an epoch may be smaller; false: a smaller last batch is left out
  std::uint64_t seed = 0;
  /// More parts than ranks: a multiple of ranks. A batch is divided into parts, and each rank has parts / ranks of
  /// them, one after the other. 0: one for each rank.
  std::int64_t parts = 0;
};

/// Which samples each rank reads. Pure functions of the options, the epoch and the batch; no state.
///
/// The order of an epoch is a permutation of all samples (or the identity). Global batch g holds its positions [g *
/// batch_size, min((g + 1) * batch_size, size)), and each rank a contiguous share of them: with n samples in the batch,
/// the first n mod parts parts have one sample more than the others (partition_of()). No sample is drawn twice in an
/// epoch, and the global batches do not depend on the number of ranks.
///
/// `skipped`: this many positions at the beginning of the order are left out, and batch 0 begins after them. So a run
/// can continue within an epoch that it began with batches of another size.
class Sampler {
 public:
  /// UsageError: sizes not positive, rank outside [0, ranks), batch_size smaller than ranks
  /// or parts, parts no multiple of ranks, or no full batch in the
  /// data set and keep_last off.
  explicit Sampler(const SamplerOptions& options);

  [[nodiscard]] const SamplerOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t batches() const { return batches_; }  ///< per epoch
  /// Batches of an epoch without its first `skipped` positions, 0 <= skipped <= size. May be 0.
  [[nodiscard]] std::int64_t batches(std::int64_t skipped) const;
  /// The largest share of any rank, ceil(batch_size / ranks) without further parts: the rows that a batch buffer needs.
  [[nodiscard]] std::int64_t capacity() const;

  /// The samples of all ranks together in batch `batch`, in [0, batches(skipped)), of an epoch.
  [[nodiscard]] std::int64_t samples(std::int64_t batch, std::int64_t skipped = 0) const;
  /// The samples of part `part` of this rank, in [0, parts / ranks), of a batch of `samples`: where they lie in the
  /// rank's share.
  [[nodiscard]] Partition part_of_share(std::int64_t samples, std::int64_t part) const;
  /// The share of rank options().rank, as positions in the order of the epoch; empty when the last batch has fewer
  /// samples than there are ranks and this rank gets none.
  [[nodiscard]] Partition share(std::int64_t batch, std::int64_t skipped = 0) const;

  /// The sample at each position of an epoch's order.
  class Order {
   public:
    [[nodiscard]] std::int64_t operator()(std::int64_t position) const {
      return shuffle_ ? permutation_(position) : position;
    }

   private:
    friend class Sampler;
    Order(const SamplerOptions& options, std::int64_t epoch)
        : permutation_(options.seed, epoch, options.size), shuffle_(options.shuffle) {}
    Permutation permutation_;
    bool shuffle_;
  };
  [[nodiscard]] Order order(std::int64_t epoch) const { return {options_, epoch}; }

 private:
  /// The share of a rank in [0, samples).
  [[nodiscard]] Partition share_of(std::int64_t samples, int rank) const;
  SamplerOptions options_;
  std::int64_t batches_ = 0;
};

}  // namespace lockstep::nn
