#include "measure/collectives.hpp"

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/comm/wrapped_communicator.hpp"

namespace lockstep::measure {
namespace {

TEST(Collectives, BusFactorsAreThePublishedOnes) {
  EXPECT_EQ(bus_factor(Collective::all_reduce, 2), 1.0);
  EXPECT_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::all_to_all, 8), 0.875);
  EXPECT_EQ(bus_factor(Collective::broadcast, 8), 1.0);
  EXPECT_EQ(bus_factor(Collective::send_recv, 2), 1.0);
  for (const Collective collective : kCollectives) {
    EXPECT_FALSE(bus_factor(collective, 1).has_value()) << name_of(collective);
  }
}

TEST(Collectives, NamesAreReadBack) {
  for (const Collective collective : kCollectives) {
    EXPECT_EQ(parse_collective(name_of(collective)), collective);
  }
  try {
    (void)parse_collective("reduce");
    FAIL() << "reduce is no collective of ours";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("all_reduce, reduce_scatter"), std::string::npos) << error.what();
  }
}

TEST(Collectives, CasesAreWhatTheInterfaceHas) {
  const auto count = [](Collective collective, DType dtype) { return collective_cases({collective}, {dtype}).size(); };
  EXPECT_EQ(count(Collective::all_reduce, DType::f32), 1U);
  EXPECT_EQ(count(Collective::all_reduce, DType::bf16), 1U);
  EXPECT_EQ(count(Collective::all_reduce, DType::u8), 0U);
  EXPECT_EQ(count(Collective::reduce_scatter, DType::u8), 0U);
  EXPECT_EQ(count(Collective::all_gather, DType::bf16), 2U);
  EXPECT_EQ(count(Collective::all_to_all, DType::f32), 1U);
  EXPECT_FALSE(collective_cases({Collective::all_to_all}, {DType::f32})[0].in_place);
  EXPECT_TRUE(collective_cases({Collective::broadcast}, {DType::f32})[0].in_place);
}

TEST(Collectives, ElementsAreSharedOut) {
  EXPECT_EQ(collective_elements({Collective::all_reduce, DType::f32}, 10, 3), 2);
  EXPECT_EQ(collective_elements({Collective::all_reduce, DType::f64}, 4, 3), 1);
  EXPECT_EQ(collective_elements({Collective::all_gather, DType::f32}, 4, 3), 3);
  EXPECT_EQ(collective_elements({Collective::all_to_all, DType::f32}, 80, 3), 18);
}

TEST(Collectives, EveryCaseIsRightForAnyNumberOfRanks) {
  const std::vector<Collective> all(std::begin(kCollectives), std::end(kCollectives));
  for (const int size : {1, 2, 3, 5}) {
    const auto errors = comm::run_ranks(size, [&](comm::Communicator& ranks) {
      CpuContext context({.threads = 1});
      Stream stream = Stream::host_inline();
      CollectiveBench bench(ranks, context, stream, 1 << 12, 1 << 13);
      for (const CollectiveCase& item : collective_cases(all, {DType::f32, DType::i64, DType::bf16, DType::u8})) {
        for (const std::int64_t bytes : {1, 4, 1001, 1 << 12}) {
          bench.check(item, bytes);
        }
      }
      if (size == 3) {
        bench.check({Collective::send_recv, DType::f32, true, 2, 0}, 100);
      }
    });
    EXPECT_EQ(errors, comm::none_failed(size)) << size << " ranks";
  }
}

/// A communicator whose all_reduce() sums nothing. check() must find the error.
class Forgetful final : public comm::WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  [[nodiscard]] bool can_overlap() const override { return true; }
  void all_reduce(Stream&, const TensorView&) override {}
};

TEST(Collectives, AWrongSumIsFound) {
  const auto errors = comm::run_ranks(2, [](comm::Communicator& ranks) {
    Forgetful broken(ranks);
    CpuContext context({.threads = 1});
    Stream stream = Stream::host_inline();
    CollectiveBench bench(broken, context, stream, 64, 64);
    EXPECT_THROW(bench.check({Collective::all_reduce, DType::f32}, 64), StateError);
    EXPECT_NO_THROW(bench.check({Collective::all_gather, DType::f32}, 64));
  });
  EXPECT_EQ(errors, comm::none_failed(2));
}

TEST(Collectives, MeasuresAndNames) {
  const auto errors = comm::run_ranks(2, [](comm::Communicator& ranks) {
    CpuContext context({.threads = 1});
    Stream stream = Stream::host_inline();
    const std::unique_ptr<comm::Communicator> control = ranks.split(0, ranks.rank());
    CollectiveBench bench(ranks, context, stream, 4096, 1 << 16);
    const MeasureOptions quick{.target_seconds = 0, .min_iterations = 3, .max_iterations = 3};
    const Measurement line = bench.measure(*control, {Collective::all_gather, DType::f32, false}, 4096, quick);
    EXPECT_EQ(line.name, "all_gather/local/f32/out_of_place/blocking/4096");
    EXPECT_EQ(line.bytes, 4096);
    EXPECT_EQ(line.payload_bytes, 4096);
    EXPECT_EQ(line.traffic_bytes, 2048);
    EXPECT_EQ(line.samples.seconds.size(), 3U);
    EXPECT_EQ(line.samples.rank_medians.size(), 2U);
    Stream worker = Stream::host_worker("worker");
    CollectiveBench ordered(ranks, context, worker, 4096, 4096);
    EXPECT_EQ(collective_name(ranks, worker, {Collective::send_recv, DType::bf16, true, 1, 0}, 2),
              "send_recv/local/bf16/in_place/stream/1_with_0/2");
    EXPECT_EQ(ordered.measure(*control, {Collective::send_recv, DType::bf16}, 2, quick).bytes, 2);
    EXPECT_THROW((void)bench.work({}, std::int64_t{1} << 30).start(), UsageError);
  });
  EXPECT_EQ(errors, comm::none_failed(2));
}

}  // namespace
}  // namespace lockstep::measure
