// Tests gradient hooks. A program passes a hook to the reducer to replace the all-reduce of each bucket.
#include <lockstep/comm/gradients/bucket_sum.hpp>

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gradient_data.hpp"
#include "local_ranks.hpp"
#include "tests/support/error_of.hpp"

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>

namespace lockstep::comm {
namespace {

using lockstep::testing::error_of;

/// Returns a hook that sums in rank order, as the local communicator does, and then adds `offset` to every element.
std::shared_ptr<BucketSum> shifted(float offset) {
  return make_gradient_hook("shifted",
                            [offset](const TensorView& gradients, Stream& stream, Communicator& communicator) {
                              communicator.all_reduce(stream, gradients);
                              stream.enqueue([=] {
                                for (std::int64_t i = 0; i < gradients.numel(); ++i) {
                                  gradients.as<float>()[i] += offset;
                                }
                              });
                            });
}

/// Runs steps of a reducer with a hook. overlap: backward and communication use two worker streams; otherwise
/// everything runs inline.
struct Steps {
  Steps(Communicator& communicator, const std::shared_ptr<BucketSum>& hook, bool overlap)
      : compute(overlap ? Stream::host_worker("compute") : Stream::host_inline()),
        comm(overlap ? Stream::host_worker("comm") : Stream::host_inline()),
        gradients(ranges(kSizes)),
        arena(static_cast<std::size_t>(gradients.back().end)),
        rank(communicator.rank()),
        reducer(communicator, compute, comm, gradients, small_buckets(gradients), view_of(arena), {.sum = hook}) {}
  void run(int step) {
    reducer.begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      compute.enqueue([this, g, step] {
        for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
          arena[static_cast<std::size_t>(i)] = gradient(rank, step, i);
        }
      });
      reducer.gradient_written(static_cast<int>(g));
    }
    reducer.finish();
    compute.synchronize();
  }
  Stream compute;
  Stream comm;
  std::vector<GradientRange> gradients;
  std::vector<float> arena;
  int rank;
  GradientReducer reducer;
};

TEST(GradientHook, SumsTheBucketsInThePlaceOfTheAllReduce) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool overlap : {false, true}) {
      on_ranks(ranks, [&](Communicator& communicator) {
        const std::shared_ptr<BucketSum> hook = shifted(0.5F);
        Steps steps(communicator, hook, overlap);
        for (int step = 0; step < 4; ++step) {
          steps.run(step);
          for (std::size_t i = 0; i < steps.arena.size(); ++i) {
            ASSERT_EQ(steps.arena[i], reduced(ranks, step, static_cast<std::int64_t>(i)) + 0.5F) << i;
          }
        }
        steps.comm.synchronize();
        EXPECT_EQ(steps.reducer.statistics().steps, 4);
        EXPECT_EQ(steps.reducer.gradient_bytes(), 4 * steps.gradients.back().end);
        EXPECT_EQ(steps.reducer.sent_bytes(), -1) << "it does not say";
        EXPECT_EQ(steps.reducer.statistics().buckets[0].bytes, -1);
      });
    }
  }
}

/// A BucketSum that checks and counts the calls of the reducer. It sums nothing.
class Recorder final : public BucketSum {
 public:
  [[nodiscard]] std::string name() const override { return "recorder"; }
  void prepare(SumPlace& place) override {
    ++prepared;
    EXPECT_EQ(place.context().device(), Device::cpu());
    EXPECT_EQ(place.communicator.size(), 2);
    EXPECT_EQ(place.ranges.size(), kSizes.size());
    EXPECT_EQ(place.gradients.numel(), place.ranges.back().end);
    for (const Bucket& bucket : place.buckets) {
      expected.emplace_back(static_cast<float*>(place.gradients.data) + bucket.begin, bucket.end - bucket.begin);
    }
  }
  void release() noexcept override { ++released; }
  void reduce(SumPlace& /*place*/, int bucket, const TensorView& gradients) override {
    EXPECT_EQ(bucket, static_cast<int>(called++ % expected.size()));
    const auto& [data, numel] = expected[static_cast<std::size_t>(bucket)];
    EXPECT_EQ(gradients.data, data);
    EXPECT_EQ(gradients.shape, Shape{numel});
  }
  [[nodiscard]] std::int64_t sent_bytes(int bucket) const override { return 10 * bucket; }
  [[nodiscard]] std::size_t bytes() const override { return 77; }
  std::vector<std::pair<float*, std::int64_t>> expected;
  std::size_t called = 0;
  int prepared = 0;
  int released = 0;
};

TEST(GradientHook, GetsTheBucketsInOrderAndIsReleased) {
  on_ranks(2, [](Communicator& communicator) {
    const auto made = std::make_shared<Recorder>();
    const Recorder& recorder = *made;
    {
      Steps steps(communicator, made, true);
      steps.run(0);
      steps.run(1);
      EXPECT_EQ(steps.reducer.bytes(), 77U);
      EXPECT_EQ(steps.reducer.sent_bytes(), 0 + 10 + 20 + 30 + 40);
      EXPECT_EQ(recorder.released, 0);
    }
    EXPECT_EQ(recorder.called, 2 * recorder.expected.size());
    EXPECT_EQ(recorder.prepared, 1);
    EXPECT_EQ(recorder.released, 1);
  });
}

