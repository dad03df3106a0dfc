#include <lockstep/comm/gradients/gradient_reducer.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "count_allocations.hpp"
#include "gradient_data.hpp"
#include "local_ranks.hpp"
#include "tests/support/error_of.hpp"

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::comm {
namespace {

using count_allocations::allocations;
using count_allocations::counting;
using lockstep::testing::error_of;
using lockstep::testing::expect_error;

constexpr float kPoison = -777.0f;

/// Keeps the calling thread busy for `turns` turns of a loop, without sleeping.
void busy(std::uint32_t turns) {
  volatile std::uint32_t x = 1;
  for (std::uint32_t i = 0; i < turns; ++i) {
    x = x * 1664525U + 1013904223U;
  }
}

enum class Streams { inline_worker, worker_worker, both_inline, same_worker, worker_inline };

std::string name_of(Streams s) {
  const char* names[] = {"InlineWorker", "WorkerWorker", "BothInline", "SameWorker", "WorkerInline"};
  return names[static_cast<int>(s)];
}

struct Pair {
  explicit Pair(Streams kind)
      : first(kind == Streams::inline_worker || kind == Streams::both_inline ? Stream::host_inline()
                                                                             : Stream::host_worker("compute")),
        second(kind == Streams::inline_worker || kind == Streams::worker_worker ? Stream::host_worker("comm")
                                                                                : Stream::host_inline()),
        same(kind == Streams::same_worker) {}
  Stream first;
  Stream second;
  bool same;
  Stream& compute() { return first; }
  Stream& comm() { return same ? first : second; }
};

constexpr std::int64_t kBucketBytes[] = {4000, 1 << 20};

/// A reducer over gradients of sizes kSizes, and functions that run its steps. The arena ends with ten elements of
/// kPoison, which must not change.
struct Reduction {
  Reduction(Communicator& communicator, Streams kind, const std::optional<SumOptions>& sums = {},
            std::int64_t bucket_bytes = 4000, bool divided = false)
      : rank(communicator.rank()), ranks(communicator.size()), streams(kind), gradients(ranges(kSizes)) {
    const auto buckets = plan_buckets(gradients, {.bucket_bytes = bucket_bytes});
    for (const Bucket& b : buckets) {
      shards.push_back(shards_of(b.begin, b.end, ranks));
    }
    ReducerOptions options{.shards = divided ? shards : std::vector<Shards>()};
    if (sums) {
      options.sum = make_bucket_sum(*sums, {.divided = divided});
    }
    reducer.emplace(communicator, streams.compute(), streams.comm(), gradients, buckets, view_of(arena), options);
  }
  /// Writes gradient g on the compute stream, after a delay of `turns` turns of busy().
  void write(std::size_t g, int step, std::uint32_t turns = 0) {
    streams.compute().enqueue([this, g, step, turns] {
      busy(turns);
      for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
        arena[static_cast<std::size_t>(i)] = gradient(rank, step, i);
      }
    });
    reducer->gradient_written(static_cast<int>(g));
  }
  void run(int step) {
    reducer->begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      write(g, step);
    }
    reducer->finish();
    streams.compute().synchronize();
  }
  void synchronize() {
    streams.compute().synchronize();
    streams.comm().synchronize();
  }
  /// Runs `steps` steps and expects the sums that `order` and `dtype` define. Adds to `unlike` the number of sums that
  /// differ from the f32 sum in rank order.
  void expect_sums(int steps, SumOrder order, DType dtype, std::atomic<int>& unlike) {
    for (int step = 0; step < steps; ++step) {
      run(step);
      for (std::int64_t i = 0; i < gradients.back().end; ++i) {
        const float sum = arena[static_cast<std::size_t>(i)];
        ASSERT_EQ(sum, expected_sum(order, dtype, ranks, step, i)) << "element " << i;
        unlike += sum == reduced(ranks, step, i) ? 0 : 1;
      }
    }
  }
  /// Calls f(i) for each element i whose sum this rank holds. The buckets must be divided among ranks.
  template <class F>
  void for_own(F&& f) const {
    for (const Shards& s : shards) {
      for (std::int64_t i = s.begin; i < s.end; ++i) {
        const std::int64_t first = s.first_of(rank);
        if (i >= s.rest || (i >= first && i < first + s.part)) {
          f(i);
        }
      }
    }
  }
  int rank, ranks;
  Pair streams;
  std::vector<GradientRange> gradients;
  std::vector<float> arena = std::vector<float>(static_cast<std::size_t>(gradients.back().end) + 10, kPoison);
  std::vector<Shards> shards;
  std::optional<GradientReducer> reducer;
};

