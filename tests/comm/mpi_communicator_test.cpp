// This program runs under mpirun. LOCKSTEP_TEST_THREAD_LEVEL is multiple (default), serialized or funneled.

#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include <mpi.h>

#include "communicator_cases.hpp"
#include "hierarchical_cases.hpp"
#include "report_of_ranks.hpp"

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/mpi/detail/mpi_internal.hpp>
#include <lockstep/comm/mpi/detail/node_window.hpp>

namespace lockstep::comm {
namespace {

const std::vector<std::int64_t> kSizes{0, 1, 2, 3, 7, 513, 4099};

int thread_level = MPI_THREAD_SINGLE;
std::optional<Stream> serial_worker;

Stream* serial() {
  return serial_worker ? &*serial_worker : nullptr;
}
bool overlaps_here() {
  return thread_level >= MPI_THREAD_SERIALIZED;
}
std::unique_ptr<Communicator> world() {
  return make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = serial()});
}

TEST(MpiCommunicator, KnowsItsPlace) {
  int rank = -1;
  int size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto comm = world();
  EXPECT_EQ(comm->rank(), rank);
  EXPECT_EQ(comm->size(), size);
  EXPECT_EQ(comm->backend(), "mpi");
  EXPECT_EQ(comm->can_overlap(), overlaps_here());
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  EXPECT_EQ(comm->any_thread(), level == MPI_THREAD_MULTIPLE);
}

TEST(MpiCommunicator, OperationsOnInlineStreams) {
  const auto comm = world();
  Stream stream = Stream::host_inline();
  cases::check_everything(*comm, stream, kSizes);
}

TEST(MpiCommunicator, OperationsOnWorkers) {
  if (!overlaps_here()) {
    GTEST_SKIP() << "MPI's thread level is below SERIALIZED";
  }
  const auto comm = world();
  Stream stream = Stream::host_worker("comm");
  cases::check_everything(*comm, stream, kSizes);
}

TEST(MpiCommunicator, OperationsOnTheSerialWorkerItself) {
  if (serial() == nullptr) {
    GTEST_SKIP() << "MPI's thread level is not SERIALIZED";
  }
  const auto comm = world();
  cases::check_operations(*comm, *serial(), {7});
  cases::check_order(*comm, *serial());
}

// Counts that are too large for one MPI call are split. A small limit replaces tensors of 8 GB.
TEST(MpiCommunicator, SplitsLargeCounts) {
  for (const std::int64_t most : {1, 3, 8}) {
    const auto comm = detail::make_mpi_communicator(
        MPI_COMM_WORLD, {.sole_mpi_worker = serial(), .all_reduce = HostAllReduce::mpi}, most);
    Stream stream = Stream::host_inline();
    cases::check_operations(*comm, stream, {0, 1, 2, 3, 17, 64});
    cases::check_split(*comm, stream);
  }
  EXPECT_THROW((void)detail::make_mpi_communicator(MPI_COMM_WORLD, {}, 0), UsageError);
}

TEST(MpiCommunicator, Texts) {
  cases::check_texts(*world());
}

/// Returns n numbers of a rank. Their sums depend on the order of ranks.
std::vector<float> fractions(int rank, std::int64_t n) {
  std::vector<float> data;
  for (std::int64_t i = 0; i < n; ++i) {
    data.push_back(1.0f / static_cast<float>(3 + rank * 7 + static_cast<int>(i % 101)));
  }
  return data;
}

TEST(MpiCommunicator, AllRanksGetTheSameBits) {
  const auto comm = world();
  Stream stream = Stream::host_inline();
  for (const std::int64_t n : {1, 7, 1000, 100003}) {
    std::vector<float> data = fractions(comm->rank(), n);
    comm->all_reduce(stream, view_of(data));
    std::vector<float> all(data.size() * static_cast<std::size_t>(comm->size()));
    comm->all_gather(stream, view_of(data), view_of(all));
    for (int r = 0; r < comm->size(); ++r) {
      EXPECT_EQ(std::memcmp(all.data() + static_cast<std::size_t>(r) * data.size(), data.data(), 4 * data.size()), 0)
          << n << " elements, rank " << r;
    }
  }
}

TEST(MpiCommunicator, SumsWithinAndBetweenNodes) {
  if (world()->size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  Stream stream = Stream::host_inline();
  for (const bool in_memory : {true, false}) {
    const auto make = [&] {
      return make_mpi_communicator(MPI_COMM_WORLD,
                                   {.sole_mpi_worker = serial(),
                                    .all_reduce = in_memory ? HostAllReduce::automatic : HostAllReduce::mpi,
                                    .all_in_memory = in_memory});
    };
    cases::check_hierarchy(make, stream, in_memory);
    EXPECT_EQ(all_reduce_path(HierarchicalCommunicator(make(), {0, 0, 1, 1}).within_node()).shared, in_memory);
  }
}

TEST(MpiCommunicator, AllOperationsInSharedMemory) {
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = serial(), .all_in_memory = true});
  Stream stream = Stream::host_inline();
  cases::check_everything(*comm, stream, kSizes);
  cases::check_operations(*comm, stream, {70001});  // more than a chunk
}

