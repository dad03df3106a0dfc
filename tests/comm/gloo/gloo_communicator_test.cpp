// This program runs under start_ranks, with one process for each rank.

#include <lockstep/comm/gloo/gloo_communicator.hpp>

#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include <sys/resource.h>
#include <unistd.h>

#include "../communicator_cases.hpp"
#include "../report_of_ranks.hpp"
#include "tests/support/error_of.hpp"

#include <lockstep/comm/gloo/detail/gloo_internal.hpp>

namespace lockstep::comm {
namespace {

using testing::error_of;

const std::vector<std::int64_t> kSizes{0, 1, 2, 3, 7, 513, 4099};

std::shared_ptr<Rendezvous> ranks;

std::unique_ptr<Communicator> world() {
  return make_gloo_communicator(ranks);
}

TEST(GlooCommunicator, KnowsItsPlace) {
  const auto comm = world();
  EXPECT_EQ(comm->rank(), ranks->rank());
  EXPECT_EQ(comm->size(), ranks->size());
  EXPECT_EQ(comm->backend(), "gloo");
  EXPECT_TRUE(comm->can_overlap());
  EXPECT_TRUE(comm->any_thread());
  EXPECT_FALSE(comm->can_be_captured());
}

TEST(GlooCommunicator, OperationsOnInlineStreams) {
  const auto comm = world();
  Stream stream = Stream::host_inline();
  cases::check_everything(*comm, stream, kSizes);
}

TEST(GlooCommunicator, OperationsOnWorkers) {
  const auto comm = world();
  Stream stream = Stream::host_worker("comm");
  cases::check_everything(*comm, stream, kSizes);
}

// With small limits, small tensors are divided into as many blocks and segments as tensors of gigabytes by default.
TEST(GlooCommunicator, OperationsInManyPieces) {
  struct Case {
    detail::GlooPieces pieces;
    std::vector<std::int64_t> sizes;
  };
  for (const Case& c : {Case{{8, 8}, {0, 1, 3, 7}}, Case{{8, 1 << 20}, {2, 17}}, Case{{64, 1000}, {1, 3, 64, 257}}}) {
    const auto comm = detail::make_gloo_communicator(ranks, c.pieces);
    Stream stream = Stream::host_inline();
    cases::check_operations(*comm, stream, c.sizes);
    cases::check_split(*comm, stream);
  }
  EXPECT_THROW((void)detail::make_gloo_communicator(ranks, {.block_bytes = 7}), UsageError);
  EXPECT_THROW((void)detail::make_gloo_communicator(ranks, {.segment_bytes = 7}), UsageError);
}

/// Returns element i of a rank's data, a fraction. In every type the sum over ranks is rounded and depends on the order
/// of the ranks.
double fraction(int rank, std::int64_t i) {
  return (i % 5 == 3 ? 1e4 : 1.0) / static_cast<double>(3 + rank * 7 + i % 101) * (rank % 2 == 0 ? 1 : -1);
}

template <class T>
std::vector<T> fractions(int rank, std::int64_t n) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i) {
    values.emplace_back(static_cast<float>(fraction(rank, i)));
  }
  return values;
}

/// Returns the sums of fraction() over all ranks, added in rank order and rounded to T after each addition. 16-bit
/// types are added in f32. This gives the same bits as rounding the exact sum of two numbers to T directly.
template <class T>
std::vector<T> sum_in_rank_order(int size, std::int64_t n) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  std::vector<T> sums = fractions<T>(0, n);
  for (int r = 1; r < size; ++r) {
    const std::vector<T> next = fractions<T>(r, n);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = T(static_cast<Wide>(sums[i]) + static_cast<Wide>(next[i]));
    }
  }
  return sums;
}

template <class T>
void expect_the_bits_of_rank_order(Communicator& comm, std::int64_t n) {
  Stream stream = Stream::host_inline();
  const std::vector<T> expected = sum_in_rank_order<T>(comm.size(), n);
  std::vector<T> data = fractions<T>(comm.rank(), n);
  comm.all_reduce(stream, view_of(data));
  EXPECT_EQ(std::memcmp(data.data(), expected.data(), data.size() * sizeof(T)), 0) << n;

  const std::vector<T> all = sum_in_rank_order<T>(comm.size(), n * comm.size());
  std::vector<T> in = fractions<T>(comm.rank(), n * comm.size());
  std::vector<T> out(static_cast<std::size_t>(n));
  comm.reduce_scatter(stream, view_of(in), view_of(out));
  EXPECT_EQ(std::memcmp(out.data(), all.data() + comm.rank() * n, out.size() * sizeof(T)), 0) << n;
}

TEST(GlooCommunicator, SumsHaveTheBitsOfRankOrder) {
  for (const detail::GlooPieces pieces : {detail::GlooPieces{}, detail::GlooPieces{1000, 30000}}) {
    const auto comm = detail::make_gloo_communicator(ranks, pieces);
    for (const std::int64_t n : {1, 7, 30011}) {
      expect_the_bits_of_rank_order<float>(*comm, n);
      expect_the_bits_of_rank_order<double>(*comm, n);
      expect_the_bits_of_rank_order<BFloat16>(*comm, n);
      expect_the_bits_of_rank_order<Float16>(*comm, n);
    }
  }
  if (ranks->size() == 4) {
    cases::check_order_of_sums(*world());
  }
}

