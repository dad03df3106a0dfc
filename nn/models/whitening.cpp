#include <lockstep/nn/models/whitening.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

/// A symmetric matrix, which rotations make diagonal step by step, and the product of all rotations so far.
class Jacobi {
 public:
  Jacobi(std::span<const double> matrix, std::size_t n) : n_(n), a_(n * n), v_(n * n) {
    for (std::size_t i = 0; i < n; ++i) {
      v_[i * n + i] = 1;
      for (std::size_t j = 0; j < n; ++j) {
        a_[i * n + j] = matrix[std::min(i, j) * n + std::max(i, j)];
      }
    }
  }

  /// Rotates each pair of axes once. Returns false if all off-diagonal elements were already negligible.
  bool sweep() {
    bool rotated = false;
    for (std::size_t p = 0; p < n_; ++p) {
      for (std::size_t q = p + 1; q < n_; ++q) {
        const double off = a_[p * n_ + q];
        // An off-diagonal element below this bound changes no bit of the two diagonal elements.
        if (off != 0 && std::abs(off) > 1e-17 * (std::abs(a_[p * n_ + p]) + std::abs(a_[q * n_ + q]))) {
          rotate(p, q);
          rotated = true;
        }
      }
    }
    return rotated;
  }

  [[nodiscard]] double value(std::size_t i) const { return a_[i * n_ + i]; }
  [[nodiscard]] double vector(std::size_t i, std::size_t element) const { return v_[i * n_ + element]; }

 private:
  /// Makes elements (p, q) and (q, p) zero by a rotation through the smaller of the two possible angles.
  void rotate(std::size_t p, std::size_t q) {
    const double theta = (a_[q * n_ + q] - a_[p * n_ + p]) / (2 * a_[p * n_ + q]);
    const double tangent = std::copysign(1.0, theta) / (std::abs(theta) + std::hypot(theta, 1.0));
    const double cosine = 1 / std::hypot(tangent, 1.0);
    const double sine = tangent * cosine;
    for (std::size_t k = 0; k < n_; ++k) {  // rotates columns p and q
      turn(a_[k * n_ + p], a_[k * n_ + q], cosine, sine);
    }
    for (std::size_t k = 0; k < n_; ++k) {  // rotates rows p and q
      turn(a_[p * n_ + k], a_[q * n_ + k], cosine, sine);
      turn(v_[p * n_ + k], v_[q * n_ + k], cosine, sine);
    }
    a_[p * n_ + q] = a_[q * n_ + p] = 0;
  }
  static void turn(double& x, double& y, double cosine, double sine) {
    const double before = x;
    x = cosine * before - sine * y;
    y = sine * before + cosine * y;
  }

  std::size_t n_;
  std::vector<double> a_;
  std::vector<double> v_;  ///< row i holds eigenvector i
};

/// Sums over all patches of the images. `bytes` has, for each place in a patch, the sum of the bytes at this place.
/// `products` has, for each pair of places, the sum of the products of their bytes.
struct PatchSums {
  std::vector<std::int64_t> bytes;
  std::vector<std::int64_t> products;
  std::int64_t patches = 0;
};

PatchSums sums_of(const ImageDataset& images, std::int64_t count, std::int64_t side) {
  const std::int64_t height = images.height();
  const std::int64_t width = images.width();
  const auto places = static_cast<std::size_t>(3 * side * side);
  PatchSums sums{std::vector<std::int64_t>(places), std::vector<std::int64_t>(places * places), 0};
  std::vector<std::uint8_t> image(static_cast<std::size_t>(images.image_bytes()));
  std::vector<std::int32_t> patch(places);  // values of one patch in the order C, H, W
  for (std::int64_t i = 0; i < count; ++i) {
    images.read(i, image);
    for (std::int64_t y = 0; y + side <= height; ++y) {
      for (std::int64_t x = 0; x + side <= width; ++x) {
        std::size_t at = 0;
        for (std::int64_t c = 0; c < 3; ++c) {
          for (std::int64_t h = y; h < y + side; ++h) {
            for (std::int64_t w = x; w < x + side; ++w) {
              patch[at++] = image[static_cast<std::size_t>((h * width + w) * 3 + c)];
            }
          }
        }
        for (std::size_t a = 0; a < places; ++a) {
          sums.bytes[a] += patch[a];
          for (std::size_t b = a; b < places; ++b) {
            sums.products[a * places + b] += patch[a] * patch[b];
          }
        }
      }
    }
  }
  sums.patches = count * (height - side + 1) * (width - side + 1);
  return sums;
}

}  // namespace