/// A group of a single rank, with its stream and arena, for reducers over `gradients`.
struct Alone {
  explicit Alone(std::vector<GradientRange> of) : gradients(std::move(of)) {}
  [[nodiscard]] GradientReducer make(const ReducerOptions& options = {}) { return make(buckets, options); }
  [[nodiscard]] GradientReducer make(const std::vector<Bucket>& in, const ReducerOptions& options = {}) {
    return {*communicator, stream, stream, gradients, in, view_of(arena), options};
  }
  LocalGroup group{1};
  std::unique_ptr<Communicator> communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  std::vector<GradientRange> gradients;
  std::vector<Bucket> buckets = plan_buckets(gradients, {});
  std::vector<float> arena = std::vector<float>(static_cast<std::size_t>(gradients.back().end));
};

/// Returns the ranges of three tensors. The second tensor is written twice, like a weight that two layers share.
std::vector<GradientRange> tied() {
  auto gradients = ranges({3, 4, 5});
  gradients[1].expected_writes = 2;
  return gradients;
}

constexpr Streams kKinds[] = {Streams::inline_worker, Streams::worker_worker, Streams::both_inline};

struct Case {
  int ranks;
  Streams streams;
};

class GradientReducerTest : public ::testing::TestWithParam<Case> {};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const Streams s : {Streams::inline_worker, Streams::worker_worker, Streams::both_inline, Streams::same_worker,
                            Streams::worker_inline}) {
      cases.push_back({ranks, s});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, GradientReducerTest, ::testing::ValuesIn(all_cases()), [](const auto& test) {
  return name_of(test.param.streams) + std::to_string(test.param.ranks);
});

// With any streams and delays, the result must have the bits of the sum in rank order.
TEST_P(GradientReducerTest, SameBitsWithRandomDelays) {
  const auto [ranks, kind] = GetParam();
  on_ranks(ranks, [kind = kind](Communicator& communicator) {
    Reduction r(communicator, kind);
    GradientReducer& reducer = *r.reducer;
    ASSERT_EQ(reducer.buckets().size(), 5u);
    std::vector<float> seen(r.arena.size());
    Random random(11, RandomUse::test, static_cast<std::uint64_t>(communicator.rank()));
    constexpr int kSteps = 8;
    for (int step = 0; step < kSteps; ++step) {
      reducer.begin_step();
      for (std::size_t g = 0; g < r.gradients.size(); ++g) {
        const std::uint32_t delay = random.below(60000);
        r.write(g, step, delay);
        if (random.below(2) == 0 && kind != Streams::worker_inline) {
          r.streams.comm().enqueue([delay] { busy(delay / 2); });
        }
      }
      reducer.finish();
      // Like an optimizer, this task reads all gradients on the compute stream.
      r.streams.compute().enqueue([&] { seen = r.arena; });
      r.streams.compute().synchronize();
      const std::int64_t end = r.gradients.back().end;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(seen.size()); ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(i)], i < end ? reduced(communicator.size(), step, i) : kPoison)
            << "element " << i;
      }
    }
    r.synchronize();
    const ReducerStatistics s = reducer.statistics();
    EXPECT_EQ(s.steps, kSteps);
    EXPECT_TRUE(s.total_s > 0);
    EXPECT_TRUE(s.exposed_s >= 0);
    EXPECT_TRUE(s.hidden_s() >= 0);
    const bool overlaps = kind == Streams::inline_worker || kind == Streams::worker_worker;
    if (!overlaps) {
      EXPECT_EQ(s.exposed_s, s.total_s);
    }
    ASSERT_EQ(s.buckets.size(), reducer.buckets().size());
    double sum = 0;
    for (std::size_t k = 0; k < s.buckets.size(); ++k) {
      EXPECT_EQ(s.buckets[k].bytes, 4 * (reducer.buckets()[k].end - reducer.buckets()[k].begin));
      sum += s.buckets[k].total_s;
    }
    EXPECT_EQ(sum, s.total_s);
  });
}

