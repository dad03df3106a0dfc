// Tests comm/nccl on the stand-ins for CUDA and NCCL. Ranks are threads, and each rank has a device.

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/gradients/bucket_breadcrumbs.hpp>
#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/hierarchical_communicator.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/comm/nccl/nccl_communicator.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "communicator_cases.hpp"
#include "control.hpp"
#include "gpu_place.hpp"
#include "gradient_data.hpp"
#include "local_ranks.hpp"
#include "nccl_control.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using lockstep::testing::expect_holds;
using Texts = std::vector<std::string>;

void reset(int devices, std::uint64_t seed, const nccl_standin::Options& options = {}) {
  standin::reset({.devices = devices, .bytes_per_device = std::size_t{1} << 26, .seed = seed});
  nccl_standin::reset(options);
}

void expect_clean(const std::string& when) {
  EXPECT_EQ(standin::violations(), Texts{}) << when;
  EXPECT_EQ(standin::leaks(), Texts{}) << when;
  EXPECT_EQ(nccl_standin::leaks(), Texts{}) << when;
}

class OnDevice final : public cases::GpuPlace {
 public:
  using GpuPlace::GpuPlace;
  void add_one(Stream& stream, const TensorView& view) const override {
    standin::launch(stream.cuda_handle(), [view](std::span<const standin::DeviceMemory>) {
      auto* values = static_cast<std::int64_t*>(view.data);
      for (std::int64_t i = 0; i < view.numel(); ++i) {
        values[i] += 1;
      }
    });
  }
};

/// Runs body(control, nccl) on one thread for each rank. Each rank has a device.
template <class Body>
Texts run_gpu_ranks(int size, Body&& body, const NcclOptions& options = {}) {
  return run_ranks(size, [&](Communicator& control) {
    cudaSetDevice(control.rank());
    const auto communicator = make_nccl_communicator(control, Device::cuda(control.rank()), options);
    body(control, *communicator);
  });
}

/// Calls run_gpu_ranks(). Expects that no rank fails, and that no memory, stream or communicator remains.
template <class Body>
void expect_gpu_ranks(int size, const std::string& when, Body&& body, const NcclOptions& options = {}) {
  EXPECT_EQ(run_gpu_ranks(size, body, options), none_failed(size)) << when;
  expect_clean(when);
}

/// Waits on the host until all ranks have called it.
void meet(Communicator& control) {
  Stream stream = Stream::host_inline();
  control.barrier(stream);
}

class NcclStandin : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclStandin, ::testing::Values(1, 2, 3, 4));

TEST_P(NcclStandin, DoesWhatEveryCommunicatorDoes) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {  // one seed for each Style of the stand-in
    for (const int polls : {0, 2}) {
      reset(GetParam(), seed, {.polls = polls});
      expect_gpu_ranks(GetParam(), concat("seed ", seed, ", polls ", polls), [&](Communicator&, Communicator& nccl) {
        EXPECT_EQ(nccl.backend(), "nccl");
        EXPECT_EQ(nccl.counts().calls, 0);
        const OnDevice place(Device::cuda(nccl.rank()));
        Stream stream = Stream::cuda(place.device());
        cases::check_everything(
            nccl, stream, seed == 0 ? std::vector<std::int64_t>{0, 1, 5, 600} : std::vector<std::int64_t>{3}, place);
      });
      EXPECT_EQ(nccl_standin::aborts(), 0);
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST(NcclHierarchy, AddsWithinAndBetweenNodes) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1}}) {
    reset(4, 1, {});
    expect_gpu_ranks(4, "nodes", [&](Communicator&, Communicator& nccl) {
      HierarchicalCommunicator comm(nccl.split(0, nccl.rank()), nodes);
      const OnDevice place(Device::cuda(nccl.rank()));
      Stream stream = Stream::cuda(place.device());
      cases::check_everything(comm, stream, {5, 9001}, place);
    });
  }
}

constexpr std::array kReduceTypes{DType::f32, DType::bf16, DType::f16};

/// Returns the number of stream waits in a step: one before each bucket for its gradients, and one for the last bucket
/// at the end.
int waits_of_a_step(const std::vector<Bucket>& buckets) {
  return static_cast<int>(buckets.size()) + 1;
}

