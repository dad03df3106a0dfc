#include "emulator.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "indices.hpp"
#include "test_kernels.hpp"

#if defined(LOCKSTEP_EMULATION_ASAN)
#include <sanitizer/asan_interface.h>
#endif

// This program is compiled in two builds: one finds races (kFindsRaces), one finds bad addresses (kFindsBadAddresses).
// Each build skips the mistakes that it cannot find.

namespace lockstep::emulation::test {
namespace {

#if defined(__clang__)
constexpr bool kClang = true;
#else
constexpr bool kClang = false;
#endif

std::size_t page() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

/// Device memory that ends at an inaccessible page. It is filled with 0xFF bytes (NaN) and registered with the race
/// checker. The data begins `shift` elements after a multiple of 16 bytes.
template <class T>
class Device {
 public:
  explicit Device(std::size_t count, std::size_t shift = 0) : count_(count) {
    const std::size_t bytes = ((count + shift) * sizeof(T) + 15) / 16 * 16;
    body_ = (bytes + page() - 1) / page() * page();
    map_ = static_cast<std::byte*>(
        mmap(nullptr, body_ + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(map_ + page(), body_, PROT_READ | PROT_WRITE);
    std::memset(map_ + page(), 0xFF, body_);
    data_ = reinterpret_cast<T*>(map_ + page() + body_ - bytes) + shift;
#if defined(LOCKSTEP_EMULATION_ASAN)
    __asan_poison_memory_region(map_ + page(), body_);
    __asan_unpoison_memory_region(data_, count * sizeof(T));
#endif
    register_memory(data_, count * sizeof(T));
  }
  explicit Device(const std::vector<T>& values, std::size_t shift = 0) : Device(values.size(), shift) {
    std::memcpy(static_cast<void*>(data_), values.data(), values.size() * sizeof(T));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    unregister_memory(data_, count_ * sizeof(T));
#if defined(LOCKSTEP_EMULATION_ASAN)
    __asan_unpoison_memory_region(map_ + page(), body_);
#endif
    munmap(map_, body_ + 2 * page());
  }

  [[nodiscard]] T* data() const {
    return data_;
  }
  [[nodiscard]] std::vector<T> values() const {
    return std::vector<T>(data_, data_ + count_);
  }

 private:
  std::byte* map_;
  std::size_t body_;
  T* data_;
  std::size_t count_;
};

std::vector<Schedule> schedules() {
  std::vector<Schedule> all = {
      Schedule::ascending(), Schedule::descending(), {.order = Order::ascending, .resident_blocks = 1000}};
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    all.push_back(Schedule::random(seed));
  }
  return all;
}

std::vector<float> numbers(int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    // The numbers are small integers, so that their sums are exact.
    values[static_cast<std::size_t>(i)] = static_cast<float>((i * 37 + 11) % 64 - 20);
  }
  return values;
}

/// Returns the vector of f(value) for each value.
template <class F>
std::vector<float> mapped(std::vector<float> values, F&& f) {
  std::transform(values.begin(), values.end(), values.begin(), f);
  return values;
}

/// Runs kernel(out, in), where in holds `values` and out holds NaNs. Returns the `count` numbers of out.
template <class Kernel>
std::vector<float> result(std::size_t count, const std::vector<float>& values, Kernel&& kernel, std::size_t shift = 0) {
  const Device<float> out(count, shift);
  const Device<float> in(values, shift);
  kernel(out.data(), in.data());
  return out.values();
}

// ---- Planted mistakes ----

/// Runs a kernel with a planted mistake and returns true if its result is right.
using Case = std::function<bool(const Schedule&, Bug)>;

float doubled(float value) {
  return 2 * value;
}

bool scale_case(const Schedule& schedule, Bug bug) {
  const int n = 252;  // a multiple of 4, so that the data ends at the guard page
  const auto run = [&](float* out, float* in) { scale({schedule, dim3(2), dim3(128)}, out, in, n, bug); };
  return result(n, numbers(n), run) == mapped(numbers(n), doubled);
}

bool scale_vectors_case(const Schedule& schedule, Bug bug) {
  bool right = true;
  for (std::size_t shift : {0, 1}) {
    const int n = 259;
    const auto run = [&](float* out, float* in) { scale_vectors({schedule, dim3(2), dim3(32)}, out, in, n, bug); };
    right = right && result(n, numbers(n), run, shift) == mapped(numbers(n), doubled);
  }
  return right;
}

bool block_sums_case(const Schedule& schedule, Bug bug) {
  bool right = true;
  for (int block : {64, 160, 1024}) {
    const int n = bug == Bug::early_return ? 2 * block - 40 : 3000;
    constexpr int kBlocks = 2;
    const std::vector<float> values = numbers(n);
    std::vector<float> expected(2 * kBlocks);
    for (int i = 0; i < n; ++i) {
      const auto b = static_cast<std::size_t>(i / block % kBlocks);
      const float x = values[static_cast<std::size_t>(i)];
      expected[2 * b] += x;
      expected[2 * b + 1] += x * x;
    }
    const auto run = [&](float* out, float* in) {
      block_sums({schedule, dim3(kBlocks), dim3(static_cast<unsigned>(block))}, out, in, n, bug);
    };
    right = right && result(2 * kBlocks, values, run) == expected;
  }
  return right;
}

bool strided_case(const Schedule& schedule, Bug bug) {
  const int n = 69;  // the lane of element 68 makes one more iteration than its neighbour
  const std::vector<float> values = numbers(n);
  std::vector<float> expected(32);
  for (int i = 0; i < n; ++i) {
    expected[static_cast<std::size_t>(i % 32)] += (i ^ 1) < n ? values[static_cast<std::size_t>(i ^ 1)] : 0.0F;
  }
  const auto run = [&](float* out, float* in) { strided_neighbours({schedule, dim3(1), dim3(32)}, out, in, n, bug); };
  return result(32, values, run) == expected;
}

/// Returns true if kernel(out, in) sets out[i] to in[source(i)] for all i < n.
template <class Source, class Kernel>
bool moves(int n, Source&& source, Kernel&& kernel) {
  const std::vector<float> values = numbers(n);
  std::vector<float> expected(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i] = values[source(i)];
  }
  return result(values.size(), values, kernel) == expected;
}

bool swap_case(const Schedule& schedule, Bug bug) {
  return moves(
      192, [](std::size_t i) { return i ^ 1; },
      [&](float* out, float* in) {
        swap_pairs({schedule, dim3(3), dim3(64)}, out, in, bug);
      });
}

bool add_all_case(const Schedule& schedule, Bug bug) {
  const int n = 1000;
  const std::vector<float> values = numbers(n);
  Device<float> out(std::vector<float>{0.0F});
  Device<float> in(values);
  add_all({schedule, dim3(8), dim3(128)}, out.data(), in.data(), n, bug);
  return out.values()[0] == std::accumulate(values.begin(), values.end(), 0.0F);
}

bool reverse_case(const Schedule& schedule, Bug bug) {
  return moves(
      3 * 96, [](std::size_t i) { return i / 96 * 96 + 95 - i % 96; },
      [&](float* out, float* in) {
        reverse({schedule, dim3(3), dim3(96)}, bug == Bug::dynamic_too_small ? 95 * 4 : 96 * 4, out, in);
      });
}

bool pool_case(const Schedule& schedule, Bug bug) {
  const int n = 1024 + 64;  // the data does not begin at a page boundary
  const std::vector<float> values = numbers(n);
  std::vector<float> expected(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i] = std::max({values[i], values[i == 0 ? 0 : i - 1], values[std::min(i + 1, values.size() - 1)]});
  }
  const auto run = [&](float* out, float* in) { pool3({schedule, dim3(9), dim3(128)}, out, in, n, bug); };
  return result(values.size(), values, run) == expected;
}

