#include "tests/kernels/dropout_cases.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <lockstep/runtime/base/random.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::DropoutDesc;

/// Returns for each element of a sample whether dropout keeps it. Draws the random words in sequence.
std::vector<bool> kept_elements(const DropoutDesc& desc, std::int64_t epoch, std::int64_t id, std::size_t extent) {
  const auto u32 = [](std::int64_t value, int shift) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(value) >> shift);
  };
  const auto key = philox({static_cast<std::uint32_t>(RandomUse::dropout), u32(epoch, 0), u32(epoch, 32), desc.layer},
                          {static_cast<std::uint32_t>(desc.seed), static_cast<std::uint32_t>(desc.seed >> 32)});
  std::vector<bool> kept;
  for (std::uint32_t block = 0; kept.size() < extent; ++block) {
    for (const std::uint32_t word : philox({block, 0, u32(id, 0), u32(id, 32)}, {key[0], key[1]})) {
      kept.push_back(static_cast<double>(word) / 0x1p32 >= desc.rate);
    }
  }
  kept.resize(extent);
  return kept;
}

/// Returns which elements of y are not 0. x has no zero, so these are the kept elements.
std::vector<bool> not_zero(const GuardedTensor& y) {
  const std::vector<double> values = y.values();
  std::vector<bool> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](double value) { return value != 0; });
  return result;
}

/// Runs dropout on a tensor of ones with one row for each id.
GuardedTensor run_on_ones(const DropoutDesc& desc, const std::vector<double>& ids, double epoch, std::int64_t extent) {
  CpuContext context({.threads = 2});
  const auto samples = static_cast<std::int64_t>(ids.size());
  GuardedTensor id_view(Shape{samples}, DType::i64, ids), now(Shape{}, DType::i64, constant(epoch)),
      x(Shape{samples, extent}, DType::f32, constant(1)), y(Shape{samples, extent}, DType::f32);
  ops::dropout(context, desc, id_view, now, x, y);
  return y;
}