/// Runs steps of the reducer on a device. Returns the number of wrong elements. forget: number of the stream wait that
/// rank 0 skips in its second step; 0: none.
int wrong_elements(Communicator& nccl, int forget, DType dtype = DType::f32, SumOrder order = SumOrder::library) {
  constexpr std::int64_t kKernels = 8;
  const Device device = Device::cuda(nccl.rank());
  int wrong = 0;
  CudaContext compute(device);
  Stream comm = Stream::cuda(device, -1);
  const auto gradients = ranges(kSizes);
  const Tensor arena = Tensor::zeros(compute, Shape{gradients.back().end}, DType::f32);
  const Tensor seen = Tensor::zeros(compute, arena.shape(), DType::f32);
  compute.synchronize();
  GradientReducer reducer(nccl, compute.stream(), comm, gradients, small_buckets(gradients), arena,
                          {.sum = make_bucket_sum({.dtype = dtype, .order = order})});
  Event over(device);
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && forget > 0 && nccl.rank() == 0) {
      standin::forget_wait(forget, "cudaStreamWaitEvent");
    }
    reducer.begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      // The gradient is written by several kernels, so that a stream that does not wait can overtake some of them.
      for (std::int64_t kernel = 0; kernel < kKernels; ++kernel) {
        standin::launch(compute.stream().cuda_handle(),
                        [range = gradients[g], kernel, step, rank = nccl.rank(),
                         to = static_cast<float*>(arena.view().data)](std::span<const standin::DeviceMemory>) {
                          for (std::int64_t i = range.begin + kernel; i < range.end; i += kKernels) {
                            to[i] = gradient(rank, step, i);
                          }
                        });
      }
      reducer.gradient_written(static_cast<int>(g));
    }
    reducer.finish();
    if (step == 1 && forget > 0 && nccl.rank() == 0) {
      EXPECT_EQ(standin::wait_forgotten(), forget <= waits_of_a_step(reducer.buckets()));
      standin::forget_wait(0);
    }
    copy(compute, arena, seen);
    wait(compute.stream(), over, nccl);
    std::vector<float> values(static_cast<std::size_t>(arena.view().numel()));
    copy(compute, seen, TensorView(std::span(values), seen.shape()));
    compute.synchronize();
    for (std::int64_t i = 0; i < gradients.back().end; ++i) {
      const float sum = expected_sum(order, dtype, nccl.size(), step, i);
      wrong += values[static_cast<std::size_t>(i)] == sum ? 0 : 1;
    }
  }
  const ReducerStatistics statistics = reducer.statistics();
  EXPECT_EQ(statistics.steps, 3);
  EXPECT_EQ(statistics.buckets.size(), reducer.buckets().size());
  return wrong;
}

TEST_P(NcclStandin, TheGradientReducerGivesTheSumInEveryLegalOrder) {
  for (const DType dtype : kReduceTypes) {
    const std::vector<SumOrder> orders = dtype == DType::f32  // 16-bit sums in a tree are not supported
                                             ? std::vector{SumOrder::library, SumOrder::ranks, SumOrder::tree}
                                             : std::vector{SumOrder::library, SumOrder::ranks};
    for (std::uint64_t seed = 0; seed < 4 * orders.size(); ++seed) {
      reset(GetParam(), seed, {.polls = static_cast<int>(seed / 4)});
      const SumOrder order = orders[seed % orders.size()];
      expect_gpu_ranks(GetParam(), concat(dtype, ", seed ", seed),
                       [&](Communicator&, Communicator& nccl) { EXPECT_EQ(wrong_elements(nccl, 0, dtype, order), 0); });
    }
  }
}

// One graph captures a step: backward on the compute stream, and the reducer's sums on the communication stream. Every
// rank launches its graph.
TEST_P(NcclStandin, AStepOfTheReducerIsCapturedInAGraph) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    reset(GetParam(), seed, {.polls = 1});
    const DType dtype = kReduceTypes[seed % kReduceTypes.size()];
    expect_gpu_ranks(GetParam(), concat("seed ", seed), [&](Communicator&, Communicator& nccl) {
      const Device device = Device::cuda(nccl.rank());
      CudaContext compute(device);
      Stream comm = Stream::cuda(device, -1);
      const auto gradients = ranges({700, 1, 299, 2048});
      const Tensor arena = Tensor::zeros(compute, Shape{gradients.back().end}, DType::f32);
      compute.synchronize();
      GradientReducer reducer(nccl, compute.stream(), comm, gradients, small_buckets(gradients), arena,
                              {.sum = make_bucket_sum({.dtype = dtype})});
      std::vector<int> steps(gradients.size());  // counters that the graph increments
      Graph graph = Graph::capture(compute.stream(), [&] {
        reducer.begin_step();
        for (std::size_t g = 0; g < gradients.size(); ++g) {
          standin::launch(compute.stream().cuda_handle(),
                          [range = gradients[g], &step = steps[g], rank = nccl.rank(),
                           to = static_cast<float*>(arena.view().data)](std::span<const standin::DeviceMemory>) {
                            for (std::int64_t i = range.begin; i < range.end; ++i) {
                              to[i] = gradient(rank, step, i);
                            }
                            ++step;
                          });
          reducer.gradient_written(static_cast<int>(g));
        }
        reducer.finish();
      });
      Event over(device);
      std::vector<float> values(static_cast<std::size_t>(arena.view().numel()));
      for (int step = 0; step < 3; ++step) {
        graph.launch(compute.stream());
        wait(compute.stream(), over, nccl);
        copy(compute, arena, TensorView(std::span(values), arena.shape()));
        compute.synchronize();
        for (std::int64_t i = 0; i < gradients.back().end; ++i) {
          ASSERT_EQ(values[static_cast<std::size_t>(i)], expected_sum(SumOrder::library, dtype, nccl.size(), step, i))
              << dtype << ", step " << step << ", " << i;
        }
      }
    });
  }
}

