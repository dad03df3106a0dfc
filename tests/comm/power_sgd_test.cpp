#include <lockstep/comm/gradients/sums/power_sgd.hpp>

#include <limits>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>

#include "count_allocations.hpp"
#include "local_ranks.hpp"
#include "power_sgd_runs.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using lockstep::testing::error_of;

constexpr std::int64_t kSmallBuckets = 4000;
constexpr std::int64_t kOneBucket = 1 << 20;

TEST(PowerSgd, FollowsThePaper) {
  for (const int ranks : {1, 2, 3}) {
    for (const int rank : {1, 2, 4}) {
      for (const std::int64_t bytes : {kSmallBuckets, kOneBucket}) {
        for (const bool overlap : {false, true}) {
          on_ranks(ranks, [&](Communicator& communicator) {
            Stream comm = overlap ? Stream::host_worker("comm") : Stream::host_inline();
            const double f64 = power_sgd_against_oracle<double>(communicator, comm, rank, bytes);
            EXPECT_TRUE(f64 <= 1e-10) << f64 << ", rank " << rank;
            const double f32 = power_sgd_against_oracle<float>(communicator, comm, rank, bytes);
            EXPECT_TRUE(f32 <= 1e-3) << f32 << ", rank " << rank;
          });
        }
      }
    }
  }
}

/// Returns one rank's gradient of low rank: a sum of `count` outer products of random vectors.
std::vector<double> of_low_rank(const Matrix& shape, int count, int rank, int step) {
  std::vector<double> m(static_cast<std::size_t>(shape.rows * shape.columns + 3));
  for (int c = 0; c < count; ++c) {
    // The left vectors are the same on all ranks, so the sum over ranks has no higher rank.
    const std::vector<double> left = random_gradient(shape.rows, 1000 + c, step);
    const std::vector<double> right = random_gradient(shape.columns, 2000 + 10 * c + rank, step);
    for (std::size_t i = 0; i < left.size(); ++i) {
      for (std::size_t j = 0; j < right.size(); ++j) {
        m[i * right.size() + j] += left[i] * right[j];
      }
    }
  }
  return m;
}

TEST(PowerSgd, ASumOfLowRankIsSentExactly) {
  const Matrix shape{50, 40};
  for (const int ranks : {1, 2, 3}) {
    for (const int rank : {1, 2, 4}) {
      for (const int of : {1, 2, 4, 5}) {
        on_ranks(ranks, [&](Communicator& communicator) {
          Stream comm = Stream::host_inline();
          PowerSgdRank<double> own(communicator, {shape}, rank, comm);
          for (int step = 0; step < 3; ++step) {
            std::vector<double> sum(2003);
            for (int w = 0; w < ranks; ++w) {
              const std::vector<double> m = of_low_rank(shape, of, w, step);
              for (std::size_t i = 0; i < sum.size(); ++i) {
                sum[i] += m[i];
              }
            }
            own.step(of_low_rank(shape, of, communicator.rank(), step));
            const double error =
                difference(std::span<const double>(own.arena).first(2000), {sum.begin(), sum.end() - 3});
            if (of <= rank) {
              ASSERT_TRUE(error <= 1e-11) << error << ", rank " << of << " sent as " << rank << ", step " << step;
            } else {
              ASSERT_GT(error, 1e-3) << "control: rank " << of << " sent as " << rank;
            }
          }
        });
      }
    }
  }
}

/// The updates and the errors that the ranks keep must add up to the sum of all gradients. Control: the updates alone
/// do not.
TEST(PowerSgd, WhatIsNotSentIsKept) {
  constexpr int kRanks = 3;
  constexpr int kSteps = 60;
  const Matrix shape{24, 32};
  std::mutex mutex;
  std::vector<double> kept(768);
  std::vector<double> applied(768);
  on_ranks(kRanks, [&](Communicator& communicator) {
    Stream comm = Stream::host_inline();
    PowerSgdRank<float> own(communicator, {shape}, 1, comm);
    for (int step = 0; step < kSteps; ++step) {
      own.step(random_gradient(771, communicator.rank(), step % 7));
      if (communicator.rank() == 0) {
        for (std::size_t i = 0; i < applied.size(); ++i) {
          applied[i] += static_cast<double>(own.arena[i]);
        }
      }
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      kept[i] += static_cast<double>(own.errors[i]);
    }
  });
  std::vector<double> sum(768);
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<double> gradient = random_gradient(771, rank, step % 7);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += gradient[i];
      }
    }
  }
  const double alone = difference(std::span<const double>(applied), sum);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    kept[i] += applied[i];
  }
  const double together = difference(std::span<const double>(kept), sum);
  EXPECT_TRUE(together <= 1e-5) << together;
  EXPECT_GT(alone, 1e-2);
  // The kept errors are bounded, so the mean update approaches the mean gradient.
  EXPECT_TRUE(alone <= 1) << alone;
}