bool transpose_case(const Schedule& schedule, Bug bug) {
  constexpr int kRows = 67;
  constexpr int kColumns = 41;
  std::vector<float> values(kRows * kColumns);
  std::vector<float> expected(kRows * kColumns);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      values[static_cast<std::size_t>(row * kColumns + column)] = static_cast<float>(row * 100 + column);
      expected[static_cast<std::size_t>(column * kRows + row)] = static_cast<float>(row * 100 + column);
    }
  }
  const auto run = [&](float* out, float* in) { transpose(schedule, out, in, kRows, kColumns, bug); };
  return result(values.size(), values, run) == expected;
}

bool fill_two_case(const Schedule& schedule, Bug bug) {
  Device<float> a(100);
  Device<float> b(72);
  fill_two(schedule, a.data(), 100, b.data(), 72, bug);
  return a.values() == std::vector<float>(100, 1.0F) && b.values() == std::vector<float>(72, 2.0F);
}

bool pass_round_case(const Schedule& schedule, Bug bug) {
  constexpr int kBlocks = 5;
  constexpr int kTurns = 3;
  Device<float> values(numbers(kBlocks * 32));
  pass_round({schedule, dim3(kBlocks), dim3(32)}, values.data(), kTurns, bug);
  std::vector<float> expected = numbers(kBlocks * 32);
  std::rotate(expected.begin(), expected.begin() + kTurns * 32, expected.end());
  return values.values() == expected;
}

bool last_block_case(const Schedule& schedule, Bug bug) {
  constexpr int kBlocks = 70;  // more blocks than a block has threads, so the last block needs a loop
  const int n = kBlocks * 64 - 5;
  const std::vector<float> values = numbers(n);
  const float expected = std::accumulate(values.begin(), values.end(), 0.0F);
  Device<float> out(1);
  Device<float> partial(kBlocks);
  Device<unsigned> counter(std::vector<unsigned>{0});
  Device<float> in(values);
  bool right = true;
  for (int again = 0; again < 2; ++again) {
    last_block_sum({schedule, dim3(kBlocks), dim3(64)}, out.data(), partial.data(), counter.data(), in.data(), n, bug);
    right = right && out.values()[0] == expected && counter.values()[0] == 0;
  }
  return right;
}