/// Tests BucketBreadcrumbs, which record how far a captured step has come. The eager stand-in executes work as soon as
/// possible. Rank 0 launches first, and its work stops at the first collective. At this point the test reads rank 0's
/// breadcrumbs.
TEST_P(NcclStandin, MarksSayHowFarACapturedStepHasCome) {
  std::uint64_t eager = 0;
  while (standin::style_of(eager) != standin::Style::eager) {
    ++eager;
  }
  reset(GetParam(), eager, {});
  expect_gpu_ranks(GetParam(), "marks", [&](Communicator& control, Communicator& nccl) {
    const Device device = Device::cuda(nccl.rank());
    CudaContext compute(device);
    Stream comm = Stream::cuda(device, -1);
    const auto gradients = ranges({700, 1, 299, 2048});
    const std::vector<Bucket> buckets{{.first = 0, .last = 3, .begin = 0, .end = gradients[2].end},
                                      {.first = 3, .last = 4, .begin = gradients[3].begin, .end = gradients[3].end}};
    const Tensor arena = Tensor::zeros(compute, Shape{gradients.back().end}, DType::f32);
    compute.synchronize();
    EXPECT_THROW(BucketBreadcrumbs(compute, comm, gradients, buckets, 0), UsageError);
    BucketBreadcrumbs marks(compute, comm, gradients, buckets, 2);
    GradientReducer reducer(nccl, compute.stream(), comm, gradients, buckets, arena);
    reducer.mark_into(&marks);
    EXPECT_EQ(marks.text(), "");
    std::vector<Graph> graphs;
    for (const int place : {0, 1}) {
      graphs.push_back(Graph::capture(compute.stream(), [&] {
        reducer.begin_step();
        marks.use(place);
        for (std::size_t g = 0; g < gradients.size(); ++g) {
          reducer.gradient_written(static_cast<int>(g));
        }
        reducer.finish();
      }));
    }
    const std::string first = gradients[0].name + " to " + gradients[2].name;
    marks.begin(0, 7);
    EXPECT_EQ(marks.text(), "on the device step 7: computing gradients of bucket 1 of 2, " + first);
    Event over(device);
    const auto launch = [&](int place) { graphs[static_cast<std::size_t>(place)].launch(compute.stream()); };
    if (nccl.rank() == 0 && nccl.size() > 1) {
      launch(0);
      marks.begin(1, 8);
      launch(1);
      EXPECT_EQ(marks.text(), "on the device step 7: summing bucket 1 of 2") << "the older one";
    }
    meet(control);
    if (nccl.rank() != 0 || nccl.size() == 1) {
      launch(0);
      marks.begin(1, 8);
      launch(1);
    }
    wait(compute.stream(), over, nccl);
    EXPECT_EQ(marks.text(), "on the device step 8: all 2 buckets are summed");
    marks.begin(0, 9);
    EXPECT_EQ(marks.text(), "on the device step 9: computing gradients of bucket 1 of 2, " + first);
    marks.forget(0);
    EXPECT_EQ(marks.text(), "on the device step 8: all 2 buckets are summed");
    // Runs one bucket at a time, without a graph. The text must name the bucket whose gradients are still missing.
    marks.begin(0, 9);
    marks.use(0);
    reducer.begin_step();
    for (const int g : {0, 1, 2}) {
      reducer.gradient_written(g);
    }
    wait(comm, over, nccl);
    EXPECT_EQ(marks.text(), concat("on the device step 9: computing gradients of bucket 2 of 2, ", gradients[3].name));
    reducer.gradient_written(3);
    reducer.finish();
    wait(compute.stream(), over, nccl);
    EXPECT_EQ(marks.text(), "on the device step 9: all 2 buckets are summed");
  });
}

