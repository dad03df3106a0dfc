#include <lockstep/comm/shared/shared_sum.hpp>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/memory/streaming_copy.hpp>

namespace lockstep::comm {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::uint64_t kStagedAreas = 3;
constexpr std::uint64_t kSummedAreas = 2;

constexpr std::size_t kMostChunkBytes = std::size_t{256} << 10;
constexpr std::size_t kLeastChunkBytes = std::size_t{16} << 10;
constexpr std::size_t kMostChunkBytesOfAll = std::size_t{4} << 20;
/// This number divided by the number of ranks is the largest size in bytes of data that each_adds_all() sums.
constexpr std::size_t kOneShotBytes = std::size_t{32} << 10;
/// Least size in bytes of data that is written with stores that bypass the caches.
constexpr std::size_t kStreamingBytes = std::size_t{32} << 20;
/// Most bytes of each rank that one call of Block::sum() adds.
constexpr std::size_t kBlockBytes = 16384;

constexpr int kSpins = 200;
constexpr std::chrono::microseconds kYieldFor(100);
/// Longest single sleep of a waiting rank: kSleepBeside if SharedSumOptions::idle is set, otherwise kSleep.
constexpr std::chrono::milliseconds kSleepBeside(1);
constexpr std::chrono::milliseconds kSleep(100);

constexpr std::size_t rounded_up(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

std::size_t chunk_bytes_for(int ranks) {
  const std::size_t share = kMostChunkBytesOfAll / static_cast<std::size_t>(ranks) / kLineBytes * kLineBytes;
  return std::clamp(share, kLeastChunkBytes, kMostChunkBytes);
}

/// Returns the number of elements in each rank's part of a chunk of `count` elements. Rank r's part begins at r times
/// this number. The last parts of the chunk may be shorter or empty.
template <class T>
std::int64_t part_of(std::int64_t count, int ranks) {
  const auto each = static_cast<std::size_t>((count + ranks - 1) / ranks);
  return static_cast<std::int64_t>(rounded_up(each, kLineBytes / sizeof(T)));
}

std::size_t summed_bytes(std::size_t chunk_bytes, int ranks) {
  return rounded_up((chunk_bytes + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks), kLineBytes) +
         kLineBytes;
}

std::size_t area_bytes(std::size_t chunk_bytes, int ranks) {
  return kStagedAreas * chunk_bytes + kSummedAreas * summed_bytes(chunk_bytes, ranks);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Sleeps while `value` equals `is`, at most for `most`. Unlike std::atomic::wait(), this works between processes.
void sleep_while(std::atomic<std::uint32_t>& value, std::uint32_t is, std::chrono::milliseconds most) {
  static_assert(sizeof value == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  timespec time{};
  time.tv_nsec = static_cast<long>(std::chrono::nanoseconds(most).count());  // `most` must be below a second
  ::syscall(SYS_futex, &value, FUTEX_WAIT, is, &time, nullptr, 0);           // returns at once if the value differs
}

void wake_all(std::atomic<std::uint32_t>& value) {
  ::syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

template <class T>
void copy(T* to, const T* from, std::int64_t n) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

template <class T>
void write(T* to, const T* from, std::int64_t n, bool streaming) {
  if (streaming) {
    streaming_copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                   static_cast<std::size_t>(n) * sizeof(T));
  } else {
    copy(to, from, n);
  }
}

/// Prefetches `bytes` bytes at `from` that are read soon, because cache lines that another core has written arrive late
/// and the processor's own prefetching ends at each page. The range may extend beyond the end of the data.
void fetch(const void* from, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(kLineBytes)) {
    __builtin_prefetch(static_cast<const std::byte*>(from) + i);
  }
}

template <class T>
void add(const T* __restrict a, const T* __restrict b, std::int64_t n, T* __restrict sum) {
  for (std::int64_t i = 0; i < n; ++i) {
    sum[i] = detail::add(a[i], b[i]);
  }
}

template <class T>
void add_to(T* __restrict sum, const T* __restrict b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    sum[i] = detail::add(sum[i], b[i]);
  }
}

/// Keeps sums in the first-level cache until they are copied into the window. Single vector stores into the window
/// would each fetch a cache line that other cores still hold (6 GB/s on Zen 5); a long memcpy does not (35 GB/s).
template <class T>
struct Block {
  static constexpr auto kMost = static_cast<std::int64_t>(kBlockBytes / sizeof(T));
  alignas(kLineBytes) std::array<T, static_cast<std::size_t>(kMost)> total;

  /// Adds n <= kMost elements of each rank, in rank order, and returns the sums. of(r) points to rank r's elements.
  template <class Of>
  const T* sum(int ranks, const Of& of, std::int64_t n) {
    constexpr std::int64_t kPieceBytes = 1024;
    constexpr std::int64_t kPiece = kPieceBytes / static_cast<std::int64_t>(sizeof(T));
    constexpr std::int64_t kAhead = 2;
    for (int r = 1; r < ranks; ++r) {
      for (std::int64_t i = 0; i < n; i += kPiece) {
        const std::int64_t m = std::min(kPiece, n - i);
        fetch(of(r) + i + kAhead * kPiece, kPieceBytes);
        if (r == 1) {
          fetch(of(0) + i + kAhead * kPiece, kPieceBytes);
          add(of(0) + i, of(1) + i, m, total.data() + i);
        } else {
          add_to(total.data() + i, of(r) + i, m);
        }
      }
    }
    return total.data();
  }
};

/// Kinds of operations. A rank announces an operation's kind, element type and number of elements.
enum class Kind : unsigned char { all_reduce, reduce_scatter, all_gather, broadcast };
constexpr std::array<const char*, 4> kNames{"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
constexpr std::uint64_t kMostTypes = 15;
constexpr int kKindBit = 4;
constexpr std::uint64_t kMostKinds = 3;
constexpr int kCountBit = 6;

std::uint64_t announced(Kind kind, DType dtype, std::int64_t n) {
  return static_cast<std::uint64_t>(n) << kCountBit | static_cast<std::uint64_t>(kind) << kKindBit |
         static_cast<std::uint64_t>(dtype);
}

}  // namespace

/// One rank's cache line in the window. Only that rank writes it, except `sleepers`, which the other ranks write. If a
/// sleeping rank is killed, `sleepers` stays too high; this only causes needless wake-ups.
struct alignas(kLineBytes) SharedSum::Line {
  std::atomic<std::uint32_t> counted;
  std::atomic<std::uint32_t> sleepers;  ///< number of ranks that sleep until `counted` changes; each adds itself
  /// what[s % 3] is the value of announced() for the operation that this rank began after s calls of count().
  std::array<std::atomic<std::uint64_t>, 3> what;
};

std::size_t SharedSum::window_bytes(int ranks) {
  return static_cast<std::size_t>(ranks) * (kLineBytes + area_bytes(chunk_bytes_for(ranks), ranks));
}

SharedSum::SharedSum(void* window, int rank, int ranks, SharedSumOptions options)
    : window_(static_cast<std::byte*>(window)),
      rank_(rank),
      ranks_(ranks),
      chunk_bytes_(chunk_bytes_for(ranks)),
      options_(std::move(options)) {
  static_assert(sizeof(Line) == kLineBytes);
  require<UsageError>(rank >= 0 && rank < ranks, "shared sum: rank is ", rank, ", expected 0 to ", ranks - 1);
  step_ = line(rank).counted.load(std::memory_order_relaxed);
}

SharedSum::Line& SharedSum::line(int rank) const {
  return reinterpret_cast<Line*>(window_)[rank];
}

template <class T>
T* SharedSum::staged(int rank, std::uint64_t step) const {
  return reinterpret_cast<T*>(window_ + static_cast<std::size_t>(ranks_) * kLineBytes +
                              static_cast<std::size_t>(rank) * area_bytes(chunk_bytes_, ranks_) +
                              step % kStagedAreas * chunk_bytes_);
}

template <class T>
T* SharedSum::summed(int rank, std::uint64_t step) const {
  return reinterpret_cast<T*>(staged<std::byte>(rank, 0) + kStagedAreas * chunk_bytes_ +
                              step % kSummedAreas * summed_bytes(chunk_bytes_, ranks_));
}

void SharedSum::count() {
  Line& own = line(rank_);
  // This rank stores `counted`, then loads `sleepers`; a sleeper adds to `sleepers`, then loads `counted`. All four are
  // sequentially consistent, so this rank sees the sleeper, or the sleeper sees the count. This rank must not reset
  // `sleepers` to 0, because the reset might drop a rank that has just added itself.
  own.counted.store(static_cast<std::uint32_t>(++step_), std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) {
    wake_all(own.counted);
  }
}

void SharedSum::wait_for_all() {
  const auto target = static_cast<std::uint32_t>(step_);
  for (int i = 1; i < ranks_; ++i) {
    Line& other = line((rank_ + i) % ranks_);
    const auto behind = [&](std::memory_order order) {
      return static_cast<std::int32_t>(other.counted.load(order) - target) < 0;
    };
    for (int spin = 0; options_.each_has_a_core && spin < kSpins && behind(std::memory_order_acquire); ++spin) {
      relax();
    }
    if (!behind(std::memory_order_acquire)) {
      continue;
    }
    const auto until = std::chrono::steady_clock::now() + kYieldFor;
    while (behind(std::memory_order_acquire) && std::chrono::steady_clock::now() < until) {
      ::sched_yield();
    }
    if (!behind(std::memory_order_acquire)) {
      continue;
    }
    other.sleepers.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const std::uint32_t seen = other.counted.load(std::memory_order_seq_cst);
      if (static_cast<std::int32_t>(seen - target) >= 0) {
        break;
      }
      sleep_while(other.counted, seen, options_.idle ? kSleepBeside : kSleep);
      if (options_.idle) {
        options_.idle();
      }
    }
    other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void SharedSum::announce(std::uint64_t what) {
  // The next count() makes this value visible to the other ranks.
  line(rank_).what[step_ % kStagedAreas].store(what, std::memory_order_relaxed);
}

/// Throws PeerError if another rank announced another operation than `what`. Must be called after the operation's first
/// count() and wait, and before its second count().
void SharedSum::check_same(std::uint64_t what) {
  for (int r = 0; r < ranks_; ++r) {
    const std::uint64_t of = line(r).what[(step_ - 1) % kStagedAreas].load(std::memory_order_relaxed);
    if (of != what) {
      broken_ = true;
      const auto amount = [](std::uint64_t w) {
        return concat("of ", w >> kCountBit, " x ", static_cast<DType>(w & kMostTypes));
      };
      const auto name = [](std::uint64_t w) { return concat(kNames[w >> kKindBit & kMostKinds], ' '); };
      throw PeerError(concat(name(what), amount(what), " on rank ", rank_, ", and ",
                             name(of) == name(what) ? "" : name(of), amount(of), " on rank ", r,
                             ", expected the same on all ranks"));
    }
  }
}

/// Division of an operation's `n` elements into chunks.
struct SharedSum::Chunks {
  std::int64_t n;
  std::int64_t most;  ///< number of elements of each chunk; the last chunk may have fewer

  [[nodiscard]] std::int64_t count() const { return (n + most - 1) / most; }
  [[nodiscard]] std::int64_t begin(std::int64_t chunk) const { return chunk * most; }
  [[nodiscard]] std::int64_t elements(std::int64_t chunk) const { return std::min(most, n - chunk * most); }
};

template <class T>
void SharedSum::each_adds_all(T* data, const Chunks& chunks, bool streaming, std::uint64_t what) {
  const std::uint64_t first = step_;
  Block<T> block;
  announce(what);
  for (std::int64_t c = 0; c <= chunks.count(); ++c) {
    if (c < chunks.count()) {
      copy(staged<T>(rank_, first + static_cast<std::uint64_t>(c)), data + chunks.begin(c), chunks.elements(c));
    }
    if (c > 0) {
      wait_for_all();
    }
    if (c == 1) {
      check_same(what);
    }
    if (c > 0) {
      T* own = data + chunks.begin(c - 1);
      const std::int64_t n = chunks.elements(c - 1);
      for (std::int64_t i = 0; i < n; i += Block<T>::kMost) {
        const std::int64_t m = std::min(Block<T>::kMost, n - i);
        const auto of = [&](int r) {
          return (r == rank_ ? own : staged<T>(r, first + static_cast<std::uint64_t>(c - 1))) + i;
        };
        write(own + i, block.sum(ranks_, of, m), m, streaming);
      }
    }
    if (c < chunks.count()) {
      count();
    }
  }
}

template <class T>
void SharedSum::each_adds_its_part(T* data, const Chunks& chunks, bool streaming, std::uint64_t what) {
  const std::uint64_t first = step_;
  const auto step_of = [&](std::int64_t c) { return first + static_cast<std::uint64_t>(c); };
  struct Range {
    std::int64_t begin, count;
  };
  /// Returns rank r's part of chunk c, as an offset from the chunk's beginning and a count.
  const auto part = [&](std::int64_t c, int r) {
    const std::int64_t all = chunks.elements(c);
    const std::int64_t each = part_of<T>(all, ranks_);
    const std::int64_t begin = std::min(r * each, all);
    return Range{begin, std::min(each, all - begin)};
  };
  const auto put = [&](std::int64_t c) {
    const Range own = part(c, rank_);
    const std::int64_t end = own.begin + own.count;
    const T* from = data + chunks.begin(c);
    copy(staged<T>(rank_, step_of(c)), from, own.begin);
    copy(staged<T>(rank_, step_of(c)) + end, from + end, chunks.elements(c) - end);
  };
  Block<T> block;
  const auto sum = [&](std::int64_t c) {
    const Range own = part(c, rank_);
    T* to = data + chunks.begin(c) + own.begin;
    for (std::int64_t i = 0; i < own.count; i += Block<T>::kMost) {
      const std::int64_t m = std::min(Block<T>::kMost, own.count - i);
      const auto of = [&](int r) { return (r == rank_ ? to : staged<T>(r, step_of(c)) + own.begin) + i; };
      const T* total = block.sum(ranks_, of, m);
      copy(summed<T>(rank_, step_of(c)) + i, total, m);
      write(to + i, total, m, streaming);
    }
  };
  const auto take = [&](std::int64_t c) {
    for (int i = 1; i < ranks_; ++i) {
      const int r = (rank_ + i) % ranks_;
      const Range theirs = part(c, r);
      write(data + chunks.begin(c) + theirs.begin, summed<T>(r, step_of(c)), theirs.count, streaming);
    }
  };

  announce(what);
  for (std::int64_t c = 0; c < chunks.count() + 2; ++c) {
    if (c < chunks.count()) {
      put(c);
    }
    if (c > 0) {
      wait_for_all();
    }
    if (c == 1) {
      check_same(what);
    }
    if (c > 0 && c <= chunks.count()) {
      sum(c - 1);
    }
    if (c > 1) {
      take(c - 2);
    }
    if (c <= chunks.count()) {
      count();
    }
  }
}

bool SharedSum::is_shared(const char* operation, std::int64_t elements) const {
  require<PeerError>(!broken_, operation,
                     ": the ranks called different operations before, expected no further operation");
  return elements > 0 && ranks_ > 1;
}

void SharedSum::all_reduce(const TensorView& data) {
  const std::int64_t n = data.numel();
  if (!is_shared("all_reduce", n)) {
    return;
  }
  const std::uint64_t what = announced(Kind::all_reduce, data.dtype, n);
  detail::visit_sum(data.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* elements = static_cast<T*>(data.data);
    const Chunks chunks{n, static_cast<std::int64_t>(chunk_bytes_ / sizeof(T))};
    const bool streaming = data.bytes() >= kStreamingBytes;
    if (data.bytes() <= kOneShotBytes / static_cast<std::size_t>(ranks_)) {
      each_adds_all(elements, chunks, streaming, what);
    } else {
      each_adds_its_part(elements, chunks, streaming, what);
    }
  });
}

template <class T>
void SharedSum::each_adds_and_keeps_its_part(const T* in, T* out, std::int64_t n, std::uint64_t what) {
  // Largest number of elements in one rank's part of a chunk.
  const std::int64_t most = static_cast<std::int64_t>(chunk_bytes_ / sizeof(T)) / ranks_;
  Block<T> block;
  announce(what);
  for (std::int64_t i = 0; i < n; i += most) {
    const std::int64_t count_here = std::min(most, n - i);
    const std::uint64_t step = step_;
    for (int r = 0; r < ranks_; ++r) {
      if (r != rank_) {
        copy(staged<T>(rank_, step) + r * most, in + r * n + i, count_here);
      }
    }
    count();
    wait_for_all();
    if (i == 0) {
      check_same(what);
    }
    for (std::int64_t j = 0; j < count_here; j += Block<T>::kMost) {
      const std::int64_t m = std::min(Block<T>::kMost, count_here - j);
      const auto of = [&](int r) { return (r == rank_ ? in + rank_ * n + i : staged<T>(r, step) + rank_ * most) + j; };
      copy(out + i + j, block.sum(ranks_, of, m), m);
    }
  }
}

template <class Of>
void SharedSum::each_shows_a_part(std::byte* data, std::int64_t longest, const Of& of, std::uint64_t what) {
  const auto most = static_cast<std::int64_t>(chunk_bytes_);
  const auto count_at = [&](int r, std::int64_t i) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(of(r).count - i, 0, most));
  };
  announce(what);
  for (std::int64_t i = 0; i < longest; i += most) {
    const std::uint64_t step = step_;
    std::memcpy(staged<std::byte>(rank_, step), data + of(rank_).begin + i, count_at(rank_, i));
    count();
    wait_for_all();
    if (i == 0) {
      check_same(what);
    }
    for (int k = 1; k < ranks_; ++k) {
      const int r = (rank_ + k) % ranks_;
      std::memcpy(data + of(r).begin + i, staged<std::byte>(r, step), count_at(r, i));
    }
  }
}

