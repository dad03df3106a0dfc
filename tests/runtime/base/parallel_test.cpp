#include <lockstep/runtime/context/parallel.hpp>

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <vector>

#include <lockstep/runtime/base/random.hpp>

namespace lockstep::testing {
namespace {

TEST(Parallel, RangesCoverEverythingOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    const CpuContext context({.threads = threads});
    for (const std::int64_t count : {0, 1, 2, 6, 7, 101, 1000}) {
      for (const std::int64_t grain : {0, 1, 7, 100000}) {
        std::vector<int> visits(static_cast<std::size_t>(count), 0);
        std::mutex mutex;
        std::vector<std::int64_t> begins;
        parallel_ranges(context, count, grain, [&](std::int64_t begin, std::int64_t end) {
          {
            const std::lock_guard lock(mutex);
            begins.push_back(begin);
          }
          for (std::int64_t i = begin; i < end; ++i) {
            ++visits[static_cast<std::size_t>(i)];
          }
        });
        EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << threads << ' ' << count << ' ' << grain;
        if (grain >= count && count > 0) {
          EXPECT_EQ(begins, std::vector<std::int64_t>{0}) << "one range for less than a grain";
        }
      }
    }
  }
}

TEST(Parallel, ChunksDoNotDependOnTheThreads) {
  for (const int threads : {1, 2, 3, 7}) {
    const CpuContext context({.threads = threads});
    std::vector<std::int64_t> begins(6, -1);
    std::vector<std::int64_t> ends(6, -1);
    parallel_chunks(context, 101, 17, [&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
      begins[static_cast<std::size_t>(chunk)] = begin;
      ends[static_cast<std::size_t>(chunk)] = end;
    });
    EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 17, 34, 51, 68, 85}));
    EXPECT_EQ(ends, (std::vector<std::int64_t>{17, 34, 51, 68, 85, 101}));
    bool called = false;
    parallel_chunks(context, 0, 17, [&](std::int64_t, std::int64_t, std::int64_t) { called = true; });
    EXPECT_FALSE(called);
  }
}

std::vector<float> numbers(std::size_t count) {
  Random random(3, RandomUse::test);
  std::vector<float> values(count);
  for (float& x : values) {
    x = static_cast<float>(random.normal());
  }
  return values;
}

float sum(const std::vector<float>& values, std::int64_t begin, std::int64_t end) {
  float result = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    result += values[static_cast<std::size_t>(i)];
  }
  return result;
}

float sum_by_chunks(const CpuContext& context, const std::vector<float>& values) {
  constexpr std::int64_t kChunk = 1009;
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<float> partial(static_cast<std::size_t>((count + kChunk - 1) / kChunk));
  parallel_chunks(context, count, kChunk, [&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(chunk)] = sum(values, begin, end);
  });
  return sum(partial, 0, static_cast<std::int64_t>(partial.size()));
}

/// A negative control: sums with one partial sum per thread, so the result depends on the number of threads.
float sum_by_threads(const CpuContext& context, const std::vector<float>& values) {
  std::mutex mutex;
  std::map<std::int64_t, float> partial;  // key: begin of the range
  parallel_ranges(context, static_cast<std::int64_t>(values.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    const float of_range = sum(values, begin, end);
    const std::lock_guard lock(mutex);
    partial[begin] = of_range;
  });
  float result = 0;
  for (const auto& [begin, of_range] : partial) {
    result += of_range;
  }
  return result;
}

TEST(Parallel, ChunkedSumHasTheSameBitsForEveryThreadCount) {
  const std::vector<float> values = numbers(100003);
  const CpuContext one({.threads = 1});
  bool control_differs = false;
  for (const int threads : {2, 3, 5}) {
    const CpuContext context({.threads = threads});
    EXPECT_EQ(sum_by_chunks(context, values), sum_by_chunks(one, values)) << threads;
    control_differs = control_differs || sum_by_threads(context, values) != sum_by_threads(one, values);
  }
  EXPECT_EQ(control_differs, LOCKSTEP_HAS_OPENMP != 0);
}

}  // namespace
}  // namespace lockstep::testing
