// Ranks are threads here. Like ranks that are processes, they communicate only through the window (shared memory).

#include <lockstep/comm/shared/shared_sum.hpp>

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/half.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

constexpr std::size_t kLine = 64;

/// The shared memory of the ranks: zeros, aligned to a cache line.
class Window {
 public:
  explicit Window(int ranks)
      : memory_(std::aligned_alloc(kLine, (SharedSum::window_bytes(ranks) + kLine - 1) / kLine * kLine), std::free) {
    std::memset(memory_.get(), 0, SharedSum::window_bytes(ranks));
  }
  [[nodiscard]] void* get() const { return memory_.get(); }

 private:
  std::unique_ptr<void, decltype(&std::free)> memory_;
};

/// Runs body(rank, SharedSum of the rank) on one thread for each rank.
void run(const Window& window, int ranks, const std::function<void(int, SharedSum&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::atomic<int> idle = 0;
      SharedSumOptions options;
      options.each_has_a_core = ranks == 2;
      if (ranks % 2 == 1) {
        options.idle = [&] { ++idle; };
      }
      SharedSum sum(window.get(), rank, ranks, options);
      body(rank, sum);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// Returns element i of a rank's data. Its magnitude varies, so that the sum over ranks depends on their order.
template <class T>
T value(int rank, std::int64_t i, int round) {
  std::uint64_t bits =
      static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(rank * 131 + round);
  bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9u;
  bits ^= bits >> 32;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(bits >> 11) * 0x1p-50 * (i % 3 == 0 ? 1e-3 : 1.0) - 5.0;
  } else {
    return T(static_cast<float>(static_cast<double>(bits % 100003) / 1e4 * (i % 3 == 0 ? 1e-3 : 1.0) - 5.0));
  }
}

/// Returns a + b as SharedSum defines it: computed in double, or modulo 2^n for integers, and rounded to T.
template <class T>
T added(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else if constexpr (std::is_same_v<T, double>) {
    const volatile double sum = a + b;  // volatile prevents extra precision and a fused multiply-add
    return sum;
  } else if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(static_cast<double>(a) + static_cast<double>(b));
  } else {
    return T(
        static_cast<float>(static_cast<double>(static_cast<float>(a)) + static_cast<double>(static_cast<float>(b))));
  }
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Returns how many elements, on all ranks, differ from the sum in rank order. Also counts elements before and after
/// the result that changed. reversed: compares with the sum in reverse order instead.
template <class T>
std::int64_t wrong_elements(int ranks, const std::vector<std::int64_t>& sizes, DType dtype, bool reversed = false) {
  constexpr std::int64_t kMargin = 3;
  const Window window(ranks);
  std::atomic<std::int64_t> wrong = 0;
  run(window, ranks, [&](int rank, SharedSum& sum) {
    std::mt19937 random(static_cast<unsigned>(rank * 77 + 5));
    int round = 0;
    for (const std::int64_t n : sizes) {
      std::vector<T> data(static_cast<std::size_t>(n + 2 * kMargin), T(7.0f));
      for (std::int64_t i = 0; i < n; ++i) {
        data[static_cast<std::size_t>(kMargin + i)] = value<T>(rank, i, round);
      }
      if (random() % 4 == 0) {  // ranks arrive at different times
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      }
      sum.all_reduce(TensorView(data.data() + kMargin, dtype, Device::cpu(), Shape{n}));
      std::int64_t bad = 0;
      for (std::int64_t i = -kMargin; i < n + kMargin; ++i) {
        T expected = T(7.0f);
        if (i >= 0 && i < n) {
          expected = value<T>(reversed ? ranks - 1 : 0, i, round);
          for (int r = 1; r < ranks; ++r) {
            expected = added(expected, value<T>(reversed ? ranks - 1 - r : r, i, round));
          }
        }
        bad += same_bits(expected, data[static_cast<std::size_t>(kMargin + i)]) ? 0 : 1;
      }
      wrong += bad;
      ++round;
    }
  });
  return wrong;
}

const std::vector<std::int64_t> kSmall{0, 1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 513, 1023, 2048, 2049, 4095, 4097, 8193};
const std::vector<std::int64_t> kLarge{65535, 65536, 65537, 131072, 300007};

TEST(SharedSum, EveryTypeAndSize) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(wrong_elements<float>(ranks, kSmall, DType::f32), 0) << ranks;
    EXPECT_EQ(wrong_elements<double>(ranks, kSmall, DType::f64), 0) << ranks;
    EXPECT_EQ(wrong_elements<BFloat16>(ranks, kSmall, DType::bf16), 0) << ranks;
    EXPECT_EQ(wrong_elements<Float16>(ranks, kSmall, DType::f16), 0) << ranks;
    EXPECT_EQ(wrong_elements<std::int32_t>(ranks, kSmall, DType::i32), 0) << ranks;
    EXPECT_EQ(wrong_elements<std::int64_t>(ranks, kSmall, DType::i64), 0) << ranks;
    EXPECT_EQ(wrong_elements<std::uint64_t>(ranks, kSmall, DType::u64), 0) << ranks;
  }
}