TEST(Dropout, ByHand) {
  CpuContext context;
  // Layer 0 must draw the same numbers as class Random draws for the sample.
  const DropoutDesc desc{.rate = 0.5, .seed = 5};
  const std::vector<double> x{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  GuardedTensor ids(Shape{2}, DType::i64, {40, -1}), epoch(Shape{}, DType::i64, constant(9)),
      in(Shape{2, 2, 3}, DType::f64, x), y(Shape{2, 2, 3}, DType::f64);
  ops::dropout(context, desc, ids, epoch, in, y);
  std::vector<double> expected;
  for (const std::int64_t id : {40, -1}) {
    Random random(desc.seed, RandomUse::dropout, 9, static_cast<std::uint64_t>(id));
    for (int e = 0; e < 6; ++e) {
      expected.push_back(random.bits() < 0x80000000U ? 0 : 2 * x[expected.size()]);
    }
  }
  EXPECT_EQ(y.values(), expected);
  const auto zeros = std::count(expected.begin(), expected.end(), 0.0);
  EXPECT_TRUE(zeros > 0 && zeros < 12) << zeros;
}

TEST(Dropout, MatchesTheDefinition) {
  for (const OpCase& item : dropout_cases()) {
    const DropoutDesc& desc = dropout_desc(std::stod(item.name.substr(item.name.find("rate ") + 5)));
    expect_matches(item, [&](Inputs in, Outputs expected) {
      const std::vector<double> ids = in[0].values();
      std::vector<double> y = in.size() > 2 ? in[2].values() : expected[0].values();
      const std::size_t extent = y.empty() ? 0 : y.size() / ids.size();
      for (std::size_t n = 0; n < ids.size(); ++n) {
        const std::vector<bool> kept = kept_elements(desc, 3, static_cast<std::int64_t>(ids[n]), extent);
        for (std::size_t e = 0; e < extent; ++e) {
          double& value = y[n * extent + e];
          const double factor = 1 / (1 - desc.rate);
          value = !kept[e]                   ? 0
                  : item.dtype == DType::f32 ? static_cast<float>(value) * static_cast<float>(factor)
                                             : value * factor;
        }
      }
      expected[0].assign(y);
    });
  }
}

TEST(Dropout, RateZeroCopiesAndDroppedElementsAreZeroWhateverTheyWere) {
  CpuContext context;
  GuardedTensor ids(Shape{1}, DType::i64, constant(1)), epoch(Shape{}, DType::i64, constant(0)),
      x(Shape{1, 100}, DType::f32, normal(1)), y(Shape{1, 100}, DType::f32);
  ops::dropout(context, {.rate = 0}, ids, epoch, x, y);
  expect_same_bits(x, y);
  x.constant(std::nan(""));
  ops::dropout(context, {.rate = 0.5}, ids, epoch, x, y);
  const std::vector<double> values = y.values();
  const auto zeros = std::count_if(values.begin(), values.end(), [](double v) { return v == 0 && !std::signbit(v); });
  const auto nans = std::count_if(values.begin(), values.end(), [](double v) { return std::isnan(v); });
  EXPECT_EQ(zeros + nans, 100);
  EXPECT_GT(zeros, 20);
  EXPECT_GT(nans, 20);
  ops::dropout(context, {.rate = std::nextafter(1.0, 0.0)}, ids, epoch, x, y);
  EXPECT_EQ(y.values(), std::vector<double>(100, 0.0)) << "the threshold is a 32-bit word";
}

/// Returns how far the share of true elements is from p, in standard deviations of a binomial distribution.
double deviations(const std::vector<bool>& hits, double p) {
  const auto n = static_cast<double>(hits.size());
  return std::abs(static_cast<double>(std::count(hits.begin(), hits.end(), true)) - n * p) / std::sqrt(n * p * (1 - p));
}

TEST(Dropout, KeepsTheShareThatItShould) {
  for (const double rate : {0.1, 0.5, 0.9}) {
    const std::vector<bool> kept = not_zero(run_on_ones({.rate = rate, .seed = 3}, {1, 2, 3, 4, 5, 6, 7}, 1, 30011));
    EXPECT_LE(deviations(kept, 1 - rate), 4) << rate;
    EXPECT_GT(deviations(kept, 1 - rate + 0.01), 4) << "a share that is off by 1 % shows";
  }
}

TEST(Dropout, SeedsEpochsLayersAndSamplesAreIndependent) {
  constexpr double kRate = 0.3;
  // Two independent masks agree in this share of the elements.
  constexpr double kAgreement = kRate * kRate + (1 - kRate) * (1 - kRate);
  const std::vector<bool> kept = not_zero(run_on_ones({.rate = kRate, .seed = 3, .layer = 1}, {5}, 1, 100003));
  const auto agreement = [&](const std::vector<bool>& other) {
    std::vector<bool> same(kept.size());
    std::transform(kept.begin(), kept.end(), other.begin(), same.begin(), std::equal_to<>());
    return deviations(same, kAgreement);
  };
  EXPECT_GT(agreement(kept), 100) << "a mask and itself";
  constexpr auto kFar = static_cast<double>(std::int64_t{1} << 32);
  EXPECT_LE(agreement(not_zero(run_on_ones({.rate = kRate, .seed = 4, .layer = 1}, {5}, 1, 100003))), 4);
  EXPECT_LE(agreement(not_zero(run_on_ones({.rate = kRate, .seed = 3, .layer = 2}, {5}, 1, 100003))), 4);
  for (const double other : {6.0, 5 + kFar, -5.0}) {
    EXPECT_LE(agreement(not_zero(run_on_ones({.rate = kRate, .seed = 3, .layer = 1}, {other}, 1, 100003))), 4);
  }
  for (const double other : {2.0, 1 + kFar, -1.0}) {
    EXPECT_LE(agreement(not_zero(run_on_ones({.rate = kRate, .seed = 3, .layer = 1}, {5}, other, 100003))), 4);
  }
  // Neighbouring elements of a sample must agree no more often than independent elements.
  std::vector<bool> shifted(kept.begin() + 1, kept.end());
  shifted.push_back(kept.front());
  EXPECT_LE(agreement(shifted), 4);
}

TEST(Dropout, DoesNotDependOnThePlaceInTheBatch) {
  const DropoutDesc desc{.rate = 0.4, .seed = 8, .layer = 2};
  const std::vector<double> together = run_on_ones(desc, {11, 12, 13, 14, 15}, 2, 67).values();
  const std::vector<double> ids{15, 12, 11};
  const std::vector<double> some = run_on_ones(desc, ids, 2, 67).values();
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const auto of = [](const std::vector<double>& all, std::size_t sample) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(67 * sample);
      return std::vector<double>(first, first + 67);
    };
    const auto place = static_cast<std::size_t>(ids[n]) - 11;
    EXPECT_EQ(of(some, n), of(together, place)) << ids[n];
    EXPECT_NE(of(some, n), of(together, place == 4 ? 3 : place + 1)) << "another sample";
  }
}