void SharedSum::reduce_scatter(const TensorView& in, const TensorView& out) {
  const std::int64_t n = out.numel();
  if (!is_shared("reduce_scatter", n)) {
    if (n > 0 && in.data != out.data) {
      std::memcpy(out.data, in.data, out.bytes());
    }
    return;
  }
  detail::visit_sum(in.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    each_adds_and_keeps_its_part(static_cast<const T*>(in.data), static_cast<T*>(out.data), n,
                                 announced(Kind::reduce_scatter, in.dtype, n));
  });
}

void SharedSum::all_gather(const TensorView& in, const TensorView& out) {
  const auto part = static_cast<std::int64_t>(in.bytes());
  auto* all = static_cast<std::byte*>(out.data);
  if (in.numel() > 0 && in.data != all + rank_ * part) {
    std::memcpy(all + rank_ * part, in.data, in.bytes());
  }
  if (is_shared("all_gather", in.numel())) {
    each_shows_a_part(
        all, part,
        [&](int r) {
          return Bytes{r * part, part};
        },
        announced(Kind::all_gather, in.dtype, in.numel()));
  }
}

void SharedSum::broadcast(const TensorView& data, int root) {
  const auto bytes = static_cast<std::int64_t>(data.bytes());
  if (is_shared("broadcast", data.numel())) {
    each_shows_a_part(
        static_cast<std::byte*>(data.data), bytes,
        [&](int r) {
          return Bytes{0, r == root ? bytes : 0};
        },
        announced(Kind::broadcast, data.dtype, data.numel()));
  }
}

}  // namespace lockstep::comm