TEST(SharedSum, MoreRanksThanAChunkHasRoomFor) {
  EXPECT_EQ(wrong_elements<float>(20, {1, 5, 700, 5000, 40000}, DType::f32), 0);
}

TEST(SharedSum, ManyChunks) {
  for (const int ranks : {2, 3, 4}) {
    EXPECT_EQ(wrong_elements<float>(ranks, kLarge, DType::f32), 0) << ranks;
    EXPECT_EQ(wrong_elements<BFloat16>(ranks, kLarge, DType::bf16), 0) << ranks;
  }
  EXPECT_EQ(wrong_elements<double>(2, {(std::int64_t{33} << 17) + 5}, DType::f64), 0) << "written past the caches";
}

TEST(SharedSum, AnotherOrderWouldBeSeen) {  // control of the tests above
  EXPECT_EQ(wrong_elements<float>(2, {100000}, DType::f32, true), 0) << "two numbers have one sum";
  EXPECT_GT(wrong_elements<float>(3, {1000}, DType::f32, true), 0);
  EXPECT_GT(wrong_elements<float>(3, {100000}, DType::f32, true), 0);
  EXPECT_GT(wrong_elements<BFloat16>(3, {1000}, DType::bf16, true), 0);
  EXPECT_GT(wrong_elements<double>(3, {1000}, DType::f64, true), 0);
}

TEST(SharedSum, ManyOperationsBackToBack) {
  std::vector<std::int64_t> sizes;
  std::mt19937 random(3);
  for (int i = 0; i < 600; ++i) {
    sizes.push_back(random() % 50 == 0 ? random() % 200000 : random() % 20 == 0 ? random() % 20000 : random() % 40);
  }
  EXPECT_EQ(wrong_elements<float>(3, sizes, DType::f32), 0);
}

