#include <lockstep/comm/gradients/gradient_reducer.hpp>

#include <algorithm>
#include <atomic>
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

constexpr float kPoison = -777.0f;

/// Work that takes a while without sleeping.
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

// Whatever streams and delays: the bits are those of the sum in rank order, i.e. the same for every case.
TEST_P(GradientReducerTest, SameBitsWithRandomDelays) {
  const auto [ranks, kind] = GetParam();
  expect_ranks(ranks, [kind = kind](Communicator& communicator) {
    Pair streams(kind);
    const auto gradients = ranges(kSizes);
    std::vector<float> arena(static_cast<std::size_t>(gradients.back().end) + 10, kPoison);
    GradientReducer reducer(communicator, streams.compute(), streams.comm(), gradients, small_buckets(gradients),
                            view_of(arena));
    ASSERT_EQ(reducer.buckets().size(), 5u);
    std::vector<float> seen(arena.size());
    Random random(11, RandomUse::test, static_cast<std::uint64_t>(communicator.rank()));
    constexpr int kSteps = 8;
    for (int step = 0; step < kSteps; ++step) {
      reducer.begin_step();
      for (std::size_t g = 0; g < gradients.size(); ++g) {
        const std::uint32_t delay = random.below(60000);
        streams.compute().enqueue([&, g, step, delay] {
          busy(delay);
          for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
            arena[static_cast<std::size_t>(i)] = gradient(communicator.rank(), step, i);
          }
        });
        reducer.gradient_written(static_cast<int>(g));
        if (random.below(2) == 0 && kind != Streams::worker_inline) {
          streams.comm().enqueue([delay] { busy(delay / 2); });
        }
      }
      reducer.finish();
      // The optimizer: reads all gradients on the compute stream.
      streams.compute().enqueue([&] { seen = arena; });
      streams.compute().synchronize();
      for (std::int64_t i = 0; i < gradients.back().end; ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(i)], reduced(communicator.size(), step, i)) << "element " << i;
      }
      for (std::size_t i = static_cast<std::size_t>(gradients.back().end); i < arena.size(); ++i) {
        ASSERT_EQ(seen[i], kPoison);
      }
    }
    streams.compute().synchronize();
    streams.comm().synchronize();
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

