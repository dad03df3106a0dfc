#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/error.hpp>
#include <lockstep/runtime/stream.hpp>

// What every communicator for host tensors must do, with data whose results are known exactly.

namespace lockstep::comm::cases {

template <class T>
T convert(std::int64_t value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

/// Small whole numbers that every type holds exactly.
template <class T>
std::int64_t number(int rank, std::int64_t i) {
  const std::int64_t value = (rank * 37 + i * 11 + 5) % 97;
  return std::is_unsigned_v<T> ? value : value - 48;
}

/// n elements, poisoned, between two guards that must stay as they are.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t n) : n_(static_cast<std::size_t>(n)), all_(n_ + 2 * kGuard) {
    std::memset(static_cast<void*>(all_.data()), 0xA5, all_.size() * sizeof(T));
  }
  [[nodiscard]] std::span<T> values() { return {all_.data() + kGuard, n_}; }
  [[nodiscard]] TensorView view() { return {values(), Shape{static_cast<std::int64_t>(n_)}}; }
  /// Elements [part * n, (part + 1) * n).
  [[nodiscard]] TensorView part(int index, std::int64_t n) { return view().slice(0, index * n, (index + 1) * n); }

  template <class Expected>
  void expect(const char* what, int rank, Expected&& expected) {
    for (std::size_t i = 0; i < n_; ++i) {
      const T right = convert<T>(expected(static_cast<std::int64_t>(i)));
      ASSERT_EQ(std::memcmp(&right, &all_[kGuard + i], sizeof(T)), 0)
          << what << " of " << n_ << " x " << dtype_of<T> << " on rank " << rank << ": element " << i;
    }
    const std::vector<unsigned char> guard(kGuard * sizeof(T), 0xA5);
    ASSERT_EQ(std::memcmp(all_.data(), guard.data(), guard.size()), 0) << what << ": guard in front";
    ASSERT_EQ(std::memcmp(all_.data() + kGuard + n_, guard.data(), guard.size()), 0) << what << ": guard behind";
  }

 private:
  static constexpr std::size_t kGuard = 5;
  std::size_t n_;
  std::vector<T> all_;
};

template <class T, class Value>
void fill(Guarded<T>& to, Value&& value) {
  std::int64_t i = 0;
  for (T& element : to.values()) {
    element = convert<T>(value(i++));
  }
}

template <class T>
void check_sums(Communicator& comm, Stream& stream, std::int64_t n) {
  const auto sum = [&](std::int64_t i) {
    std::int64_t total = 0;
    for (int r = 0; r < comm.size(); ++r) {
      total += number<T>(r, i);
    }
    return total;
  };
  Guarded<T> data(n);
  fill(data, [&](std::int64_t i) { return number<T>(comm.rank(), i); });
  comm.all_reduce(stream, data.view());
  Guarded<T> in(n * comm.size());
  fill(in, [&](std::int64_t i) { return number<T>(comm.rank(), i); });
  Guarded<T> out(n);
  comm.reduce_scatter(stream, in.view(), out.view());
  stream.synchronize();
  data.expect("all_reduce", comm.rank(), sum);
  out.expect("reduce_scatter", comm.rank(), [&](std::int64_t i) { return sum(comm.rank() * n + i); });
  in.expect("reduce_scatter's input", comm.rank(), [&](std::int64_t i) { return number<T>(comm.rank(), i); });
}