bool stepwise_case(const Schedule& schedule, Bug bug) {
  const int n = 100;
  const std::vector<float> values = numbers(n);
  std::vector<float> expected(64);
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i % 64] += values[i];
  }
  const auto run = [&](float* out, float* in) { stepwise_sum({schedule, dim3(1), dim3(64)}, out, in, n, bug); };
  return result(64, values, run) == expected;
}

bool histogram_case(const Schedule& schedule, Bug bug) {
  const int n = 1500;
  std::vector<unsigned char> values(static_cast<std::size_t>(n));
  std::vector<int> expected(16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<unsigned char>(i * i % 16);
    ++expected[values[i]];
  }
  Device<int> bins(std::vector<int>(16, 0));
  Device<unsigned char> in(values);
  histogram({schedule, dim3(3), dim3(96)}, bins.data(), in.data(), n, bug);
  return bins.values() == expected;
}

bool through_shared_case(const Schedule& schedule, Bug bug) {
  return moves(
      256, [](std::size_t i) { return i; },
      [&](float* out, float* in) {
        through_shared_vectors({schedule, dim3(1), dim3(64)}, out, in, bug);
      });
}

/// How a build finds a mistake: by an Error, by a wrong result (value), by the death of the process, or never.
struct Find {
  enum Way { error, value, death, never } way;
  const char* what;  ///< error: part of the message; death: regular expression; never: reason
};
Find error(const char* text) {
  return {Find::error, text};
}
Find value() {
  return {Find::value, "wrong result"};
}
Find death(const char* text) {
  return {Find::death, text};
}
Find never(const char* reason) {
  return {Find::never, reason};
}

struct Planted {
  int number;  // number of the mistake in the test's name; 0: none
  const char* name;
  Case run;
  Bug bug;
  Find race;  // how the race build finds the mistake in one run in ascending order
  Find asan;  // how the address build finds the mistake in six runs in random order
};

void PrintTo(const Planted& planted, std::ostream* out) {
  *out << planted.number << ' ' << planted.name;
}

constexpr const char* kCannotOrder = "no order of fibers shows it: nothing else runs in the middle of a statement";
constexpr const char* kBadAddress = "AddressSanitizer";

std::vector<Planted> planted() {
  return {
      {1, "past_the_end", scale_case, Bug::past_the_end, error("bad address"), death(kBadAddress)},
      {2, "unaligned_vectors", scale_vectors_case, Bug::unaligned_vectors,
       never("the processor loads 16 bytes from any address"),
       kClang ? never("clang's UBSan does not look at whole vectors") : death("misaligned address")},
      {3, "tail_skipped", scale_vectors_case, Bug::tail_skipped, value(), value()},
      {4, "shuffle_step_missing", block_sums_case, Bug::shuffle_step_missing, value(), value()},
      {5, "divergent_collective", strided_case, Bug::divergent_collective, value(), value()},
      {6, "no_syncwarp", swap_case, Bug::no_syncwarp, error("data race on shared 'exchange'"), value()},
      {7, "no_barrier_partials", block_sums_case, Bug::no_barrier_partials, error("data race on shared 'partial'"),
       value()},
      {8, "no_barrier_reuse", block_sums_case, Bug::no_barrier_reuse, error("data race on shared 'partial'"), value()},
      {9, "plain_add", add_all_case, Bug::plain_add, error("data race on byte 0 of the device memory"),
       never(kCannotOrder)},
      {10, "dynamic_too_small", reverse_case, Bug::dynamic_too_small, error("shared memory overrun"),
       death(kBadAddress)},
      {11, "uninitialised_shared", block_sums_case, Bug::uninitialised_shared, value(), value()},
      {12, "early_return", block_sums_case, Bug::early_return, error("exited before a barrier"),
       error("exited before a barrier")},
      {13, "window_not_clamped", pool_case, Bug::window_not_clamped, error("bad address"), death(kBadAddress)},
      {15, "no_barrier_transpose", transpose_case, Bug::no_barrier_transpose, error("data race on shared 'tile'"),
       value()},
      {16, "column_32", transpose_case, Bug::column_32, error("'tile'"), death("index 32 out of bounds")},
      {17, "no_bounds_check", scale_case, Bug::no_bounds_check, error("bad address"), death(kBadAddress)},
      {18, "chunk_not_clamped", fill_two_case, Bug::chunk_not_clamped, error("bad address"), death(kBadAddress)},
      {20, "no_threadfence", last_block_case, Bug::no_threadfence, error("data race"), never(kCannotOrder)},
      {0, "fence_after_atomic", last_block_case, Bug::fence_after_atomic, error("data race"), never(kCannotOrder)},
      {21, "no_barrier_flag", last_block_case, Bug::no_barrier_flag, error("data race on shared 'last'"),
       error("barrier")},
      {22, "barrier_in_if", block_sums_case, Bug::barrier_in_if, error("divergent block barrier"),
       error("divergent block barrier")},
      {23, "half_mask", block_sums_case, Bug::half_mask, error("bad warp mask"), error("bad warp mask")},
      {24, "barrier_in_loop", stepwise_case, Bug::barrier_in_loop, error("divergent block barrier"),
       error("divergent block barrier")},
      {25, "no_barrier_zero", histogram_case, Bug::no_barrier_zero, error("data race on shared 'counts'"), value()},
      {26, "plain_count", histogram_case, Bug::plain_count, error("data race on shared 'counts'"), never(kCannotOrder)},
      {0, "no_grid_barrier", pass_round_case, Bug::no_grid_barrier, error("data race on byte"), value()},
      {0, "no_second_barrier", pass_round_case, Bug::no_second_barrier, error("data race on byte"), value()},
      {0, "one_block_goes_on", pass_round_case, Bug::one_block_goes_on, error("data race on byte"), error("deadlock")},
      {0, "barrier_against_warp", block_sums_case, Bug::barrier_against_warp, error("deadlock"), error("deadlock")},
      {0, "underaligned_shared", through_shared_case, Bug::underaligned_shared,
       never("the processor loads 16 bytes from any address"),
       kClang ? never("clang's UBSan does not look at whole vectors") : death("misaligned address")},
  };
}