/// The sums must stay right when the 32-bit counters of a window overflow. The counters begin with a large value, so
/// that they overflow in the middle of the test.
TEST(SharedSum, CountersWrap) {
  constexpr int kRanks = 3;
  const Window window(kRanks);
  const std::uint32_t nearly = 0xfffffff0u;
  for (int r = 0; r < kRanks; ++r) {
    std::memcpy(static_cast<std::byte*>(window.get()) + static_cast<std::size_t>(r) * kLine, &nearly, sizeof nearly);
  }
  std::atomic<int> wrong = 0;
  run(window, kRanks, [&](int rank, SharedSum& sum) {
    for (int round = 0; round < 40; ++round) {
      std::vector<std::int32_t> data(round % 4 == 0 ? 70001 : 5, rank + round);
      sum.all_reduce(TensorView(std::span(data), Shape{static_cast<std::int64_t>(data.size())}));
      for (const std::int32_t v : data) {
        wrong += v == 3 + 3 * round ? 0 : 1;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

double cpu_seconds_of_thread() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

TEST(SharedSum, ARankThatWaitsLongGivesItsCoreAway) {
  constexpr std::chrono::milliseconds kLate(200);
  const Window window(2);
  double used = 1;
  run(window, 2, [&](int rank, SharedSum& sum) {
    std::vector<float> data(10, 1.0f);
    const TensorView view{std::span(data), Shape{10}};
    sum.all_reduce(view);
    if (rank == 1) {
      std::this_thread::sleep_for(kLate);
    }
    const double before = cpu_seconds_of_thread();
    sum.all_reduce(view);
    if (rank == 0) {
      used = cpu_seconds_of_thread() - before;
    }
    EXPECT_EQ(data[9], 4.0f);
  });
  EXPECT_LT(used, 0.02) << "of 0.2 s";
}

TEST(SharedSum, SomethingElseGoesOnWhileARankWaits) {
  constexpr std::chrono::milliseconds kLate(100);
  const Window window(2);
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      SharedSumOptions options;
      options.idle = [&] { calls += rank == 0 ? 1 : 0; };
      SharedSum sum(window.get(), rank, 2, options);
      std::vector<float> data(10, 1.0f);
      if (rank == 1) {
        std::this_thread::sleep_for(kLate);
      }
      sum.all_reduce(TensorView(std::span(data), Shape{10}));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GE(calls, 10) << "in 100 ms";
}

TEST(SharedSum, DifferentOperationsAreAnErrorOnAllRanks) {
  for (const std::int64_t n : {3, 100000}) {
    const Window window(3);
    std::vector<std::string> texts(3);
    run(window, 3, [&](int rank, SharedSum& sum) {
      std::vector<float> data(static_cast<std::size_t>(n + 1), 1.0f);
      const TensorView view(data.data(), DType::f32, Device::cpu(), Shape{rank == 2 ? n + 1 : n});
      const auto text_of = [&] { return testing::error_of<PeerError>([&] { sum.all_reduce(view); }); };
      texts[static_cast<std::size_t>(rank)] = text_of();
      EXPECT_EQ(text_of(), "all_reduce: the ranks called different operations before, expected no further operation");
    });
    const std::string few = std::to_string(n);
    const std::string more = std::to_string(n + 1);
    for (const int rank : {0, 1}) {
      EXPECT_EQ(texts[static_cast<std::size_t>(rank)], "all_reduce of " + few + " x f32 on rank " +
                                                           std::to_string(rank) + ", and of " + more +
                                                           " x f32 on rank 2, expected the same on all ranks");
    }
    EXPECT_EQ(texts[2], "all_reduce of " + more + " x f32 on rank 2, and of " + few +
                            " x f32 on rank 0, expected the same on all ranks");
  }
}

TEST(SharedSum, DifferentKindsOfOperationsAreAnError) {
  const Window window(2);
  std::vector<std::string> texts(2);
  run(window, 2, [&](int rank, SharedSum& sum) {
    std::vector<float> data(3, 1.0f);
    std::vector<float> all(6);
    texts[static_cast<std::size_t>(rank)] = testing::error_of<PeerError>([&] {
      if (rank == 0) {
        sum.broadcast(TensorView(std::span(data), Shape{3}), 0);
      } else {
        sum.all_gather(TensorView(std::span(data), Shape{3}), TensorView(std::span(all), Shape{6}));
      }
    });
  });
  const std::string expected = ", expected the same on all ranks";
  EXPECT_EQ(texts[0], "broadcast of 3 x f32 on rank 0, and all_gather of 3 x f32 on rank 1" + expected);
  EXPECT_EQ(texts[1], "all_gather of 3 x f32 on rank 1, and broadcast of 3 x f32 on rank 0" + expected);
}

TEST(SharedSum, RefusesARankThatIsNone) {
  const Window window(2);
  EXPECT_THROW(SharedSum(window.get(), 2, 2), UsageError);
  EXPECT_THROW(SharedSum(window.get(), -1, 2), UsageError);
}

}  // namespace
}  // namespace lockstep::comm
