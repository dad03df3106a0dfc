#include <benchmark/benchmark.h>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor.hpp>

// Writes once: the bytes per second are to be held against the memory bandwidth.

namespace lockstep {
namespace {

void fill(benchmark::State& state, DType dtype) {
  CpuContext context;
  const Tensor out = Tensor::zeros(context, Shape{state.range(0)}, dtype);
  for (auto _ : state) {
    ops::fill(context, 1.5, out);
    context.synchronize();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(out.view().bytes()));
}

BENCHMARK_CAPTURE(fill, f32, DType::f32)->Arg(1 << 12)->Arg(1 << 20)->Arg(1 << 25)->UseRealTime();
BENCHMARK_CAPTURE(fill, bf16, DType::bf16)->Arg(1 << 25)->UseRealTime();

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
