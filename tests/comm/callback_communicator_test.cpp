#include <lockstep/comm/callback/callback_communicator.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <lockstep/runtime/base/error.hpp>

#include "communicator_cases.hpp"
#include "local_ranks.hpp"

namespace lockstep::comm {
namespace {

/// Returns callbacks such as a host program would define. They call the communicator `host`.
HostCollectives functions_of(Communicator& host) {
  const auto bytes_at = [](void* data, std::size_t bytes) {
    return TensorView(data, DType::u8, Device::cpu(), {static_cast<std::int64_t>(bytes)});
  };
  return {.rank = host.rank(),
          .size = host.size(),
          .all_reduce =
              [&host](const TensorView& data) {
                Stream stream = Stream::host_inline();
                host.all_reduce(stream, data);
              },
          .broadcast =
              [&host, bytes_at](void* data, std::size_t bytes, int root) {
                Stream stream = Stream::host_inline();
                host.broadcast(stream, bytes_at(data, bytes), root);
              },
          .all_gather =
              [&host, bytes_at](const void* in, void* out, std::size_t bytes) {
                Stream stream = Stream::host_inline();
                host.all_gather(stream, bytes_at(const_cast<void*>(in), bytes),
                                bytes_at(out, bytes * static_cast<std::size_t>(host.size())));
              },
          .barrier =
              [&host] {
                Stream stream = Stream::host_inline();
                host.barrier(stream);
              }};
}

class CallbackCommunicatorTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CallbackCommunicatorTest, ::testing::Values(1, 2, 3));

TEST_P(CallbackCommunicatorTest, SumsMovesAndParts) {
  on_ranks(GetParam(), [](Communicator& host) {
    const auto comm = make_callback_communicator(functions_of(host));
    ASSERT_EQ(comm->rank(), host.rank());
    ASSERT_EQ(comm->size(), host.size());
    EXPECT_EQ(comm->backend(), "callback");
    EXPECT_FALSE(comm->can_overlap());
    Stream stream = Stream::host_inline();
    const int size = comm->size();
    const int me = comm->rank();
    for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::bf16}) {
      for (const std::int64_t n : {0, 1, 7, 1000}) {
        cases::check_sums(*comm, stream, dtype, n);
      }
    }
    std::vector<std::int64_t> mine(static_cast<std::size_t>(size)), theirs(mine.size()), all(mine.size());
    for (int r = 0; r < size; ++r) {
      mine[static_cast<std::size_t>(r)] = 100 * me + r;
    }
    comm->all_to_all(stream, TensorView(std::span(mine), {size}), TensorView(std::span(theirs), {size}));
    std::int64_t one = 7 + me;
    comm->all_gather(stream, TensorView(std::span(&one, 1), {1}), TensorView(std::span(all), {size}));
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(theirs[static_cast<std::size_t>(r)], 100 * r + me);
      EXPECT_EQ(all[static_cast<std::size_t>(r)], 7 + r);
    }
    all[static_cast<std::size_t>(me)] = 50 + me;  // this rank's part of an in-place all_gather
    comm->all_gather(stream, TensorView(std::span(all), {size}).slice(0, me, me + 1),
                     TensorView(std::span(all), {size}));
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)], 50 + r);
      std::int64_t from_root = me;
      comm->broadcast(stream, TensorView(std::span(&from_root, 1), {1}), r);
      EXPECT_EQ(from_root, r);
    }
    comm->barrier(stream);
    EXPECT_GT(comm->counts().calls, 0);
    cases::check_bad_input(*comm, stream);
    if (size > 1) {
      const TensorView view(std::span(&one, 1), {1});
      EXPECT_THROW(comm->send(stream, view, (me + 1) % size), UnsupportedError);
      EXPECT_THROW(comm->recv(stream, view, (me + 1) % size), UnsupportedError);
    }
  });
}

TEST(CallbackCommunicator, WhatItHasNot) {
  LocalGroup group(1);
  const auto host = group.communicator(0);
  const auto comm = make_callback_communicator(functions_of(*host));
  Stream worker = Stream::host_worker("worker");
  float value = 0;
  const TensorView view(std::span(&value, 1), {1});
  EXPECT_THROW(comm->all_reduce(worker, view), StateError);
  EXPECT_THROW(comm->barrier(worker), StateError);
  EXPECT_THROW((void)comm->split(0, 0), UnsupportedError);
}

TEST(CallbackCommunicator, BadInput) {
  LocalGroup group(1);
  const auto host = group.communicator(0);
  for (const auto& [rank, size] : {std::pair{-1, 1}, std::pair{1, 1}, std::pair{0, 0}}) {
    HostCollectives functions = functions_of(*host);
    functions.rank = rank;
    functions.size = size;
    EXPECT_THROW((void)make_callback_communicator(functions), UsageError);
  }
  HostCollectives functions = functions_of(*host);
  functions.all_gather = {};
  try {
    (void)make_callback_communicator(functions);
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("all_gather is missing"), std::string::npos) << error.what();
  }
}

TEST(CallbackCommunicator, WhatTheHostThrowsGoesOn) {
  LocalGroup group(1);
  const auto host = group.communicator(0);
  HostCollectives functions = functions_of(*host);
  functions.all_reduce = [](const TensorView&) { throw PeerError("a cable was pulled"); };
  const auto comm = make_callback_communicator(functions);
  Stream stream = Stream::host_inline();
  float value = 3;
  EXPECT_THROW(comm->all_reduce(stream, TensorView(std::span(&value, 1), {1})), PeerError);
  EXPECT_EQ(value, 3);
}

}  // namespace
}  // namespace lockstep::comm
