// Tests the C interface on virtual GPUs (tests/virtual_gpu), with memory, streams and, if the build has NCCL,
// communicators of the host program. The virtual GPU runs queued work in an order that CUDA allows. A seed selects the
// order, so a missing wait gives a wrong result for some seed.
#include <array>
#include <deque>
#include <optional>
#include <span>

#include <cuda_runtime_api.h>

#include "control.hpp"
#include "team.hpp"

#if LOCKSTEP_HAS_NCCL
#include <nccl.h>

#include "nccl_control.hpp"
#endif

namespace host {
namespace {

namespace standin = lockstep::standin;
using Texts = std::vector<std::string>;

constexpr std::int64_t kSamples = 37;

/// Returns `stream`, or cudaStreamLegacy for nullptr, which means the legacy stream in lockstep. The test's own CUDA
/// calls need this, because the virtual GPU does not accept nullptr.
cudaStream_t named(cudaStream_t stream) {
  return stream != nullptr ? stream : cudaStreamLegacy;
}

void new_machine(std::uint64_t seed, int devices = 1) {
  standin::reset({.devices = devices, .bytes_per_device = std::size_t{1} << 28, .seed = seed});
}

struct GpuContext : Context {
  explicit GpuContext(int device, std::optional<cudaStream_t> stream = std::nullopt,
                      const lockstep_allocator* memory = nullptr) {
    lockstep_context_options options = context_options();
    options.device_type = LOCKSTEP_CUDA;
    options.device_id = device;
    options.memory = memory;
    if (stream.has_value()) {
      options.stream_kind = LOCKSTEP_STREAM_GIVEN;
      options.stream = *stream;
    }
    EXPECT_TRUE(ok(lockstep_context_create(&options, operator&())));
  }
};

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  return stream;
}

/// Expects that the virtual GPU has detected no undefined behaviour, and that all its resources are freed.
void expect_sound(const std::string& when) {
  EXPECT_EQ(standin::violations(), Texts{}) << when;
  EXPECT_EQ(standin::leaks(), Texts{}) << when;
}

/// An array of floats in the memory of the current device.
class OnDevice {
 public:
  explicit OnDevice(std::int64_t count) : count_(static_cast<std::size_t>(count)) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaGetDevice(&device_), cudaSuccess);
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] float* data() const { return static_cast<float*>(data_); }
  /// Launches a kernel on `stream` that writes the values.
  void write(cudaStream_t stream, std::vector<float> values) const {
    EXPECT_EQ(standin::launch(named(stream),
                              [to = data(), values = std::move(values)](std::span<const standin::DeviceMemory>) {
                                std::copy(values.begin(), values.end(), to);
                              }),
              cudaSuccess);
  }
  /// Returns the values after all work on `stream` has ended.
  [[nodiscard]] std::vector<float> read(cudaStream_t stream) const {
    std::vector<float> values(count_);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost, named(stream)),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(named(stream)), cudaSuccess);
    return values;
  }
  [[nodiscard]] View view(std::vector<std::int64_t> shape) const {
    View made(data(), std::move(shape));
    made.get()->device_type = LOCKSTEP_CUDA;
    made.get()->device_id = device_;
    return made;
  }

 private:
  std::size_t count_;
  void* data_ = nullptr;
  int device_ = 0;
};

std::vector<float> inputs(int call) {
  return drawn<float>(kSamples * 3, 1000 * static_cast<std::uint64_t>(call));
}

struct SmallModel : Mlp {
  explicit SmallModel(lockstep_context context) : Mlp(context, {3, 8, 2}, LOCKSTEP_F32) {}
};

/// Returns the expected outputs for inputs(call), computed on the host.
std::vector<float> expected(int call) {
  const HostContext context;
  const SmallModel model(context);
  const std::vector<float> x = inputs(call);
  std::vector<float> y(kSamples * 2);
  EXPECT_TRUE(ok(infer(model, View(x.data(), {kSamples, 3}), View(y.data(), {kSamples, 2}))));
  return y;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& wanted, const std::string& when) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::abs(found[i] - wanted[i]) <= 1e-5F) << when << ": " << found[i] << ", not " << wanted[i];
  }
}