// The compute stream calls collectives between the layers of backward, on the reducer's own communicator. On every rank
// they must run in the order of the calls, and never during the all-reduce of a bucket.
TEST_P(GradientReducerTest, TheComputeStreamUsesTheCommunicatorBetweenBuckets) {
  const auto [ranks, kind] = GetParam();
  on_ranks(ranks, [kind = kind](Communicator& communicator) {
    Reduction r(communicator, kind);
    GradientReducer& reducer = *r.reducer;
    Stream& compute = r.streams.compute();
    Random random(13, RandomUse::test, static_cast<std::uint64_t>(communicator.rank()));
    std::vector<float> own(3), all(3 * static_cast<std::size_t>(communicator.size()));
    int wrong = 0;
    for (int step = 0; step < 6; ++step) {
      const bool abandoned = step == 3;  // the step is abandoned while started buckets are still being summed
      reducer.begin_step();
      for (std::size_t g = 0; g < r.gradients.size() - (abandoned ? 1 : 0); ++g) {
        const std::uint32_t delay = random.below(30000);
        compute.enqueue([&, g, step] {
          std::fill(own.begin(), own.end(), static_cast<float>(100 * r.rank + 10 * step) + static_cast<float>(g));
        });
        r.write(g, step, delay);
        if (kind != Streams::worker_inline) {
          r.streams.comm().enqueue([delay] { busy(delay / 2); });
        }
        if (abandoned) {
          continue;
        }
        reducer.wait_for_started();
        communicator.all_gather(compute, view_of(own), view_of(all));
        compute.enqueue([&, g, step] {
          for (std::size_t i = 0; i < all.size(); ++i) {
            wrong += all[i] == static_cast<float>(100 * (i / 3) + 10 * static_cast<std::size_t>(step) + g) ? 0 : 1;
          }
        });
      }
      if (abandoned) {
        reducer.abandon_step();
      } else {
        reducer.finish();
      }
      compute.enqueue([&, step] {
        for (std::int64_t i = 0; i < r.gradients.back().end && step != 3; ++i) {
          wrong += r.arena[static_cast<std::size_t>(i)] == reduced(communicator.size(), step, i) ? 0 : 1;
        }
      });
      reducer.wait_for_started();  // waits for the abandoned buckets, outside of a step
    }
    r.synchronize();
    EXPECT_EQ(wrong, 0);
    EXPECT_GE(reducer.statistics().exposed_s, 0);
  });
}

// Control for the tests above: if the communication stream does not wait for the event of the bucket's gradients, the
// all-reduce reads the former contents of the arena.
TEST(GradientReducer, WithoutTheEventTheResultIsWrong) {
  std::latch reduced_early(2);
  on_ranks(2, [&](Communicator& communicator) {
    Stream compute = Stream::host_worker("compute");
    Stream comm = Stream::host_worker("comm");
    std::vector<float> arena(100, kPoison);
    compute.enqueue([&] {
      reduced_early.wait();  // simulates a backward kernel that is still running
      for (std::size_t i = 0; i < arena.size(); ++i) {
        arena[i] = gradient(communicator.rank(), 0, static_cast<std::int64_t>(i));
      }
    });
    communicator.all_reduce(comm, view_of(arena));
    comm.synchronize();
    reduced_early.arrive_and_wait();
    compute.synchronize();
    ASSERT_NE(arena[0], reduced(2, 0, 0));
  });
}