TEST(PowerSgd, RanksAndStreamsGiveTheSameBits) {
  const Matrices shapes{{24, 30}, {0, 7}, {40, 26}};
  std::vector<std::vector<float>> results(8);
  std::size_t next = 0;
  for (const bool overlap : {false, true}) {
    on_ranks(4, [&, first = next](Communicator& communicator) {
      Stream comm = overlap ? Stream::host_worker("comm") : Stream::host_inline();
      PowerSgdRank<float> own(communicator, shapes, 2, comm, kSmallBuckets);
      for (int step = 0; step < 5; ++step) {
        std::vector<double> gradient = random_gradient(own.gradients.back().end, communicator.rank(), step);
        for (const GradientRange& range : own.gradients) {
          std::fill_n(gradient.begin() + range.end - 3, 3, 0.0);  // the padding of the range
        }
        own.step(gradient);
      }
      results[first + static_cast<std::size_t>(communicator.rank())] = own.arena;
      results[first + static_cast<std::size_t>(communicator.rank())].insert(
          results[first + static_cast<std::size_t>(communicator.rank())].end(), own.factors.begin(), own.factors.end());
    });
    next += 4;
  }
  for (const std::vector<float>& result : results) {
    EXPECT_EQ(result, results[0]);
  }
}

TEST(PowerSgd, SaysWhatItSends) {
  on_ranks(2, [](Communicator& communicator) {
    Stream comm = Stream::host_inline();
    // The first exchange sends P of 24 x 2 and 40 x 2, the vector with 7 + 3 elements, and the small matrix with 12 + 3
    // elements. Each part is rounded up to a multiple of 16 elements. The second exchange sends Q of 30 x 2 and 26 x 2.
    PowerSgdRank<float> own(communicator, {{24, 30}, {0, 7}, {3, 4}, {40, 26}}, 2, comm);
    ASSERT_EQ(own.reducer.buckets().size(), 1U);
    const std::int64_t expected = 4 * (48 + 80 + 32 + 64 + 64);
    EXPECT_EQ(own.reducer.sent_bytes(), expected);
    EXPECT_EQ(own.reducer.gradient_bytes(), 4 * (723 + 10 + 15 + 1043));
    const CommunicatorCounts before = communicator.counts();
    own.step(random_gradient(own.gradients.back().end, communicator.rank(), 0));
    EXPECT_EQ(communicator.counts().bytes - before.bytes, expected);
    EXPECT_EQ(communicator.counts().calls - before.calls, 2);
    EXPECT_EQ(own.hook.name(), "powersgd rank 2");
    EXPECT_GE(own.hook.bytes(), static_cast<std::size_t>(expected));
    EXPECT_EQ(own.reducer.bytes(), own.hook.bytes());
    // No gradient is compressed, so there is a single all-reduce of the bucket.
    PowerSgdRank<float> plain(communicator, {{0, 100}, {4, 4}}, 2, comm);
    const CommunicatorCounts then = communicator.counts();
    plain.step(random_gradient(plain.gradients.back().end, communicator.rank(), 0));
    EXPECT_EQ(communicator.counts().calls - then.calls, 1);
    EXPECT_EQ(plain.reducer.sent_bytes(), plain.reducer.gradient_bytes());
  });
}

TEST(PowerSgd, CompressesWhatShrinksToHalf) {
  EXPECT_TRUE(PowerSgd::compresses(64, 576, 4));
  EXPECT_TRUE(PowerSgd::compresses(8, 8, 2));
  EXPECT_FALSE(PowerSgd::compresses(8, 8, 3));
  EXPECT_FALSE(PowerSgd::compresses(0, 1000, 1));
  EXPECT_FALSE(PowerSgd::compresses(1, 1000, 1));
}