// The context has its own stream or CUDA's legacy stream. The stream of the call is a stream of the host program or the
// legacy stream. The inputs are written on the stream of the call, and the outputs are read on it. So lockstep must
// wait for this stream, and this stream must wait for lockstep.
TEST(Streams, ACallIsOrderedBehindItsStreamAndThatOneBehindTheCall) {
  const std::vector<float> results[] = {expected(0), expected(1), expected(2)};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (const bool own : {true, false}) {
      for (const bool legacy : {true, false}) {
        new_machine(seed);
        const std::string when = "seed " + std::to_string(seed) + (own ? ", own" : ", legacy") +
                                 " stream of the context" + (legacy ? ", legacy" : ", own") + " stream of the call";
        {
          cudaStream_t stream = legacy ? nullptr : new_stream();
          const GpuContext context(0, own ? std::nullopt : std::optional<cudaStream_t>(nullptr));
          const SmallModel model(context);
          ASSERT_TRUE(ok(lockstep_model_prepare(model, kSamples)));
          const OnDevice x(kSamples * 3), y(kSamples * 2);
          for (int call = 0; call < 3; ++call) {
            x.write(stream, inputs(call));
            ASSERT_TRUE(ok(infer(model, x.view({kSamples, 3}), y.view({kSamples, 2}), stream)));
            expect_near(y.read(stream), results[call], when);
          }
          if (stream != nullptr) {
            EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
          }
        }
        expect_sound(when);
      }
    }
  }
}

// Control for the test above: if one wait is left out, some seed must give a wrong result.
TEST(Streams, AWaitThatIsLeftOutIsSeen) {
  const std::vector<float> results[] = {expected(0), expected(1)};
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    new_machine(seed);
    cudaStream_t stream = new_stream();
    {
      const GpuContext context(0);
      const SmallModel model(context);
      ASSERT_TRUE(ok(lockstep_model_prepare(model, kSamples)));
      const OnDevice x(kSamples * 3), y(kSamples * 2);
      for (int call = 0; call < 2; ++call) {
        x.write(stream, inputs(call));
        if (call == 1) {
          standin::forget_wait(1, "cudaStreamWaitEvent");
        }
        ASSERT_TRUE(ok(infer(model, x.view({kSamples, 3}), y.view({kSamples, 2}), stream)));
        wrong += y.read(stream) == results[call] ? 0 : call;
      }
      standin::forget_wait(0);
    }
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  EXPECT_GT(wrong, 0);
}

// With page-locked memory, cudaMemcpyAsync does not wait for the copy. So the call itself must wait before it returns.
TEST(HostMemory, IsReadAndWrittenWhenTheCallReturns) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    new_machine(seed);
    {
      const GpuContext context(0);
      const SmallModel model(context);
      void* memory = nullptr;
      ASSERT_EQ(cudaMallocHost(&memory, sizeof(float) * kSamples * 5), cudaSuccess);
      auto* const x = static_cast<float*>(memory);
      float* const y = x + kSamples * 3;
      for (int call = 0; call < 2; ++call) {
        const std::vector<float> values = inputs(call);
        std::copy(values.begin(), values.end(), x);
        std::fill_n(y, kSamples * 2, std::nanf(""));
        ASSERT_TRUE(ok(infer(model, View(x, {kSamples, 3}), View(y, {kSamples, 2}))));
        expect_near(std::vector<float>(y, y + kSamples * 2), expected(call), "seed " + std::to_string(seed));
        std::fill_n(x, kSamples * 3, std::nanf(""));  // after the call, the caller may overwrite the inputs
      }
      ASSERT_EQ(cudaFreeHost(memory), cudaSuccess);
    }
    expect_sound("seed " + std::to_string(seed));
  }
}

/// An array of the host program, in host memory or written on a stream of a GPU.
class Numbers {
 public:
  Numbers(std::vector<float> values, bool on_device, cudaStream_t stream)
      : values_(std::move(values)), stream_(stream) {
    if (on_device) {
      device_.emplace(static_cast<std::int64_t>(values_.size()));
      device_->write(stream, values_);
    }
  }
  [[nodiscard]] View view(std::int64_t features) {
    const std::vector<std::int64_t> shape{kSamples, features};
    return device_ ? device_->view(shape) : View(values_.data(), shape);
  }
  void append_to(std::vector<float>& all) const {
    const std::vector<float> read = device_ ? device_->read(stream_) : values_;
    all.insert(all.end(), read.begin(), read.end());
  }

