#pragma once

#include <array>
#include <cstdint>

#include <lockstep/nn/data/partition.hpp>

namespace lockstep::nn {

/// A pseudo-random permutation of [0, size), keyed by (seed, epoch, part), without a table. It is a Feistel network
/// over the next power of two, which is applied again until the result is below size (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", 2002). Constant time and memory; the same on every machine.
class Permutation {
 public:
  /// Throws UsageError unless size > 0. Do not pass part 1: folder_list.cpp draws from the random numbers of that part.
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
  std::int64_t batch_size = 0;  ///< samples of a global batch, over all ranks
  int ranks = 1;
  int rank = 0;
  bool shuffle = true;     ///< false: the order of the data set (evaluation)
  bool keep_last = false;  ///< true: the last batch of an epoch may be smaller; false: a smaller last batch is left out
  std::uint64_t seed = 0;
  /// Parts into which a batch is divided: a multiple of ranks. Each rank has parts / ranks consecutive parts. 0: one
  /// for each rank.
  std::int64_t parts = 0;
  /// Number of samples that lie side by side in the data set and stay near each other in the order, so that a disk
  /// reads many at once. 0: no chunks, any sample may follow any other.
  std::int64_t chunk = 0;
};

/// Decides which samples each rank reads. All functions depend only on the options and on their arguments; there is no
/// state.
///
/// The order of an epoch is a permutation of all samples (or the identity). Global batch g holds positions [g *
/// batch_size, min((g + 1) * batch_size, size)) of the order, and each rank has a contiguous share of the batch. With n
/// samples in the batch, the first n mod parts parts have one sample more than the others (partition_of()). No sample
/// is drawn twice in an epoch, and the global batches do not depend on the number of ranks.
///
/// With `chunk`, samples [c * chunk, (c + 1) * chunk) are chunk c; the last chunk may be smaller. Two permutations make
/// the order. Permutation(seed, epoch, chunks) permutes the chunks of the data set. The permuted row of chunks is then
/// cut into windows of 16 or more chunks, and a second permutation mixes the samples within each window. There are
/// max(1, chunks / 16) windows, rounded down. Window w has the chunks of partition_of(chunks, windows, w), and the part
/// of its Permutation is w + 2. So the samples of a batch come from 16 chunks in different places of the data set, and
/// a reader of window after window reads whole chunks. Where samples lie class by class, a batch may have few classes,
/// and training suffers (chunks_separate_classes()).
///
/// `skipped`: number of positions left out at the beginning of the order; batch 0 begins after them. So a run can
/// continue within an epoch that it began with batches of another size.
class Sampler {
 public:
  /// Throws UsageError for sizes that are not positive, a rank outside [0, ranks), a batch_size smaller than ranks or
  /// parts, parts that are no multiple of ranks, a chunk below 0, and for a data set without a full batch if keep_last
  /// is off.
  explicit Sampler(const SamplerOptions& options);

  [[nodiscard]] const SamplerOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t batches() const { return batches_; }  ///< number per epoch
  /// Number of batches of an epoch without its first `skipped` positions, 0 <= skipped <= size. May be 0.
  [[nodiscard]] std::int64_t batches(std::int64_t skipped) const;
  /// Largest share of any rank, the rows that a batch buffer needs: ceil(batch_size / ranks) if parts equals ranks.
  [[nodiscard]] std::int64_t capacity() const;

  /// Number of samples, over all ranks, of batch `batch` in [0, batches(skipped)) of an epoch.
  [[nodiscard]] std::int64_t samples(std::int64_t batch, std::int64_t skipped = 0) const;
  /// Range that part `part` of this rank, in [0, parts / ranks), has within the rank's share of a global batch of
  /// `samples` samples.
  [[nodiscard]] Partition part_of_share(std::int64_t samples, std::int64_t part) const;
  /// The share of rank options().rank, as positions in the order of the epoch. Empty if the last batch has fewer
  /// samples than there are ranks and this rank gets none.
  [[nodiscard]] Partition share(std::int64_t batch, std::int64_t skipped = 0) const;

  static constexpr std::int64_t kWindowChunks = 16;

  /// The sample at each position of an epoch's order.
  class Order {
   public:
    [[nodiscard]] std::int64_t operator()(std::int64_t position) const {
      return chunk_ > 0 ? in_chunks(position) : shuffle_ ? permutation_(position) : position;
    }

    /// Number of windows. An order without chunks has one window, which holds all positions.
    [[nodiscard]] std::int64_t windows() const { return windows_; }
    [[nodiscard]] std::int64_t window_of(std::int64_t position) const;
    [[nodiscard]] Partition positions_of(std::int64_t window) const;
    [[nodiscard]] std::int64_t most_positions() const;  ///< upper bound of the positions of a window of any epoch

   private:
    friend class Sampler;
    Order(const SamplerOptions& options, std::int64_t epoch);
    [[nodiscard]] std::int64_t in_chunks(std::int64_t position) const;
    /// First position, before the shuffle within windows, of the chunk at place `place` of the permuted row of chunks.
    [[nodiscard]] std::int64_t begin_of(std::int64_t place) const;
    [[nodiscard]] std::int64_t place_of(std::int64_t position) const;

    std::uint64_t seed_;
    std::int64_t epoch_;
    std::int64_t size_;
    bool shuffle_;
    std::int64_t chunk_;   ///< samples of a chunk; 0: no chunks
    std::int64_t chunks_;  ///< number of chunks; 1 without chunks
    std::int64_t windows_;
    Permutation permutation_;      ///< permutes the chunks, or all samples without chunks
    std::int64_t last_place_ = 0;  ///< place in the permuted row of the data set's last chunk
    std::int64_t missing_ = 0;     ///< samples by which that chunk is smaller than the others
  };
  [[nodiscard]] Order order(std::int64_t epoch) const { return {options_, epoch}; }

 private:
  /// The share of rank `rank` in a batch of positions [0, samples).
  [[nodiscard]] Partition share_of(std::int64_t samples, int rank) const;
  SamplerOptions options_;
  std::int64_t batches_ = 0;
};

}  // namespace lockstep::nn
