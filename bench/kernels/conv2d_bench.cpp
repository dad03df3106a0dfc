#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/runtime/tensor.hpp>

#include "tests/kernels/conv2d_cases.hpp"

// Each pass of the convolutions of ResNet-20 (batch 128) and ResNet-50 (batch 8) with every choice, reorders included.

namespace lockstep {
namespace {

using ops::ConvPass;

constexpr ConvPass kPasses[] = {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};
constexpr const char* kPassNames[] = {"forward", "backward_data", "backward_weights"};

void run(benchmark::State& state, const ops::ConvDesc& desc, ConvPass pass, const std::string& choice) {
  CpuContext context;
  const Tensor x = Tensor::zeros(context, desc.x_shape(), desc.dtype);
  const Tensor w = Tensor::zeros(context, desc.weights_shape(), desc.dtype);
  const Tensor y = Tensor::zeros(context, desc.y_shape(), desc.dtype);
  const auto plan = ops::plan_conv2d(context, desc, pass, choice);
  const Tensor workspace = Tensor::zeros(context, Shape{static_cast<std::int64_t>(plan->workspace_bytes())}, DType::u8);
  const Tensor& a = pass == ConvPass::backward_data ? y : x;
  const Tensor& b = pass == ConvPass::backward_weights ? y : w;
  const Tensor& out = pass == ConvPass::forward ? y : pass == ConvPass::backward_data ? x : w;
  for (auto _ : state) {
    ops::conv2d(context, *plan, a, b, {}, out, workspace);
    context.synchronize();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(desc.flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void add(const std::string& net, const testing::ConvCase& item) {
  CpuContext context;
  for (std::size_t i = 0; i < std::size(kPasses); ++i) {
    for (const std::string& choice : ops::conv2d_choices(context, item.desc, kPasses[i])) {
      const std::string name = "conv2d/" + net + "/" + item.name + "/" + kPassNames[i] + "/" + choice;
      benchmark::RegisterBenchmark(name.c_str(), run, item.desc, kPasses[i], choice)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  for (const auto& item : lockstep::testing::resnet20_cases(128)) {
    lockstep::add("resnet20", item);
  }
  for (const auto& item : lockstep::testing::resnet50_cases(8)) {
    lockstep::add("resnet50", item);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
