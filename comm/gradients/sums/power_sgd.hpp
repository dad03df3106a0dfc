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
/// Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithms 1 and 2). On the job's rank r, E_r is
/// the error of a gradient: the part that earlier steps have not sent. M_r is the gradient's matrix plus E_r. One step:
///
///   P = sum over ranks of M_r Q          (with the Q of the last step; at first Q is random)
///   P = orthonormal columns of P         (kernels/low_rank.hpp)
///   E_r = M_r - P (M_r^T P)^T            (the part that this step does not send)
///   Q = sum over ranks of M_r^T P
///   gradient = P Q^T
///
/// A bucket takes two all-reduces: the first sums all P and the uncompressed gradients, the second all Q. Two kinds of
/// gradients are not compressed: gradients that are no matrix (GradientRange::rows), and matrices that would not shrink
/// to half (compresses()). The padding after a compressed matrix does not change. If the sum of the M_r has a matrix
/// rank of at most Options::rank, the result is exact, up to rounding. All ranks get the same bits.
///
/// If a number of a matrix is not finite on some rank, the matrix's gradient becomes NaN on all ranks. The matrix's
/// error and Q do not change, so an optimizer may skip the update and continue.
///
/// The state is Q, which is equal on all ranks, and E_r, which each rank has for itself. The program owns the memory of
/// the state and saves it in checkpoints. In exact arithmetic, only the sum of E_r over the ranks affects the results,
/// because both sums over the ranks are linear in M_r.
class PowerSgd final : public BucketSum {
 public:
  struct Options {
    int rank = 1;            ///< number of columns of P and Q; 1 to kMaxRank
    std::uint64_t seed = 1;  ///< seed of the first Q; must be equal on all ranks
  };
  static constexpr int kMaxRank = 64;

  /// Returns true if P and Q together have at most half as many elements as a matrix of `rows` x `columns`.
  [[nodiscard]] static bool compresses(std::int64_t rows, std::int64_t columns, int rank);

  /// Throws UsageError unless options.rank is from 1 to kMaxRank.
  explicit PowerSgd(const Options& options);
  ~PowerSgd() override;

  [[nodiscard]] std::string name() const override;  ///< text such as "powersgd rank 2"
  /// Returns the first field that the sum does not support, as BucketSum::misfit() does. A loss scale is not supported,
  /// because E_r is kept in the units of the sent gradients.
  [[nodiscard]] std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use) const override;
  /// Returns two tensors: "error" is E_r in the layout of the gradient arena; "factors" is the Q of all matrices.
  [[nodiscard]] std::vector<SumState> state(std::span<const GradientRange> ranges) const override;
  /// Takes the memory for the tensors of state(). The memory of "error" may end after the last compressed matrix. Both
  /// tensors must be contiguous, on the arena's device and of its type, which is f32 or (on hosts) f64; otherwise
  /// prepare() throws ShapeError, DTypeError or DeviceError.
  void keep_in(std::span<const TensorView> state) override;
  /// Sets the tensor "error" to 0 and the tensor "factors" to random normal numbers.
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