TEST(GlooCommunicator, LargeTensors) {
  const auto comm = world();
  Stream stream = Stream::host_inline();
  const std::int64_t n = (std::int64_t{70} << 20) / 4 + 13;  // more than a segment
  const auto value = [](int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 251); };
  std::vector<float> data(static_cast<std::size_t>(n));
  const auto fill = [&] {
    for (std::int64_t i = 0; i < n; ++i) {
      data[static_cast<std::size_t>(i)] = value(comm->rank(), i);
    }
  };
  const auto first_wrong = [&](auto&& expected) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (data[static_cast<std::size_t>(i)] != expected(i)) {
        return i;
      }
    }
    return std::int64_t{-1};
  };
  fill();
  comm->all_reduce(stream, view_of(data));
  EXPECT_EQ(first_wrong([&](std::int64_t i) {
              float sum = 0;
              for (int r = 0; r < comm->size(); ++r) {
                sum += value(r, i);
              }
              return sum;
            }),
            -1);
  fill();
  comm->broadcast(stream, view_of(data), comm->size() - 1);
  EXPECT_EQ(first_wrong([&](std::int64_t i) { return value(comm->size() - 1, i); }), -1);
}

TEST(GlooCommunicator, NanReachesEveryRankAndIntegersWrap) {
  cases::check_nan_and_wrap(*world());
}

TEST(GlooCommunicator, Texts) {
  cases::check_texts(*world());
}

TEST(GlooCommunicator, CommunicatorsDoNotMix) {
  const auto grad = world();
  const auto inline_ops = world();
  cases::check_two_at_once(*grad, *inline_ops, 500000);
}

TEST(GlooCommunicator, SplitsOfSplits) {
  const auto comm = world();
  Stream stream = Stream::host_inline();
  const auto half = comm->split(comm->rank() / 2, 0);
  const auto one = half->split(half->rank(), 0);
  EXPECT_EQ(one->size(), 1);
  cases::check_operations(*half, stream, {5});
  cases::check_operations(*one, stream, {5});
  cases::check_operations(*comm, stream, {5});
}

TEST(GlooCommunicator, AMessageOfAnotherSizeFailsBothRanks) {
  const auto comm = world();
  if (comm->size() == 1) {
    GTEST_SKIP() << "needs two ranks";
  }
  Stream stream = Stream::host_inline();
  const cases::Data ten(DType::f32, 10, [](std::int64_t i) { return static_cast<double>(i); });
  const cases::Data nine(DType::f32, 9);
  const cases::Data wide(DType::f64, 10);
  if (comm->rank() == 0) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(error_of<ShapeError>([&] { comm->send(stream, ten.view(), 1); }),
                "send: rank 1 does not expect 10 x f32, expected the tensor of its recv");
    }
    comm->send(stream, ten.view(), 1);
  } else if (comm->rank() == 1) {
    EXPECT_EQ(error_of<ShapeError>([&] { comm->recv(stream, nine.view(), 0); }),
              "recv: rank 0 sent 10 x f32, expected 9 x f32");
    EXPECT_EQ(error_of<ShapeError>([&] { comm->recv(stream, wide.view(), 0); }),
              "recv: rank 0 sent 10 x f32, expected 10 x f64");
    const cases::Data taken(DType::f32, 10);
    comm->recv(stream, taken.view(), 0);
    taken.expect("recv", 1, [](std::int64_t i) { return static_cast<double>(i); });
  }
  comm->barrier(stream);
}

// A rank that destroys its communicator early must not break connections that another rank is still making.
TEST(GlooCommunicator, MayEndAtOnce) {
  for (int round = 0; round < 50; ++round) {
    const auto comm = world();
    const auto half = comm->split(comm->rank() % 2, 0);
    ASSERT_EQ(half->size(), (comm->size() + 1 - comm->rank() % 2) / 2);
  }
}

/// While an object of this class exists, the process may open at most `more` further file descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    const int next = ::dup(STDERR_FILENO);
    ::close(next);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next) + more;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Depending on the number of descriptors, rank 1 fails before or after the exchange of addresses. In both cases all
// ranks must fail with the same text.
TEST(GlooCommunicator, WhereARankHasNoDescriptorsAllFailAlike) {
  if (ranks->size() == 1) {
    GTEST_SKIP() << "needs two ranks";
  }
  int failed = 0;
  for (rlim_t more = 0; more < 8; more += 2) {
    std::string outcome = "connected";
    {
      std::unique_ptr<FewDescriptors> few;
      if (ranks->rank() == 1) {
        few = std::make_unique<FewDescriptors>(more);
      }
      try {
        const auto comm = world();
      } catch (const RendezvousError& e) {
        outcome = e.what();
      }
    }
    for (const std::string& other : ranks->all_gather(outcome)) {
      EXPECT_EQ(other, outcome);
    }
    if (outcome != "connected") {
      EXPECT_NE(outcome.find(" cannot connect to all ranks: "), std::string::npos) << outcome;
      ++failed;
    }
  }
  EXPECT_GT(failed, 1);
  Stream stream = Stream::host_inline();
  cases::check_operations(*world(), stream, {5});
}

TEST(GlooCommunicator, LeavesSigpipeAlone) {
  struct sigaction action {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
  const auto comm = world();
  Stream stream = Stream::host_inline();
  comm->barrier(stream);
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0);
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
  using namespace lockstep::comm;
  const auto number = [](const char* name) { return std::atoi(std::getenv(name)); };
  ::testing::InitGoogleTest(&argc, argv);
  report_of_rank(number("RANK"));
  ranks = std::make_shared<Rendezvous>(RendezvousOptions{.rank = number("RANK"),
                                                         .size = number("WORLD_SIZE"),
                                                         .host = std::getenv("MASTER_ADDR"),
                                                         .port = number("MASTER_PORT"),
                                                         .one_host = true});
  const int failed = RUN_ALL_TESTS();
  ranks->finish();
  return failed;
}