class PlantedMistake : public testing::TestWithParam<Planted> {};

TEST_P(PlantedMistake, TheRightKernelPassesInAnyOrder) {
  for (const Schedule& schedule : schedules()) {
    EXPECT_TRUE(GetParam().run(schedule, Bug::none)) << schedule.text();
  }
}

TEST_P(PlantedMistake, IsFound) {
  const Planted& it = GetParam();
  const Find find = kFindsRaces ? it.race : it.asan;
  std::vector<Schedule> tried;
  if (kFindsRaces) {
    tried = {Schedule::ascending()};
  } else {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      tried.push_back(Schedule::random(seed));
    }
  }
  if (find.way == Find::never) {
    GTEST_SKIP() << "this build cannot find it: " << find.what;
  }
  if (find.way == Find::death) {
    EXPECT_DEATH(
        {
          for (const Schedule& schedule : tried) {
            it.run(schedule, it.bug);
          }
        },
        find.what);
    return;
  }
  int found = 0;
  std::string other;
  for (const Schedule& schedule : tried) {
    try {
      const bool right = it.run(schedule, it.bug);
      found += find.way == Find::value && !right ? 1 : 0;
    } catch (const Error& error) {
      const std::string message = error.what();
      if (find.way == Find::error && message.find(find.what) != std::string::npos) {
        ++found;
        EXPECT_NE(message.find("test_kernels.cu:"), std::string::npos) << message;
        EXPECT_NE(message.find("kernel '"), std::string::npos) << message;
      } else {
        other += message + '\n';
      }
    }
  }
  EXPECT_GT(found, 0) << other;
}

INSTANTIATE_TEST_SUITE_P(Emulator, PlantedMistake, testing::ValuesIn(planted()),
                         [](const auto& param) { return std::string(param.param.name); });

// ---- What reports say ----

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_HAS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(Report, RaceNamesBothLinesAndThreads) {
  if (!kFindsRaces) {
    GTEST_SKIP() << "no race checker in this build";
  }
  const std::string message = message_of([] { swap_case(Schedule::random(5), Bug::no_syncwarp); });
  EXPECT_HAS(message, "kernel 'swap_pairs', grid (3,1,1), block (64,1,1)");
  EXPECT_HAS(message, "write by thread (");
  EXPECT_HAS(message, "read by thread (");
  EXPECT_HAS(message, " of block (");
  EXPECT_HAS(message, "schedule: random, seed 5 (thread priority)");
  const std::size_t first = message.find("test_kernels.cu:");
  ASSERT_NE(first, std::string::npos) << message;
  EXPECT_NE(message.find("test_kernels.cu:", first + 1), std::string::npos) << message;
}

TEST(Report, DivergenceNamesBothLines) {
  const std::string message = message_of([] { stepwise_case(Schedule::ascending(), Bug::barrier_in_loop); });
  EXPECT_HAS(message, "waits at __syncthreads");
  const std::size_t first = message.find("test_kernels.cu:");
  EXPECT_NE(message.find("test_kernels.cu:", first + 1), std::string::npos) << message;
}