// Gradients may become ready in a different order on each rank. The all-reduces must have the same order on all ranks.
TEST(GradientReducer, BucketsStartInOrderWhateverBecomesReadyFirst) {
  on_ranks(3, [](Communicator& communicator) {
    Stream compute = Stream::host_inline();
    Stream comm = Stream::host_worker("comm");
    const auto gradients = ranges({600, 600, 601, 602, 603});
    std::vector<float> arena(static_cast<std::size_t>(gradients.back().end));
    const auto buckets = small_buckets(gradients);
    ASSERT_EQ(buckets.size(), 5u);
    GradientReducer reducer(communicator, compute, comm, gradients, buckets, view_of(arena));
    reducer.begin_step();
    for (std::size_t i = 0; i < arena.size(); ++i) {
      arena[i] = gradient(communicator.rank(), 0, static_cast<std::int64_t>(i));
    }
    const CommunicatorCounts before = communicator.counts();
    for (const int offset : {0, 2, 4, 1, 3}) {
      reducer.gradient_written((offset + 1 + communicator.rank()) % 5);
    }
    reducer.finish();
    EXPECT_EQ(communicator.counts().calls - before.calls, 5);
    for (std::size_t i = 0; i < arena.size(); ++i) {
      ASSERT_EQ(arena[i], reduced(3, 0, static_cast<std::int64_t>(i)));
    }
  });
}

// In a 16-bit bucket, each gradient must be rounded once, and then each partial sum in rank order.
TEST(GradientReducer, SixteenBitBucketsAreRoundedWhereTheySay) {
  for (const Streams kind : kKinds) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      on_ranks(3, [kind, dtype](Communicator& communicator) {
        Reduction r(communicator, kind, SumOptions{.dtype = dtype});
        std::atomic<int> different{0};
        r.expect_sums(3, SumOrder::library, dtype, different);
        EXPECT_GT(different, 0);
        const ReducerStatistics s = r.reducer->statistics();
        EXPECT_EQ(s.steps, 3);
        EXPECT_EQ(s.buckets[0].bytes, 2 * (r.reducer->buckets()[0].end - r.reducer->buckets()[0].begin));
      });
    }
  }
}

// The expected sums do not depend on buckets, so equal bits for all bucket sizes show that the reducer's sums do not
// either.
TEST(GradientReducer, InRankOrderTheBitsDoNotDependOnBuckets) {
  std::atomic<int> different{0};
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Streams kind : kKinds) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const std::int64_t bytes : kBucketBytes) {
          on_ranks(ranks, [&](Communicator& communicator) {
            const SumOptions sums{.dtype = dtype, .order = SumOrder::ranks};
            Reduction(communicator, kind, sums, bytes).expect_sums(3, SumOrder::ranks, dtype, different);
          });
        }
      }
    }
  }
  EXPECT_GT(different, 0) << "the sum in f32 is another one";
}

TEST(GradientReducer, InATreeSumsAreThoseOfPairs) {
  std::atomic<int> different{0};
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (const std::int64_t bytes : kBucketBytes) {
      on_ranks(ranks, [&](Communicator& communicator) {
        Reduction(communicator, Streams::inline_worker, SumOptions{.order = SumOrder::tree}, bytes)
            .expect_sums(2, SumOrder::tree, DType::f32, different);
      });
    }
  }
  EXPECT_GT(different, 0) << "the sum in rank order is another one";
  const auto failures = run_ranks(2, [&](Communicator& communicator) {
    Reduction(communicator, Streams::both_inline, SumOptions{.dtype = DType::bf16, .order = SumOrder::tree});
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("travel as bf16 and are added in a tree"), std::string::npos) << failure;
  }
}

