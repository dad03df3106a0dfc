// This program replaces functions of the OpenMP runtime with its own, which count the library's calls.

#include <lockstep/runtime/context/parallel.hpp>

#include <gtest/gtest.h>

#include <cstdint>

#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/softmax.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace {
int openmp_calls = 0;
}  // namespace

// g++ compiles a parallel region into a call of GOMP_parallel, clang into a call of __kmpc_fork_call. These
// replacements run the region as a team of one thread.
extern "C" {
int omp_get_max_threads() {
  ++openmp_calls;
  return 3;
}
int omp_get_num_threads() {
  ++openmp_calls;
  return 1;
}
int omp_get_thread_num() {
  ++openmp_calls;
  return 0;
}
void omp_set_num_threads(int) {
  ++openmp_calls;
}
void GOMP_parallel(void (*region)(void*), void* data, unsigned, unsigned) {
  ++openmp_calls;
  region(data);
}
void __kmpc_push_num_threads(void*, int, int) {
  ++openmp_calls;
}
void __kmpc_fork_call(void*, int, void (*region)(int*, int*, ...), void* first, void* second) {
  ++openmp_calls;
  int thread = 0;
  region(&thread, &thread, first, second);
}
}

namespace lockstep::testing {
namespace {

/// Runs parallel loops, copies, factories and kernels on enough elements for all of them to use several threads.
void compute(CpuContext& context) {
  constexpr std::int64_t kCount = 1 << 20;
  std::int64_t sum = 0;
  parallel_ranges(context, kCount, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  parallel_chunks(context, kCount, 1000,
                  [&](std::int64_t, std::int64_t begin, std::int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 2 * kCount);
  const Tensor a = Tensor::zeros(context, {1024, 1024}, DType::f32);
  const Tensor b = Tensor::zeros(context, {1024, 1024}, DType::f64);
  copy(context, a, b);
  copy(context, a.view().permute({1, 0}), b);
  ops::add(context, a, a, a);
  ops::softmax_forward(context, a, 1, ops::SoftmaxMask::none, a);
}

TEST(NoOpenMpCall, OneThreadCallsNothingOfOpenMp) {
  CpuContext context({.threads = 1});
  openmp_calls = 0;
  compute(context);
  EXPECT_EQ(openmp_calls, 0);
}

TEST(NoOpenMpCall, TwoThreadsDo) {  // control: with two threads, the replaced functions must count calls
  CpuContext context({.threads = 2});
  openmp_calls = 0;
  compute(context);
  EXPECT_GT(openmp_calls, 0);
}

TEST(NoOpenMpCall, NoNumberOfThreadsAsksOpenMp) {
  EXPECT_EQ(CpuContext().threads(), 3);
}

}  // namespace
}  // namespace lockstep::testing