TEST_P(NcclStandin, EstimatesAndRunsNothing) {
  reset(GetParam(), /*seed=*/1, {.polls = 2});
  expect_gpu_ranks(GetParam(), "estimates", [&](Communicator& control, Communicator& nccl) {
    const Device device = Device::cuda(nccl.rank());
    CudaContext context(device);
    EXPECT_EQ(make_nccl_estimator(control), nullptr) << "not NCCL's";
    const auto estimator = make_nccl_estimator(nccl);
    ASSERT_NE(estimator, nullptr);
    constexpr std::int64_t kPart = 1000;
    const Tensor all = Tensor::full(context, Shape{kPart * nccl.size()}, 3, DType::f32);
    const Tensor part = Tensor::full(context, Shape{kPart}, 5, DType::f32);
    context.synchronize();
    const auto expect = [&](const char* what, double bytes, const std::function<void(Communicator&)>& operation) {
      const std::optional<double> seconds = estimator->seconds(operation);
      EXPECT_EQ(seconds.has_value(), nccl.size() > 1) << what;
      EXPECT_NEAR(
          seconds.value_or(0),
          nccl.size() > 1 ? 1e-6 * (nccl_standin::kEstimateMicroseconds + bytes / nccl_standin::kEstimateBytes) : 0,
          1e-10)
          << what;
    };
    const auto bytes = static_cast<double>(all.view().bytes());
    Stream& stream = context.stream();
    expect("all_reduce", bytes, [&](Communicator& c) { c.all_reduce(stream, all); });
    expect("reduce_scatter", bytes, [&](Communicator& c) { c.reduce_scatter(stream, all, part); });
    expect("all_gather", bytes, [&](Communicator& c) { c.all_gather(stream, part, all); });
    expect("broadcast", 4 * kPart, [&](Communicator& c) { c.broadcast(stream, part, 0); });
    EXPECT_FALSE(estimator->seconds([](Communicator&) {}).has_value());
    if (nccl.size() > 1) {  // skipped for one rank, whose calls NCCL executes instead of estimating
      EXPECT_THROW((void)estimator->seconds([&](Communicator& c) { c.broadcast(stream, part, 9); }), UsageError);
    }
    expect("after an error", 4 * kPart, [&](Communicator& c) { c.all_reduce(stream, part); });
    std::vector<float> values(kPart);
    const auto first_of = [&](const Tensor& tensor) {
      copy(context, tensor.view().slice(0, 0, kPart), TensorView(std::span(values), Shape{kPart}));
      context.synchronize();
      return values[0];
    };
    EXPECT_EQ(first_of(all), 3);
    EXPECT_EQ(first_of(part), 5) << "nothing ran";
    nccl.all_reduce(stream, part);  // the estimate has not changed the communicator
    EXPECT_EQ(first_of(part), 5.0F * static_cast<float>(nccl.size()));
  });
}

TEST(NcclFailure, AnEstimateThatFailsEndsItsOwnCommunicator) {
  reset(2, /*seed=*/0);
  const Texts failures = run_gpu_ranks(2, [&](Communicator& control, Communicator& nccl) {
    CudaContext context(Device::cuda(nccl.rank()));
    const Tensor data = Tensor::zeros(context, Shape{8}, DType::f32);
    context.synchronize();
    for (const char* call : {"ncclGroupStart", "ncclGroupSimulateEnd", "ncclAllReduce"}) {
      const auto estimator = make_nccl_estimator(nccl);
      meet(control);  // rank 1 must finish its split before rank 0 fails
      if (nccl.rank() == 0) {
        nccl_standin::fail_call(1, ncclInternalError, call);
        const auto estimate = [&] {
          (void)estimator->seconds([&](Communicator& c) { c.all_reduce(context.stream(), data); });
        };
        EXPECT_THROW(estimate(), NcclError) << call;
        EXPECT_THROW(estimate(), NcclError) << call << ", and from then on";
      }
    }
    meet(control);
    nccl.all_reduce(context.stream(), data);
    context.synchronize();
  });
  EXPECT_EQ(failures, none_failed(2));
  EXPECT_EQ(nccl_standin::leaks(), Texts{});
  EXPECT_EQ(standin::violations(), Texts{});
}

/// Control for the tests above: rank 0 skips one stream wait of a step. For each wait, at least one of the stand-in's
/// random execution orders must give wrong sums. The last round skips a wait that does not exist, so its sums must be
/// right. The styles lazy and eager are left out, because in these styles no stream overtakes another stream.
TEST(NcclStandinReducer, EveryWaitOfAStepIsNeeded) {
  const int waits = waits_of_a_step(small_buckets(ranges(kSizes)));
  for (int forgotten = 1; forgotten <= waits + 1; ++forgotten) {
    const int orders = forgotten <= waits ? 400 : 8;
    int wrong_orders = 0;
    for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(orders) && wrong_orders == 0; ++seed) {
      if (standin::style_of(seed) == standin::Style::lazy || standin::style_of(seed) == standin::Style::eager) {
        continue;
      }
      reset(2, seed);
      std::atomic<int> wrong = 0;
      run_gpu_ranks(2, [&](Communicator&, Communicator& nccl) { wrong += wrong_elements(nccl, forgotten); });
      wrong_orders += wrong > 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong_orders > 0, forgotten <= waits) << "wait " << forgotten << " of " << waits;
  }
}

/// Like run_gpu_ranks(), but only initialises NCCL, for initialisations that fail. device_of(rank): the rank's device.
template <class DeviceOf>
Texts set_up(int size, DeviceOf&& device_of, const NcclOptions& options = {}) {
  return run_ranks(size, [&](Communicator& control) {
    cudaSetDevice(0);
    (void)make_nccl_communicator(control, device_of(control.rank()), options);
  });
}