/// If a matrix of one rank contains NaN or infinity, all ranks get NaN. The next step must be as if this step had not
/// been made.
TEST(PowerSgd, AStepThatIsNotFiniteLeavesTheStateAlone) {
  const Matrices shapes{{24, 30}, {40, 26}};
  for (const double strange : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    on_ranks(2, [&](Communicator& communicator) {
      Stream comm = Stream::host_inline();
      PowerSgdRank<float> own(communicator, {shapes[0]}, 2, comm);
      PowerSgdRank<float> undisturbed(communicator, {shapes[0]}, 2, comm);
      const std::int64_t elements = own.gradients.back().end;
      for (PowerSgdRank<float>* each : {&own, &undisturbed}) {
        each->step(random_gradient(elements, communicator.rank(), 0));
      }
      std::vector<double> bad = random_gradient(elements, communicator.rank(), 1);
      if (communicator.rank() == 1) {
        bad[100] = strange;
      }
      own.step(bad);
      int finite = 0;
      for (std::size_t i = 0; i < 720; ++i) {
        finite += std::isfinite(own.arena[i]) ? 1 : 0;
      }
      EXPECT_EQ(finite, 0);
      EXPECT_EQ(own.errors, undisturbed.errors);
      EXPECT_EQ(own.factors, undisturbed.factors);
      for (PowerSgdRank<float>* each : {&own, &undisturbed}) {
        each->step(random_gradient(elements, communicator.rank(), 2));
      }
      EXPECT_EQ(own.arena, undisturbed.arena);
    });
  }
}

/// The gradients have rank 0, then 1, then 2, which is the rank of PowerSGD. A column of P and Q that was zero in one
/// step must be usable in later steps, when the gradients have a higher rank.
TEST(PowerSgd, ZerosDoNotEndAColumn) {
  const Matrix shape{50, 40};
  on_ranks(2, [&](Communicator& communicator) {
    Stream comm = Stream::host_inline();
    PowerSgdRank<double> own(communicator, {shape}, 2, comm);
    own.step(std::vector<double>(2003));
    EXPECT_EQ(own.arena, std::vector<double>(2003));
    own.step(of_low_rank(shape, 1, communicator.rank(), 0));
    for (const int step : {1, 2}) {
      std::vector<double> sum = of_low_rank(shape, 2, 0, step);
      const std::vector<double> other = of_low_rank(shape, 2, 1, step);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += other[i];
      }
      own.step(of_low_rank(shape, 2, communicator.rank(), step));
      const double error = difference(std::span<const double>(own.arena).first(2000), {sum.begin(), sum.end() - 3});
      EXPECT_TRUE(error <= 1e-9) << error;
    }
  });
}

TEST(PowerSgd, AStepAllocatesNothing) {
  on_ranks(2, [](Communicator& communicator) {
    Stream comm = Stream::host_worker("comm");
    PowerSgdRank<float> own(communicator, {{24, 30}, {0, 7}, {40, 26}}, 2, comm, kSmallBuckets);
    const std::vector<double> gradient = random_gradient(own.gradients.back().end, communicator.rank(), 0);
    own.step(gradient);
    comm.enqueue([] { count_allocations::counting = true; });
    count_allocations::counting = true;
    const std::int64_t before = count_allocations::allocations;
    for (int step = 0; step < 3; ++step) {
      own.step(gradient);
    }
    comm.synchronize();
    EXPECT_EQ(count_allocations::allocations, before);
    count_allocations::counting = false;
  });
}

