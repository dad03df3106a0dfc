#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/gradient_hook.hpp>

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
/// without a hook, are gradients that are no matrix, and matrices that would not shrink to half (compresses()); the
/// padding behind a matrix that is compressed stays as it is. A sum of rank `rank` or less is sent exactly, up to
/// rounding. All ranks get the same bits.
///
/// A matrix in which any rank has a number that is not finite becomes NaN on all ranks; its error and its Q stay as
/// they were, so that an optimizer that skips the update goes on well.
///
/// The state is the caller's memory, because it has to be kept with the training state: E_r, which differs from rank to
/// rank, and Q. Only the sum of the E_r counts in exact arithmetic, as P and Q are linear in M_r: a run that continues
/// on other ranks may divide it as it likes.
class PowerSgd final : public GradientHook {
 public:
  struct Matrix {
    std::int64_t rows = 0;  ///< 0: the gradient is no matrix
    std::int64_t columns = 0;
  };
  struct Options {
    int rank = 1;                    ///< columns of P and Q; 1 to kMaxRank
    std::uint64_t seed = 1;          ///< of the first Q, with each gradient's place in the arena; equal on all ranks
    std::vector<Matrix> matrices{};  ///< one per gradient, in ready order; row-major from its first element
  };
  static constexpr int kMaxRank = 64;

  /// True when P and Q together have at most half of the matrix's elements.
  [[nodiscard]] static bool compresses(const Matrix& matrix, int rank);
  /// Elements of `factors`: the Q of all matrices. UsageError for a rank out of range.
  [[nodiscard]] static std::int64_t factor_elements(const Options& options);

  /// errors: (n), E_r where the arena has the gradients; it ends behind the last one that is compressed, or later.
  /// factors: (factor_elements). Both contiguous, of the arena's type and on its device, f32 or on hosts f64
  /// (ShapeError, DTypeError and DeviceError, from prepare()); they outlive the hook.
  PowerSgd(Options options, const TensorView& errors, const TensorView& factors);
  ~PowerSgd() override;

  /// Begins anew: errors 0, factors random (normal numbers). Waits for the context's stream. After prepare().
  void initialise(Context& context);

  [[nodiscard]] std::string name() const override;  ///< "powersgd rank 2"
  void prepare(Context& context, Communicator& communicator, std::span<const GradientRange> ranges,
               std::span<const Bucket> buckets, const TensorView& gradients) override;
  void release() noexcept override;
  void reduce(Context& context, Communicator& communicator, int bucket, const TensorView& gradients) override;
  [[nodiscard]] std::int64_t sent_bytes(int bucket) const override;
  [[nodiscard]] bool can_be_captured() const override { return true; }
  [[nodiscard]] std::size_t bytes() const override;  ///< without errors and factors

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
