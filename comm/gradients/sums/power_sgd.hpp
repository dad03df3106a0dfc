#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

/// Compresses gradients by PowerSGD with error feedback (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank
/// Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithms 1 and 2). For each matrix M_r of rank r
/// of the job, which is that rank's gradient plus what earlier steps have not sent of it (its error E_r):
///
///   P = sum over ranks of M_r Q          Q: of the last step, at first random
///   P = orthonormal columns of P         kernels/low_rank.hpp
///   E_r = M_r - P (M_r^T P)^T            what this step does not send
///   Q = sum over ranks of M_r^T P
///   gradient = P Q^T
///
/// A bucket takes two all-reduces: all P together with what is not compressed, and all Q. Not compressed, so summed as
/// without a hook, are gradients that are no matrix (GradientRange::rows), and matrices that would not shrink to half
/// (compresses()); the padding behind a matrix that is compressed stays as it is. A sum of rank `rank` or less is sent
/// exactly, up to rounding. All ranks get the same bits.
///
/// A matrix in which any rank has a number that is not finite becomes NaN on all ranks; its error and its Q stay as
/// they were, so that an optimizer that skips the update goes on well.
///
/// The state is in memory of the program, because it has to be kept with the training state: E_r, which differs from
/// rank to rank, and Q. Only the sum of the E_r counts in exact arithmetic, as P and Q are linear in M_r.
class PowerSgd final : public BucketSum {
 public:
  struct Options {
    int rank = 1;            ///< columns of P and Q; 1 to kMaxRank
    std::uint64_t seed = 1;  ///< of the first Q, with each gradient's place in the arena; equal on all ranks
  };
  static constexpr int kMaxRank = 64;

  /// True when P and Q together have at most half of the elements of a matrix (rows, columns).
  [[nodiscard]] static bool compresses(std::int64_t rows, std::int64_t columns, int rank);

  /// UsageError for a rank out of range.
  explicit PowerSgd(const Options& options);
  ~PowerSgd() override;

  [[nodiscard]] std::string name() const override;  ///< "powersgd rank 2"
  /// Nor does it go with a loss scale, as E_r is in the units of the gradients that travel.
  [[nodiscard]] std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use) const override;
  /// "error": E_r where the arena has the gradients; "factors": the Q of all matrices.
  [[nodiscard]] std::vector<SumState> state(std::span<const GradientRange> ranges) const override;
  /// The error may end behind the last gradient that is compressed. Both contiguous, of the arena's type and on its
  /// device, f32 or on hosts f64 (ShapeError, DTypeError and DeviceError, from prepare()).
  void keep_in(std::span<const TensorView> state) override;
  /// Errors 0, factors random (normal numbers).
  void initialise(Context& context) override;
  void prepare(SumPlace& place) override;
  void release() noexcept override;
  void reduce(SumPlace& place, int bucket, const TensorView& gradients) override;
  [[nodiscard]] std::int64_t sent_bytes(int bucket) const override;
  [[nodiscard]] bool can_be_captured() const override { return true; }
  [[nodiscard]] std::size_t bytes() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