TEST(MpiCommunicator, RanksOfANodeShareMemory) {
  const auto comm = world();
  const bool several = comm->size() > 1;
  EXPECT_EQ(all_reduce_path(*comm).shared, several);
  EXPECT_EQ(all_reduce_path(*comm).problem, "");
  const auto half = comm->split(comm->rank() % 2, 0);
  EXPECT_EQ(all_reduce_path(*half).shared, half->size() > 1);
  const auto made = [](HostAllReduce how) {
    return make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = serial(), .all_reduce = how});
  };
  const auto none = made(HostAllReduce::mpi);
  EXPECT_FALSE(all_reduce_path(*none).shared);
  EXPECT_FALSE(all_reduce_path(*none->split(0, 0)).shared);
  EXPECT_EQ(all_reduce_path(*made(HostAllReduce::shared)).shared, several);
  // The ranks have different settings, and must agree on a path that all of them can use.
  const auto mixed = made(comm->rank() == 0 ? HostAllReduce::automatic : HostAllReduce::mpi);
  EXPECT_FALSE(all_reduce_path(*mixed).shared);
  Stream stream = Stream::host_inline();
  cases::check_sums(*mixed, stream, DType::f32, 1000);
}

TEST(MpiCommunicator, SumsInRankOrder) {
  const auto comm = world();
  Stream stream = Stream::host_inline();
  const std::int64_t n = 200001;  // several chunks
  std::vector<float> data = fractions(comm->rank(), n);
  comm->all_reduce(stream, view_of(data));
  std::vector<float> expected = fractions(0, n);
  for (int r = 1; r < comm->size(); ++r) {
    const std::vector<float> next = fractions(r, n);
    std::transform(expected.begin(), expected.end(), next.begin(), expected.begin(), std::plus<>());
  }
  EXPECT_TRUE(data == expected);
}

TEST(MpiCommunicator, AWindowThatIsTooLargeIsRefusedEverywhere) {
  constexpr std::size_t kTooLarge = ~std::size_t{0};  // refused before any memory is allocated
  const detail::NodeWindow window(MPI_COMM_WORLD, kTooLarge);
  EXPECT_EQ(window.memory(), nullptr);
  const auto comm = world();
  const std::string expected = "rank 0: cannot allocate 18446744073709551615 bytes of shared memory: ";
  EXPECT_EQ(window.why_not().substr(0, expected.size()), comm->size() > 1 ? expected : "") << window.why_not();
}

TEST(MpiCommunicator, AWindowIsSharedAndEmpty) {
  const auto comm = world();
  if (comm->size() == 1) {
    GTEST_SKIP() << "needs two ranks";
  }
  Stream stream = Stream::host_inline();
  const detail::NodeWindow window(MPI_COMM_WORLD, 4096);
  ASSERT_NE(window.memory(), nullptr) << window.why_not();
  auto* values = static_cast<volatile int*>(window.memory());
  for (int r = 0; r < 1024; ++r) {
    EXPECT_EQ(values[r], 0);
  }
  comm->barrier(stream);
  values[comm->rank()] = comm->rank() + 1;
  comm->barrier(stream);
  for (int r = 0; r < comm->size(); ++r) {
    EXPECT_EQ(values[r], r + 1);
  }
}

TEST(MpiCommunicator, CommunicatorsDoNotMix) {
  if (!overlaps_here()) {
    GTEST_SKIP() << "MPI's thread level is below SERIALIZED";
  }
  const auto grad = world();
  const auto inline_ops = world();
  cases::check_two_at_once(*grad, *inline_ops, 5000);
}

TEST(MpiCommunicator, ErrorsAreExceptionsThatSayWhat) {
  const auto comm = world();
  if (comm->size() == 1) {
    GTEST_SKIP() << "needs two ranks";
  }
  Stream stream = Stream::host_inline();
  if (comm->rank() == 0) {
    const cases::Data data(DType::f32, 10, [](std::int64_t i) { return static_cast<double>(i); });
    comm->send(stream, data.view(), 1);
    comm->send(stream, data.view(), 1);
  } else if (comm->rank() == 1) {
    Stream own = Stream::host_inline();
    const auto text_of = [&](std::int64_t n) -> std::string {
      const cases::Data data(DType::f32, n);
      try {
        comm->recv(own, data.view(), 0);
      } catch (const MpiError& e) {
        return e.what();
      } catch (const Error& e) {
        return std::string("not MpiError: ") + e.what();
      }
      return "nothing";
    };
    const std::string truncated = text_of(9);
    EXPECT_EQ(truncated.substr(0, 29), "recv of 9 x f32 from rank 0: ") << truncated;
    EXPECT_NE(truncated.find("essage truncated"), std::string::npos) << truncated;  // MPI's own text
    EXPECT_EQ(text_of(11), "recv of 11 x f32 from rank 0: 10 elements came, expected 11");
  }
  comm->barrier(stream);
}

