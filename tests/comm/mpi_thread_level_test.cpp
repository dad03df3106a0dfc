// This program runs under mpirun: mpi_thread_level_test single|funneled|serialized|multiple. It is a host program that
// initialises MPI with that thread level, and that calls MPI in addition to lockstep. The tests record which thread
// makes each MPI call, and whether two threads are in MPI calls at once.

#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <mpi.h>

#include "communicator_cases.hpp"
#include "report_of_ranks.hpp"

#include <lockstep/comm/gradients/gradient_reducer.hpp>

namespace lockstep::comm {
namespace {

int thread_level = MPI_THREAD_SINGLE;

/// Record of the MPI calls of this process.
struct Watch {
  std::atomic<int> inside = 0;
  std::atomic<bool> at_once = false;  ///< true after two threads were in MPI calls at once
  std::mutex mutex;
  std::set<std::thread::id> threads;  ///< threads that made calls

  void reset() {
    const std::lock_guard lock(mutex);
    threads.clear();
    at_once = false;
  }
};
Watch watch;

/// Records in `watch` that a thread is in an MPI call during the object's lifetime.
class Inside {
 public:
  Inside() {
    if (++watch.inside > 1) {
      watch.at_once = true;
    }
    const std::lock_guard lock(watch.mutex);
    watch.threads.insert(std::this_thread::get_id());
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { --watch.inside; }
};

}  // namespace
}  // namespace lockstep::comm

// MPI's profiling interface: a function MPI_X that the program defines replaces the function of the MPI library, which
// is also callable as PMPI_X.
using lockstep::comm::Inside;
extern "C" {
int MPI_Allreduce(const void* in, void* out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  const Inside call;
  return PMPI_Allreduce(in, out, n, type, op, comm);
}
int MPI_Reduce_scatter_block(const void* in, void* out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  const Inside call;
  return PMPI_Reduce_scatter_block(in, out, n, type, op, comm);
}
int MPI_Allgather(const void* in, int n, MPI_Datatype type, void* out, int m, MPI_Datatype to, MPI_Comm comm) {
  const Inside call;
  return PMPI_Allgather(in, n, type, out, m, to, comm);
}
int MPI_Alltoall(const void* in, int n, MPI_Datatype type, void* out, int m, MPI_Datatype to, MPI_Comm comm) {
  const Inside call;
  return PMPI_Alltoall(in, n, type, out, m, to, comm);
}
int MPI_Bcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm) {
  const Inside call;
  return PMPI_Bcast(data, n, type, root, comm);
}
int MPI_Barrier(MPI_Comm comm) {
  const Inside call;
  return PMPI_Barrier(comm);
}
int MPI_Ssend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  const Inside call;
  return PMPI_Ssend(data, n, type, to, tag, comm);
}
int MPI_Recv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const Inside call;
  return PMPI_Recv(data, n, type, from, tag, comm, status);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  const Inside call;
  return PMPI_Comm_dup(comm, made);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  const Inside call;
  return PMPI_Comm_split(comm, color, key, made);
}
int MPI_Comm_free(MPI_Comm* comm) {
  const Inside call;
  return PMPI_Comm_free(comm);
}
}

namespace lockstep::comm {
namespace {

class MpiThreadLevel : public ::testing::Test {
 protected:
  void SetUp() override { watch.reset(); }
  void TearDown() override {
    if (thread_level != MPI_THREAD_MULTIPLE) {
      EXPECT_FALSE(watch.at_once) << "two threads called MPI at once";
    }
  }
  static void expect_only_this_thread() {
    EXPECT_EQ(watch.threads, std::set<std::thread::id>{std::this_thread::get_id()});
  }
  /// Expects that the host program's own MPI calls work.
  static void expect_host_counts_all(const Communicator& comm) {
    int ranks = 1;
    MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT_EQ(ranks, comm.size());
  }
  template <class F>
  static std::string refusal(F&& f) {
    try {
      f();
    } catch (const StateError& error) {
      return error.what();
    }
    return "nothing was refused";
  }
};

TEST_F(MpiThreadLevel, InlineOperationsRunInTheCallingThread) {
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD);
  Stream stream = Stream::host_inline();
  for (int round = 0; round < 3; ++round) {
    cases::check_everything(*comm, stream, {0, 1, 7, 513});
    expect_host_counts_all(*comm);
  }
  expect_only_this_thread();
  EXPECT_EQ(comm->can_overlap(), thread_level == MPI_THREAD_MULTIPLE);
  EXPECT_EQ(comm->any_thread(), thread_level == MPI_THREAD_MULTIPLE);
}

/// Runs three steps of a reducer. The host program calls MPI between the steps. Returns the sums, which must have the
/// same bits for all streams.
std::vector<float> reduce(Communicator& comm, Stream& compute, Stream& communication) {
  const std::vector<GradientRange> gradients{{"a", 0, 5000, 1}, {"b", 5000, 5001, 1}, {"c", 5001, 9000, 1}};
  BucketOptions options;
  options.tail_bytes = 4096;
  options.head_bytes = 16000;
  std::vector<float> arena(9000);
  GradientReducer reducer(comm, compute, communication, gradients, plan_buckets(gradients, options),
                          TensorView(std::span(arena), Shape{9000}));
  for (int step = 0; step < 3; ++step) {
    reducer.begin_step();
    for (int g = 0; g < 3; ++g) {
      const GradientRange& range = gradients[static_cast<std::size_t>(g)];
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        arena[static_cast<std::size_t>(i)] = 1.0f / static_cast<float>(3 + comm.rank() * 7 + step * 11 + i % 101);
      }
      reducer.gradient_written(g);
    }
    reducer.finish();
    int ranks = 1;
    MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT_EQ(ranks, comm.size());
  }
  return arena;
}

