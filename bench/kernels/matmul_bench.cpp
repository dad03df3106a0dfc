#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/tensor.hpp>

// The three products of the last layers of ResNet-20 and ResNet-50, and one large square.

namespace lockstep {
namespace {

void run(benchmark::State& state, const ops::MatmulDesc& desc, const std::string& choice) {
  CpuContext context;
  const Tensor a = Tensor::zeros(context, desc.transpose_a ? Shape{desc.k, desc.m} : Shape{desc.m, desc.k}, desc.dtype);
  const Tensor b = Tensor::zeros(context, desc.transpose_b ? Shape{desc.n, desc.k} : Shape{desc.k, desc.n}, desc.dtype);
  const Tensor c = Tensor::zeros(context, Shape{desc.m, desc.n}, desc.dtype);
  const auto plan = ops::plan_matmul(context, desc, choice);
  const Tensor workspace = Tensor::zeros(context, Shape{static_cast<std::int64_t>(plan->workspace_bytes())}, DType::u8);
  for (auto _ : state) {
    ops::matmul(context, *plan, a, b, {}, c, workspace);
    context.synchronize();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(desc.flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void add(const std::string& name, std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b) {
  ops::MatmulDesc desc;
  desc.m = m;
  desc.n = n;
  desc.k = k;
  desc.transpose_a = transpose_a;
  desc.transpose_b = transpose_b;
  CpuContext context;
  for (const std::string& choice : ops::matmul_choices(context, desc)) {
    benchmark::RegisterBenchmark(("matmul/" + name + "/" + choice).c_str(), run, desc, choice)
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  }
}

void add_linear(const std::string& name, std::int64_t batch, std::int64_t in, std::int64_t out) {
  add(name + "/forward", batch, out, in, false, true);
  add(name + "/backward_data", batch, in, out, false, false);
  add(name + "/backward_weights", out, in, batch, true, false);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::add_linear("linear_64_to_10", 128, 64, 10);
  lockstep::add_linear("linear_2048_to_1000", 32, 2048, 1000);
  lockstep::add("square_1024", 1024, 1024, 1024, false, false);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
