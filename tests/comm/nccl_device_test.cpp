// Tests NCCL on real GPUs. mpirun starts the ranks. Each rank has its own GPU, or with LOCKSTEP_ALLOW_SHARED_GPU=1 the
// ranks share GPUs (scripts/gpu-check.sh). Skipped without a GPU.

#include <cmath>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "communicator_cases.hpp"
#include "gpu_place.hpp"
#include "gradient_data.hpp"
#include "report_of_ranks.hpp"

namespace lockstep::comm {
namespace {

Session* session = nullptr;

class OnDevice final : public cases::GpuPlace {
 public:
  using GpuPlace::GpuPlace;
  /// Adds 1 on the host, because comm's tests have no kernels.
  void add_one(Stream& stream, const TensorView& view) const override {
    stream.synchronize();
    std::vector<std::int64_t> values(static_cast<std::size_t>(view.numel()));
    const TensorView host{std::span(values), view.shape};
    copy(context(), view, host);
    context().synchronize();
    for (std::int64_t& value : values) {
      value += 1;
    }
    copy(context(), host, view);
    context().synchronize();
  }
};

class NcclDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const int gpus = num_gpus();
    if (gpus == 0) {
      GTEST_SKIP() << "needs a CUDA device, this machine has none";
    }
    if (session->local_size() > gpus && !shared_gpu_allowed()) {
      GTEST_SKIP() << session->local_size() << " ranks on " << gpus << " GPUs, LOCKSTEP_ALLOW_SHARED_GPU is not 1";
    }
    RankDevice placed;
    placed.device = Device::cuda(session->local_rank() % gpus);
    placed.shared = session->local_size() > gpus;
    if (placed.shared) {
      set_shared_gpu_environment(session->rank());
    }
    ASSERT_EQ(cudaSetDevice(placed.device.index), cudaSuccess);
    ranks_.emplace(*session, placed, NcclOptions{.timeout_s = 20});
    device_ = placed.device;
  }
  void TearDown() override { ranks_.reset(); }

  /// Expects the same bits on every rank.
  static void expect_equal_on_all_ranks(const std::vector<float>& values) {
    const std::string mine(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    EXPECT_EQ(broadcast_text(session->control(), mine), mine);
  }

  Communicator& nccl() { return ranks_->grad(); }
  Stream& stream() { return ranks_->communication_stream(); }
  Device device_;

 private:
  std::optional<GpuRanks> ranks_;
};

TEST_F(NcclDevice, DoesWhatEveryCommunicatorDoes) {
  const OnDevice place(device_);
  cases::check_everything(nccl(), stream(), {0, 1, 5, 4099}, place);
}

/// Runs three steps of the reducer and returns the arena after the last step. values_of: gradient() or
/// whole_gradient().
std::vector<float> reduce(Communicator& nccl, Stream& comm, Device device, DType dtype = DType::f32,
                          float (*values_of)(int rank, int step, std::int64_t i) = gradient) {
  CudaContext compute(device);
  const auto gradients = ranges(kSizes);
  const Tensor arena = Tensor::zeros(compute, Shape{gradients.back().end}, DType::f32);
  compute.synchronize();
  GradientReducer reducer(nccl, compute.stream(), comm, gradients, small_buckets(gradients), arena,
                          {.sum = make_bucket_sum({.dtype = dtype})});
  Event over(device);
  std::vector<float> values(static_cast<std::size_t>(arena.view().numel()));
  for (int step = 0; step < 3; ++step) {
    reducer.begin_step();
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = values_of(nccl.rank(), step, static_cast<std::int64_t>(i));
    }
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      const TensorView all{std::span(values), arena.shape()};
      copy(compute, all.slice(0, gradients[g].begin, gradients[g].end),
           arena.view().slice(0, gradients[g].begin, gradients[g].end));
      reducer.gradient_written(static_cast<int>(g));
    }
    reducer.finish();
    wait(compute.stream(), over, nccl);
    copy(compute, arena, TensorView(std::span(values), arena.shape()));
    compute.synchronize();
  }
  EXPECT_EQ(reducer.statistics().steps, 3);
  EXPECT_GT(reducer.statistics().total_s, 0);
  return values;
}

TEST_F(NcclDevice, TheGradientReducerGivesTheSumAndRepeats) {
  const std::vector<float> sums = reduce(nccl(), stream(), device_);
  int wrong = 0;  // counted only, since a rank that returned here would leave the other ranks waiting in collectives
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double sum = 0;
    double size = 0;
    for (int r = 0; r < nccl().size(); ++r) {
      sum += gradient(r, 2, static_cast<std::int64_t>(i));
      size += std::fabs(gradient(r, 2, static_cast<std::int64_t>(i)));
    }
    // NCCL chooses the order of the sum, so roundings may differ.
    wrong += std::fabs(sums[i] - sum) <= size * 1.2e-7 * nccl().size() ? 0 : 1;
  }
  expect_equal_on_all_ranks(sums);
  EXPECT_EQ(reduce(nccl(), stream(), device_), sums);
  EXPECT_EQ(wrong, 0);
}

/// Returns element i of a rank's gradient. The elements are small integers, so in 16 bits the elements and their sums
/// over up to 16 ranks are exact.
float whole_gradient(int rank, int step, std::int64_t i) {
  return static_cast<float>((rank * 7 + step * 5 + static_cast<int>(i) * 3) % 17 - 8);
}

TEST_F(NcclDevice, SixteenBitBucketsGiveTheSum) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::vector<float> sums = reduce(nccl(), stream(), device_, dtype, whole_gradient);
    int wrong = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < nccl().size(); ++r) {
        sum += whole_gradient(r, 2, static_cast<std::int64_t>(i));
      }
      wrong += sums[i] == sum ? 0 : 1;
    }
    expect_equal_on_all_ranks(sums);
    EXPECT_EQ(wrong, 0) << dtype;
  }
}

TEST_F(NcclDevice, AnAllReduceIsCapturedOnceItHasRun) {
  CudaContext context(device_, {.stream = stream().cuda_handle()});
  const Tensor data = Tensor::ones(context, Shape{1000}, DType::f32);
  nccl().all_reduce(context.stream(), data);
  Event over(device_);
  wait(context.stream(), over, nccl());
  Graph graph = Graph::capture(context.stream(), [&] { nccl().all_reduce(context.stream(), data); });
  graph.launch(context.stream());
  graph.launch(context.stream());
  wait(context.stream(), over, nccl());
  std::vector<float> values(1000);
  copy(context, data, TensorView(std::span(values), data.shape()));
  context.synchronize();
  const auto size = static_cast<float>(nccl().size());
  EXPECT_EQ(values, std::vector<float>(1000, size * size * size));
}

TEST_F(NcclDevice, NothingIsWrongWhenNothingIsWrong) {
  EXPECT_NO_THROW(nccl().check());
  EXPECT_EQ(nccl().backend(), "nccl");
  EXPECT_EQ(nccl().size(), session->size());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, [](lockstep::comm::Session& session, int count, char** arguments) {
    lockstep::comm::session = &session;
    ::testing::InitGoogleTest(&count, arguments);
    lockstep::comm::report_of_rank(session.rank());
    return RUN_ALL_TESTS();
  });
}
