// A program of several ranks that session_test.cpp starts: session_program MODE. Each rank prints "rank R ended with
// C", where C is its exit code.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>

#include "view_of.hpp"

#if LOCKSTEP_TEST_MPI
#include <mpi.h>
#endif

#if LOCKSTEP_TEST_MPI
/// Replaces MPI's own function. If LOCKSTEP_TEST_THREAD_LEVEL is serialized, provides no higher thread level.
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const char* most = std::getenv("LOCKSTEP_TEST_THREAD_LEVEL");
  const bool serialized = most != nullptr && std::string_view(most) == "serialized";
  return PMPI_Init_thread(argc, argv, serialized ? std::min<int>(required, MPI_THREAD_SERIALIZED) : required, provided);
}
#endif

namespace {

using namespace lockstep;
using comm::Session;
using comm::view_of;

void check_sum(const std::vector<float>& values, int size) {
  for (const float v : values) {
    require<StateError>(v == static_cast<float>(size * (size + 1) / 2), "sum is ", v);
  }
}

int communicate(Session& session) {
  require<StateError>(&session.communication_stream() == &session.communication_stream(), "two streams");
  std::vector<float> large(100000, static_cast<float>(session.rank() + 1));
  session.grad().all_reduce(session.communication_stream(), view_of(large));
  Stream stream = Stream::host_inline();
  for (comm::Communicator* c : {&session.inline_ops(), &session.control()}) {
    std::vector<float> small(10, static_cast<float>(session.rank() + 1));
    c->all_reduce(stream, view_of(small));
    check_sum(small, session.size());
  }
  session.communication_stream().synchronize();
  check_sum(large, session.size());
  const auto places = comm::all_gather_text(
      session.control(),
      concat("rank ", session.rank(), "/", session.size(), " local ", session.local_rank(), "/", session.local_size(),
             " node ", session.node(), " of ", session.nodes(), " ", session.host().empty()));
  if (session.rank() == 0) {
    for (const std::string& place : places) {
      std::printf("%s\n", place.c_str());
    }
    std::printf("on %s, communication stream %s\n", session.description().c_str(),
                session.communication_stream().is_inline() ? "inline" : "worker");
  }
  return 0;
}

/// Waits in its destructor until the stream is idle. Memory that a stream uses must exist until then, even if an
/// exception leaves the scope.
struct Idle {
  Stream& stream;
  ~Idle() {
    try {
      stream.synchronize();
    } catch (...) {
    }
  }
};

/// Calls fail() on rank 1 (or on the only rank) while the other ranks are in a collective or will enter it.
template <class Throw>
int fail_alone(Session& session, Throw&& fail) {
  std::vector<float> data(1000, 1.0f);
  Stream& worker = session.communication_stream();
  const Idle idle{worker};
  Stream stream = Stream::host_inline();
  for (int step = 0; step < 4; ++step) {
    session.grad().all_reduce(worker, view_of(data));
    if (step == 2 && session.rank() == (session.size() > 1 ? 1 : 0)) {
      fail();
    }
    session.inline_ops().barrier(stream);
  }
  worker.synchronize();
  return 0;
}

/// Kills rank 1 between two all-reduces, while the other ranks wait for it in the second.
int die_alone(Session& session) {
  std::vector<float> data(100000, 1.0f);
  Stream stream = Stream::host_inline();
  for (int step = 0; step < 20; ++step) {
    session.grad().all_reduce(stream, view_of(data));
    if (step == 10 && session.rank() == 1) {
      std::raise(SIGKILL);
    }
  }
  return 0;
}

/// Runs three steps of a reducer. Its hook throws on rank 1 in the second bucket of the second step.
int fail_in_hook(Session& session) {
  int calls = 0;
  const auto hook = comm::make_gradient_hook(
      "sparse", [&](const TensorView& gradients, Stream& stream, comm::Communicator& communicator) {
        require<DataError>(++calls != 4 || communicator.rank() != 1, "no table\nfor it");
        communicator.all_reduce(stream, gradients);
      });
  std::vector<float> arena(2000, 1.0F);
  Stream compute = Stream::host_inline();
  const std::vector<comm::GradientRange> gradients{{"a", 0, 1000, 1}, {"b", 1000, 2000, 1}};
  comm::GradientReducer reducer(session.grad(), compute, session.communication_stream(), gradients,
                                {{0, 1, 0, 1000}, {1, 2, 1000, 2000}}, view_of(arena), {.sum = hook});
  for (int step = 0; step < 3; ++step) {
    reducer.begin_step();
    reducer.gradient_written(0);
    reducer.gradient_written(1);
    reducer.finish();
  }
  return 0;
}

/// Requests two usable GPUs twice, from four made-up GPUs of which one is busy. The second request must fail, because a
/// single GPU is left.
int use_gpus(Session& session, const std::string& claim_folder) {
  comm::NodeGpus machine;
  machine.list = [] {
    std::vector<GpuInfo> gpus;
    for (int i = 0; i < 4; ++i) {
      gpus.push_back({.index = i, .uuid = concat("GPU-", i), .name = "Made-up", .memory_bytes = 1000});
    }
    return gpus;
  };
  machine.find_usable = [&](int count) {
    const auto probe = [](const GpuInfo& gpu, std::size_t) { return std::string(gpu.index == 0 ? "busy" : ""); };
    return find_usable_gpus(count, {}, {.gpus = machine.list(), .probe = probe, .claim_folder = claim_folder});
  };
  machine.check = [](Device) {};
  const comm::RankDevice placed = comm::device_of_rank(session, DeviceRequest::parse("usable:2"), machine);
  std::printf("rank %d on %s, holds %zu claims\n", session.rank(), to_string(placed.device).c_str(),
              placed.claims == nullptr ? 0 : placed.claims->claims.size());
  std::fflush(stdout);
  static_cast<void>(comm::device_of_rank(session, DeviceRequest::parse("usable:2"), machine));
  return 0;
}

/// Requests the CPU, for which the GPUs must not be listed. Then requests GPUs on a machine without any. Then requests
/// a GPU for each rank, where another process uses the last GPU.
int use_taken_gpu(Session& session) {
  comm::NodeGpus machine;
  machine.list = []() -> std::vector<GpuInfo> { throw StateError("not to be asked for the host"); };
  machine.why_none = []() -> std::string { throw StateError("not to be asked for the host"); };
  static_cast<void>(comm::device_of_rank(session, DeviceRequest::parse("cpu"), machine));
  machine.list = [] { return std::vector<GpuInfo>{}; };
  machine.why_none = [] { return std::string("the driver is away"); };
  machine.promised = [] { return std::string("SLURM_JOB_GPUS=0,1"); };
  try {
    static_cast<void>(comm::device_of_rank(session, DeviceRequest::parse("auto"), machine));
  } catch (const comm::AgreedFailure& refused) {
    std::printf("rank %d does not train on the CPU: %d\n", session.rank(), refused.code());
  }
  machine.promised = [] { return std::string(); };
  const comm::RankDevice host = comm::device_of_rank(session, DeviceRequest::parse("auto"), machine);
  std::printf("rank %d on %s: %s\n", session.rank(), to_string(host.device).c_str(), host.note.c_str());
  std::fflush(stdout);
  try {
    static_cast<void>(comm::device_of_rank(session, DeviceRequest::parse("0,"), machine));
  } catch (const comm::AgreedFailure& refused) {
    std::printf("rank %d: %d\n", session.rank(), refused.code());
    std::fflush(stdout);
  }
  machine.list = [] { return std::vector<GpuInfo>{{.index = 0, .uuid = "GPU-0"}, {.index = 1, .uuid = "GPU-1"}}; };
  machine.check = [](Device device) { require<DeviceError>(device.index == 0, device, " is taken"); };
  static_cast<void>(comm::device_of_rank(session, DeviceRequest::parse("auto"), machine));
  return 0;
}

/// Assigns one made-up GPU to all ranks.
int share_gpu(Session& session) {
  comm::NodeGpus machine;
  machine.list = [] { return std::vector<GpuInfo>{{.index = 0, .uuid = "GPU-0"}}; };
  machine.check = [](Device) {};
  machine.make_current = [](Device) {};
  const comm::RankDevice placed = comm::place_rank(session, DeviceRequest::parse("gpu"), machine);
  const char* host = std::getenv("NCCL_HOSTID");
  std::printf("rank %d on %s, NCCL's host %s\n", session.rank(), to_string(placed.device).c_str(),
              host == nullptr ? "(none)" : host);
  return 0;
}

/// Calls the same operations on all ranks, and then a broadcast with a different root on each rank. The watchdog must
/// report the difference.
int differ(Session& session) {
  session.watchdog()->begin("computing step", 7);
  Stream stream = Stream::host_inline();
  std::vector<float> data(8, 1.0f);
  for (int i = 0; i < 5; ++i) {
    session.grad().all_reduce(stream, view_of(data));
  }
  session.grad().broadcast(stream, view_of(data), /*root=*/session.rank());
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

/// Rank 1 computes forever, and the other ranks wait for it in an all-reduce.
int linger(Session& session) {
  session.watchdog()->begin("computing step", 7);
  Stream stream = Stream::host_inline();
  session.inline_ops().barrier(stream);
  while (session.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  std::vector<float> data(3, 1.0f);
  session.inline_ops().all_reduce(stream, view_of(data));
  return 0;
}

/// Runs 8 steps of all ranks. argument: "ever" stops rank 1 in step 3 for good; "2" stops it for 2.8 s in step 3 and in
/// step 6; "host" stops all ranks of the second node in step 3 for good; "0" stops no rank.
int stall(Session& session, const std::string& argument) {
  Stream stream = Stream::host_inline();
  std::vector<float> data(8, 1.0f);
  const bool ever = argument == "ever" || argument == "host";
  const bool stops = argument == "host" ? session.node() == 1 : session.rank() == 1;
  for (int step = 1; step <= 8; ++step) {
    session.watchdog()->begin("computing step", step);
    session.watchdog()->where("1 of 3 buckets enqueued, conv2.weight");
    if (stops && ((step == 3 && argument != "0") || (step == 6 && argument == "2"))) {
      if (session.nodes() > 1) {  // time for heartbeats to the other nodes, which come once a second
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      }
      const pid_t stopped = ::getpid();
      if (const pid_t helper = ever ? 1 : ::fork(); helper == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2800));
        ::kill(stopped, SIGCONT);
        std::_Exit(0);
      }
      std::raise(SIGSTOP);
    }
    session.watchdog()->begin("waiting for the gradients of step", step);
    session.grad().all_reduce(stream, view_of(data));
  }
  return 0;
}

int run(const std::string& mode, const std::string& argument, Session& session) {
  if (mode == "differ" || mode == "linger" || mode == "fail_with_record") {
    session.keep_operations(argument);
  }
  if (mode == "stall") {
    return stall(session, argument);
  }
  if (mode == "die") {
    return die_alone(session);
  }
  if (mode == "differ") {
    return differ(session);
  }
  if (mode == "linger") {
    return linger(session);
  }
  if (mode == "fail_with_record") {
    return fail_alone(session, [] { throw StateError("broken"); });
  }
  if (mode == "device") {
    DeviceRequest request;
    session.agree([&] { request = DeviceRequest::parse(argument); });
    std::printf("rank %d on %s\n", session.rank(), to_string(comm::device_of_rank(session, request).device).c_str());
    return 0;
  }
  if (mode == "usable") {
    return use_gpus(session, argument);
  }
  if (mode == "share") {
    return share_gpu(session);
  }
  if (mode == "taken") {
    return use_taken_gpu(session);
  }
  if (mode == "ok") {
    return communicate(session);
  }
  if (mode == "return5") {
    return 5;
  }
  if (mode == "connections") {
    std::printf("connections %s\n", std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    return 0;
  }
  if (mode == "throw") {
    return fail_alone(session, [] { throw StateError("broken\nin two lines"); });
  }
  if (mode == "throw_in_hook") {
    return fail_in_hook(session);
  }
  if (mode == "throw_data") {
    return fail_alone(session, [] { throw DataError("bad file"); });
  }
  if (mode == "throw_memory") {
    return fail_alone(session, [] { throw std::bad_alloc(); });
  }
  if (mode == "throw_std") {
    return fail_alone(session, [] { throw std::runtime_error("of the standard library"); });
  }
  if (mode == "throw_int") {
    return fail_alone(session, [] { throw 7; });
  }
  if (mode == "throw_together") {  // the exception destroys communicators
    const auto half = session.control().split(session.rank() % 2, 0);
    const std::string text = comm::broadcast_text(session.control(), "no room\nfor the checkpoint");
    throw comm::CollectiveError<DataError>(text);
  }
  if (mode == "abort") {
    return fail_alone(session, [&] { session.abort("gave up", 76); });
  }
  if (mode == "agree") {
    session.agree([] {});
    session.agree([&] {
      require<DataError>(session.rank() != 2, "no such\nfile");
      if (session.rank() == 3) {
        throw std::runtime_error("later rank");
      }
    });
    return 0;
  }
  if (mode == "agree_all") {
    session.agree([] { throw UsageError("--epochs: expected a number"); });
  }
  if (mode == "agree_different") {
    session.agree([&] { throw StateError(concat("from ", session.rank())); });
  }
  if (mode == "agree_nested") {
    session.agree([&] { session.agree([&] { require<DataError>(session.rank() != 1, "inner"); }); });
  }
  if (mode == "agree_then_leave") {  // every rank destroys communicators when it leaves
    const auto half = session.control().split(session.rank() % 2, 0);
    session.agree([&] { require<UsageError>(session.rank() != 0, "first"); });
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "ok";
#if LOCKSTEP_TEST_MPI
  const bool host_owns_mpi = argc > 2 && std::string_view(argv[2]) == "host_owns_mpi";
  if (host_owns_mpi) {
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  }
#endif
  const auto launch_variables = [] {
    std::string text;
    for (const char* name : {"OMPI_MCA_plm", "OMPI_MCA_ess_singleton_isolated", "SLURM_STEP_ID", "SLURM_STEPID"}) {
      const char* value = std::getenv(name);
      text += lockstep::concat(name, "=", value == nullptr ? "(none)" : value, " ");
    }
    return text;
  };
  const std::string before = launch_variables();
  int rank = -1;
  const char* watchdog = std::getenv("LOCKSTEP_TEST_WATCHDOG");
  const double watchdog_s = watchdog == nullptr ? 0 : std::stod(watchdog);
  const int code = lockstep::comm::run_program(
      argc, argv,
      [&](Session& session, int, char**) {
        rank = session.rank();
        lockstep::require<lockstep::StateError>(launch_variables() == before, "the environment was changed: ", before,
                                                "became ", launch_variables());
        return run(mode, argc > 2 ? argv[2] : "", session);
      },
      watchdog_s);
  std::printf("rank %d ended with %d\n", rank, code);
  std::fflush(stdout);
#if LOCKSTEP_TEST_MPI
  if (host_owns_mpi) {
    int sum = 1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);  // works only if all ranks are alive
    if (rank == 0) {
      std::printf("host still counts %d\n", sum);
    }
    MPI_Finalize();
  }
#endif
  return code;
}
