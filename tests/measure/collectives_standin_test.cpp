// Tests the rows of bench_allreduce and bench_copy that need GPUs or NCCL, with stand-ins for CUDA and NCCL. The ranks
// are threads, and each has its own device.

#include <atomic>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "control.hpp"
#include "measure/collectives.hpp"
#include "measure/load.hpp"
#include "nccl_control.hpp"
#include "tests/comm/local_ranks.hpp"

namespace lockstep::ops {
namespace {

std::atomic<int> products{0};  // number of products that the device has computed

/// A matmul provider that only counts its products. All operands are zeros, so it need not write the products.
class CountingPlan final : public MatmulPlan {
 public:
  CountingPlan(Device device, const MatmulDesc& desc) : MatmulPlan(device, desc) {}
  [[nodiscard]] std::size_t workspace_bytes() const override { return 64; }
  [[nodiscard]] bool deterministic() const override { return true; }
  [[nodiscard]] std::string choice() const override { return "counting"; }
  void run(Context& context, const TensorView&, const TensorView&, const TensorView&, const TensorView&,
           const TensorView&) const override {
    cudaSetDevice(device().index);
    standin::launch(context.stream().cuda_handle(), [](std::span<const standin::DeviceMemory>) { ++products; });
  }
};

}  // namespace

// Only nvcc can compile the real kernels. This program therefore defines the functions of matmul that it needs.
std::vector<std::string> matmul_choices(Context&, const MatmulDesc&) {
  return {"counting"};
}
std::unique_ptr<MatmulPlan> plan_matmul(Context& context, const MatmulDesc& desc, const std::string&) {
  return std::make_unique<CountingPlan>(context.device(), desc);
}
void matmul(Context& context, const MatmulPlan& plan, const TensorView& a, const TensorView& b, const TensorView& bias,
            const TensorView& c, const TensorView& workspace) {
  plan.run(context, a, b, bias, c, workspace);
}

}  // namespace lockstep::ops

namespace lockstep::measure {
namespace {

constexpr MeasureOptions kQuick{.target_seconds = 0, .min_iterations = 3, .max_iterations = 3};
constexpr std::int64_t kMaxBytes = 4096;

/// Calls body(control, nccl, bench, stream) on each rank, with the objects that a rank of bench_allreduce has.
template <class Body>
void run_benches(int size, Body&& body) {
  standin::reset({.devices = size, .bytes_per_device = std::size_t{1} << 26, .seed = 1});
  nccl_standin::reset();
  comm::on_ranks(size, [&](comm::Communicator& control) {
    const Device device = Device::cuda(control.rank());
    cudaSetDevice(device.index);
    const auto nccl = comm::make_nccl_communicator(control, device);
    CudaContext context(device);
    Stream stream = Stream::cuda(device, -1);
    CollectiveBench bench(*nccl, context, stream, kMaxBytes, 2 * kMaxBytes);
    body(control, *nccl, bench, stream);
  });
  EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  EXPECT_EQ(standin::leaks(), std::vector<std::string>{});
  EXPECT_EQ(nccl_standin::leaks(), std::vector<std::string>{});
}

TEST(CollectivesInAGraph, AreTheCollectives) {
  const std::vector<Collective> all(std::begin(kCollectives), std::end(kCollectives));
  for (const int size : {1, 3}) {
    run_benches(size,
                [&](comm::Communicator& control, comm::Communicator& nccl, CollectiveBench& bench, Stream& stream) {
                  for (CollectiveCase item : collective_cases(all, {DType::f32, DType::bf16})) {
                    for (const bool graph : {false, true}) {
                      item.graph = graph;
                      if (graph && item.collective == Collective::send_recv) {
                        EXPECT_THROW(bench.check(item, 64), UsageError);
                        continue;
                      }
                      for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1001}, kMaxBytes}) {
                        bench.check(item, bytes);
                      }
                      const Measurement line = bench.measure(control, item, 1001, kQuick);
                      EXPECT_EQ(line.samples.seconds.size(), 3U);
                      EXPECT_EQ(line.name, collective_name(nccl, stream, item, 1001));
                      EXPECT_NE(line.name.find(graph ? "/graph/" : "/stream/"), std::string::npos) << line.name;
                      bench.check(item, 64);  // measuring must not have changed the results
                    }
                  }
                });
  }
}