TEST(PowerSgd, RefusesWhatTheContractExcludes) {
  LocalGroup group(1);
  const auto communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  std::vector<GradientRange> gradients = ranges_of({{24, 30}});
  std::vector<float> arena(723);
  std::vector<float> errors(723);
  std::vector<float> factors(64);
  std::vector<double> wide(723);
  const auto view = [](auto& values) {
    return TensorView(std::span(values), Shape{static_cast<std::int64_t>(values.size())});
  };
  const auto make = [&](int rank, const TensorView& of_errors, const TensorView& of_factors) {
    const auto hook = std::make_shared<PowerSgd>(PowerSgd::Options{.rank = rank});
    hook->keep_in(std::vector<TensorView>{of_errors, of_factors});
    const GradientReducer reducer(*communicator, stream, stream, gradients, plan_buckets(gradients, {}), view(arena),
                                  {.sum = hook});
  };
  EXPECT_NO_THROW(make(2, view(errors), view(factors)));
  for (const int rank : {0, -1, 65}) {
    EXPECT_EQ(error_of<UsageError>([&] { make(rank, view(errors), view(factors)); }),
              concat("powersgd: the rank is ", rank, ", expected 1 to 64"));
  }
  testing::expect_holds(error_of<ShapeError>([&] { make(2, view(errors).slice(0, 0, 719), view(factors)); }),
                        "expected at least 720 elements");
  testing::expect_holds(error_of<ShapeError>([&] { make(2, view(errors), view(factors).slice(0, 0, 63)); }), "factors");
  testing::expect_holds(error_of<DTypeError>([&] { make(2, view(wide), view(factors)); }),
                        "errors are f64, expected f32");
  EXPECT_THROW(make(2, testing::with(view(errors), &TensorView::device, Device::cuda(0)), view(factors)), DeviceError);
  gradients[0].columns = 31;
  testing::expect_holds(error_of<ShapeError>([&] { make(2, view(errors), view(factors)); }),
                        "gradient g0 has 723 elements, expected those of 24 x 31");
}

/// The text "powersgd:3" of an option must select PowerSGD of rank 3. Every SumOptions field that conflicts with
/// PowerSGD is refused.
TEST(PowerSgd, IsMadeByItsName) {
  const SumOptions options = sums_named("powersgd:3").value();
  EXPECT_EQ(make_bucket_sum(options)->name(), "powersgd rank 3");
  EXPECT_EQ(sum_texts(options), (std::map<std::string, std::string>{{"gradient_hook", "powersgd rank 3"}}));
  for (const char* wrong :
       {"powersgd", "powersgd:", "powersgd:0", "powersgd:65", "powersgd:2x", "powersgd:-1", "bf16:2", "zip", ""}) {
    EXPECT_FALSE(sums_named(wrong).has_value()) << wrong;
  }
  const auto refused = [&](SumOptions changed, const SumUse& use = {}) {
    changed.compress = "powersgd:3";
    return error_of<UsageError>([&] { (void)make_bucket_sum(changed, use); });
  };
  const std::string begin = "gradient sums: compress is powersgd:3 with ";
  EXPECT_EQ(refused({}, {.loss_scale = true}),
            begin + "a loss scale, expected none: what is not sent would keep an old scale");
  EXPECT_EQ(refused({.hook = make_bucket_sum()}), begin + "a hook of the program, expected one of the two");
  EXPECT_EQ(error_of<UsageError>([] { (void)make_bucket_sum({.compress = "powersgd:65"}); }),
            "gradient sums: compress is 'powersgd:65', expected none, bf16, fp16, or powersgd:RANK with a rank of 1 to "
            "64");
  EXPECT_EQ(error_of<UsageError>([] { (void)make_bucket_sum({.compress = "bf16"}); }),
            "gradient sums: compress is bf16, expected the dtype and the order that sums_named() gives");
}

TEST(SumNames, OfSixteenBitsAreATypeAndAnOrder) {
  EXPECT_EQ(sum_names(), "none, bf16, fp16 or powersgd:RANK");
  for (const auto& [name, dtype] : {std::pair("bf16", DType::bf16), std::pair("fp16", DType::f16)}) {
    const SumOptions options = sums_named(name).value();
    EXPECT_EQ(options.dtype, dtype);
    EXPECT_EQ(options.order, SumOrder::ranks);
    EXPECT_EQ(options.compress, "");
  }
  EXPECT_EQ(sum_texts(sums_named("none").value()).size(), 0U);
  EXPECT_EQ(sum_texts(sums_named("bf16").value()),
            (std::map<std::string, std::string>{{"reduce_dtype", "bf16"}, {"gradient_sums", "in rank order"}}));
}

}  // namespace
}  // namespace lockstep::comm