TEST(Report, DeadlockListsTwelveThreads) {
  const std::string message = message_of([] { block_sums_case(Schedule::ascending(), Bug::barrier_against_warp); });
  EXPECT_HAS(message, "64 threads wait and none can run; the first 12:");
  EXPECT_HAS(message, "waits at __syncwarp mask 0xffffffff");
  std::size_t lines = 0;
  for (std::size_t at = message.find(" waits at "); at != std::string::npos; at = message.find(" waits at ", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 12U) << message;
}

// ---- Misuse ----

std::string misuse_message(Misuse which, int threads = 32) {
  Device<int> data(std::vector<int>(64, 0));
  return message_of([&] {
    misuse({Schedule::ascending(), dim3(2), dim3(static_cast<unsigned>(threads))}, which, data.data());
  });
}

TEST(Misuse, TooMuchStaticSharedMemory) {
  const std::string message = misuse_message(Misuse::static_too_large);
  EXPECT_HAS(message, "too much shared memory: 51200 bytes with the 50176 of 'large'");
  EXPECT_HAS(message, "allowed are 49152");
}

TEST(Misuse, DynamicSharedMemory) {
  const Schedule schedule;
  nothing({.grid = dim3(1), .block = dim3(1), .shared_bytes = 48 * 1024}, schedule);
  EXPECT_HAS(message_of([&] { nothing({.grid = dim3(1), .block = dim3(1), .shared_bytes = 48 * 1024 + 1}, schedule); }),
             "too much shared memory");
  nothing({.grid = dim3(1), .block = dim3(1), .shared_bytes = kMostShared, .shared_limit = kMostShared}, schedule);
  EXPECT_HAS(
      message_of([&] {
        nothing({.grid = dim3(1), .block = dim3(1), .shared_bytes = kMostShared + 1, .shared_limit = kMostShared + 1},
                schedule);
      }),
      "too much shared memory");
}

TEST(Misuse, InvalidGridAndBlock) {
  for (const dim3& grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1, 65536), dim3(1, 1, 65536), dim3(0x80000000u)}) {
    EXPECT_HAS(message_of([&] { nothing({.grid = grid, .block = dim3(1)}, {}); }), "invalid grid");
  }
  for (const dim3& block :
       {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1025), dim3(1, 1025), dim3(1, 1, 65), dim3(32, 33)}) {
    EXPECT_HAS(message_of([&] { nothing({.grid = dim3(1), .block = block}, {}); }), "invalid block");
  }
  nothing({.grid = dim3(3, 2, 2), .block = dim3(16, 1, 64)}, {});
}

TEST(Misuse, GridBarrier) {
  Device<float> values(numbers(200 * 32));
  const auto pass = [&](unsigned blocks, bool cooperative) {
    return message_of([&] {
      pass_round({Schedule::ascending(), dim3(blocks), dim3(32)}, values.data(), 1, Bug::none, cooperative);
    });
  };
  EXPECT_EQ(pass(128, true), "no error");
  EXPECT_HAS(pass(129, true), "a cooperative launch of 129 blocks of 32 threads, expected at most 4096 threads");
  EXPECT_HAS(pass(2, false), "calls grid_barrier() at ");
  EXPECT_HAS(pass(2, false), "in a launch that is not cooperative");
}

TEST(Misuse, WildPointer) {
  if (kFindsBadAddresses) {
    EXPECT_DEATH(misuse_message(Misuse::wild_pointer), "in kernel 'misuse', thread \\(3,0,0\\) of block \\(0,0,0\\)");
    return;
  }
  const std::string message = misuse_message(Misuse::wild_pointer);
  EXPECT_HAS(message, "bad address: thread (3,0,0) of block (0,0,0) uses 0x14 at ");
  EXPECT_HAS(message, "test_kernels.cu:");
  EXPECT_TRUE(swap_case(Schedule::ascending(), Bug::none));  // a launch after the failed launch must work
}

TEST(Misuse, StackOverflow) {
  if (kFindsBadAddresses) {
    EXPECT_DEATH(misuse_message(Misuse::endless_recursion), "stack-overflow");
    return;
  }
  EXPECT_HAS(misuse_message(Misuse::endless_recursion), "stack overflow: thread (0,0,0)");
  EXPECT_TRUE(swap_case(Schedule::ascending(), Bug::none));
}

TEST(Misuse, SharedMemoryBeforeItsStart) {
  const std::string message = misuse_message(Misuse::shared_before_start);
  if (kFindsBadAddresses) {  // ASan checks 8-byte granules, and misses these 4 bytes, but canaries find them
    EXPECT_HAS(message, "shared memory overrun: block (0,0,0) wrote 4 bytes before the start of 'values'");
    return;
  }
  EXPECT_HAS(message, "shared memory overrun: write by thread (3,0,0)");
  EXPECT_HAS(message, "4 bytes before 'values' (256 bytes, ");
}

TEST(Misuse, CanariesSeeWhatLibraryFunctionsWrite) {
  if (kFindsBadAddresses) {
    EXPECT_DEATH(misuse_message(Misuse::store_past_shared), "use-after-poison");
    return;
  }
  EXPECT_HAS(misuse_message(Misuse::store_past_shared),
             "shared memory overrun: block (0,0,0) wrote 0 bytes past the end of 'values' (61 bytes, ");
}