TEST(CollectivesInAGraph, AreNcclsOnly) {
  const auto errors = comm::run_ranks(2, [](comm::Communicator& ranks) {
    CpuContext context({.threads = 1});
    Stream stream = Stream::host_inline();
    CollectiveBench bench(ranks, context, stream, 64, 64);
    const CollectiveCase item{.collective = Collective::all_reduce, .graph = true};
    EXPECT_THROW(bench.check(item, 64), UsageError);
    EXPECT_THROW((void)bench.work(item, 64), UsageError);
  });
  EXPECT_EQ(errors, comm::none_failed(2));
}

TEST(Estimates, AreThoseOfNccl) {
  for (const int size : {1, 2}) {
    run_benches(size, [&](comm::Communicator&, comm::Communicator& nccl, CollectiveBench& bench, Stream&) {
      const auto estimator = comm::make_nccl_estimator(nccl);
      const auto microseconds = [&](Collective collective) {
        const CollectiveCase item = collective_cases({collective}, {DType::f32}).front();
        return bench.estimate(*estimator, item, kMaxBytes).value_or(-1e-6) * 1e6;
      };
      const double expected =
          size == 1 ? -1 : nccl_standin::kEstimateMicroseconds + double{kMaxBytes} / nccl_standin::kEstimateBytes;
      for (const Collective collective : kCollectives) {
        const bool messages = collective == Collective::send_recv || collective == Collective::all_to_all;
        EXPECT_NEAR(microseconds(collective), messages ? -1 : expected, 1e-4) << name_of(collective);
      }
      bench.check({Collective::all_reduce}, kMaxBytes);  // the earlier measurements must have left no work and no error
    });
  }
}

Samples quick() {
  return measure({.target_seconds = 0.01, .min_iterations = 3}, {[] {}});
}

TEST(GpuLoad, AMatmulKeepsTheDeviceOfItsContextBusy) {
  standin::reset({.devices = 2, .bytes_per_device = std::size_t{1} << 26, .seed = 1});
  {
    CudaContext context(Device::cuda(1));
    const std::unique_ptr<Load> load = matmul_load(context);
    for (int round = 0; round < 2; ++round) {
      ops::products = 0;
      load->start();
      EXPECT_GE(ops::products, 1) << "start() returns when one is done";
      EXPECT_GE(load->stop(), 0);
      EXPECT_EQ(standin::queued_work(), 0U) << "stop() leaves nothing behind";
    }
  }
  EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  EXPECT_EQ(standin::leaks(), std::vector<std::string>{});
}

TEST(GpuLoad, AllReducesOverNcclEndOnAllRanksTogether) {
  constexpr int kRanks = 3;
  standin::reset({.devices = kRanks, .bytes_per_device = std::size_t{1} << 26, .seed = 1});
  nccl_standin::reset();
  comm::on_ranks(kRanks, [&](comm::Communicator& ranks) {
    const std::unique_ptr<comm::Communicator> control = ranks.split(0, ranks.rank());
    const Device device = Device::cuda(ranks.rank());
    const auto nccl = comm::make_nccl_communicator(ranks, device);
    Stream stream = Stream::cuda(device, -1);
    CudaContext context(device, {.stream = stream.cuda_handle()});
    const std::unique_ptr<Load> load = all_reduce_load(*nccl, context, 4096);
    EXPECT_GT(measure_beside(*control, *load, quick).slowdown, 0);
    load->start();
    (void)load->stop();  // fails unless all ranks have made the same number of calls
  });
  EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  EXPECT_EQ(standin::leaks(), std::vector<std::string>{});
  EXPECT_EQ(nccl_standin::leaks(), std::vector<std::string>{});
}

}  // namespace
}  // namespace lockstep::measure