TEST(GradientReducer, WithShardsARankHasItsSumsAndGathersTheRest) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Streams kind : kKinds) {
      for (const SumOrder order : {SumOrder::library, SumOrder::ranks, SumOrder::tree}) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          if (order == SumOrder::tree && dtype == DType::bf16) {
            continue;  // the reducer refuses this combination
          }
          for (const std::int64_t bytes : kBucketBytes) {
            on_ranks(ranks, [&](Communicator& communicator) {
              Reduction r(communicator, kind, SumOptions{.dtype = dtype, .order = order}, bytes, true);
              std::vector<float> parameters(static_cast<std::size_t>(r.gradients.back().end), kPoison);
              for (int step = 0; step < 3; ++step) {
                r.run(step);
                std::int64_t own = 0;
                r.for_own([&](std::int64_t i) {
                  ++own;
                  ASSERT_EQ(r.arena[static_cast<std::size_t>(i)], expected_sum(order, dtype, ranks, step, i)) << i;
                });
                EXPECT_LT(own, r.gradients.back().end / ranks + 6 * ranks * kShardStep);
                // Each rank updates only the parameters whose gradient sums it holds. After gather() every rank must
                // have all updated parameters.
                r.streams.compute().enqueue([&] {
                  r.for_own([&](std::int64_t i) {
                    parameters[static_cast<std::size_t>(i)] = static_cast<float>(i * (step + 1));
                  });
                });
                for (int k = static_cast<int>(r.shards.size()) - 1; k >= 0; --k) {
                  r.reducer->gather(k, view_of(parameters));
                }
                r.reducer->finish_gather();
                double mine = r.rank + 1 + 10 * step;
                r.reducer->sum(TensorView(std::span(&mine, 1), Shape{1}));
                r.streams.compute().synchronize();
                EXPECT_EQ(mine, ranks * (ranks + 1) / 2.0 + 10 * step * ranks);
                for (std::size_t i = 0; i < parameters.size(); ++i) {
                  ASSERT_EQ(parameters[i], static_cast<float>(i) * static_cast<float>(step + 1)) << "element " << i;
                }
              }
              r.streams.comm().synchronize();
              EXPECT_EQ(r.reducer->statistics().steps, 3);
            });
          }
        }
      }
    }
  }
}

TEST(GradientReducer, ShardsThatDoNotFitAreRefused) {
  Alone alone(ranges({300, 400}));
  ASSERT_EQ(alone.buckets.size(), 1U);
  const Shards whole = shards_of(0, 700, 1);
  EXPECT_EQ(whole.part, 640);
  const auto refused = [&](const std::vector<Shards>& shards, const std::string& text) {
    expect_error<ShapeError>([&] { (void)alone.make({.shards = shards}); }, {text});
  };
  refused({whole, whole}, "gradient reducer: shards are given for 2 buckets, expected one for each of the 1 buckets");
  refused({shards_of(128, 700, 1)}, "expected parts that cover bucket [0, 700)");
  refused({shards_of(0, 900, 1)}, "1 parts of 896");
  const TensorView arena = view_of(alone.arena);
  GradientReducer divided = alone.make({.shards = {whole}});
  expect_error<UsageError>([&] { divided.gather(1, arena); }, {"gradient reducer: bucket is 1, expected 0 to 0"});
  divided.begin_step();
  expect_error<StateError>([&] { divided.gather(0, arena); }, {"in a step"});
  GradientReducer undivided = alone.make();
  expect_error<StateError>([&] { undivided.gather(0, arena); }, {"without shards"});
}

TEST(GradientReducer, ATiedWeightIsReadyAfterItsLastWrite) {
  on_ranks(2, [](Communicator& communicator) {
    Stream stream = Stream::host_inline();
    auto gradients = ranges({10, 20});
    gradients[0].expected_writes = 2;
    std::vector<float> arena(30, 1.0f);
    GradientReducer reducer(communicator, stream, stream, gradients, plan_buckets(gradients, {}), view_of(arena));
    for (int step = 0; step < 2; ++step) {
      std::fill(arena.begin(), arena.end(), 1.0f);
      reducer.begin_step();
      reducer.gradient_written(0);
      reducer.gradient_written(1);
      EXPECT_EQ(arena[0], 1.0f);
      reducer.gradient_written(0);
      EXPECT_EQ(arena[0], 2.0f);
      reducer.finish();
    }
  });
}

TEST(GradientReducer, NoGradients) {
  LocalGroup group(1);
  const auto communicator = group.communicator(0);
  Stream compute = Stream::host_inline();
  Stream comm = Stream::host_worker("comm");
  std::vector<float> arena;
  GradientReducer reducer(*communicator, compute, comm, {}, {}, view_of(arena));
  reducer.begin_step();
  reducer.finish();
  EXPECT_EQ(reducer.statistics().steps, 1);
}