/// The error of the rank whose hook throws must name the hook and the bucket. The other ranks must get a PeerError.
TEST(GradientHook, ARankWhoseHookThrowsIsNamed) {
  for (const bool ours : {true, false}) {
    const auto fail = [ours] {
      require<DataError>(!ours, "no table for this bucket");
      throw std::runtime_error("of the program");
    };
    for (const bool overlap : {false, true}) {
      const auto failures = run_ranks(3, [&](Communicator& communicator) {
        int calls = 0;
        const auto hook =
            make_gradient_hook("sparse", [&](const TensorView& gradients, Stream& stream, Communicator& ranks) {
              if (++calls == 8 && ranks.rank() == 1) {  // call 8 is bucket 2 of the second step
                fail();
              }
              ranks.all_reduce(stream, gradients);
            });
        Steps steps(communicator, hook, overlap);
        for (int step = 0; step < 3; ++step) {
          steps.run(step);
        }
      });
      EXPECT_EQ(failures[1], std::string("gradient hook sparse, bucket 2: ") +
                                 (ours ? "no table for this bucket" : "of the program"));
      for (const std::size_t r : {0U, 2U}) {
        EXPECT_EQ(failures[r], "peer: all_reduce: rank 1 left the group while rank " + std::to_string(r) +
                                   " waited for it, expected all ranks until the end");
      }
    }
  }
}

TEST(GradientHook, AnErrorKeepsItsKind) {
  on_ranks(1, [](Communicator& communicator) {
    const auto hook = make_gradient_hook(
        "own", [](const TensorView&, Stream&, Communicator&) { throw ShapeError("7 elements, expected 8"); });
    Steps steps(communicator, hook, false);
    EXPECT_EQ(error_of<ShapeError>([&] { steps.run(0); }), "gradient hook own, bucket 0: 7 elements, expected 8");
  });
}

TEST(GradientHook, IsRefusedBesideWhatDecidesTheSumToo) {
  const auto hook = shifted(0);
  const auto refused = [&](SumOptions options, const SumUse& use = {}) {
    options.hook = hook;
    return error_of<UsageError>([&] { (void)make_bucket_sum(options, use); });
  };
  const std::string begin = "gradient sums: hook is shifted with ";
  EXPECT_EQ(refused({.dtype = DType::bf16}), begin + "gradients that travel in 16 bits, expected f32");
  for (const SumOrder order : {SumOrder::ranks, SumOrder::tree}) {
    EXPECT_EQ(refused({.order = order}), begin + "an order of sums, expected SumOrder::library");
  }
  EXPECT_EQ(refused({}, {.divided = true}),
            begin + "a strategy that divides the gradients, expected ddp: all ranks get all gradients");
  EXPECT_EQ(refused({}, {.virtual_ranks = true}), begin + "virtual ranks, expected none: their sums are of pairs");
  EXPECT_EQ(make_bucket_sum({.hook = hook}, {.loss_scale = true}), hook);
}

TEST(GradientHook, IsRefusedBesideShards) {
  LocalGroup group(2);  // only rank 0 gets a communicator: the constructor must throw without communication
  const auto communicator = group.communicator(0);
  Stream stream = Stream::host_inline();
  const auto gradients = ranges({300, 400});
  std::vector<float> arena(700);
  const auto refused = [&](const std::shared_ptr<BucketSum>& sum) {
    return error_of<UsageError>([&] {
      const GradientReducer reducer(*communicator, stream, stream, gradients, plan_buckets(gradients, {}),
                                    view_of(arena), {.shards = {shards_of(0, 700, 2)}, .sum = sum});
    });
  };
  const std::string end = " with shards, expected gradients that all ranks get";
  EXPECT_EQ(refused(shifted(0)), "gradient reducer: hook shifted" + end);
  EXPECT_EQ(refused(make_bucket_sum()), "gradient reducer: an all-reduce" + end);
}

TEST(GradientHook, NeedsANameOfOneLineAndAFunction) {
  const HookFunction nothing = [](const TensorView&, Stream&, Communicator&) {};
  EXPECT_EQ(error_of<UsageError>([&] { (void)make_gradient_hook("", nothing); }),
            "gradient hook: the name is empty, expected at least one character");
  EXPECT_EQ(error_of<UsageError>([&] { (void)make_gradient_hook("two\nlines", nothing); }),
            "gradient hook: the name has several lines, expected one line");
  EXPECT_EQ(error_of<UsageError>([&] { (void)make_gradient_hook("empty", nullptr); }),
            "gradient hook empty: there is no function, expected one");
  // make_bucket_sum() must refuse a hook without a name. The sums that SumOptions::dtype and order choose have no name,
  // so they are refused as hooks.
  EXPECT_EQ(error_of<UsageError>([&] {
              (void)make_bucket_sum({.hook = make_bucket_sum({.dtype = DType::bf16, .order = SumOrder::ranks})});
            }),
            "gradient sums: the name of the hook is '', expected one line");
}

}  // namespace
}  // namespace lockstep::comm