TEST(NcclSetUp, TwoRanksOnOneGpuAreRefusedBeforeNcclStarts) {
  reset(2, 0);
  const Texts failures = set_up(3, [](int rank) { return Device::cuda(rank == 0 ? 0 : 1); });
  for (const std::string& failure : failures) {
    EXPECT_EQ(failure, failures[0]);
    EXPECT_NE(failure.find("nccl: ranks 1 and 2 on "), std::string::npos) << failure;
    EXPECT_NE(failure.find(" both have "), std::string::npos) << failure;
  }
  EXPECT_EQ(standin::calls("ncclCommInitRankConfig"), 0);
  expect_clean("two ranks on one GPU");
}

TEST(NcclSetUp, ADeviceThatIsNotThereIsEverybodysError) {
  reset(2, 0);
  const Texts failures = set_up(2, [](int rank) { return rank == 1 ? Device::cuda(7) : Device::cuda(0); });
  EXPECT_EQ(failures[0], failures[1]);
  EXPECT_NE(failures[0].find("cuda:7 does not exist, expected one of the 2 GPUs that this process sees"),
            std::string::npos)
      << failures[0];
  const Texts on_host = set_up(2, [](int rank) { return rank == 1 ? Device::cpu() : Device::cuda(0); });
  EXPECT_NE(on_host[0].find("device is cpu, expected a GPU"), std::string::npos) << on_host[0];
}

TEST(NcclSetUp, AnOldNcclIsRefused) {
  reset(1, 0, {.version = 22100});
  const Texts failures = set_up(1, [](int) { return Device::cuda(0); });
  EXPECT_NE(failures[0].find("nccl: 2.21.0 was loaded, expected 2."), std::string::npos) << failures[0];
}

TEST(NcclSetUp, ThatIsNotOverInTimeNamesRankAndSecondsOnAll) {
  reset(3, 0, {.stuck_rank = 1});
  const Texts failures = set_up(3, [](int rank) { return Device::cuda(rank); }, {.timeout_s = 0.25});
  for (const std::string& failure : failures) {
    EXPECT_EQ(failure, failures[0]);
  }
  // Rank 1 never starts. Rank 0 starts, and waits in its first operation until the time-out.
  EXPECT_NE(failures[0].find("nccl: rank "), std::string::npos) << failures[0];
  EXPECT_TRUE(failures[0].find("not over after 0.25 s") != std::string::npos ||
              failures[0].find("remote process exited") != std::string::npos)
      << failures[0];
  expect_clean("a set-up that is never over");
}

TEST(NcclSetUp, EveryCallOfItMayFailOnOneRank) {
  for (const char* name : {"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
                           "ncclAllReduce", "cudaStreamCreateWithPriority", "cudaMemPoolCreate", "cudaMemsetAsync"}) {
    reset(2, 0);
    nccl_standin::fail_call(1, ncclSystemError, name);
    standin::fail_call(1, cudaErrorMemoryAllocation, name);
    const Texts failures = set_up(2, [](int rank) { return Device::cuda(rank); }, {.timeout_s = 0.3});
    EXPECT_NE(failures[0], "") << name;
    EXPECT_EQ(failures[0], failures[1]) << name;
    expect_clean(name);
  }
}

TEST(NcclSetUp, TheNameLivesAsLongAsTheCommunicator) {
  reset(1, 0);
  const Texts failures = run_ranks(1, [](Communicator& control) {
    cudaSetDevice(0);
    NcclOptions options{.name = "a name that is too long to lie inside of a string"};
    const auto nccl = make_nccl_communicator(control, Device::cuda(0), options);
    const auto part = nccl->split(0, 0);
    std::fill(options.name.begin(), options.name.end(), '?');
  });
  EXPECT_EQ(failures[0], "");
  expect_clean("the stand-in compares the names at the end");
}

TEST(NcclSetUp, OptionsAreChecked) {
  reset(1, 0);
  expect_holds(set_up(1, [](int) { return Device::cuda(0); }, {.timeout_s = 0})[0], "timeout is 0 s");
  expect_holds(set_up(1, [](int) { return Device::cuda(0); }, {.most_blocks = 65})[0], "most_blocks is 65");
  EXPECT_EQ(set_up(1, [](int) { return Device::cuda(0); }, {.most_blocks = 4})[0], "");
  expect_clean("options");
}

/// A tensor on each rank's device, for all-reduces.
struct Floats {
  explicit Floats(int rank)
      : context(Device::cuda(rank)), tensor(Tensor::zeros(context, Shape{8}, DType::f32)), over(context.device()) {}
  CudaContext context;
  Tensor tensor;
  Event over;
};

