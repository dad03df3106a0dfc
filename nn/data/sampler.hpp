#pragma once

#include <array>
#include <cstdint>

#include <lockstep/nn/data/partition.hpp>

namespace lockstep::nn {

/// A pseudo-random permutation of [0, size), keyed by (seed, epoch, part), without a table. A Feistel network permutes
/// the numbers below the next power of two; the network is applied again until the result is below `size` (Black and
/// Rogaway, "Ciphers with arbitrary finite domains", 2002). Takes constant time and memory. The permutation is the same
/// on every machine.
class Permutation {
 public:
  /// Throws UsageError unless size > 0. Do not pass part 1: folder_list.cpp uses the random numbers of that part.
  Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size, std::uint64_t part = 0);
  [[nodiscard]] std::int64_t operator()(std::int64_t position) const;  ///< returns the value at a position in [0, size)
  [[nodiscard]] std::int64_t position_of(std::int64_t value) const;    ///< returns the position of a value in [0, size)

 private:
  static constexpr int kRounds = 8;
  std::array<std::uint64_t, kRounds> keys_{};
  std::uint64_t size_;
  int left_bits_ = 0;
  int right_bits_ = 0;
};

struct SamplerOptions {
  std::int64_t size = 0;        ///< number of samples in the data set
  std::int64_t batch_size = 0;  ///< number of samples of a global batch, over all ranks
  int ranks = 1;
  int rank = 0;
  bool shuffle = true;     ///< false: samples keep the order of the data set, as for evaluation
  bool keep_last = false;  ///< true: the last batch of an epoch may be smaller; false: such a batch is left out
  std::uint64_t seed = 0;
  /// Number of parts into which a batch is divided, a multiple of `ranks`. Each rank has parts / ranks consecutive
  /// parts. 0: one part for each rank.
  std::int64_t parts = 0;
  /// Number of samples of a chunk: neighbours in the data set that stay near each other in the shuffled order, so that
  /// a disk reads many samples at once. 0: no chunks, so any sample may follow any other sample.
  std::int64_t chunk = 0;
};

/// Decides which samples each rank reads. All functions depend only on the options and on their arguments.
///
/// The order of an epoch is a permutation of all samples, or the identity if `shuffle` is false. Global batch g holds
/// positions [g * batch_size, min((g + 1) * batch_size, size)) of the order, and each rank has a contiguous share of
/// the batch. In a batch of n samples, the first n mod `parts` parts have one sample more than all other parts
/// (partition_of()). No sample is drawn twice in an epoch. The global batches do not depend on the number of ranks.
///
/// If `chunk` is set, samples [c * chunk, (c + 1) * chunk) of the data set are chunk c; the last chunk may be smaller.
/// Two permutations make the order:
/// - Permutation(seed, epoch, chunks) permutes the chunks. The permuted row of chunks is then cut into chunks / 16
///   windows, rounded down, but at least 1. Window w has the chunks of partition_of(chunks, windows, w).
/// - A Permutation with part w + 2 mixes the samples within window w.
///
/// Thus a window has all samples of its chunks, and the samples of a batch come from about 16 chunks all over the data
/// set. If the data set is sorted by class, a batch may have few classes, which slows training
/// (chunks_separate_classes()).
///
/// `skipped` is the number of positions left out at the beginning of the order; batch 0 begins after these positions. A
/// run uses `skipped` to continue within an epoch that was begun with batches of another size.
class Sampler {
 public:
  /// Throws UsageError if a size is not positive, `rank` lies outside [0, ranks), batch_size is smaller than `ranks` or
  /// `parts`, `parts` is not a multiple of `ranks`, or `chunk` is below 0. If keep_last is false, also throws
  /// UsageError if the data set is smaller than a batch.
  explicit Sampler(const SamplerOptions& options);

  [[nodiscard]] const SamplerOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t batches() const { return batches_; }  ///< number of batches per epoch
  /// Returns the number of batches of an epoch without its first `skipped` positions, 0 <= skipped <= size. The result
  /// may be 0.
  [[nodiscard]] std::int64_t batches(std::int64_t skipped) const;
  /// Returns the number of rows that a batch buffer needs: the size of the largest share of any rank. If `parts` equals
  /// `ranks`, the result is ceil(batch_size / ranks).
  [[nodiscard]] std::int64_t capacity() const;

  /// Returns the number of samples, over all ranks, of batch `batch` of an epoch. `batch` is in [0, batches(skipped)).
  [[nodiscard]] std::int64_t samples(std::int64_t batch, std::int64_t skipped = 0) const;
  /// Returns the range of samples of part `part` of this rank's share, counted from the begin of the share. The global
  /// batch has `samples` samples. `part` must be in [0, parts / ranks).
  [[nodiscard]] Partition part_of_share(std::int64_t samples, std::int64_t part) const;
  /// Returns the share of rank options().rank in batch `batch`, as positions in the order of the epoch. In a batch with
  /// fewer samples than ranks, the shares of some ranks are empty.
  [[nodiscard]] Partition share(std::int64_t batch, std::int64_t skipped = 0) const;

  static constexpr std::int64_t kWindowChunks = 16;

  /// Order of an epoch: maps each position to a sample.
  class Order {
   public:
    [[nodiscard]] std::int64_t operator()(std::int64_t position) const {
      return chunk_ > 0 ? in_chunks(position) : shuffle_ ? permutation_(position) : position;
    }

    /// Returns the number of windows. An order without chunks has one window, which holds all positions.
    [[nodiscard]] std::int64_t windows() const { return windows_; }
    [[nodiscard]] std::int64_t window_of(std::int64_t position) const;
    [[nodiscard]] Partition positions_of(std::int64_t window) const;
    [[nodiscard]] std::int64_t most_positions() const;  ///< upper bound for the size of any window

   private:
    friend class Sampler;
    Order(const SamplerOptions& options, std::int64_t epoch);
    [[nodiscard]] std::int64_t in_chunks(std::int64_t position) const;
    /// Returns the first position of chunk number `place` in the permuted row of chunks, before the samples within
    /// windows are mixed.
    [[nodiscard]] std::int64_t begin_of(std::int64_t place) const;
    [[nodiscard]] std::int64_t place_of(std::int64_t position) const;

    std::uint64_t seed_;
    std::int64_t epoch_;
    std::int64_t size_;
    bool shuffle_;
    std::int64_t chunk_;   ///< samples of a chunk; 0: no chunks
    std::int64_t chunks_;  ///< number of chunks; 1 if there are no chunks
    std::int64_t windows_;
    Permutation permutation_;      ///< permutes the chunks; without chunks, all samples
    std::int64_t last_place_ = 0;  ///< index of the data set's last chunk in the permuted row
    std::int64_t missing_ = 0;     ///< `chunk` minus the number of samples in the data set's last chunk
  };
  [[nodiscard]] Order order(std::int64_t epoch) const { return {options_, epoch}; }

 private:
  /// Returns the share of rank `rank` in a batch of positions [0, samples).
  [[nodiscard]] Partition share_of(std::int64_t samples, int rank) const;
  SamplerOptions options_;
  std::int64_t batches_ = 0;
};

}  // namespace lockstep::nn