TEST(Misuse, MisalignedAtomic) {
  EXPECT_HAS(misuse_message(Misuse::misaligned_atomic), "misaligned atomic: thread (3,0,0) of block (0,0,0) at ");
}

TEST(Misuse, Trap) {
  EXPECT_HAS(misuse_message(Misuse::trap), "__trap(): thread (3,0,0) of block (0,0,0) at ");
}

TEST(Misuse, ExceptionInAKernel) {
  EXPECT_HAS(misuse_message(Misuse::throws), "the kernel threw: out of luck");
}

TEST(Misuse, WidthOfAShuffle) {
  EXPECT_HAS(misuse_message(Misuse::bad_width), "bad shuffle width");
}

TEST(Misuse, OneLaunchAtATime) {
  std::string inner;
  bool once = false;
  run(Launch{.grid = dim3(1), .block = dim3(2)}, {}, [&] {
    if (!once) {
      once = true;
      inner = message_of([] { nothing({.grid = dim3(1), .block = dim3(1)}, {}); });
    }
  });
  EXPECT_HAS(inner, "another kernel is running");
}

TEST(Misuse, FailedLaunchesLeaveNothingBehind) {
  for (int i = 0; i < 200; ++i) {
    EXPECT_ANY_THROW(stepwise_case(Schedule::random(static_cast<std::uint64_t>(i)), Bug::barrier_in_loop));
    EXPECT_TRUE(stepwise_case(Schedule::random(static_cast<std::uint64_t>(i)), Bug::none));
  }
}

TEST(Emulator, LaunchesFromSeveralOsThreads) {
  for (int i = 0; i < 4; ++i) {
    bool right = false;
    std::thread([&] { right = block_sums_case(Schedule::random(4), Bug::none); }).join();
    EXPECT_TRUE(right);
  }
}

TEST(Emulator, SchedulesAreReproducibleAndDiffer) {
  const auto order = [](const Schedule& schedule) {
    std::vector<unsigned> seen;
    run(Launch{.grid = dim3(4), .block = dim3(64)}, schedule,
        [&] { seen.push_back(blockIdx.x * blockDim.x + threadIdx.x); });
    return seen;
  };
  std::vector<unsigned> up(256);
  std::iota(up.begin(), up.end(), 0u);
  EXPECT_EQ(order(Schedule::ascending()), up);
  std::vector<unsigned> down(up.rbegin(), up.rend());
  EXPECT_EQ(order(Schedule::descending()), down);
  std::set<std::vector<unsigned>> all;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    std::vector<unsigned> drawn = order(Schedule::random(seed));
    EXPECT_EQ(order(Schedule::random(seed)), drawn);
    all.insert(drawn);
    std::sort(drawn.begin(), drawn.end());
    EXPECT_EQ(drawn, up);
  }
  EXPECT_EQ(all.size(), 6U);
}

// ---- Races ----

class RacePattern : public testing::TestWithParam<int> {};

