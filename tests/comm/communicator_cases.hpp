#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "communicator_data.hpp"

// Checks that every communicator must pass, with data whose results are known exactly.

namespace lockstep::comm::cases {

inline void check_sums(Communicator& comm, Stream& stream, DType dtype, std::int64_t n, const Place& place = host()) {
  const int me = comm.rank();
  const auto mine = [&](std::int64_t i) { return number(dtype, me, i); };
  const auto sum = [&](std::int64_t i) {
    double total = 0;
    for (int r = 0; r < comm.size(); ++r) {
      total += number(dtype, r, i);
    }
    return total;
  };
  const Data data(place, dtype, n, mine);
  comm.all_reduce(stream, data.view());
  const Data in(place, dtype, n * comm.size(), mine);
  const Data out(place, dtype, n);
  comm.reduce_scatter(stream, in.view(), out.view());
  const Data in_place(place, dtype, n * comm.size(), mine);
  comm.reduce_scatter(stream, in_place.view(), in_place.part(me, n));
  stream.synchronize();
  data.expect("all_reduce", me, sum);
  out.expect("reduce_scatter", me, [&](std::int64_t i) { return sum(me * n + i); });
  in.expect("reduce_scatter's input", me, mine);
  in_place.expect("reduce_scatter in place", me, [&](std::int64_t i) { return i / n == me ? sum(i) : mine(i); });
}

inline void check_moves(Communicator& comm, Stream& stream, DType dtype, std::int64_t n, const Place& place = host()) {
  const int me = comm.rank();
  const int size = comm.size();
  const auto mine = [&](std::int64_t i) { return number(dtype, me, i); };
  const auto by_rank = [&](std::int64_t i) { return number(dtype, static_cast<int>(i / n), i % n); };
  const Data in(place, dtype, n, mine);
  const Data gathered(place, dtype, n * size);
  comm.all_gather(stream, in.view(), gathered.view());
  const Data in_place(place, dtype, n * size, [&](std::int64_t i) { return i / n == me ? by_rank(i) : 1; });
  comm.all_gather(stream, in_place.part(me, n), in_place.view());

  const Data parts(place, dtype, n * size, [&](std::int64_t i) { return number(dtype, me, i * 3); });
  const Data exchanged(place, dtype, n * size);
  comm.all_to_all(stream, parts.view(), exchanged.view());

  std::vector<std::unique_ptr<Data>> from_root;
  for (int root = 0; root < size; ++root) {
    from_root.push_back(
        std::make_unique<Data>(place, dtype, n, [&](std::int64_t i) { return number(dtype, me, i + 1); }));
    comm.broadcast(stream, from_root.back()->view(), root);
  }
  comm.barrier(stream);

  const Data received(place, dtype, n);
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
  gathered.expect("all_gather", me, by_rank);
  in_place.expect("all_gather in place", me, by_rank);
  exchanged.expect("all_to_all", me,
                   [&](std::int64_t i) { return number(dtype, static_cast<int>(i / n), (me * n + i % n) * 3); });
  for (int root = 0; root < size; ++root) {
    from_root[static_cast<std::size_t>(root)]->expect("broadcast", me,
                                                      [&](std::int64_t i) { return number(dtype, root, i + 1); });
  }
  if (size > 1) {
    received.expect("recv", me, [&](std::int64_t i) { return number(dtype, (me + size - 1) % size, i); });
  }
}

/// Checks the results of every operation of `comm`, for every type and each number of elements in `sizes`.
inline void check_operations(Communicator& comm, Stream& stream, const std::vector<std::int64_t>& sizes,
                             const Place& place = host()) {
  for (const std::int64_t n : sizes) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u64}) {
      check_sums(comm, stream, dtype, n, place);
    }
    for (const DType dtype :
         {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32, DType::i64, DType::u64}) {
      check_moves(comm, stream, dtype, n, place);
    }
  }
}

