// Tests whitening filters: Jacobi's rotations find the known eigenvalues of matrices, and the filters whiten the
// patches that they were computed from.
#include <lockstep/nn/models/whitening.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <lockstep/nn/models/airbench.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

/// Expects that `got` is the eigensystem of the matrix: A v = l v, eigenvectors as orthogonal rows of length 1 whose
/// largest element is positive, and descending eigenvalues.
void expect_eigen_system(const std::vector<double>& matrix, std::size_t n, const EigenSystem& got, double scale) {
  ASSERT_EQ(got.values.size(), n);
  ASSERT_EQ(got.vectors.size(), n * n);
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_TRUE(i == 0 || got.values[i] <= got.values[i - 1]) << i;
    const double* v = got.vectors.data() + i * n;
    for (std::size_t row = 0; row < n; ++row) {
      double product = 0;
      for (std::size_t k = 0; k < n; ++k) {
        product += matrix[row * n + k] * v[k];
      }
      EXPECT_NEAR(product, got.values[i] * v[row], scale * 1e-13) << i << ' ' << row;
    }
    for (std::size_t j = 0; j <= i; ++j) {
      double product = 0;
      for (std::size_t k = 0; k < n; ++k) {
        product += v[k] * got.vectors[j * n + k];
      }
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-13) << i << ' ' << j;
    }
    const auto [least, most] = std::minmax_element(v, v + n);
    EXPECT_TRUE(*most >= -*least * (1 - 1e-12)) << "the largest element is positive";
  }
}

TEST(Eigen, OfMatricesWhoseValuesAreKnown) {
  // The eigenvalues of the second difference are 2 - 2 cos(k pi / (n + 1)).
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{12}, std::size_t{31}}) {
    std::vector<double> matrix(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      matrix[i * n + i] = 2;
      if (i + 1 < n) {
        matrix[i * n + i + 1] = matrix[(i + 1) * n + i] = -1;
      }
    }
    const EigenSystem got = eigen_of_symmetric(matrix, static_cast<std::int64_t>(n));
    expect_eigen_system(matrix, n, got, 4);
    for (std::size_t i = 0; i < n; ++i) {
      const double k = static_cast<double>(n - i);
      EXPECT_NEAR(got.values[i], 2 - 2 * std::cos(k * std::numbers::pi / static_cast<double>(n + 1)), 1e-13);
    }
  }
  const EigenSystem two = eigen_of_symmetric(std::vector<double>{1, 2, 2, 1}, 2);
  EXPECT_NEAR(two.values[0], 3, 1e-15);
  EXPECT_NEAR(two.values[1], -1, 1e-15);
}

TEST(Eigen, OfRandomEqualTinyAndHugeValues) {
  Random random(3, RandomUse::test);
  for (const double scale : {1.0, 1e-150, 1e150}) {
    constexpr std::size_t kSize = 12;
    // The matrix has rank 7, so five of its eigenvalues are 0.
    std::vector<double> factors(kSize * 7);
    std::generate(factors.begin(), factors.end(), [&] { return random.normal(); });
    std::vector<double> matrix(kSize * kSize);
    for (std::size_t i = 0; i < kSize * kSize; ++i) {
      for (std::size_t k = 0; k < 7; ++k) {
        matrix[i] += scale * factors[i / kSize * 7 + k] * factors[i % kSize * 7 + k];
      }
    }
    const EigenSystem got = eigen_of_symmetric(matrix, kSize);
    expect_eigen_system(matrix, kSize, got, scale * 100);
    for (std::size_t i = 7; i < kSize; ++i) {
      EXPECT_NEAR(got.values[i], 0, scale * 1e-13);
    }
    // The lower triangle must not be read, so wrong values there must not matter.
    for (std::size_t i = 0; i < kSize * kSize; ++i) {
      matrix[i] = i % kSize < i / kSize ? 7 : matrix[i];
    }
    EXPECT_EQ(eigen_of_symmetric(matrix, kSize).vectors, got.vectors);
  }
  const std::vector<double> zero(9, 0.0);
  EXPECT_EQ(eigen_of_symmetric(zero, 3).vectors, (std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1}));
}

TEST(Eigen, RefusesWhatIsNoMatrix) {
  const std::vector<double> four(4, 1.0);
  expect_holds(error_of<UsageError>([&] { static_cast<void>(eigen_of_symmetric(four, 3)); }), "4 elements for n 3");
  expect_holds(error_of<UsageError>([&] { static_cast<void>(eigen_of_symmetric({}, 0)); }), "0 elements for n 0");
  expect_holds(error_of<UsageError>([&] { static_cast<void>(eigen_of_symmetric(std::vector<double>{NAN}, 1)); }),
               "an element is nan");
}

/// Images whose neighbouring pixels are similar, as in photographs.
class Pictures final : public ImageDataset {
 public:
  Pictures(std::int64_t count, std::int64_t height, std::int64_t width, bool grey = false)
      : ImageDataset({.name = "pictures", .size = count, .height = height, .width = width, .classes = 2}),
        grey_(grey) {}
  [[nodiscard]] std::int32_t label(std::int64_t) const override { return 0; }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override {
    Random random(5, RandomUse::test, static_cast<std::uint64_t>(index));
    const auto row = static_cast<std::size_t>(width() * 3);
    for (std::size_t i = 0; i < image.size(); ++i) {
      const double before = (i >= row ? image[i - row] : 128) * 0.5 + (i % row >= 3 ? image[i - 3] : 100) * 0.45;
      image[i] = grey_ ? 128 : static_cast<std::uint8_t>(std::clamp(before + 25 * random.normal(), 0.0, 255.0));
    }
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }

 private:
  bool grey_;
};

const ChannelStatistics kStatistics{.mean = {0.49F, 0.48F, 0.45F}, .std = {0.25F, 0.24F, 0.26F}};

/// Returns the mean of p p^T over the patches of the first images, by plain loops over normalised numbers.
std::vector<double> moments_of(const Pictures& set, std::int64_t count, std::int64_t side) {
  const auto places = static_cast<std::size_t>(3 * side * side);
  std::vector<double> moments(places * places);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(set.image_bytes()));
  double patches = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    set.read(n, image);
    for (std::int64_t y = 0; y + side <= set.height(); ++y) {
      for (std::int64_t x = 0; x + side <= set.width(); ++x) {
        const auto value = [&](std::size_t place) {
          const auto p = static_cast<std::int64_t>(place);
          const std::int64_t c = p / side / side;
          const std::int64_t pixel = (y + p / side % side) * set.width() + x + p % side;
          return (static_cast<double>(image[static_cast<std::size_t>(pixel * 3 + c)]) / 255 -
                  static_cast<double>(kStatistics.mean[static_cast<std::size_t>(c)])) /
                 static_cast<double>(kStatistics.std[static_cast<std::size_t>(c)]);
        };
        for (std::size_t i = 0; i < places * places; ++i) {
          moments[i] += value(i / places) * value(i % places);
        }
        patches += 1;
      }
    }
  }
  for (double& moment : moments) {
    moment /= patches;
  }
  return moments;
}

TEST(Whitening, PatchesBecomeUncorrelatedWithVarianceOne) {
  for (const std::int64_t side : {1, 2, 3}) {
    const Pictures set(9, 7, 10);
    const WhiteningOptions options{.images = 6, .side = side, .epsilon = 1e-3};
    const std::vector<double> filters = whitening_filters(set, kStatistics, options);
    const auto places = static_cast<std::size_t>(3 * side * side);
    ASSERT_EQ(filters.size(), 2 * places * places);
    const std::vector<double> moments = moments_of(set, 6, side);
    double before = 1e300;
    for (std::size_t a = 0; a < places; ++a) {
      double length = 0;
      for (std::size_t k = 0; k < places; ++k) {
        EXPECT_EQ(filters[(places + a) * places + k], -filters[a * places + k]) << "the other half has the other sign";
        length += filters[a * places + k] * filters[a * places + k];
      }
      const double eigenvalue = 1 / length - options.epsilon;  // the filter is v / sqrt(l + epsilon)
      EXPECT_LE(eigenvalue, before * (1 + 1e-9)) << "descending";
      before = eigenvalue;
      for (std::size_t b = 0; b < places; ++b) {
        double product = 0;
        for (std::size_t i = 0; i < places * places; ++i) {
          product += filters[a * places + i / places] * moments[i] * filters[b * places + i % places];
        }
        EXPECT_NEAR(product, a == b ? eigenvalue / (eigenvalue + options.epsilon) : 0, 1e-9)
            << side << ' ' << a << ' ' << b;
      }
    }
    EXPECT_NE(filters, whitening_filters(set, kStatistics, {.images = 7, .side = side, .epsilon = 1e-3}));
    EXPECT_EQ(whitening_filters(set, kStatistics, {.images = 9, .side = side}),
              whitening_filters(set, kStatistics, {.side = side}))
        << "all there are";
  }
}

TEST(Whitening, FitsTheModelAndGreyImagesStayFinite) {
  const Pictures set(3, 25, 25, true);
  const std::vector<double> filters = whitening_filters(set, kStatistics);
  for (const double value : filters) {
    EXPECT_LE(std::abs(value), 1 / std::sqrt(5e-4) * (1 + 1e-12));
  }
  const Model model = airbench94({.height = 25, .width = 25}).with_initial_value("whiten.weight", filters);
  EXPECT_EQ(static_cast<std::int64_t>(filters.size()), kWhiteningFilters * 3 * kWhitenedSide * kWhitenedSide);
  EXPECT_EQ(model.parameter_count(), airbench94().parameter_count());
}

TEST(Whitening, RefusesOptionsOutOfRange) {
  const Pictures set(2, 3, 4);
  const auto refused = [&](const WhiteningOptions& options) {
    return error_of<UsageError>([&] { static_cast<void>(whitening_filters(set, kStatistics, options)); });
  };
  expect_holds(refused({.images = 0}), "images is 0, expected 1 to");
  expect_holds(refused({.side = 0}), "the side of patches is 0, expected 1 to 16");
  expect_holds(refused({.side = 4}), "images are 3 x 4, expected at least the side of a patch, 4");
  expect_holds(refused({.epsilon = 0}), "epsilon is 0, expected a number above 0");
  expect_holds(refused({.epsilon = NAN}), "epsilon is nan");
}

}  // namespace
}  // namespace lockstep::nn