TEST(GradientReducer, WrongUseNamesTheTensor) {
  Alone alone(tied());
  GradientReducer reducer = alone.make();
  const auto refused = [](const std::string& text, const std::function<void()>& call) {
    EXPECT_EQ(error_of<StateError>(call), "gradient reducer: " + text);
  };
  refused("g1 was written outside a step, expected begin_step() before", [&] { reducer.gradient_written(1); });
  refused("finish() outside a step, expected begin_step() before", [&] { reducer.finish(); });
  reducer.begin_step();
  refused("begin_step() is called in a step, expected the last step to be finished or given up before",
          [&] { reducer.begin_step(); });
  reducer.gradient_written(0);
  refused("g0 was written more than 1 times in a step, expected as many writes", [&] { reducer.gradient_written(0); });
  reducer.gradient_written(1);
  refused("expected all gradients to be written in this step, not written: g1 (1 of 2 writes), g2 (0 of 1 writes)",
          [&] { reducer.finish(); });
  refused("gradient 3 was written, expected 0 to 2", [&] { reducer.gradient_written(3); });
  refused("gradient -1 was written, expected 0 to 2", [&] { reducer.gradient_written(-1); });
  reducer.gradient_written(1);
  reducer.gradient_written(2);
  reducer.finish();
  reducer.begin_step();
}

TEST(GradientReducer, AStepThatIsGivenUpLeavesNothingBehind) {
  for (const bool worker : {false, true}) {
    Alone alone(tied());
    Stream other = Stream::host_worker("comm");
    GradientReducer reducer(*alone.communicator, alone.stream, worker ? other : alone.stream, alone.gradients,
                            plan_buckets(alone.gradients, {.bucket_bytes = 4, .tail_bytes = 4}), view_of(alone.arena));
    ASSERT_EQ(reducer.buckets().size(), 3U);
    reducer.abandon_step();  // does nothing outside of a step
    for (int given_up = 0; given_up < 3; ++given_up) {
      reducer.begin_step();
      reducer.gradient_written(0);
      reducer.gradient_written(1);
      if (given_up == 1) {
        EXPECT_THROW(reducer.finish(), StateError);
      }
      reducer.abandon_step();
      EXPECT_EQ(error_of<StateError>([&] { reducer.gradient_written(1); }),
                "gradient reducer: g1 was written outside a step, expected begin_step() before");
      EXPECT_EQ(error_of<StateError>([&] { reducer.finish(); }),
                "gradient reducer: finish() outside a step, expected begin_step() before");
    }
    other.synchronize();
    const std::int64_t before = alone.communicator->counts().calls;
    EXPECT_EQ(before, 3) << "the first bucket of each step";
    reducer.begin_step();
    for (const int index : {0, 1, 1, 2}) {
      reducer.gradient_written(index);
    }
    reducer.finish();
    other.synchronize();
    EXPECT_EQ(alone.communicator->counts().calls, before + 3) << "a whole step: each bucket once";
    EXPECT_EQ(reducer.statistics().steps, 1);
  }
}

TEST(GradientReducer, ManyMissingGradientsAreCounted) {
  Alone alone(ranges(std::vector<std::int64_t>(20, 1)));
  GradientReducer reducer = alone.make();
  reducer.begin_step();
  expect_error<StateError>([&] { reducer.finish(); }, {"g7 (0 of 1 writes) and 12 more"});
}