TEST(NcclFailure, AnErrorOfOneRankEndsTheWaitOfAll) {
  reset(3, 0);
  expect_gpu_ranks(3, "an error of one rank", [](Communicator& control, Communicator& nccl) {
    Floats data(nccl.rank());
    if (nccl.rank() != 1) {  // rank 1 never calls all_reduce
      nccl.all_reduce(data.context.stream(), data.tensor);
    }
    meet(control);
    if (nccl.rank() == 1) {
      nccl_standin::fail_rank(1, ncclSystemError);
    }
    EXPECT_NO_THROW(data.context.stream().record(data.over));
    try {
      if (nccl.rank() == 1) {
        nccl.check();
      } else {
        wait(data.over, nccl);
      }
      ADD_FAILURE() << "rank " << nccl.rank() << " saw no error";
    } catch (const NcclError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find(concat("nccl: rank ", nccl.rank(), " of 3 on cuda:", nccl.rank(), ": while operations")), 0U)
          << text;
      expect_holds(text, nccl.rank() == 1 ? "unhandled system error; NCCL's last message: injected into rank 1"
                                          : "remote process exited");
    }
    data.context.synchronize();  // returns, since the operation was abandoned
    EXPECT_THROW(nccl.check(), NcclError);
    EXPECT_THROW(nccl.all_reduce(data.context.stream(), data.tensor), NcclError);
    EXPECT_THROW(nccl.barrier(data.context.stream()), NcclError);
    EXPECT_THROW((void)nccl.split(0, 0), NcclError);
  });
  EXPECT_EQ(nccl_standin::aborts(), 3);
}

TEST(NcclFailure, ARankThatUnwindsAbortsAndDoesNotWait) {
  reset(2, 1);
  const Texts failures = run_gpu_ranks(2, [](Communicator&, Communicator& nccl) {
    Floats data(nccl.rank());
    require<DataError>(nccl.rank() != 1, "broken record");
    nccl.all_reduce(data.context.stream(), data.tensor);
    wait(data.context.stream(), data.over, nccl);
  });
  EXPECT_NE(failures[0].find("remote process exited"), std::string::npos) << failures[0];
  EXPECT_EQ(failures[1], "broken record");
  EXPECT_EQ(nccl_standin::aborts(), 2);
  expect_clean("an exception on one rank");
}

TEST(NcclFailure, EveryOperationThatFailsAborts) {
  const std::vector<std::pair<const char*, std::function<void(Communicator&, Floats&)>>> operations{
      {"ncclAllReduce", [](Communicator& c, Floats& f) { c.all_reduce(f.context.stream(), f.tensor); }},
      {"ncclAllReduce", [](Communicator& c, Floats& f) { c.barrier(f.context.stream()); }},
      {"ncclBroadcast", [](Communicator& c, Floats& f) { c.broadcast(f.context.stream(), f.tensor, 0); }},
      {"ncclReduceScatter",
       [](Communicator& c, Floats& f) {
         c.reduce_scatter(f.context.stream(), f.tensor.view().slice(0, 0, 4), f.tensor.view().slice(0, 4, 6));
       }},
      {"ncclAllGather",
       [](Communicator& c, Floats& f) {
         c.all_gather(f.context.stream(), f.tensor.view().slice(0, 0, 2), f.tensor.view().slice(0, 4, 8));
       }},
      {"ncclGroupEnd",
       [](Communicator& c, Floats& f) {
         c.all_to_all(f.context.stream(), f.tensor.view().slice(0, 0, 4), f.tensor.view().slice(0, 4, 8));
       }},
      {"ncclRecv",
       [](Communicator& c, Floats& f) {
         c.all_to_all(f.context.stream(), f.tensor.view().slice(0, 0, 4), f.tensor.view().slice(0, 4, 8));
       }},
      {"ncclCommSplit", [](Communicator& c, Floats&) { (void)c.split(0, 0); }},
  };
  for (const auto& [name, operation] : operations) {
    reset(2, 0);
    const Texts failures =
        run_gpu_ranks(2,
                      [&, call = std::string(name), run = operation](Communicator& control, Communicator& nccl) {
                        Floats data(nccl.rank());
                        data.context.synchronize();
                        meet(control);
                        if (nccl.rank() == 0) {
                          nccl_standin::fail_call(1, ncclInternalError, call);
                          EXPECT_THROW(run(nccl, data), NcclError);
                          meet(control);
                          EXPECT_THROW(nccl.check(), NcclError);
                        } else {
                          meet(control);
                          EXPECT_THROW(nccl.check(), NcclError);
                        }
                        data.context.synchronize();
                      },
                      {.timeout_s = 5});
    EXPECT_EQ(failures, none_failed(2)) << name;
    EXPECT_EQ(nccl_standin::aborts(), 2) << name;
    expect_clean(name);
  }
}

TEST(NcclFailure, AnEndThatNobodyJoinsIsAborted) {
  reset(2, 0, {.peers_notice = false});
  const Texts failures = run_ranks(2, [](Communicator& control) {
    cudaSetDevice(control.rank());
    auto nccl = make_nccl_communicator(control, Device::cuda(control.rank()), {.timeout_s = 0.2});
    if (control.rank() == 0) {
      nccl.reset();  // finalises, and waits for rank 1 until the time-out
    }
    meet(control);
    require<DataError>(control.rank() == 0, "left by an exception");
  });
  EXPECT_EQ(failures[0], "");
  EXPECT_EQ(nccl_standin::aborts(), 2);
  expect_clean("an end that nobody joins");
}

