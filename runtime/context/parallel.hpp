#pragma once

#include <algorithm>
#include <cstdint>

#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace lockstep {

namespace detail {

/// Calls f(begin, end). The function is never inlined, so the compiler generates the loop in f only once. Two inlined
/// copies, for the serial and the parallel path, might use fused multiply-add differently. Then one thread and two
/// threads would give different bits.
template <class F>
[[gnu::noinline]]
#if !defined(__clang__)
[[gnu::noclone]]
#endif
void run_range(F& f, std::int64_t begin, std::int64_t end) {
  f(begin, end);
}

}  // namespace detail

/// Calls f(begin, end) on disjoint ranges that cover [0, count), on up to context.threads() OpenMP threads. There are
/// at most count / grain ranges, rounded up. The ranges depend on the thread count, so use this function only if each
/// element is computed independently. f must not throw. The calling thread does all the work, without a call of OpenMP,
/// if there is one thread, if `count` is at most `grain`, or in a build without OpenMP (LOCKSTEP_OPENMP=OFF). Allocates
/// nothing after OpenMP has made its threads.
template <class F>
void parallel_ranges(const CpuContext& context, std::int64_t count, std::int64_t grain, F&& f) {
  const std::int64_t most = grain > 0 ? (count + grain - 1) / grain : count;
  const int threads = static_cast<int>(std::min<std::int64_t>(context.threads(), most));
  if (threads <= 1) {
    if (count > 0) {
      detail::run_range(f, 0, count);
    }
    return;
  }
  struct Work {
    F& f;
    std::int64_t count;
  } work{f, count};
  detail::run_parallel(
      threads,
      [](void* object, int t, int n) {
        const Work& all = *static_cast<const Work*>(object);
        const std::int64_t begin = all.count * t / n;
        const std::int64_t end = all.count * (t + 1) / n;
        if (begin < end) {
          detail::run_range(all.f, begin, end);
        }
      },
      &work);
}

/// Calls f(chunk, begin, end) for the fixed chunks [chunk * size, (chunk + 1) * size) of [0, count). The chunks do not
/// depend on the thread count. A reduction that keeps one partial result per chunk, and joins the results in chunk
/// order, has the same bits for every thread count. f must not throw.
template <class F>
void parallel_chunks(const CpuContext& context, std::int64_t count, std::int64_t size, F&& f) {
  const std::int64_t chunks = (count + size - 1) / size;
  parallel_ranges(context, chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      f(i, i * size, std::min(count, (i + 1) * size));
    }
  });
}

}  // namespace lockstep