/// Checks split() with one group of the even ranks and one of the odd ranks. The keys reverse the order of the ranks in
/// each group.
inline void check_split(Communicator& comm, Stream& stream, const Place& place = host()) {
  const int me = comm.rank();
  const std::unique_ptr<Communicator> half = comm.split(me % 2, -me);
  const int members = (comm.size() + 1 - me % 2) / 2;
  ASSERT_EQ(half->size(), members);
  ASSERT_EQ(half->rank(), members - 1 - me / 2);
  EXPECT_EQ(half->backend(), comm.backend());
  const Data mine(place, DType::i64, 1, [&](std::int64_t) { return me; });
  const Data all(place, DType::i64, members);
  half->all_gather(stream, mine.view(), all.view());
  check_sums(*half, stream, DType::f32, 17, place);
  check_sums(comm, stream, DType::f32, 17, place);  // the parent communicator still works
  stream.synchronize();
  all.expect("all_gather of a split", me, [&](std::int64_t i) { return (members - 1 - i) * 2 + me % 2; });
}

/// Checks that operations run in the order of their calls if the host does not wait between the calls.
inline void check_order(Communicator& comm, Stream& stream, const Place& place = host()) {
  constexpr int kRounds = 10;
  const Data data(place, DType::i64, 5, [&](std::int64_t i) { return i + 1; });
  for (int round = 0; round < kRounds; ++round) {
    comm.all_reduce(stream, data.view());
    place.add_one(stream, data.view());
  }
  stream.synchronize();
  data.expect("a chain of all_reduce", comm.rank(), [&](std::int64_t i) {
    auto v = static_cast<double>(i + 1);
    for (int round = 0; round < kRounds; ++round) {
      v = v * comm.size() + 1;
    }
    return v;
  });
}

/// Checks that invalid arguments throw. The communicator must throw before ranks exchange data, so that a single rank
/// may make such a call.
inline void check_bad_input(Communicator& comm, Stream& stream, const Place& place = host()) {
  const int size = comm.size();
  const Data a(place, DType::f32, 12 * size);
  const Data b(place, DType::f32, 12 * size);
  const Data d(place, DType::f64, 12 * size);
  const Data h(place, DType::u8, 12 * size);
  const TensorView good = a.view();
  TensorView elsewhere = good;
  elsewhere.device = place.elsewhere();
  const TensorView strided(good.data, DType::f32, place.device(), Shape{3, 2}, Strides{4, 1});
  EXPECT_THROW(comm.all_reduce(stream, elsewhere), DeviceError);
  EXPECT_THROW(comm.broadcast(stream, elsewhere, 0), DeviceError);
  EXPECT_THROW(comm.all_reduce(stream, strided), ShapeError);
  EXPECT_THROW(comm.broadcast(stream, strided, 0), ShapeError);
  EXPECT_THROW(comm.all_reduce(stream, h.view()), DTypeError);
  EXPECT_THROW(comm.reduce_scatter(stream, h.view(), h.part(0, 12)), DTypeError);
  EXPECT_THROW(comm.reduce_scatter(stream, good, d.part(0, 12)), DTypeError);
  EXPECT_THROW(comm.reduce_scatter(stream, good, b.part(0, 11)), ShapeError);
  if (size > 1) {
    EXPECT_THROW(comm.reduce_scatter(stream, good, a.part((comm.rank() + 1) % size, 12)), ShapeError);
  }
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

inline void check_counts(Communicator& comm, Stream& stream, const Place& place = host()) {
  const CommunicatorCounts before = comm.counts();
  const Data data(place, DType::f32, 10, [](std::int64_t i) { return i; });
  comm.all_reduce(stream, data.view());
  comm.all_reduce(stream, data.part(0, 0));
  comm.barrier(stream);
  stream.synchronize();
  const CommunicatorCounts after = comm.counts();
  EXPECT_EQ(after.calls - before.calls, 3);
  EXPECT_EQ(after.bytes - before.bytes, 40);
}

/// Checks that operations on two communicators do not mix. `grad` sums n elements on a worker stream, while
/// `inline_ops` does small sums on this thread.
inline void check_two_at_once(Communicator& grad, Communicator& inline_ops, std::int64_t n) {
  Stream worker = Stream::host_worker("grad");
  Stream stream = Stream::host_inline();
  for (int round = 0; round < 5; ++round) {
    const auto value = [&](int rank) { return [=](std::int64_t i) { return rank + static_cast<double>(i % 50); }; };
    const Data large(DType::f32, n, value(grad.rank()));
    grad.all_reduce(worker, large.view());
    for (int i = 0; i < 20; ++i) {
      check_sums(inline_ops, stream, DType::f64, 10 + i);
    }
    worker.synchronize();
    large.expect("all_reduce", grad.rank(), [&](std::int64_t i) {
      double sum = 0;
      for (int r = 0; r < grad.size(); ++r) {
        sum += value(r)(i);
      }
      return sum;
    });
  }
}

/// Checks that texts of different lengths reach every rank, with all_gather_text() and from each root with
/// broadcast_text().
inline void check_texts(Communicator& comm) {
  const int size = comm.size();
  const auto all = all_gather_text(comm, std::string(static_cast<std::size_t>(comm.rank()), 'x'));
  ASSERT_EQ(static_cast<int>(all.size()), size);
  const auto pairs = all_gather_values<std::int64_t>(comm, {comm.rank(), 7});
  ASSERT_EQ(static_cast<int>(pairs.size()), 2 * size);
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)], std::string(static_cast<std::size_t>(r), 'x'));
    EXPECT_EQ(pairs[static_cast<std::size_t>(2 * r)], r);
    EXPECT_EQ(pairs[static_cast<std::size_t>(2 * r + 1)], 7);
    EXPECT_EQ(broadcast_text(comm, concat("from ", comm.rank()), r), concat("from ", r));
  }
  EXPECT_EQ(broadcast_text(comm, ""), "");
  EXPECT_EQ(all_gather_value(comm, comm.rank() + 0.5).back(), size - 0.5);
}