 private:
  std::vector<float> values_;
  cudaStream_t stream_;
  std::optional<OnDevice> device_;
};

/// Returns the numbers of two passes of a tape: outputs, products with the Jacobian, gradients of inputs and
/// parameters.
std::vector<float> taped(lockstep_context context, bool on_device, cudaStream_t stream) {
  const SelfComm comm(context);
  const SmallModel model(context);
  lockstep_trainer_options options = descent(1);
  options.loss = LOCKSTEP_LOSS_GIVEN;
  const NewTrainer trainer(model, comm, options);
  lockstep_tape_options of_tape;
  EXPECT_TRUE(ok(lockstep_tape_options_init(&of_tape, sizeof of_tape)));
  of_tape.max_batch = kSamples;
  of_tape.slots = 2;
  of_tape.vjp = of_tape.jvp = 1;
  Owned<lockstep_tape, lockstep_tape_destroy> tape;
  EXPECT_TRUE(ok(lockstep_tape_create(model, &of_tape, &tape)));
  std::deque<Numbers> x, y, dx, jt;
  std::int64_t pass[2] = {-1, -1};
  for (int k = 0; k < 2; ++k) {
    x.emplace_back(inputs(k), on_device, stream);
    for (auto* const made : {&y, &jt}) {
      made->emplace_back(std::vector<float>(kSamples * 2), on_device, stream);
    }
    dx.emplace_back(std::vector<float>(kSamples * 3), on_device, stream);
    View in = x.back().view(3), out = y.back().view(2);
    EXPECT_TRUE(ok(lockstep_tape_forward(tape, &in, &out, &pass[k], stream)));
  }
  for (const std::size_t k : {0U, 1U}) {
    View tangent = x[1 - k].view(3), to = jt[k].view(2), given = y[1 - k].view(2), wanted = dx[k].view(3);
    EXPECT_TRUE(ok(lockstep_tape_jvp(tape, pass[k], &tangent, &to, stream)));
    EXPECT_TRUE(ok(lockstep_tape_vjp(tape, pass[k], &to, &tangent, stream)));
    EXPECT_TRUE(ok(lockstep_tape_backward(tape, pass[k], &given, &wanted, stream)));
  }
  std::vector<float> all;
  for (const auto* const each : {&x, &y, &dx, &jt}) {
    for (const Numbers& array : *each) {
      array.append_to(all);
    }
  }
  std::int64_t n = 0;
  EXPECT_TRUE(ok(lockstep_parameters_size(model, LOCKSTEP_WITHOUT_STATISTICS, &n)));
  const std::size_t begin = all.size();
  all.resize(begin + static_cast<std::size_t>(n));
  View gradients(all.data() + begin, {n});
  EXPECT_TRUE(ok(lockstep_gradients_read(trainer, &gradients)));
  return all;
}

// No call waits on the host. Each call must run after the earlier work of its stream, and later work of this stream
// must run after the call.
TEST(Tapes, AreOrderedOnTheStreamsOfTheirCalls) {
  const HostContext host;
  const std::vector<float> wanted = taped(host, false, nullptr);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (const bool legacy : {true, false}) {
      new_machine(seed);
      cudaStream_t stream = legacy ? nullptr : new_stream();
      const std::string when =
          "seed " + std::to_string(seed) + (legacy ? ", legacy" : ", own") + " stream of the calls";
      {
        const GpuContext context(0);
        expect_near(taped(context, true, stream), wanted, when);
      }
      if (stream != nullptr) {
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      }
      expect_sound(when);
    }
  }
}

/// Device memory functions of the host program. `streams` records the streams that lockstep passes to them.
struct DevicePool {
  std::int64_t pieces = 0;
  std::vector<lockstep_stream> streams;
  lockstep_allocator functions() {
    lockstep_allocator made{};
    made.struct_size = sizeof made;
    made.user = this;
    made.allocate = [](void* user, std::size_t bytes, std::size_t alignment, lockstep_stream stream) -> void* {
      auto& pool = *static_cast<DevicePool*>(user);
      void* memory = nullptr;
      if (alignment > 256 || cudaMalloc(&memory, bytes) != cudaSuccess) {
        return nullptr;
      }
      ++pool.pieces;
      pool.streams.push_back(stream);
      return memory;
    };
    made.deallocate = [](void* user, void* memory, std::size_t, lockstep_stream stream) {
      auto& pool = *static_cast<DevicePool*>(user);
      --pool.pieces;
      pool.streams.push_back(stream);
      // Waits, because cudaFree does not wait for the stream's work.
      EXPECT_EQ(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), cudaSuccess);
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    };
    return made;
  }
};