TEST(Dropout, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(dropout_case({5, 20011}, DType::f32));
  expect_same_bits_for_threads(dropout_case({30011, 3}, DType::f64, dropout_desc(), true));
}

TEST(Dropout, TheSameCallOnDyIsTheGradient) {
  CpuContext context;
  const DropoutDesc desc = dropout_desc();
  const Shape shape{3, 11};
  GuardedTensor ids(Shape{3}, DType::i64, {4, 4, 90}), epoch(Shape{}, DType::i64, constant(6)),
      x(shape, DType::f64, normal(1)), y(shape, DType::f64), dy(shape, DType::f64, normal(2)), dx(shape, DType::f64);
  const auto forward = [&] {
    ops::dropout(context, desc, ids, epoch, x, y);
    return weighted_sum(y, dy);
  };
  ops::dropout(context, desc, ids, epoch, dy, dx);
  const GradientPair pairs[] = {{"x", x, dx}};
  EXPECT_LE(gradient_error(forward, pairs), 1e-8);
  epoch.constant(7);
  EXPECT_GT(gradient_error(forward, pairs), 1e-1) << "the mask of another epoch";
}

TEST(Dropout, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor ids(Shape{4}, DType::i64, constant(0)), epoch(Shape{1}, DType::i64, constant(0)),
      x(Shape{4, 6}, DType::f32, constant(1)), y(Shape{4, 6}, DType::f32);
  expect_views_checked(
      {ids, x, y}, [&](const std::vector<TensorView>& v) { ops::dropout(context, {}, v[0], epoch, v[1], v[2]); }, true);
  const auto call = [&](double rate, const TensorView& at, const TensorView& now, const TensorView& in,
                        const TensorView& out) { ops::dropout(context, {.rate = rate}, at, now, in, out); };
  EXPECT_NO_THROW(call(0.1, ids, epoch, x, x)) << "y may be x";
  for (const double rate : {-0.1, 1.0, 1.5, std::nan("")}) {
    EXPECT_THROW(call(rate, ids, epoch, x, y), UsageError) << rate;
  }
  EXPECT_THROW(call(0.1, ids, ids, x, y), ShapeError) << "an epoch a sample";
  EXPECT_THROW(call(0.1, ids, {}, x, y), ShapeError);
  EXPECT_THROW(call(0.1, ids, GuardedTensor(Shape{}, DType::i32), x, y), DTypeError);
  EXPECT_THROW(
      call(0.1, ids, TensorView(epoch.span<std::int64_t>().data(), DType::i64, Device::cuda(0), Shape{}), x, y),
      DeviceError);
  const TensorView scalar = x.view().slice(0, 0, 1).slice(1, 0, 1).reshape(Shape{});
  EXPECT_THROW(call(0.1, ids, epoch, scalar, scalar), ShapeError);
  const TensorView flat = x.view().reshape(Shape{24});
  EXPECT_THROW(
      call(0.1, ids, epoch, flat.slice(0, 0, 20).reshape(Shape{4, 5}), flat.slice(0, 4, 24).reshape(Shape{4, 5})),
      ShapeError);
  const TensorView over_ids(ids.span<std::int64_t>().data(), DType::f32, Device::cpu(), Shape{4, 1});
  const TensorView ones = flat.slice(0, 0, 4).reshape(Shape{4, 1});
  EXPECT_THROW(call(0.1, ids, epoch, ones, over_ids), ShapeError);
  const TensorView over_epoch(epoch.span<std::int64_t>().data(), DType::f32, Device::cpu(), Shape{1});
  EXPECT_THROW(call(0.1, ids.view().slice(0, 0, 1), epoch, flat.slice(0, 0, 1), over_epoch), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