TEST_F(MpiThreadLevel, GradientsAreReducedInlineWithoutAWorker) {
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD);
  Stream compute = Stream::host_inline();
  Stream communication = Stream::host_inline();
  const std::vector<float> sums = reduce(*comm, compute, communication);
  expect_only_this_thread();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float expected = 0;
    for (int r = 0; r < comm->size(); ++r) {
      expected += 1.0f / static_cast<float>(3 + r * 7 + 2 * 11 + static_cast<int>(i % 101));
    }
    ASSERT_NEAR(sums[i], expected, 1e-6f) << i;
  }
}

TEST_F(MpiThreadLevel, AWorkerThatNobodyHasGivenLeaveIsRefused) {
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD);
  Stream worker = Stream::host_worker("comm");
  if (thread_level == MPI_THREAD_MULTIPLE) {
    cases::check_operations(*comm, worker, {7});
    return;
  }
  watch.reset();
  const std::string text = refusal([&] { comm->barrier(worker); });
  const std::string level = thread_level == MPI_THREAD_SERIALIZED ? "serialized"
                            : thread_level == MPI_THREAD_FUNNELED ? "funneled"
                                                                  : "single";
  EXPECT_EQ(text, "barrier: MPI's thread level is " + level +
                      (thread_level == MPI_THREAD_SERIALIZED
                           ? " and the communicator was made without a sole_mpi_worker, expected an inline stream"
                           : ", expected an inline stream"));
  Stream compute = Stream::host_inline();
  EXPECT_NE(refusal([&] {
              GradientReducer(*comm, compute, worker, {}, {}, TensorView(nullptr, DType::f32, Device::cpu(), {0}));
            }),
            "nothing was refused");
  EXPECT_TRUE(watch.threads.empty()) << "a refused operation called MPI";
}

TEST_F(MpiThreadLevel, OtherThreads) {
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD);
  std::string text;
  std::thread([&] {
    Stream stream = Stream::host_inline();
    text = refusal([&] { cases::check_sums(*comm, stream, DType::f32, 5); });
  }).join();
  EXPECT_EQ(text, thread_level >= MPI_THREAD_SERIALIZED
                      ? "nothing was refused"
                      : std::string("all_reduce: MPI's thread level is ") +
                            (thread_level == MPI_THREAD_FUNNELED ? "funneled" : "single") +
                            ", expected a call by the thread that initialised MPI");
  expect_host_counts_all(*comm);
}

TEST_F(MpiThreadLevel, TheSoleWorkerIsAHostWorker) {
  Stream stream = Stream::host_inline();
  EXPECT_EQ(refusal([&] { (void)make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &stream}); }),
            "mpi communicator: sole_mpi_worker is an inline or a CUDA stream, expected a host worker");
}

/// A host program may set the option sole_mpi_worker at each thread level. Below SERIALIZED the option has no effect,
/// and at MULTIPLE it is not needed.
TEST_F(MpiThreadLevel, WithASoleWorker) {
  Stream worker = Stream::host_worker("sole");
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &worker});
  EXPECT_EQ(comm->can_overlap(), thread_level >= MPI_THREAD_SERIALIZED);
  EXPECT_EQ(comm->any_thread(), thread_level == MPI_THREAD_MULTIPLE);
  Stream compute = Stream::host_inline();
  if (!comm->can_overlap()) {
    EXPECT_NE(refusal([&] { comm->barrier(worker); }), "nothing was refused");
    cases::check_everything(*comm, compute, {0, 7});
    expect_only_this_thread();
    return;
  }
  Stream other = Stream::host_worker("other");
  const std::vector<float> alone = reduce(*comm, compute, compute);
  for (Stream* stream : {&worker, &other}) {
    cases::check_everything(*comm, *stream, {0, 7, 513});
    stream->synchronize();
    const std::vector<float> overlapped = reduce(*comm, compute, *stream);
    EXPECT_EQ(std::memcmp(alone.data(), overlapped.data(), 4 * alone.size()), 0);
  }
  EXPECT_GE(watch.threads.size(), 2u) << "no worker called MPI";
}