EigenSystem eigen_of_symmetric(std::span<const double> matrix, std::int64_t n) {
  require<UsageError>(n >= 1 && n <= 4096 && static_cast<std::int64_t>(matrix.size()) == n * n,
                      "eigenvalues: ", matrix.size(), " elements for n ", n, ", expected n x n, n from 1 to 4096");
  for (const double element : matrix) {
    require<UsageError>(std::isfinite(element), "eigenvalues: an element is ", element, ", expected finite numbers");
  }
  const auto size = static_cast<std::size_t>(n);
  Jacobi jacobi(matrix, size);
  constexpr int kMostSweeps = 100;  // 6 to 10 sweeps suffice, because the off-diagonal elements shrink quadratically
  for (int i = 0; i < kMostSweeps && jacobi.sweep(); ++i) {
  }
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return jacobi.value(a) > jacobi.value(b); });
  EigenSystem system;
  for (const std::size_t i : order) {
    system.values.push_back(jacobi.value(i));
    double largest = 0;
    for (std::size_t k = 0; k < size; ++k) {
      largest = std::abs(jacobi.vector(i, k)) > std::abs(largest) ? jacobi.vector(i, k) : largest;
    }
    for (std::size_t k = 0; k < size; ++k) {
      system.vectors.push_back(largest < 0 ? -jacobi.vector(i, k) : jacobi.vector(i, k));
    }
  }
  return system;
}

std::vector<double> whitening_filters(const ImageDataset& images, const ChannelStatistics& statistics,
                                      const WhiteningOptions& options) {
  constexpr std::int64_t kMostSide = 16;
  constexpr std::int64_t kMostImages = 1 << 20;  // largest number of images for which sums of products fit in 64 bits
  require<UsageError>(options.images >= 1 && options.images <= kMostImages, "whitening: images is ", options.images,
                      ", expected 1 to ", kMostImages);
  require<UsageError>(options.side >= 1 && options.side <= kMostSide, "whitening: the side of patches is ",
                      options.side, ", expected 1 to ", kMostSide);
  require<UsageError>(std::isfinite(options.epsilon) && options.epsilon > 0, "whitening: epsilon is ", options.epsilon,
                      ", expected a number above 0");
  require<UsageError>(images.height() >= options.side && images.width() >= options.side, "whitening: images are ",
                      images.height(), " x ", images.width(), ", expected at least the side of a patch, ",
                      options.side);
  const PatchSums sums = sums_of(images, std::min(options.images, images.size()), options.side);
  const std::size_t places = sums.bytes.size();
  const std::size_t channel = places / 3;
  // Normalising a byte x gives (x / 255 - mean) / std, which equals scale * x - shift.
  const auto scale = [&](std::size_t place) {
    return 1 / (255.0 * static_cast<double>(statistics.std[place / channel]));
  };
  const auto shift = [&](std::size_t place) {
    return static_cast<double>(statistics.mean[place / channel]) / static_cast<double>(statistics.std[place / channel]);
  };
  const auto patches = static_cast<double>(sums.patches);
  std::vector<double> moments(places * places);
  for (std::size_t a = 0; a < places; ++a) {
    const double mean_a = static_cast<double>(sums.bytes[a]) / patches;
    for (std::size_t b = a; b < places; ++b) {
      const double mean_b = static_cast<double>(sums.bytes[b]) / patches;
      const double product = static_cast<double>(sums.products[a * places + b]) / patches;
      moments[a * places + b] = scale(a) * scale(b) * product - scale(a) * mean_a * shift(b) -
                                shift(a) * scale(b) * mean_b + shift(a) * shift(b);
    }
  }
  const EigenSystem system = eigen_of_symmetric(moments, static_cast<std::int64_t>(places));
  std::vector<double> filters;
  for (const double sign : {1.0, -1.0}) {
    for (std::size_t i = 0; i < places; ++i) {
      // An eigenvalue is a mean of squares and so at least 0, but rounding can make it negative.
      const double factor = sign / std::sqrt(std::max(system.values[i], 0.0) + options.epsilon);
      for (std::size_t k = 0; k < places; ++k) {
        filters.push_back(factor * system.vectors[i * places + k]);
      }
    }
  }
  return filters;
}

}  // namespace lockstep::nn