TEST(DeviceMemory, AllOfItComesFromTheHostProgram) {
  new_machine(3);
  DevicePool pool;
  cudaStream_t stream = new_stream();
  {
    const lockstep_allocator functions = pool.functions();
    const GpuContext context(0, stream, &functions);
    const SmallModel model(context);
    const std::vector<float> x = inputs(0);
    std::vector<float> y(kSamples * 2);
    ASSERT_TRUE(ok(lockstep_model_prepare(model, kSamples)));
    const std::int64_t pieces = pool.pieces;
    EXPECT_GT(pieces, 0);
    ASSERT_TRUE(ok(infer(model, View(x.data(), {kSamples, 3}), View(y.data(), {kSamples, 2}), stream)));
    expect_near(y, expected(0), "");
    EXPECT_EQ(pool.pieces, pieces);
    EXPECT_EQ(standin::calls("cudaMallocAsync"), 0);
  }
  EXPECT_EQ(pool.pieces, 0);
  for (const lockstep_stream each : pool.streams) {
    EXPECT_EQ(each, stream);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

/// Returns the samples of rank `rank`. The samples of all `ranks` ranks together are the same for every number of
/// ranks.
std::vector<float> share_of_rank(int step, int rank, int ranks) {
  std::vector<float> x;
  for (int i = rank; i < 5; i += ranks) {
    x.push_back(static_cast<float>(draw(static_cast<std::uint64_t>(10 * step + i))));
  }
  return x;
}
std::vector<float> targets_of(const std::vector<float>& x) {
  std::vector<float> y;
  for (const float each : x) {
    y.push_back(3 * each - 1);
  }
  return y;
}

/// The model and trainer of one rank, and the samples of the line that all ranks learn.
struct Learner {
  Mlp model;
  NewTrainer trainer;
  Learner(lockstep_context context, lockstep_comm comm)
      : model(context, {1, 1}, LOCKSTEP_F32), trainer(model, comm, descent(8)) {}
  void step(View in, View target) const {
    EXPECT_TRUE(ok(add(trainer, std::move(in), std::move(target))));
    EXPECT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
  }
  void step(const std::vector<float>& x) const {
    const std::vector<float> y = targets_of(x);
    const auto n = static_cast<std::int64_t>(x.size());
    step(View(x.data(), {n, 1}), View(y.data(), {n, 1}));
  }
  [[nodiscard]] std::array<double, 2> line() const {
    return {parameter(model, "1.weight", {1, 1})[0], parameter(model, "1.bias", {1})[0]};
  }
};

constexpr int kSteps = 6;

/// Returns the expected line, which one rank on the host learns from the samples of all ranks.
std::array<double, 2> learned_on_the_host() {
  const HostContext context;
  const SelfComm comm(context);
  const Learner learner(context, comm);
  for (int step = 0; step < kSteps; ++step) {
    learner.step(share_of_rank(step, 0, 1));
  }
  return learner.line();
}

void expect_line(const std::array<double, 2>& found, const std::array<double, 2>& wanted, const std::string& when) {
  EXPECT_TRUE(std::abs(found[0] - wanted[0]) <= 1e-5 && std::abs(found[1] - wanted[1]) <= 1e-5)
      << when << ": " << found[0] << ", " << found[1] << ", not " << wanted[0] << ", " << wanted[1];
}

// Steps on the context's own stream become CUDA graphs. Steps on the legacy stream do not, because CUDA cannot capture
// the legacy stream.
TEST(OneGpu, TrainsOnItsStreams) {
  const std::array<double, 2> wanted = learned_on_the_host();
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (const bool legacy : {false, true}) {
      new_machine(seed);
      const std::string when = "seed " + std::to_string(seed) + (legacy ? ", legacy stream" : "");
      {
        const GpuContext context(0, legacy ? std::optional<cudaStream_t>(nullptr) : std::nullopt);
        const SelfComm comm(context);
        const Learner learner(context, comm);
        for (int step = 0; step < kSteps; ++step) {
          const std::vector<float> values = share_of_rank(step, 0, 1);
          const auto n = static_cast<std::int64_t>(values.size());
          const OnDevice x(n), y(n);
          x.write(nullptr, values);
          y.write(nullptr, targets_of(values));
          learner.step(x.view({n, 1}), y.view({n, 1}));
          ASSERT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);  // waits, because x and y are freed next
        }
        expect_line(learner.line(), wanted, when);
        EXPECT_EQ(standin::calls("cudaGraphLaunch") == 0, legacy) << when;
      }
      expect_sound(when);
    }
  }
}