/// An operation inline must wait for operations on the sole worker. The test mixes communicators with and without a
/// sole worker, in the same order on all ranks.
TEST_F(MpiThreadLevel, InlineOperationsWaitForTheSoleWorker) {
  if (thread_level < MPI_THREAD_SERIALIZED) {
    GTEST_SKIP() << "MPI's thread level is below SERIALIZED";
  }
  Stream worker = Stream::host_worker("sole");
  const auto with = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &worker});
  const auto without = make_mpi_communicator(MPI_COMM_WORLD);
  const auto half = with->split(with->rank() % 2, 0);
  Stream stream = Stream::host_inline();
  for (int round = 0; round < 20; ++round) {
    const std::int64_t n = 20000;
    const cases::Data large(DType::f32, n, [&](std::int64_t i) { return with->rank() + static_cast<double>(i % 50); });
    for (int i = 0; i < 3; ++i) {
      with->broadcast(worker, large.view(), i % with->size());
      half->barrier(worker);
    }
    switch (round % 4) {  // the test does not wait for the worker, so lockstep must
      case 0:
        cases::check_sums(*without, stream, DType::f64, 10 + round);
        break;
      case 1:
        cases::check_sums(*with, stream, DType::f64, 10 + round);
        break;
      case 2:
        cases::check_split(*without, stream);
        break;
      default:
        static_cast<void>(make_mpi_communicator(MPI_COMM_WORLD));
    }
    worker.synchronize();
    expect_host_counts_all(*with);
    large.expect("broadcast", with->rank(), [](std::int64_t i) { return static_cast<double>(i % 50); });
  }
}

TEST_F(MpiThreadLevel, AProcessHasOneSoleWorker) {
  Stream first = Stream::host_worker("first");
  Stream second = Stream::host_worker("second");
  auto comm = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &first});
  const auto same = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &first});
  if (thread_level == MPI_THREAD_SERIALIZED) {
    EXPECT_EQ(refusal([&] { (void)make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &second}); }),
              "mpi communicator: MPI's thread level is serialized and communicators that exist were made with another "
              "sole_mpi_worker, expected that one for all");
  } else {
    EXPECT_NO_THROW((void)make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &second}));
  }
}

TEST_F(MpiThreadLevel, AnotherSoleWorkerOnceTheFirstIsGone) {
  for (const char* name : {"first", "second"}) {
    Stream worker = Stream::host_worker(name);
    const auto comm = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &worker});
    const auto half = comm->split(comm->rank() % 2, 0);
    Stream stream = Stream::host_inline();
    half->barrier(comm->can_overlap() ? worker : stream);
    worker.synchronize();  // the worker must be idle when its communicators are destroyed
  }
}

/// A task on the sole worker must not use the communicator inline, because the operation would wait for the task
/// itself. The host program gets an error.
TEST_F(MpiThreadLevel, InlineOperationsInATaskOfTheSoleWorker) {
  if (thread_level != MPI_THREAD_SERIALIZED) {
    GTEST_SKIP() << "MPI's thread level is not SERIALIZED";
  }
  Stream worker = Stream::host_worker("sole");
  const auto comm = make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = &worker});
  std::string text;
  worker.enqueue([&] {
    Stream stream = Stream::host_inline();
    text = refusal([&] { comm->barrier(stream); });
  });
  worker.synchronize();
  EXPECT_EQ(text, "synchronize: called by a task that runs on this stream, expected a call of another thread");
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
  using namespace lockstep::comm;
  const std::string_view name = argc > 1 ? argv[1] : "";
  const int level = name == "multiple"     ? MPI_THREAD_MULTIPLE
                    : name == "serialized" ? MPI_THREAD_SERIALIZED
                    : name == "funneled"   ? MPI_THREAD_FUNNELED
                                           : MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, level, &thread_level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ::testing::InitGoogleTest(&argc, argv);
  report_of_rank(rank);
  if (thread_level != level && rank == 0) {
    std::printf("MPI gives thread level %d where %d was asked for\n", thread_level, level);
  }
  int failed = thread_level != level ? 1 : RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
