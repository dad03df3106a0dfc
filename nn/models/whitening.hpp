#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>

namespace lockstep::nn {

/// Decomposition A = V diag(values) V^T of a symmetric matrix A. The columns of V are the eigenvectors of A.
struct EigenSystem {
  std::vector<double> values;  ///< eigenvalues, descending
  /// (n, n): row i is the eigenvector of values[i], with length 1; the element of largest size is positive.
  std::vector<double> vectors;
};

/// Decomposes a symmetric matrix (n, n), given row by row, by Jacobi's rotations (Golub and Van Loan, "Matrix
/// Computations", section 8.5, cyclic by rows). Each of a few sweeps takes about n^3 operations. Reads only the upper
/// triangle. UsageError unless the matrix has n * n elements, all of them finite.
[[nodiscard]] EigenSystem eigen_of_symmetric(std::span<const double> matrix, std::int64_t n);

struct WhiteningOptions {
  std::int64_t images = 5000;  ///< number of images: the first of the set, or all images if the set has fewer
  std::int64_t side = 2;       ///< side of the square patches, in pixels
  double epsilon = 5e-4;       ///< number added to the variance in each direction
};

/// Returns filters that whiten the patches of images: Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
/// section 3.2 (Page 2019, "How to train your ResNet"). Images are normalised to (value / 255 - mean) / std. S is the
/// mean of p p^T over all patches p (C, side, side), with eigenvalues l and eigenvectors v. There are 2 d filters for
/// the d = 3 side^2 directions:
///   v / sqrt(l + epsilon)  for each direction by descending l, then the same d filters with the other sign
/// The result has the shape (2 d, 3, side, side), as the weight of a convolution. The mean of the patches is not
/// subtracted. Sums are integers up to the normalisation, so the order of the images does not change them. UsageError
/// for options out of range, and for images that are smaller than a patch.
[[nodiscard]] std::vector<double> whitening_filters(const ImageDataset& images, const ChannelStatistics& statistics,
                                                    const WhiteningOptions& options = {});

}  // namespace lockstep::nn
