// This file is compiled like kernels/cpu: for each processor of LOCKSTEP_CPU_ARCH, with products and sums fused into
// multiply-adds.
#include <measure/arithmetic.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::measure {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kBytes = 64;
#elif defined(__AVX__)
constexpr std::size_t kBytes = 32;
#else
constexpr std::size_t kBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using): gcc requires typedef
constexpr std::size_t kLanes = kBytes / sizeof(float);
// Number of independent chains of multiply-adds. A processor begins 2 multiply-adds per cycle, and the result of each
// takes at least 4 cycles. So the processor needs at least 8 chains to be busy; 12 chains still fit in the registers.
constexpr std::size_t kChains = 12;

/// Runs the multiply-adds of one thread. Returns the sum of all chains, so that the compiler does not remove any.
float run(std::int64_t rounds) {
  // Every chain begins with a different value, because the compiler would merge equal chains.
  Vector chains[kChains] = {};
  for (std::size_t i = 0; i < kChains; ++i) {
    chains[i] += static_cast<float>(i + 2);
  }
  Vector factor = {};
  Vector addend = {};
  factor += 0.999F;  // the chains converge, so no value becomes infinite or denormal
  addend += 1e-3F;
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (Vector& chain : chains) {
      chain = chain * factor + addend;
    }
  }
  float sum = 0;
  for (const Vector& chain : chains) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sum += chain[lane];
    }
  }
  return sum;
}

}  // namespace

double fma_flop_per_second(const CpuContext& context, double min_seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kRounds = 4'000'000;
  const int threads = context.threads();
  double best = 0;
  const auto begin = Clock::now();
  std::chrono::duration<double> all{};
  do {
    const auto start = Clock::now();
    parallel_ranges(context, threads, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        volatile float sum = run(kRounds);
        static_cast<void>(sum);
      }
    });
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::max(best, 2.0 * kLanes * kChains * static_cast<double>(kRounds) * threads / took.count());
    all = Clock::now() - begin;
  } while (all.count() < min_seconds);
  return best;
}

}  // namespace lockstep::measure