/// Runs two ranks. Each rank has a graph that captured an all-reduce and that outlives the communicator. body(rank,
/// nccl) destroys the communicator. Returns the longest time of body in seconds.
template <class Body>
double with_living_graphs(Body&& body) {
  double longest = 0;
  std::mutex mutex;
  on_ranks(2, [&](Communicator& control) {
    cudaSetDevice(control.rank());
    Floats data(control.rank());
    auto nccl = make_nccl_communicator(control, Device::cuda(control.rank()), {.timeout_s = 0.5});
    nccl->all_reduce(data.context.stream(), data.tensor);
    wait(data.context.stream(), data.over, *nccl);
    Graph graph = Graph::capture(data.context.stream(), [&] { nccl->all_reduce(data.context.stream(), data.tensor); });
    graph.launch(data.context.stream());
    wait(data.context.stream(), data.over, *nccl);
    meet(control);
    const auto start = std::chrono::steady_clock::now();
    body(control, nccl);
    EXPECT_EQ(nccl, nullptr);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    meet(control);
    EXPECT_FALSE(nccl_standin::leaks().empty()) << "control: the graphs held up the end";
    meet(control);
    const std::lock_guard lock(mutex);
    longest = std::max(longest, seconds);
  });
  for (int i = 0; i < 5000 && !nccl_standin::leaks().empty(); ++i) {  // the graphs are gone, so the aborts can complete
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return longest;
}

TEST(NcclFailure, AnErrorWhileAGraphLivesEndsInTime) {
  reset(2, 0);
  const double seconds = with_living_graphs([](Communicator& control, std::unique_ptr<Communicator>& nccl) {
    if (nccl->rank() == 1) {
      nccl_standin::fail_rank(1, ncclSystemError);
      EXPECT_THROW(nccl->check(), NcclError);
    }
    meet(control);
    EXPECT_THROW(nccl->check(), NcclError);
    nccl.reset();
  });
  EXPECT_LT(seconds, 10);
  EXPECT_EQ(nccl_standin::aborts(), 2);
  expect_clean("an error while a graph lives");
}

TEST(NcclFailure, AnEndWhileAGraphLivesIsAborted) {
  reset(2, 0);
  EXPECT_LT(with_living_graphs([](Communicator&, std::unique_ptr<Communicator>& nccl) { nccl.reset(); }), 10);
  EXPECT_EQ(nccl_standin::aborts(), 2);
  expect_clean("an end while a graph lives");
}

/// Sums 100 numbers over two ranks in memory of exchange_memory(). first_refused: number of the first
/// ncclCommRegister() call that fails; 0: none. Returns the number of collectives in registered memory.
std::int64_t summed_in_nccl_memory(std::int64_t first_refused) {
  reset(2, 0);
  if (first_refused > 0) {
    nccl_standin::fail_call(first_refused, ncclInvalidUsage, "ncclCommRegister");
  }
  expect_gpu_ranks(2, "memory of NCCL", [](Communicator& control, Communicator& nccl) {
    CudaContext context(Device::cuda(nccl.rank()));
    const std::unique_ptr<MemoryResource> memory = nccl.exchange_memory();
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(memory->device(), context.device());
    {
      const Buffer buffer(400, *memory, context.stream());
      const TensorView data(buffer.data(), DType::f32, context.device(), Shape{100});
      std::vector<float> values(100, static_cast<float>(nccl.rank() + 1));
      copy_now(context, TensorView(std::span(values), Shape{100}), data);
      nccl.all_reduce(context.stream(), data.slice(0, 10, 100));
      copy_now(context, data, TensorView(std::span(values), Shape{100}));
      EXPECT_EQ(values[9], static_cast<float>(nccl.rank() + 1));
      EXPECT_EQ(values[10], 3.0F);
      EXPECT_EQ(values[99], 3.0F);
      EXPECT_EQ(memory->usage()->in_use, 400U);
    }
    EXPECT_EQ(memory->usage()->in_use, 0U);
    meet(control);
  });
  return nccl_standin::in_registered_memory();
}

TEST(NcclMemory, IsRegistered) {
  EXPECT_EQ(summed_in_nccl_memory(0), 2);
  EXPECT_EQ(summed_in_nccl_memory(1), 1) << "memory that NCCL does not register is used all the same";
  const std::unique_ptr<Communicator> alone = LocalGroup(1).communicator(0);
  EXPECT_EQ(alone->exchange_memory(), nullptr);
}

TEST(NcclMemory, OutlivesACommunicatorThatWasGivenUp) {
  reset(1, 0);
  expect_gpu_ranks(1, "memory of an aborted communicator", [](Communicator&, Communicator& nccl) {
    CudaContext context(Device::cuda(0));
    const std::unique_ptr<MemoryResource> memory = nccl.exchange_memory();
    const Buffer buffer(400, *memory, context.stream());
    nccl_standin::fail_rank(0, ncclSystemError);
    EXPECT_THROW(nccl.check(), NcclError);
    EXPECT_NE(Buffer(400, *memory, context.stream()).data(), nullptr);
  });
}

TEST(NcclMemory, NoneLeftIsSaidSo) {
  reset(1, 0);
  expect_gpu_ranks(1, "no memory of NCCL", [](Communicator&, Communicator& nccl) {
    CudaContext context(Device::cuda(0));
    const std::unique_ptr<MemoryResource> memory = nccl.exchange_memory();
    EXPECT_THROW(static_cast<void>(memory->allocate(std::size_t{1} << 50, 256, context.stream())), OutOfMemory);
    EXPECT_EQ(memory->allocate(0, 256, context.stream()), nullptr);
  });
}

/// Runs ranks that create GpuRanks and sum 8 numbers. body(control, ranks) runs before the GpuRanks are destroyed.
template <class Body>
Texts with_gpu_ranks(int size, Body&& body) {
  return run_ranks(size, [&](Communicator& control) {
    cudaSetDevice(control.rank());
    const Device device = Device::cuda(control.rank());
    Floats data(control.rank());
    data.context.synchronize();
    GpuRanks ranks(control, {.device = device}, {.timeout_s = 5});
    ranks.grad().all_reduce(ranks.communication_stream(), data.tensor);
    body(control, ranks);
  });
}

TEST(NcclGpuRanks, EndInGoodOrder) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    reset(3, seed);
    EXPECT_EQ(with_gpu_ranks(3, [](Communicator&, GpuRanks&) {}), none_failed(3));
    EXPECT_EQ(nccl_standin::aborts(), 0);
    expect_clean("a good end");
  }
}