template <class T>
void check_moves(Communicator& comm, Stream& stream, std::int64_t n) {
  const int me = comm.rank();
  const int size = comm.size();
  Guarded<T> in(n);
  fill(in, [&](std::int64_t i) { return number<T>(me, i); });
  Guarded<T> gathered(n * size);
  comm.all_gather(stream, in.view(), gathered.view());
  Guarded<T> in_place(n * size);
  stream.synchronize();
  for (std::int64_t i = 0; i < n; ++i) {
    in_place.values()[static_cast<std::size_t>(me * n + i)] = in.values()[static_cast<std::size_t>(i)];
  }
  comm.all_gather(stream, in_place.part(me, n), in_place.view());

  Guarded<T> parts(n * size);
  fill(parts, [&](std::int64_t i) { return number<T>(me, i * 3); });
  Guarded<T> exchanged(n * size);
  comm.all_to_all(stream, parts.view(), exchanged.view());

  std::vector<Guarded<T>> from_root;
  for (int root = 0; root < size; ++root) {
    from_root.emplace_back(n);
    fill(from_root.back(), [&](std::int64_t i) { return number<T>(me, i + 1); });
    comm.broadcast(stream, from_root.back().view(), root);
  }
  comm.barrier(stream);

  Guarded<T> received(n);
  if (size > 1) {
    const int next = (me + 1) % size;
    const int before = (me + size - 1) % size;
    if (me == 0) {
      comm.send(stream, in.view(), next);
      comm.recv(stream, received.view(), before);
    } else {
      comm.recv(stream, received.view(), before);
      comm.send(stream, in.view(), next);
    }
  }
  stream.synchronize();
  const auto by_rank = [&](std::int64_t i) { return number<T>(static_cast<int>(i / n), i % n); };
  gathered.expect("all_gather", me, by_rank);
  in_place.expect("all_gather in place", me, by_rank);
  exchanged.expect("all_to_all", me,
                   [&](std::int64_t i) { return number<T>(static_cast<int>(i / n), (me * n + i % n) * 3); });
  for (int root = 0; root < size; ++root) {
    from_root[static_cast<std::size_t>(root)].expect("broadcast", me,
                                                     [&](std::int64_t i) { return number<T>(root, i + 1); });
  }
  if (size > 1) {
    received.expect("recv", me, [&](std::int64_t i) { return number<T>((me + size - 1) % size, i); });
  }
}

/// Every operation, type and a range of sizes.
inline void check_operations(Communicator& comm, Stream& stream, const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t n : sizes) {
    check_sums<float>(comm, stream, n);
    check_sums<double>(comm, stream, n);
    check_sums<std::int32_t>(comm, stream, n);
    check_sums<std::int64_t>(comm, stream, n);
    check_sums<std::uint64_t>(comm, stream, n);
    check_moves<float>(comm, stream, n);
    check_moves<double>(comm, stream, n);
    check_moves<BFloat16>(comm, stream, n);
    check_moves<Float16>(comm, stream, n);
    check_moves<std::uint8_t>(comm, stream, n);
    check_moves<std::int32_t>(comm, stream, n);
    check_moves<std::int64_t>(comm, stream, n);
    check_moves<std::uint64_t>(comm, stream, n);
  }
}

/// Odd and even ranks apart, each in reverse order.
inline void check_split(Communicator& comm, Stream& stream) {
  const int me = comm.rank();
  const std::unique_ptr<Communicator> half = comm.split(me % 2, -me);
  const int members = (comm.size() + 1 - me % 2) / 2;
  ASSERT_EQ(half->size(), members);
  ASSERT_EQ(half->rank(), members - 1 - me / 2);
  EXPECT_EQ(half->backend(), comm.backend());
  Guarded<std::int64_t> mine(1);
  fill(mine, [&](std::int64_t) { return me; });
  Guarded<std::int64_t> all(members);
  half->all_gather(stream, mine.view(), all.view());
  check_sums<float>(*half, stream, 17);
  check_sums<float>(comm, stream, 17);  // the parent still works
  stream.synchronize();
  all.expect("all_gather of a split", me, [&](std::int64_t i) { return (members - 1 - i) * 2 + me % 2; });
}

