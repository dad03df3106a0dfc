#pragma once

#include <array>
#include <cstdint>

#include <lockstep/nn/data/partition.hpp>

namespace lockstep::nn {

/// A pseudo-random permutation of [0, size), keyed by (seed, epoch, part), without a table: a Feistel network over the
/// next power of two, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
/// Constant time and memory; the same on every machine.
class Permutation {
 public:
  /// UsageError unless size > 0. part 1 is that of another use of the same numbers (folder_list.cpp).
  Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size, std::uint64_t part = 0);
  [[nodiscard]] std::int64_t operator()(std::int64_t position) const;  ///< position in [0, size)
  [[nodiscard]] std::int64_t position_of(std::int64_t value) const;    ///< the inverse; value in [0, size)

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
  /// Samples that lie side by side in the data set and stay near each other in the order, so that a disk reads many at
  /// once; 0: none do, any sample may follow any other.
  std::int64_t chunk = 0;
};

/// Which samples each rank reads. Pure functions of the options, the epoch and the batch; no state.
///
/// The order of an epoch is a permutation of all samples (or the identity). Global batch g holds its positions [g *
/// batch_size, min((g + 1) * batch_size, size)), and each rank a contiguous share of them: with n samples in the batch,
/// the first n mod parts parts have one sample more than the others (partition_of()). No sample is drawn twice in an
/// epoch, and the global batches do not depend on the number of ranks.
///
/// With `chunk`, samples [c * chunk, (c + 1) * chunk) are chunk c; the last chunk may be smaller. Two permutations make
/// the order: that of the chunks of the data set, Permutation(seed, epoch, chunks), then within each window, which is
/// 16 or more chunks one after the other in the permuted row, that of its samples. There are max(1, chunks / 16)
/// windows, rounded down, and window w has the chunks of partition_of(chunks, windows, w) and, as Permutation's part,
/// w + 2. So the samples of a batch come from 16 chunks in different places of the data set, and whoever reads window
/// after window reads whole chunks. Where samples lie class by class a batch may have few classes, and training
/// suffers (chunks_separate_classes()).
///
/// `skipped`: this many positions at the beginning of the order are left out, and batch 0 begins after them. So a run
/// can continue within an epoch that it began with batches of another size.
class Sampler {
 public:
  /// UsageError: sizes not positive, rank outside [0, ranks), batch_size smaller than ranks
  /// or parts, parts no multiple of ranks, a chunk below 0, or no full batch in the data set and keep_last off.
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

  static constexpr std::int64_t kWindowChunks = 16;

  /// The sample at each position of an epoch's order.
  class Order {
   public:
    [[nodiscard]] std::int64_t operator()(std::int64_t position) const {
      return chunk_ > 0 ? in_chunks(position) : shuffle_ ? permutation_(position) : position;
    }

    /// Of an order with chunks; else there is one window, all positions.
    [[nodiscard]] std::int64_t windows() const { return windows_; }
    [[nodiscard]] std::int64_t window_of(std::int64_t position) const;
    [[nodiscard]] Partition positions_of(std::int64_t window) const;
    [[nodiscard]] std::int64_t most_positions() const;  ///< of a window of any epoch

   private:
    friend class Sampler;
    Order(const SamplerOptions& options, std::int64_t epoch);
    [[nodiscard]] std::int64_t in_chunks(std::int64_t position) const;
    /// Where the samples of the chunk in place `place` of the permuted row begin: positions before the windows'
    /// shuffle.
    [[nodiscard]] std::int64_t begin_of(std::int64_t place) const;
    [[nodiscard]] std::int64_t place_of(std::int64_t position) const;

    std::uint64_t seed_;
    std::int64_t epoch_;
    std::int64_t size_;
    bool shuffle_;
    std::int64_t chunk_;   ///< 0: none
    std::int64_t chunks_;  ///< 1 without
    std::int64_t windows_;
    Permutation permutation_;      ///< of the chunks, or of all samples
    std::int64_t last_place_ = 0;  ///< of the last chunk, which lacks missing_ samples
    std::int64_t missing_ = 0;
  };
  [[nodiscard]] Order order(std::int64_t epoch) const { return {options_, epoch}; }

 private:
  /// The share of a rank in [0, samples).
  [[nodiscard]] Partition share_of(std::int64_t samples, int rank) const;
  SamplerOptions options_;
  std::int64_t batches_ = 0;
};

}  // namespace lockstep::nn