TEST(GradientReducer, BadConstruction) {
  Alone alone(ranges({3, 4, 5}));
  const auto good = alone.buckets;
  const TensorView view = view_of(alone.arena);
  const auto make = [&](const std::vector<Bucket>& b, const TensorView& v, std::optional<DType> dtype = {}) {
    ReducerOptions options;
    if (dtype) {
      options.sum = make_bucket_sum({.dtype = *dtype});
    }
    return GradientReducer(*alone.communicator, alone.stream, alone.stream, alone.gradients, b, v, options);
  };
  EXPECT_THROW(make({}, view), ShapeError);                             // no gradient is in a bucket
  EXPECT_THROW(make({{0, 2, 0, 7}}, view), ShapeError);                 // the last gradient is missing
  EXPECT_THROW(make({{0, 2, 0, 7}, {1, 3, 3, 12}}, view), ShapeError);  // a gradient is in two buckets
  EXPECT_THROW(make({{0, 2, 0, 7}, {2, 4, 7, 12}}, view), ShapeError);  // a bucket reaches beyond the last gradient
  EXPECT_THROW(make({{0, 2, 0, 6}, {2, 3, 6, 12}}, view), ShapeError);  // the elements do not match the tensors
  EXPECT_THROW(make({{0, 0, 0, 0}, {0, 3, 0, 12}}, view), ShapeError);  // an empty bucket
  EXPECT_THROW(make(good, view.slice(0, 0, 11)), ShapeError);           // the arena is too short
  EXPECT_THROW(make(good, view.reshape(Shape{3, 4})), ShapeError);      // the arena is not 1-D
  EXPECT_THROW(make(good, view, DType::f64), DTypeError);
  EXPECT_NO_THROW(make(good, view, DType::bf16));
  const GradientReducer whole = make(good, view);
  EXPECT_EQ(whole.sent_as(), DType::f32);
  EXPECT_EQ(whole.bytes(), 0U);
  const GradientReducer halved = make(good, view, DType::f16);
  EXPECT_EQ(halved.sent_as(), DType::f16);
  std::int64_t largest = 0;
  for (const Bucket& bucket : good) {
    largest = std::max(largest, bucket.end - bucket.begin);
  }
  EXPECT_EQ(halved.bytes(), static_cast<std::size_t>(2 * largest));
  std::vector<double> wide(12);
  EXPECT_THROW(make(good, TensorView(std::span(wide), Shape{12}), DType::bf16), DTypeError);
  alone.gradients[1].expected_writes = 0;
  EXPECT_THROW(make(good, view), UsageError);
}

TEST(GradientReducer, ARankThatFailsDoesNotHangTheOthers) {
  for (const Streams kind : kKinds) {
    const auto failures = run_ranks(3, [kind](Communicator& communicator) {
      Reduction r(communicator, kind);
      for (int step = 0; step < 3; ++step) {
        r.reducer->begin_step();
        for (int g = 0; g < static_cast<int>(r.gradients.size()); ++g) {
          require<DataError>(!(communicator.rank() == 1 && step == 1 && g == 6), "broken record");
          r.reducer->gradient_written(g);
        }
        r.reducer->finish();
        r.streams.compute().synchronize();
      }
    });
    EXPECT_EQ(failures[1], "broken record");
    for (const std::size_t r : {0u, 2u}) {
      EXPECT_EQ(failures[r], "peer: all_reduce: rank 1 left the group while rank " + std::to_string(r) +
                                 " waited for it, expected all ranks until the end");
    }
  }
}

TEST(GradientReducer, AStepAllocatesNothing) {
  for (const auto& [kind, dtype] : {std::pair(Streams::inline_worker, DType::f32),
                                    {Streams::worker_worker, DType::f32},
                                    {Streams::both_inline, DType::f32},
                                    {Streams::worker_worker, DType::bf16}}) {
    on_ranks(2, [kind = kind, dtype = dtype](Communicator& communicator) {
      Reduction r(communicator, kind, SumOptions{.dtype = dtype});
      r.streams.compute().enqueue([] { counting = true; });
      r.streams.comm().enqueue([] { counting = true; });
      counting = true;
      const std::int64_t before = allocations;
      for (int step = 0; step < 5; ++step) {
        r.reducer->begin_step();
        for (int g = 0; g < static_cast<int>(r.gradients.size()); ++g) {
          r.reducer->gradient_written(g);
        }
        r.reducer->finish();
      }
      r.synchronize();
      EXPECT_EQ(allocations - before, 0);
      counting = false;
    });
  }
}

TEST(GradientReducer, TheAllocationCounterCounts) {  // control for the test above
  counting = true;
  const std::int64_t before = allocations;
  auto* const something = new std::vector<int>(3);
  EXPECT_GE(allocations - before, 2);
  delete something;
  counting = false;
}

}  // namespace
}  // namespace lockstep::comm