/// Queued without waiting: operations run in order.
inline void check_order(Communicator& comm, Stream& stream) {
  constexpr int kRounds = 10;
  Guarded<std::int64_t> data(5);
  fill(data, [&](std::int64_t i) { return i + 1; });
  for (int round = 0; round < kRounds; ++round) {
    comm.all_reduce(stream, data.view());
    stream.enqueue([values = data.values()] {
      for (std::int64_t& v : values) {
        v += 1;
      }
    });
  }
  stream.synchronize();
  data.expect("a chain of all_reduce", comm.rank(), [&](std::int64_t i) {
    std::int64_t v = i + 1;
    for (int round = 0; round < kRounds; ++round) {
      v = v * comm.size() + 1;
    }
    return v;
  });
}

/// Refused before anything is exchanged, so every rank may do it alone.
inline void check_bad_input(Communicator& comm, Stream& stream) {
  const int size = comm.size();
  Guarded<float> a(12 * size);
  Guarded<float> b(12 * size);
  Guarded<double> d(12 * size);
  Guarded<BFloat16> h(12 * size);
  const TensorView good = a.view();
  TensorView on_gpu = good;
  on_gpu.device = Device::cuda(0);
  const TensorView strided(a.values().data(), DType::f32, Device::cpu(), Shape{3, 2}, Strides{4, 1});
  EXPECT_THROW(comm.all_reduce(stream, on_gpu), DeviceError);
  EXPECT_THROW(comm.broadcast(stream, on_gpu, 0), DeviceError);
  EXPECT_THROW(comm.all_reduce(stream, strided), ShapeError);
  EXPECT_THROW(comm.broadcast(stream, strided, 0), ShapeError);
  EXPECT_THROW(comm.all_reduce(stream, h.view()), DTypeError);
  EXPECT_THROW(comm.reduce_scatter(stream, h.view(), h.part(0, 12)), DTypeError);
  EXPECT_THROW(comm.reduce_scatter(stream, good, d.part(0, 12)), DTypeError);
  EXPECT_THROW(comm.reduce_scatter(stream, good, b.part(0, 11)), ShapeError);
  EXPECT_THROW(comm.reduce_scatter(stream, good, a.part(0, 12)), ShapeError);  // overlap
  EXPECT_THROW(comm.all_gather(stream, b.part(0, 11), good), ShapeError);
  EXPECT_THROW(comm.all_gather(stream, d.part(0, 12), good), DTypeError);
  if (size > 1) {
    EXPECT_THROW(comm.all_gather(stream, a.part((comm.rank() + 1) % size, 12), good), ShapeError);
    EXPECT_THROW(comm.all_to_all(stream, good.slice(0, 0, 12 * size - 1), b.view().slice(0, 0, 12 * size - 1)),
                 ShapeError);
  }
  EXPECT_THROW(comm.all_to_all(stream, good, good), ShapeError);
  EXPECT_THROW(comm.all_to_all(stream, good, d.view()), DTypeError);
  EXPECT_THROW(comm.broadcast(stream, good, size), UsageError);
  EXPECT_THROW(comm.broadcast(stream, good, -1), UsageError);
  EXPECT_THROW(comm.send(stream, good, size), UsageError);
  EXPECT_THROW(comm.send(stream, good, comm.rank()), UsageError);
  EXPECT_THROW(comm.recv(stream, good, -1), UsageError);
  EXPECT_THROW((void)comm.split(-1, 0), UsageError);
  stream.synchronize();
}

inline void check_counts(Communicator& comm, Stream& stream) {
  const CommunicatorCounts before = comm.counts();
  Guarded<float> data(10);
  fill(data, [](std::int64_t i) { return i; });
  comm.all_reduce(stream, data.view());
  comm.all_reduce(stream, data.part(0, 0));
  comm.barrier(stream);
  stream.synchronize();
  const CommunicatorCounts after = comm.counts();
  EXPECT_EQ(after.calls - before.calls, 3);
  EXPECT_EQ(after.bytes - before.bytes, 40);
  EXPECT_TRUE(after.seconds > before.seconds);
}

}  // namespace lockstep::comm::cases