TEST_P(RacePattern, IsJudged) {
  const auto which = static_cast<Pattern>(GetParam());
  if (!kFindsRaces && !is_right(which)) {
    GTEST_SKIP() << "no race checker in this build";
  }
  for (const Schedule& schedule : schedules()) {
    Device<float> data(std::vector<float>(4096, 0.0F));
    const std::string message = message_of([&] { pattern(schedule, which, data.data()); });
    if (is_right(which)) {
      EXPECT_EQ(message, "no error") << schedule.text();
    } else {
      EXPECT_HAS(message, "data race on ");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RacePattern, testing::Range(0, static_cast<int>(Pattern::shared_of_two_blocks) + 1));

TEST(Race, UnregisteredMemoryIsNotWatched) {
  if (!kFindsRaces) {
    GTEST_SKIP() << "no race checker in this build";
  }
  Device<float> data(std::vector<float>(4096, 0.0F));
  unregister_memory(data.data(), 4096 * sizeof(float));
  pattern({}, Pattern::same_flag, data.data());
  register_memory(data.data(), 4096 * sizeof(float));
  EXPECT_THROW(pattern({}, Pattern::same_flag, data.data()), Error);
}

TEST(Race, LaunchesAreOrdered) {
  Device<float> data(std::vector<float>(4096, 0.0F));
  for (int i = 0; i < 3; ++i) {
    pattern({}, Pattern::read_only, data.data());
    pattern({}, Pattern::half_neighbours, data.data());
    pattern({}, Pattern::byte_neighbours, data.data());
    pattern({}, Pattern::same_flag_atomic, data.data());
  }
}

// ---- Collectives compared with their definition ----

struct Shape {
  dim3 grid, block;
};
std::vector<Shape> shapes() {
  return {{dim3(1), dim3(32)},       {dim3(2), dim3(1)},       {dim3(3), dim3(31)},      {dim3(2), dim3(33)},
          {dim3(1), dim3(100)},      {dim3(2, 2), dim3(5, 9)}, {dim3(2), dim3(8, 3, 4)}, {dim3(1, 2, 3), dim3(7, 2, 3)},
          {dim3(1), dim3(16, 16, 4)}};
}

unsigned volume(const dim3& extents) {
  return extents.x * extents.y * extents.z;
}

template <class T>
void check_shuffles(const Schedule& schedule, const Shape& shape, unsigned mask) {
  const unsigned block = volume(shape.block);
  const unsigned threads = volume(shape.grid) * block;
  for (const Shuffle kind : {Shuffle::index, Shuffle::up, Shuffle::down, Shuffle::exclusive}) {
    for (const int width : {32, 16, 4, 1}) {
      for (const int argument : {0, 1, 3, 16, 31}) {
        Device<T> out(threads);
        shuffle({schedule, shape.grid, shape.block}, out.data(), kind, argument, width, mask);
        for (unsigned thread = 0; thread < threads; ++thread) {
          const unsigned first_of_warp = thread / block * block + thread % block / 32 * 32;
          const int lane = static_cast<int>(thread - first_of_warp);
          const int lanes = static_cast<int>(std::min(32u, thread / block * block + block - first_of_warp));
          const int group = lane / width * width;
          int source = lane;
          if (kind == Shuffle::index) {
            source = group + argument % width;
          } else if (kind == Shuffle::up && lane - argument >= group) {
            source = lane - argument;
          } else if (kind == Shuffle::down && lane + argument < group + width) {
            source = lane + argument;
          } else if (kind == Shuffle::exclusive && (lane ^ argument) < group + width) {
            source = lane ^ argument;
          }
          T expected;
          // The output stays at 0xFF bytes if the lane takes no part or reads from a lane outside of the mask.
          std::memset(static_cast<void*>(&expected), 0xFF, sizeof(T));
          const bool takes_part = (mask >> lane & 1u) != 0;
          if (takes_part && source < lanes && (mask >> source & 1u) != 0) {
            expected = value_of<T>(first_of_warp + static_cast<unsigned>(source));
          }
          ASSERT_EQ(std::memcmp(&expected, out.data() + thread, sizeof(T)), 0)
              << "kind " << static_cast<int>(kind) << " width " << width << " argument " << argument << " thread "
              << thread << ", " << schedule.text();
        }
      }
    }
  }
}

TEST(Collective, Shuffles) {
  for (const Schedule& schedule : schedules()) {
    for (const Shape& shape : shapes()) {
      check_shuffles<int>(schedule, shape, 0xFFFFFFFFu);
    }
    check_shuffles<float>(schedule, shapes()[3], 0x5A5A5A5Au);
  }
}

TEST(Collective, ShufflesOfEveryType) {
  const Shape shape = {dim3(2), dim3(45)};
  check_shuffles<unsigned>({}, shape, 0xFFFFFFFFu);
  check_shuffles<long long>({}, shape, 0xFFFFFFFFu);
  check_shuffles<unsigned long long>({}, shape, 0xFFFFFFFFu);
  check_shuffles<float>({}, shape, 0xFFFFFFFFu);
  check_shuffles<double>({}, shape, 0xFFFFFFFFu);
  check_shuffles<__half>({}, shape, 0xFFFFFFFFu);
  check_shuffles<__nv_bfloat162>({}, shape, 0xFFFFFFFFu);
}

TEST(Collective, Votes) {
  for (const Schedule& schedule : schedules()) {
    for (const Shape& shape : shapes()) {
      for (const unsigned modulus : {1u, 2u, 3u, 100000u}) {
        const unsigned block = volume(shape.block);
        const unsigned threads = volume(shape.grid) * block;
        Device<unsigned> out(std::size_t{6} * threads);
        votes({schedule, shape.grid, shape.block}, out.data(), modulus);
        for (unsigned thread = 0; thread < threads; ++thread) {
          const unsigned first = thread / block * block;
          const unsigned warp = first + thread % block / 32 * 32;
          const unsigned end = std::min(warp + 32, first + block);
          unsigned ballot = 0;
          for (unsigned i = warp; i < end; ++i) {
            ballot |= (i % modulus == 0 ? 1u : 0u) << (i - warp);
          }
          unsigned count = 0;
          for (unsigned i = first; i < first + block; ++i) {
            count += i % modulus == 0 ? 1 : 0;
          }
          bool all = true;
          for (unsigned i = warp; i < end; ++i) {
            all = all && i % modulus == 0;
          }
          const unsigned expected[] = {ballot, ballot != 0, all, count, count == block, count != 0};
          ASSERT_EQ(std::memcmp(expected, out.data() + std::size_t{6} * thread, sizeof(expected)), 0)
              << "thread " << thread << " modulus " << modulus << ", " << schedule.text();
        }
      }
    }
  }
}

TEST(Emulator, Indices) {
  for (const Schedule& schedule : schedules()) {
    for (const Shape& shape : shapes()) {
      const unsigned threads = volume(shape.grid) * volume(shape.block);
      Device<unsigned> out(std::size_t{12} * threads);
      indices({schedule, shape.grid, shape.block}, out.data());
      std::size_t row = 0;
      const dim3& g = shape.grid;
      const dim3& b = shape.block;
      for (unsigned bz = 0; bz < g.z; ++bz) {
        for (unsigned by = 0; by < g.y; ++by) {
          for (unsigned bx = 0; bx < g.x; ++bx) {
            for (unsigned z = 0; z < b.z; ++z) {
              for (unsigned y = 0; y < b.y; ++y) {
                for (unsigned x = 0; x < b.x; ++x, ++row) {
                  const unsigned expected[] = {x, y, z, bx, by, bz, b.x, b.y, b.z, g.x, g.y, g.z};
                  ASSERT_EQ(std::memcmp(expected, out.data() + 12 * row, sizeof(expected)), 0) << row;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Emulator, AtomicOperations) {
  for (const Schedule& schedule : schedules()) {
    Atomics start = {};
    start.bits_and = -1;
    start.cas_max = 0;
    Device<Atomics> out(std::vector<Atomics>{start});
    constexpr int kThreads = 3 * 50;
    atomics({schedule, dim3(3), dim3(50)}, out.data());
    const Atomics got = out.values()[0];
    int exclusive = 0;
    int cas = 0;
    for (int i = 0; i < kThreads; ++i) {
      exclusive ^= i;
      cas = std::max(cas, i * 7 % 101);
    }
    constexpr int kSum = kThreads * (kThreads - 1) / 2;
    EXPECT_EQ(got.add, kSum - 10 * kThreads);
    EXPECT_EQ(got.sub, -kSum);
    EXPECT_EQ(got.smallest, 50 - (kThreads - 1));
    EXPECT_EQ(got.largest, kThreads - 1 - 50);
    EXPECT_EQ(got.bits_and, ~((1 << 20) - 1));
    EXPECT_EQ(got.bits_or, (1 << 20) - 1);
    EXPECT_EQ(got.bits_xor, exclusive);
    EXPECT_EQ(got.cas_max, cas);
    EXPECT_EQ(got.inc, static_cast<unsigned>(kThreads % 11));
    EXPECT_EQ(got.dec, static_cast<unsigned>((11 - kThreads % 11) % 11));
    EXPECT_EQ(got.exchanged, 7U);
    EXPECT_EQ(got.add64, 0x100000000ull * kThreads + kSum);
    EXPECT_EQ(got.largest64, static_cast<long long>(kThreads - 1) << 33);
    EXPECT_EQ(got.add_float, 0.5F * kThreads);
    EXPECT_EQ(got.add_double, 0.25 * kThreads);
    EXPECT_EQ(got.add_half, 0x58B0) << "150 in half precision";
    EXPECT_EQ(got.add_bfloat16, 0x4316) << "150 in bfloat16";
  }
}

TEST(Emulator, Arithmetic) {
  const std::vector<std::pair<const char*, std::vector<double>>> functions = {
      {"rsqrtf", {0.5}},
      {"__expf", {static_cast<double>(2.7182818F)}},
      {"__logf", {static_cast<double>(2.3025851F)}},
      {"__fdividef", {static_cast<double>(1.0F / 3)}},
      {"__frcp_rn", {static_cast<double>(1.0F / 7)}},
      {"fmaf", {10}},
      {"__saturatef", {1, 0}},
      {"__popc, __clz, __ffs", {9, 31, 32, 4, 0}},
      {"__brev, __umulhi, __mulhi, __umul64hi", {2147483648.0, 3, -1, 5}},
      {"bits", {1065353216, 2}},
      {"min, max", {-4, 4294967295.0, 5, 3}},
      {"float to int", {2, -2, -3, 3, 2147483647, 0}},
      {"__byte_perm, funnel shifts", {0x07050301, 3, 2147483648.0}},
      {"half and bfloat16", {3.25, 3.25, 8, 14, 3, 1, 2, -2, 0.25}},
      {"half addition, loads and stores", {3, 4, 3, 3}}};
  std::size_t count = 0;
  for (const auto& [name, expected] : functions) {
    count += expected.size();
  }
  Device<double> out(count);
  math({{}, dim3(1), dim3(1)}, out.data());
  const double* got = out.data();
  for (const auto& [name, expected] : functions) {
    for (const double value : expected) {
      EXPECT_TRUE(std::fabs(*got - value) <= 1e-7 * std::fabs(value)) << name << ": " << *got << ", expected " << value;
      ++got;
    }
  }
}

}  // namespace
}  // namespace lockstep::emulation::test