// What the compute stream exchanges between the layers of backward, over the reducer's own communicator: in the order
// of the calls on every rank, and with no bucket under way.
TEST_P(GradientReducerTest, TheComputeStreamUsesTheCommunicatorBetweenBuckets) {
  const auto [ranks, kind] = GetParam();
  expect_ranks(ranks, [kind = kind](Communicator& communicator) {
    Pair streams(kind);
    const auto gradients = ranges(kSizes);
    std::vector<float> arena(static_cast<std::size_t>(gradients.back().end));
    GradientReducer reducer(communicator, streams.compute(), streams.comm(), gradients, small_buckets(gradients),
                            view_of(arena));
    Random random(13, RandomUse::test, static_cast<std::uint64_t>(communicator.rank()));
    const int me = communicator.rank();
    std::vector<float> own(3), all(3 * static_cast<std::size_t>(communicator.size()));
    int wrong = 0;
    for (int step = 0; step < 6; ++step) {
      const bool abandoned = step == 3;  // started buckets are under way in the next step
      reducer.begin_step();
      for (std::size_t g = 0; g < gradients.size() - (abandoned ? 1 : 0); ++g) {
        const std::uint32_t delay = random.below(30000);
        streams.compute().enqueue([&, g, step, delay] {
          busy(delay);
          for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
            arena[static_cast<std::size_t>(i)] = gradient(me, step, i);
          }
          std::fill(own.begin(), own.end(), static_cast<float>(100 * me + 10 * step) + static_cast<float>(g));
        });
        reducer.gradient_written(static_cast<int>(g));
        if (kind != Streams::worker_inline) {
          streams.comm().enqueue([delay] { busy(delay / 2); });
        }
        if (abandoned) {
          continue;
        }
        reducer.wait_for_started();
        communicator.all_gather(streams.compute(), view_of(own), view_of(all));
        streams.compute().enqueue([&, g, step] {
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
      streams.compute().enqueue([&, step] {
        for (std::int64_t i = 0; i < gradients.back().end && step != 3; ++i) {
          wrong += arena[static_cast<std::size_t>(i)] == reduced(communicator.size(), step, i) ? 0 : 1;
        }
      });
      reducer.wait_for_started();  // outside a step: for what was abandoned
    }
    streams.compute().synchronize();
    streams.comm().synchronize();
    EXPECT_EQ(wrong, 0);
    EXPECT_GE(reducer.statistics().exposed_s, 0);
  });
}

// Control for the tests above: without the event R[k] the all-reduce reads what was in the arena before.
TEST(GradientReducer, WithoutTheEventTheResultIsWrong) {
  std::latch reduced_early(2);
  expect_ranks(2, [&](Communicator& communicator) {
    Stream compute = Stream::host_worker("compute");
    Stream comm = Stream::host_worker("comm");
    std::vector<float> arena(100, kPoison);
    compute.enqueue([&] {
      reduced_early.wait();  // a slow backward kernel
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

// The order in which gradients become ready may differ from rank to rank; the all-reduces may not.
TEST(GradientReducer, BucketsStartInOrderWhateverBecomesReadyFirst) {
  expect_ranks(3, [](Communicator& communicator) {
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

// The oracle rounds where the buckets do: once on the way in, and at every addition, in rank order.
TEST(GradientReducer, SixteenBitBucketsAreRoundedWhereTheySay) {
  for (const Streams kind : {Streams::inline_worker, Streams::worker_worker, Streams::both_inline}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      expect_ranks(3, [kind, dtype](Communicator& communicator) {
        Pair streams(kind);
        const auto gradients = ranges(kSizes);
        std::vector<float> arena(static_cast<std::size_t>(gradients.back().end));
        GradientReducer reducer(communicator, streams.compute(), streams.comm(), gradients, small_buckets(gradients),
                                view_of(arena), {.sum = make_bucket_sum({.dtype = dtype})});
        int different = 0;
        for (int step = 0; step < 3; ++step) {
          reducer.begin_step();
          for (std::size_t g = 0; g < gradients.size(); ++g) {
            streams.compute().enqueue([&, g, step] {
              for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
                arena[static_cast<std::size_t>(i)] = gradient(communicator.rank(), step, i);
              }
            });
            reducer.gradient_written(static_cast<int>(g));
          }
          reducer.finish();
          streams.compute().synchronize();
          for (std::int64_t i = 0; i < gradients.back().end; ++i) {
            const float sum = arena[static_cast<std::size_t>(i)];
            ASSERT_EQ(sum, dtype == DType::bf16 ? rounded_sum<BFloat16>(3, step, i) : rounded_sum<Float16>(3, step, i));
            different += sum == reduced(3, step, i) ? 0 : 1;
          }
        }
        EXPECT_GT(different, 0);
        const ReducerStatistics s = reducer.statistics();
        EXPECT_EQ(s.steps, 3);
        EXPECT_EQ(s.buckets[0].bytes, 2 * (reducer.buckets()[0].end - reducer.buckets()[0].begin));
      });
    }
  }
}

/// A reducer over kSizes, and steps of it.
struct Reduction {
  Reduction(Communicator& communicator, Streams kind, std::int64_t bucket_bytes, const SumOptions& sums, bool divided)
      : rank(communicator.rank()), streams(kind), gradients(ranges(kSizes)), arena(elements()) {
    const auto buckets = plan_buckets(gradients, {.bucket_bytes = bucket_bytes});
    for (const Bucket& b : buckets) {
      shards.push_back(shards_of(b.begin, b.end, communicator.size()));
    }
    reducer.emplace(communicator, streams.compute(), streams.comm(), gradients, buckets, view_of(arena),
                    ReducerOptions{.shards = divided ? shards : std::vector<Shards>(),
                                   .sum = make_bucket_sum(sums, {.divided = divided})});
  }
  [[nodiscard]] std::size_t elements() const { return static_cast<std::size_t>(gradients.back().end); }
  void run(int step) {
    reducer->begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      streams.compute().enqueue([this, g, step] {
        for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
          arena[static_cast<std::size_t>(i)] = gradient(rank, step, i);
        }
      });
      reducer->gradient_written(static_cast<int>(g));
    }
    reducer->finish();
    streams.compute().synchronize();
  }
  /// Calls f(i) for the elements whose sums this rank has when buckets are divided.
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
  int rank;
  Pair streams;
  std::vector<GradientRange> gradients;
  std::vector<float> arena;
  std::vector<Shards> shards;
  std::optional<GradientReducer> reducer;
};

constexpr std::int64_t kBucketBytes[] = {4000, 1 << 20};

float expected_sum(SumOrder order, DType dtype, int size, int step, std::int64_t i) {
  if (order == SumOrder::tree) {
    return sum_in_tree(0, 8, size, step, i);
  }
  if (order == SumOrder::ranks) {
    return dtype == DType::bf16  ? sum_in_rank_order<BFloat16>(size, step, i)
           : dtype == DType::f16 ? sum_in_rank_order<Float16>(size, step, i)
                                 : sum_in_rank_order<float>(size, step, i);
  }
  return dtype == DType::bf16 ? rounded_sum<BFloat16>(size, step, i) : reduced(size, step, i);
}

// The oracle knows no buckets.
TEST(GradientReducer, InRankOrderTheBitsDoNotDependOnBuckets) {
  int different = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Streams kind : {Streams::inline_worker, Streams::worker_worker, Streams::both_inline}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const std::int64_t bytes : kBucketBytes) {
          std::atomic<int> unlike{0};
          expect_ranks(ranks, [&](Communicator& communicator) {
            Reduction r(communicator, kind, bytes, {.dtype = dtype, .order = SumOrder::ranks}, false);
            for (int step = 0; step < 3; ++step) {
              r.run(step);
              for (std::int64_t i = 0; i < r.gradients.back().end; ++i) {
                const float sum = r.arena[static_cast<std::size_t>(i)];
                ASSERT_EQ(sum, expected_sum(SumOrder::ranks, dtype, ranks, step, i)) << "element " << i;
                unlike += sum == reduced(ranks, step, i) ? 0 : 1;
              }
            }
          });
          different += unlike;
        }
      }
    }
  }
  EXPECT_GT(different, 0) << "the sum in f32 is another one";
}

TEST(GradientReducer, InATreeSumsAreThoseOfPairs) {
  int different = 0;
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (const std::int64_t bytes : kBucketBytes) {
      std::atomic<int> unlike{0};
      expect_ranks(ranks, [&](Communicator& communicator) {
        Reduction r(communicator, Streams::inline_worker, bytes, {.order = SumOrder::tree}, false);
        for (int step = 0; step < 2; ++step) {
          r.run(step);
          for (std::int64_t i = 0; i < r.gradients.back().end; ++i) {
            const float sum = r.arena[static_cast<std::size_t>(i)];
            ASSERT_EQ(sum, expected_sum(SumOrder::tree, DType::f32, ranks, step, i)) << "element " << i;
            unlike += sum == reduced(ranks, step, i) ? 0 : 1;
          }
        }
      });
      different += unlike;
    }
  }
  EXPECT_GT(different, 0) << "the sum in rank order is another one";
  const auto failures = run_ranks(2, [&](Communicator& communicator) {
    Reduction(communicator, Streams::both_inline, 4000, {.dtype = DType::bf16, .order = SumOrder::tree}, false);
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("travel as bf16 and are added in a tree"), std::string::npos) << failure;
  }
}

TEST(GradientReducer, WithShardsARankHasItsSumsAndGathersTheRest) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Streams kind : {Streams::inline_worker, Streams::worker_worker, Streams::both_inline}) {
      for (const SumOrder order : {SumOrder::library, SumOrder::ranks, SumOrder::tree}) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          if (order == SumOrder::tree && dtype == DType::bf16) {
            continue;  // refused
          }
          for (const std::int64_t bytes : kBucketBytes) {
            expect_ranks(ranks, [&](Communicator& communicator) {
              Reduction r(communicator, kind, bytes, {.dtype = dtype, .order = order}, true);
              std::vector<float> parameters(r.elements(), kPoison);
              for (int step = 0; step < 3; ++step) {
                r.run(step);
                std::int64_t own = 0;
                r.for_own([&](std::int64_t i) {
                  ++own;
                  ASSERT_EQ(r.arena[static_cast<std::size_t>(i)], expected_sum(order, dtype, ranks, step, i)) << i;
                });
                EXPECT_LT(own, r.gradients.back().end / ranks + 6 * ranks * kShardStep);
                // Each rank updates what is its own; then all have everything.
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
  LocalGroup group(1);
  const auto communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  const auto gradients = ranges({300, 400});
  const auto buckets = plan_buckets(gradients, {});
  ASSERT_EQ(buckets.size(), 1U);
  std::vector<float> arena(700);
  const auto make = [&](ReducerOptions options) {
    return std::make_unique<GradientReducer>(*communicator, stream, stream, gradients, buckets, view_of(arena),
                                             std::move(options));
  };
  const Shards whole = shards_of(0, 700, 1);
  EXPECT_EQ(whole.part, 640);
  EXPECT_EQ(error_of<ShapeError>([&] {
              make({.shards = {whole, whole}});
            }),
            "gradient reducer: there are shards of 2 buckets, expected of 1");
  testing::expect_holds(error_of<ShapeError>([&] { make({.shards = {shards_of(128, 700, 1)}}); }),
                        "which is not bucket [0, 700)");
  testing::expect_holds(error_of<ShapeError>([&] { make({.shards = {shards_of(0, 900, 1)}}); }), "1 parts of 896");
  const auto divided = make({.shards = {whole}});
  EXPECT_EQ(error_of<UsageError>([&] { divided->gather(1, view_of(arena)); }),
            "gradient reducer: bucket is 1, expected 0 to 0");
  divided->begin_step();
  EXPECT_NE(error_of<StateError>([&] { divided->gather(0, view_of(arena)); }).find("in a step"), std::string::npos);
  const auto undivided = make({});
  testing::expect_holds(error_of<StateError>([&] { undivided->gather(0, view_of(arena)); }), "without shards");
}

TEST(GradientReducer, ATiedWeightIsReadyAfterItsLastWrite) {
  expect_ranks(2, [](Communicator& communicator) {
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
  LocalGroup group(1);
  const auto communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  auto gradients = ranges({3, 4, 5});
  gradients[1].expected_writes = 2;
  std::vector<float> arena(12);
  GradientReducer reducer(*communicator, stream, stream, gradients, plan_buckets(gradients, {}), view_of(arena));
  EXPECT_EQ(error_of<StateError>([&] { reducer.gradient_written(1); }),
            "gradient reducer: g1 was written outside a step");
  EXPECT_EQ(error_of<StateError>([&] { reducer.finish(); }), "gradient reducer: finish() outside a step");
  reducer.begin_step();
  EXPECT_EQ(error_of<StateError>([&] { reducer.begin_step(); }),
            "gradient reducer: begin_step() before the last step was finished or given up");
  reducer.gradient_written(0);
  EXPECT_EQ(error_of<StateError>([&] { reducer.gradient_written(0); }),
            "gradient reducer: g0 was written more than 1 times in a step");
  reducer.gradient_written(1);
  EXPECT_EQ(error_of<StateError>([&] { reducer.finish(); }),
            "gradient reducer: not written in this step: g1 (1 of 2 writes), g2 (0 of 1 writes)");
  EXPECT_EQ(error_of<StateError>([&] { reducer.gradient_written(3); }),
            "gradient reducer: gradient 3 was written, expected 0 to 2");
  EXPECT_EQ(error_of<StateError>([&] { reducer.gradient_written(-1); }),
            "gradient reducer: gradient -1 was written, expected 0 to 2");
  reducer.gradient_written(1);
  reducer.gradient_written(2);
  reducer.finish();
  reducer.begin_step();
}

TEST(GradientReducer, AStepThatIsGivenUpLeavesNothingBehind) {
  for (const bool worker : {false, true}) {
    LocalGroup group(1);
    const auto communicator = group.communicator(0);
    Stream compute = Stream::host_inline();
    Stream other = Stream::host_worker("comm");
    auto gradients = ranges({3, 4, 5});
    gradients[1].expected_writes = 2;
    std::vector<float> arena(12);
    GradientReducer reducer(*communicator, compute, worker ? other : compute, gradients,
                            plan_buckets(gradients, {.bucket_bytes = 4, .tail_bytes = 4}), view_of(arena));
    ASSERT_EQ(reducer.buckets().size(), 3U);
    reducer.abandon_step();  // outside a step
    for (int given_up = 0; given_up < 3; ++given_up) {
      reducer.begin_step();
      reducer.gradient_written(0);
      reducer.gradient_written(1);
      if (given_up == 1) {
        EXPECT_THROW(reducer.finish(), StateError);
      }
      reducer.abandon_step();
      EXPECT_EQ(error_of<StateError>([&] { reducer.gradient_written(1); }),
                "gradient reducer: g1 was written outside a step");
      EXPECT_EQ(error_of<StateError>([&] { reducer.finish(); }), "gradient reducer: finish() outside a step");
    }
    other.synchronize();
    const std::int64_t before = communicator->counts().calls;
    EXPECT_EQ(before, 3) << "the first bucket of each step";
    reducer.begin_step();
    for (const int index : {0, 1, 1, 2}) {
      reducer.gradient_written(index);
    }
    reducer.finish();
    other.synchronize();
    EXPECT_EQ(communicator->counts().calls, before + 3) << "a whole step: each bucket once";
    EXPECT_EQ(reducer.statistics().steps, 1);
  }
}

TEST(GradientReducer, ManyMissingGradientsAreCounted) {
  LocalGroup group(1);
  const auto communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  const auto gradients = ranges(std::vector<std::int64_t>(20, 1));
  std::vector<float> arena(20);
  GradientReducer reducer(*communicator, stream, stream, gradients, plan_buckets(gradients, {}), view_of(arena));
  reducer.begin_step();
  const std::string text = error_of<StateError>([&] { reducer.finish(); });
  EXPECT_NE(text.find("g7 (0 of 1 writes) and 12 more"), std::string::npos) << text;
}

TEST(GradientReducer, BadConstruction) {
  LocalGroup group(1);
  const auto communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  const auto gradients = ranges({3, 4, 5});
  const auto good = plan_buckets(gradients, {});
  std::vector<float> arena(12);
  const TensorView view = view_of(arena);
  const auto make = [&](const std::vector<GradientRange>& g, const std::vector<Bucket>& b, const TensorView& v) {
    GradientReducer(*communicator, stream, stream, g, b, v);
  };
  make(gradients, good, view);
  EXPECT_THROW(make(gradients, {}, view), ShapeError);                             // nothing covered
  EXPECT_THROW(make(gradients, {{0, 2, 0, 7}}, view), ShapeError);                 // the last one is missing
  EXPECT_THROW(make(gradients, {{0, 2, 0, 7}, {1, 3, 3, 12}}, view), ShapeError);  // covered twice
  EXPECT_THROW(make(gradients, {{0, 2, 0, 7}, {2, 4, 7, 12}}, view), ShapeError);  // beyond the last
  EXPECT_THROW(make(gradients, {{0, 2, 0, 6}, {2, 3, 6, 12}}, view), ShapeError);  // not where the tensors are
  EXPECT_THROW(make(gradients, {{0, 0, 0, 0}, {0, 3, 0, 12}}, view), ShapeError);  // an empty bucket
  EXPECT_THROW(make(gradients, good, view.slice(0, 0, 11)), ShapeError);           // the arena is too short
  EXPECT_THROW(make(gradients, good, view.reshape(Shape{3, 4})), ShapeError);      // and not 1-D
  EXPECT_THROW(GradientReducer(*communicator, stream, stream, gradients, good, view,
                               {.sum = make_bucket_sum({.dtype = DType::f64})}),
               DTypeError);
  EXPECT_NO_THROW(GradientReducer(*communicator, stream, stream, gradients, good, view,
                                  {.sum = make_bucket_sum({.dtype = DType::bf16})}));
  const GradientReducer whole(*communicator, stream, stream, gradients, good, view);
  EXPECT_EQ(whole.sent_as(), DType::f32);
  EXPECT_EQ(whole.bytes(), 0U);
  const GradientReducer halved(*communicator, stream, stream, gradients, good, view,
                               {.sum = make_bucket_sum({.dtype = DType::f16})});
  EXPECT_EQ(halved.sent_as(), DType::f16);
  std::int64_t largest = 0;
  for (const Bucket& bucket : good) {
    largest = std::max(largest, bucket.end - bucket.begin);
  }
  EXPECT_EQ(halved.bytes(), static_cast<std::size_t>(2 * largest));
  std::vector<double> wide(12);
  EXPECT_THROW(GradientReducer(*communicator, stream, stream, gradients, good, TensorView(std::span(wide), Shape{12}),
                               {.sum = make_bucket_sum({.dtype = DType::bf16})}),
               DTypeError);
  auto never = gradients;
  never[1].expected_writes = 0;
  EXPECT_THROW(make(never, good, view), UsageError);
}

TEST(GradientReducer, ARankThatFailsDoesNotHangTheOthers) {
  for (const Streams kind : {Streams::inline_worker, Streams::worker_worker, Streams::both_inline}) {
    const auto failures = run_ranks(3, [kind](Communicator& communicator) {
      const auto gradients = ranges(kSizes);
      std::vector<float> arena(static_cast<std::size_t>(gradients.back().end));
      Pair streams(kind);
      GradientReducer reducer(communicator, streams.compute(), streams.comm(), gradients, small_buckets(gradients),
                              view_of(arena));
      for (int step = 0; step < 3; ++step) {
        reducer.begin_step();
        for (int g = 0; g < static_cast<int>(gradients.size()); ++g) {
          require<DataError>(!(communicator.rank() == 1 && step == 1 && g == 6), "broken record");
          reducer.gradient_written(g);
        }
        reducer.finish();
        streams.compute().synchronize();
      }
    });
    EXPECT_EQ(failures[1], "broken record");
    for (const std::size_t r : {0u, 2u}) {
      EXPECT_EQ(failures[r],
                "peer: all_reduce: rank 1 left the group while rank " + std::to_string(r) + " waited for it");
    }
  }
}

TEST(GradientReducer, AStepAllocatesNothing) {
  for (const auto& [kind, dtype] : {std::pair(Streams::inline_worker, DType::f32),
                                    {Streams::worker_worker, DType::f32},
                                    {Streams::both_inline, DType::f32},
                                    {Streams::worker_worker, DType::bf16}}) {
    expect_ranks(2, [kind = kind, dtype = dtype](Communicator& communicator) {
      Pair streams(kind);
      const auto gradients = ranges(kSizes);
      std::vector<float> arena(static_cast<std::size_t>(gradients.back().end));
      GradientReducer reducer(communicator, streams.compute(), streams.comm(), gradients, small_buckets(gradients),
                              view_of(arena), {.sum = make_bucket_sum({.dtype = dtype})});
      streams.compute().enqueue([] { counting = true; });
      streams.comm().enqueue([] { counting = true; });
      counting = true;
      const std::int64_t before = allocations;
      for (int step = 0; step < 5; ++step) {
        reducer.begin_step();
        for (int g = 0; g < static_cast<int>(gradients.size()); ++g) {
          reducer.gradient_written(g);
        }
        reducer.finish();
      }
      streams.compute().synchronize();
      streams.comm().synchronize();
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