#if LOCKSTEP_HAS_NCCL
/// The host program's NCCL communicators, one for each rank.
class Nccl {
 public:
  explicit Nccl(int size) : size_(size), comms_(static_cast<std::size_t>(size)) {
    EXPECT_EQ(ncclGetUniqueId(&id_), ncclSuccess);
  }
  ncclComm_t make(int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t& comm = comms_[static_cast<std::size_t>(rank)];
    static_cast<void>(ncclCommInitRankConfig(&comm, size_, id_, rank, &config));
    EXPECT_EQ(settled(comm), ncclSuccess);
    return comm;
  }
  /// Finalises the communicator of a rank. All ranks must call this together.
  void end(int rank) const {
    ncclComm_t comm = comms_[static_cast<std::size_t>(rank)];
    static_cast<void>(ncclCommFinalize(comm));
    EXPECT_EQ(settled(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  }
  void abort(int rank) const { EXPECT_EQ(ncclCommAbort(comms_[static_cast<std::size_t>(rank)]), ncclSuccess); }

 private:
  static ncclResult_t settled(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      std::this_thread::yield();
    }
    return state;
  }
  int size_;
  ncclUniqueId id_{};
  std::vector<ncclComm_t> comms_;
};

TEST(TwoGpus, TrainOverTheHostProgramsCommunicators) {
  const std::array<double, 2> wanted = learned_on_the_host();
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string when = "seed " + std::to_string(seed);
    new_machine(seed, 2);
    lockstep::nccl_standin::reset({.polls = static_cast<int>(seed % 2)});
    Team team(2);
    Nccl nccl(2);
    std::array<double, 2> lines[2] = {};
    team.run([&](Team::Member& me) {
      cudaSetDevice(me.rank);
      ncclComm_t own = nccl.make(me.rank);
      {
        const GpuContext context(me.rank, seed == 3 ? std::optional<cudaStream_t>(nullptr) : std::nullopt);
        const lockstep_comm_ops ops = Team::functions(me);
        Comm comm;
        {
          Comm control;  // the NCCL communicator keeps `control` alive
          ASSERT_TRUE(ok(lockstep_comm_from_ops(context, &ops, &control)));
          ASSERT_TRUE(ok(lockstep_comm_from_nccl(context, own, control, &comm)));
        }
        std::int32_t rank = -1, size = -1;
        ASSERT_TRUE(ok(lockstep_comm_rank(comm, &rank, &size)));
        EXPECT_EQ(rank, me.rank);
        EXPECT_EQ(size, 2);
        const Learner learner(context, comm);
        ASSERT_TRUE(ok(lockstep_trainer_broadcast(learner.trainer, 1)));
        const std::int64_t before = standin::calls("ncclAllReduce");
        for (int step = 0; step < kSteps; ++step) {
          learner.step(share_of_rank(step, me.rank, 2));
        }
        EXPECT_TRUE(std::isfinite(loss_of(learner.trainer))) << when;
        EXPECT_GT(standin::calls("ncclAllReduce"), before);
        lines[me.rank] = learner.line();
        int device = -1;
        EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
        EXPECT_EQ(device, me.rank);
        EXPECT_EQ(me.destroyed, 0);
      }
      EXPECT_EQ(me.destroyed, 1);
      nccl.end(me.rank);  // the communicator still belongs to this program
    });
    EXPECT_EQ(lines[0], lines[1]) << when;
    expect_line(lines[0], wanted, when);
    EXPECT_EQ(lockstep::nccl_standin::aborts(), 0) << when;
    expect_sound(when);
    EXPECT_EQ(lockstep::nccl_standin::leaks(), Texts{}) << when;
    if (HasFailure()) {
      return;
    }
  }
}