TEST(MpiCommunicator, LeavesTheCallersCommunicatorAlone) {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  {
    const auto comm = world();
    Stream stream = Stream::host_inline();
    comm->barrier(stream);
  }
  MPI_Errhandler after = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  EXPECT_EQ(before, after);
}

/// Runs three steps of a reducer whose gradients are fractions. Returns for each element the total of its three sums.
std::vector<float> train(Communicator& comm, Stream& compute, Stream& worker, float first) {
  std::vector<GradientRange> gradients;
  std::int64_t begin = 0;
  for (const std::int64_t size : {40000, 1, 777, 30011, 64, 12345, 9, 500}) {
    gradients.push_back({"g" + std::to_string(gradients.size()), begin, begin + size, 1});
    begin += size;
  }
  BucketOptions options;
  options.tail_bytes = 4096;
  options.head_bytes = 160000;
  std::vector<float> arena(static_cast<std::size_t>(begin));
  std::vector<float> sums(arena.size());
  GradientReducer reducer(comm, compute, worker, gradients, plan_buckets(gradients, options), view_of(arena));
  EXPECT_GT(reducer.buckets().size(), 2u);
  for (int step = 0; step < 3; ++step) {
    reducer.begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
        arena[static_cast<std::size_t>(i)] =
            first / static_cast<float>(3 + comm.rank() * 7 + step * 11 + static_cast<int>(i % 101));
      }
      reducer.gradient_written(static_cast<int>(g));
    }
    reducer.finish();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += arena[i];
    }
  }
  EXPECT_EQ(reducer.statistics().steps, 3);
  EXPECT_TRUE(reducer.statistics().total_s > 0);
  return sums;
}

TEST(MpiGradientReducer, OverlapDoesNotChangeTheBits) {
  if (!overlaps_here()) {
    GTEST_SKIP() << "MPI's thread level is below SERIALIZED";
  }
  const auto comm = world();
  Stream compute = Stream::host_inline();
  Stream worker = Stream::host_worker("comm");
  const std::vector<float> alone = train(*comm, compute, compute, 1.0f);
  const std::vector<float> overlapped = train(*comm, compute, worker, 1.0f);
  EXPECT_EQ(std::memcmp(alone.data(), overlapped.data(), 4 * alone.size()), 0);
  // Control: a change of one bit of the input changes the result.
  const std::vector<float> other = train(*comm, compute, worker, 1.0f + 0x1p-23f);
  EXPECT_NE(std::memcmp(alone.data(), other.data(), 4 * alone.size()), 0);
}

/// A communicator that is not destroyed before MPI_Finalize. lockstep must free its duplicates of MPI communicators by
/// itself.
std::unique_ptr<Communicator> forgotten;
std::unique_ptr<Communicator> forgotten_half;

TEST(MpiCommunicator, MayBeForgotten) {
  forgotten = world();
  forgotten_half = forgotten->split(forgotten->rank() % 2, 0);
}

int check_after_finalise() {
  try {
    Stream stream = Stream::host_inline();
    forgotten->barrier(stream);
    std::fprintf(stderr, "an operation after MPI_Finalize did not throw\n");
    return 1;
  } catch (const StateError&) {
  }
  try {
    (void)make_mpi_communicator(MPI_COMM_WORLD);
    std::fprintf(stderr, "make_mpi_communicator after MPI_Finalize did not throw\n");
    return 1;
  } catch (const StateError&) {
  }
  forgotten_half.reset();
  forgotten.reset();
  return 0;
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
  using namespace lockstep::comm;
  const char* asked = std::getenv("LOCKSTEP_TEST_THREAD_LEVEL");
  const std::string level = asked == nullptr ? "multiple" : asked;
  MPI_Init_thread(&argc, &argv,
                  level == "multiple"     ? MPI_THREAD_MULTIPLE
                  : level == "serialized" ? MPI_THREAD_SERIALIZED
                                          : MPI_THREAD_FUNNELED,
                  &thread_level);
  if (thread_level == MPI_THREAD_SERIALIZED) {
    serial_worker.emplace(lockstep::Stream::host_worker("mpi"));
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ::testing::InitGoogleTest(&argc, argv);
  report_of_rank(rank);
  if (rank == 0) {
    std::printf("MPI thread level: asked for %s, got %d\n", level.c_str(), thread_level);
  }
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  const int after = forgotten ? check_after_finalise() : 0;
  serial_worker.reset();
  return failed != 0 || after != 0 ? 1 : 0;
}
