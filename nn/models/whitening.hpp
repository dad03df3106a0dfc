#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>

namespace lockstep::nn {

/// What A = V diag(values) V^T of a symmetric matrix is made of.
struct EigenSystem {
  std::vector<double> values;   ///< descending
  std::vector<double> vectors;  ///< (n, n): row i belongs to values[i]; of length 1, their largest element is positive
};

/// Of a symmetric matrix (n, n), row by row, by Jacobi's rotations (Golub and Van Loan, "Matrix Computations", section
/// 8.5, cyclic by rows): n^3 operations a sweep, of which a few are needed. Reads the upper triangle. UsageError when
/// the matrix has not n * n elements, or one that is not finite.
[[nodiscard]] EigenSystem eigen_of_symmetric(std::span<const double> matrix, std::int64_t n);

struct WhiteningOptions {
  std::int64_t images = 5000;  ///< the first of the set, or all when there are fewer
  std::int64_t side = 2;       ///< of the square patches
  double epsilon = 5e-4;       ///< added to the variance in each direction
};

/// Filters that whiten the patches of images: Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", section
/// 3.2 (Page 2019, "How to train your ResNet"). With the mean S of p p^T over all patches p (C, side, side) of the
/// images, normalised to (value / 255 - mean) / std, and its eigenvalues l and eigenvectors v:
///   v / sqrt(l + epsilon)  for each of the d = 3 side^2 directions by descending l, then the same with the other sign
/// (2 d, 3, side, side), as the weight of a convolution. The mean of the patches is not subtracted. Sums are in
/// integers up to the normalisation, so the order of images does not matter. UsageError for options out of range, and
/// images that are smaller than a patch.
[[nodiscard]] std::vector<double> whitening_filters(const ImageDataset& images, const ChannelStatistics& statistics,
                                                    const WhiteningOptions& options = {});

}  // namespace lockstep::nn