TEST(TwoGpus, BadInput) {
  new_machine(1, 2);
  lockstep::nccl_standin::reset();
  Team team(2);
  Nccl nccl(2);
  team.run([&](Team::Member& me) {
    cudaSetDevice(me.rank);
    ncclComm_t own = nccl.make(me.rank);
    const bool odd = me.rank == 1;
    {
      const GpuContext context(me.rank), other(1 - me.rank);
      const lockstep_comm_ops ops = Team::functions(me);
      Comm control, none;
      ASSERT_TRUE(ok(lockstep_comm_from_ops(context, &ops, &control)));
      // Only rank 1 has an error, but all ranks must get an error, and no rank may wait for another.
      EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_nccl(context, odd ? nullptr : own, control, &none),
                        {"lockstep_comm_from_nccl", "rank 1", "the communicator is NULL"}));
      EXPECT_TRUE(fails(LOCKSTEP_ERR_DEVICE, lockstep_comm_from_nccl(odd ? other : context, own, control, &none),
                        {"rank 1", "is on cuda:1, the context on cuda:0"}));
      EXPECT_TRUE(
          fails(odd ? LOCKSTEP_ERR_INVALID : LOCKSTEP_ERR_PEER,
                lockstep_comm_from_nccl(odd ? nullptr : static_cast<lockstep_context>(context), own, control, &none),
                {"the context is NULL"}));
      EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_nccl(context, own, nullptr, &none),
                        {"the communicator is NULL"}));
      const SelfComm alone(context);
      EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_nccl(context, own, alone, &none),
                        {"of 2", "expected rank 0 of 1 as the communicator for host memory"}));
      EXPECT_EQ(static_cast<lockstep_comm>(none), nullptr);
      // A trainer on a GPU is refused if the communicator is for host memory, or for the memory of another GPU.
      const SmallModel model(context);
      const lockstep_trainer_options options = trainer_options(4);
      Trainer trainer;
      EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, lockstep_trainer_create(model, control, &options, &trainer),
                        {"2 ranks", "lockstep_comm_from_nccl"}));
      Comm comm;
      ASSERT_TRUE(ok(lockstep_comm_from_nccl(context, own, control, &comm)));
      const SmallModel elsewhere(other);
      EXPECT_TRUE(fails(LOCKSTEP_ERR_DEVICE, lockstep_trainer_create(elsewhere, comm, &options, &trainer),
                        {"the communicator is for memory of"}));
    }
    nccl.end(me.rank);
  });
  EXPECT_EQ(standin::violations(), Texts{});
  EXPECT_EQ(lockstep::nccl_standin::leaks(), Texts{});
}

// If a communicator fails, lockstep returns the status NCCL. It must not abort the communicator, which belongs to the
// host program.
TEST(TwoGpus, ACommunicatorThatFailsIsLeftToTheHostProgram) {
  new_machine(1, 2);
  lockstep::nccl_standin::reset({.polls = 1});
  Team team(2);
  Nccl nccl(2);
  team.run([&](Team::Member& me) {
    cudaSetDevice(me.rank);
    ncclComm_t own = nccl.make(me.rank);
    const GpuContext context(me.rank);
    const lockstep_comm_ops ops = Team::functions(me);
    Comm control, comm;
    ASSERT_TRUE(ok(lockstep_comm_from_ops(context, &ops, &control)));
    ASSERT_TRUE(ok(lockstep_comm_from_nccl(context, own, control, &comm)));
    const Learner learner(context, comm);
    if (me.rank == 0) {
      lockstep::nccl_standin::fail_rank(0, ncclSystemError);
      EXPECT_TRUE(
          fails(LOCKSTEP_ERR_NCCL, lockstep_trainer_broadcast(learner.trainer, 0), {"rank 0 of 2", "broadcast"}));
      EXPECT_EQ(lockstep::nccl_standin::aborts(), 0);
      nccl.abort(0);  // the other rank's call then fails, too
    } else {
      EXPECT_TRUE(fails(LOCKSTEP_ERR_NCCL, lockstep_trainer_broadcast(learner.trainer, 0), {"rank 1 of 2"}));
      nccl.abort(1);
    }
    EXPECT_TRUE(fails(LOCKSTEP_ERR_NCCL, lockstep_trainer_broadcast(learner.trainer, 0), {"given up"}));
  });
  EXPECT_EQ(lockstep::nccl_standin::aborts(), 2);
  EXPECT_EQ(standin::violations(), Texts{});
}
#endif

}  // namespace
}  // namespace host