/// Checks that a NaN on the last rank reaches every rank, and that integer sums wrap around.
inline void check_nan_and_wrap(Communicator& comm) {
  Stream stream = Stream::host_inline();
  const bool last = comm.rank() == comm.size() - 1;
  std::vector<float> data(7, last ? std::numeric_limits<float>::quiet_NaN() : 1.0F);
  comm.all_reduce(stream, view_of(data));
  for (const float v : data) {
    EXPECT_TRUE(v != v);
  }
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> most(3, comm.rank() == 0 ? kMost : last ? 1 : 0);
  comm.all_reduce(stream, view_of(most));
  EXPECT_EQ(most[2], comm.size() == 1 ? kMost : std::numeric_limits<std::int32_t>::min());
}

/// Checks that four ranks add in rank order. 1e8 + 1 rounds to 1e8 in f32, so another order gives another sum.
inline void check_order_of_sums(Communicator& comm) {
  const float values[] = {1e8F, 1.0F, -1e8F, 1.0F};
  ASSERT_EQ(comm.size(), 4);
  Stream stream = Stream::host_inline();
  std::vector<float> data(1000, values[comm.rank()]);
  comm.all_reduce(stream, view_of(data));
  EXPECT_EQ(data, std::vector<float>(1000, 1.0F));
  std::vector<float> other(1000, values[(comm.rank() + 1) % 4]);
  comm.all_reduce(stream, view_of(other));
  EXPECT_NE(other[0], 1.0F) << "control";
}

/// Does all checks that do not depend on the kind of communicator or stream.
inline void check_everything(Communicator& comm, Stream& stream, const std::vector<std::int64_t>& sizes,
                             const Place& place = host()) {
  check_operations(comm, stream, sizes, place);
  check_order(comm, stream, place);
  check_split(comm, stream, place);
  check_counts(comm, stream, place);
  check_bad_input(comm, stream, place);
}

}  // namespace lockstep::comm::cases
