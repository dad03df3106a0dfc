#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>

namespace lockstep::nn {

/// Decomposition A = V diag(values) V^T of a symmetric matrix A. The columns of V are the eigenvectors of A.
struct EigenSystem {
  std::vector<double> values;  ///< eigenvalues, descending
  /// Matrix (n, n) whose row i is the eigenvector for values[i]. Each row has length 1, and its element of largest
  /// absolute value is positive.
  std::vector<double> vectors;
};

/// Decomposes a symmetric matrix (n, n), given row by row, by Jacobi's rotations (Golub and Van Loan, "Matrix
/// Computations", section 8.5, cyclic by rows). Each of a few sweeps takes about n^3 operations. Reads only the upper
/// triangle. Throws UsageError unless `matrix` has n * n elements and all of them are finite.
[[nodiscard]] EigenSystem eigen_of_symmetric(std::span<const double> matrix, std::int64_t n);

struct WhiteningOptions {
  std::int64_t images = 5000;  ///< number of images to read, from the start of the set; all images if the set has fewer
  std::int64_t side = 2;       ///< side of the square patches, in pixels
  double epsilon = 5e-4;       ///< number added to the variance of the patches in each direction
};

/// Returns filters that whiten the patches of images: Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
/// section 3.2 (Page 2019, "How to train your ResNet"). Images are normalised to (value / 255 - mean) / std. Let S be
/// the mean of p p^T over all patches p of shape (3, side, side); S has d = 3 side^2 eigenvalues l with eigenvectors v.
/// The 2 d filters are
///   v / sqrt(l + epsilon)  for each eigenvector by descending l, then the same d filters with the other sign
/// The result has the shape (2 d, 3, side, side) of a convolution's weight. The mean of the patches is not subtracted.
/// The sums over patches are integers, and normalisation comes after them, so the order of the images does not change
/// the result. Throws UsageError for options out of range, and for images that are smaller than a patch.
[[nodiscard]] std::vector<double> whitening_filters(const ImageDataset& images, const ChannelStatistics& statistics,
                                                    const WhiteningOptions& options = {});

}  // namespace lockstep::nn