TEST(NcclGpuRanks, AnExceptionOnOneRankEndsAll) {
  reset(2, 1);
  const Texts failures = with_gpu_ranks(
      2, [](Communicator&, GpuRanks& ranks) { require<DataError>(ranks.grad().rank() != 1, "broken record"); });
  EXPECT_EQ(failures[1], "broken record");
  EXPECT_EQ(nccl_standin::aborts(), 2);
  expect_clean("an exception on one rank");
}

TEST(NcclGpuRanks, EndAfterAnAbort) {
  reset(2, 0);
  const Texts failures = with_gpu_ranks(2, [](Communicator& control, GpuRanks& ranks) {
    meet(control);  // both ranks have enqueued the sum
    if (ranks.grad().rank() == 1) {
      nccl_standin::fail_rank(1, ncclSystemError);
      EXPECT_THROW(ranks.grad().check(), NcclError);
    }
    meet(control);
    EXPECT_THROW(ranks.grad().check(), NcclError);
  });
  EXPECT_EQ(failures, none_failed(2));
  EXPECT_EQ(nccl_standin::aborts(), 2);
  expect_clean("an end after an abort");
}

// Controls: the stand-in for NCCL itself must find the errors that comm/nccl must not make.

TEST(NcclStandinItself, SeesRanksThatCallDifferentThings) {
  reset(2, 0);
  run_gpu_ranks(2, [](Communicator& control, Communicator& nccl) {
    Floats data(nccl.rank());
    data.context.synchronize();
    nccl.all_reduce(data.context.stream(), data.tensor.view().slice(0, 0, 4 + nccl.rank()));
    data.context.synchronize();
    meet(control);
  });
  ASSERT_FALSE(standin::violations().empty());
  EXPECT_NE(standin::violations()[0].find("calls ncclAllReduce of "), std::string::npos) << standin::violations()[0];
}

TEST(NcclStandinItself, SeesAnEstimateOfACommunicatorThatDoesNotBlock) {
  reset(2, 0);
  run_gpu_ranks(2, [](Communicator&, Communicator& nccl) {
    Floats data(nccl.rank());
    EXPECT_THROW((void)dynamic_cast<NcclCommunicator&>(nccl).estimate(
                     [&](Communicator& c) { c.barrier(data.context.stream()); }),
                 NcclError);
  });
  ASSERT_FALSE(standin::violations().empty());
  EXPECT_NE(standin::violations()[0].find("does not block"), std::string::npos) << standin::violations()[0];
}

TEST(NcclStandinItself, SeesADestructorBeforeTheStreamsHavePassed) {
  reset(1, 0);  // the lazy style
  run_gpu_ranks(1, [](Communicator&, Communicator& nccl) {
    static thread_local std::unique_ptr<Floats> data;  // outlives the communicator
    data = std::make_unique<Floats>(0);
    data->context.synchronize();
    nccl.all_reduce(data->context.stream(), data->tensor);
  });
  ASSERT_FALSE(standin::violations().empty());
  expect_holds(standin::violations()[0], "ncclCommFinalize: rank 0 has 1 operations queued");
}

}  // namespace
}  // namespace lockstep::comm
