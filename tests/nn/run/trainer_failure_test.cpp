// Tests steps that fail, a peer that is gone, memory that is freed while work is queued.

#include <lockstep/comm/error.hpp>

#include "tests/comm/wrapped_communicator.hpp"
#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

/// Host memory that must not be given back while the stream still works.
class GivenBackIdle final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override {
    return host_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override {
    going = true;
    EXPECT_TRUE(pointer == nullptr || last_work.complete()) << bytes << " bytes go while work that uses them is queued";
    host_.deallocate(pointer, bytes, alignment, stream);
  }
  Device device() const override { return Device::cpu(); }
  Event last_work{Device::cpu()};
  std::atomic<bool> going{false};

 private:
  HostMemoryResource host_;
};

/// A communicator whose all-reduce fails (`until_failure`) or never ends (`peer_is_gone`), as on a device whose peer is
/// gone. Only check() reports the lost peer.
class Broken final : public comm::WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  void all_reduce(Stream& stream, const TensorView& data) override {
    require<StateError>(--until_failure != 0, "the all-reduce that fails");
    if (peer_is_gone) {
      stream.enqueue([this] {
        while (!released) {
          std::this_thread::yield();
        }
      });
    }
    WrappedCommunicator::all_reduce(stream, data);
  }
  void check() override {
    ++checks;
    require<PeerError>(!peer_is_gone, "a peer is gone");
  }
  int until_failure = 0;  ///< number of all-reduces until one fails; 0: none fails
  bool peer_is_gone = false;
  std::atomic<bool> released{false};
  int checks = 0;
};

/// Returns the parameters and the sums of the metrics after nine steps, in which all-reduce number `until_failure`
/// fails once.
std::vector<double> train_with_failure(int until_failure, std::int64_t microbatches) {
  const DataSplit data = small_data();
  // The model has no running statistics: a batch that is repeated after the failure would change them twice.
  const Model model = make_model({.name = "mlp", .classes = 4, .height = 12, .width = 12, .hidden = {20, 10}});
  std::vector<double> values;
  comm::on_ranks(1, [&](comm::Communicator& inner) {
    Broken grad(inner);
    const auto control = inner.split(0, 0);
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 11;  // an epoch has six steps
    options.accumulate = microbatches;
    options.step.buckets.bucket_bytes = options.step.buckets.tail_bytes = 1000;
    Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
    ASSERT_GT(trainer.reducer().buckets().size(), 1U);
    trainer.start();
    grad.until_failure = until_failure;
    int failed = 0;
    while (trainer.position().step < 9) {
      const Position before = trainer.position();
      try {
        trainer.step();
      } catch (const StateError& e) {
        EXPECT_STREQ(e.what(), "the all-reduce that fails");
        EXPECT_EQ(trainer.position().step, before.step);
        ASSERT_EQ(++failed, 1);
      }
    }
    EXPECT_EQ(failed, until_failure > 0 ? 1 : 0);
    EXPECT_EQ(grad.checks, 0) << "nobody looks after operations that have passed when they return";
    const auto arena = trainer.parameters().values().span<float>();
    values.assign(arena.begin(), arena.end());
    const Metrics sums = trainer.take_metrics();
    values.insert(values.end(), {sums.loss_sum, sums.correct, sums.samples, static_cast<double>(failed)});
  });
  return values;
}

TEST_F(TrainerTest, AStepThatFailedIsTakenAnew) {
  for (const std::int64_t microbatches : {1, 2}) {
    std::vector<double> expected = train_with_failure(0, microbatches);
    ASSERT_GT(expected.size(), 4U);
    expected.back() = 1;
    // The failing all-reduce is in the first step, in a step in the middle, or in the last step of an epoch. In the
    // last two cases the step has already started other buckets.
    for (const int until_failure : {1, 8, 12}) {
      EXPECT_TRUE(train_with_failure(until_failure, microbatches) == expected)
          << "all-reduce " << until_failure << ", " << microbatches << " micro-batches";
    }
  }
}

TEST_F(TrainerTest, APeerThatIsGoneEndsTheWait) {
  const DataSplit data = small_data();
  const std::vector<std::function<void(Trainer&)>> waits{
      [](Trainer& trainer) { (void)trainer.take_metrics(); },
      [](Trainer& trainer) { (void)trainer.skipped_updates(); },
      [](Trainer& trainer) { (void)trainer.evaluate(); },
      [](Trainer& trainer) { trainer.require_same_state(); },
      [](Trainer& trainer) { steps(trainer, 3); },
  };
  for (const auto& wait : waits) {
    const auto failures = comm::run_ranks(1, [&](comm::Communicator& inner) {
      Broken grad(inner);
      const auto control = inner.split(0, 0);
      Stream compute = Stream::host_worker("compute");
      Stream communication = Stream::host_worker("comm");
      CpuContext context({.threads = 1, .stream = &compute});
      TrainerOptions options{.global_batch = 11};
      options.step.optimizer.skip_non_finite = true;
      Trainer trainer(context, {grad, *control, communication}, cifar_resnet(8, 4, 12, 12), data, options);
      trainer.start();
      trainer.step();
      (void)trainer.take_metrics();
      grad.peer_is_gone = true;
      trainer.step();
      try {
        wait(trainer);
      } catch (...) {
        grad.released = true;  // ends the all-reduce, as a communicator does that abandons its operations
        throw;
      }
      grad.released = true;
    });
    EXPECT_EQ(failures, std::vector<std::string>{"peer: a peer is gone"}) << "wait " << &wait - waits.data();
  }
}

TEST_F(TrainerTest, ItsMemoryGoesAfterTheWorkThatUsesIt) {
  const DataSplit data = small_data();
  comm::on_ranks(1, [&](comm::Communicator& grad, comm::Communicator& control) {
    GivenBackIdle memory;
    Stream worker = Stream::host_worker("compute");
    Stream communication = Stream::host_worker("comm");
    CpuContext context({.threads = 1, .stream = &worker, .memory = &memory});
    Trainer trainer(context, {grad, control, communication}, cifar_resnet(8, 4, 12, 12), data, {.global_batch = 70});
    trainer.start();
    trainer.step();
    trainer.step();
    memory.going = false;
    worker.enqueue([&memory] {  // runs long enough for a wrong trainer to free memory too early
      for (int i = 0; i < 10'000 && !memory.going; ++i) {
        std::this_thread::yield();
      }
    });
    worker.record(memory.last_work);
  });
}

}  // namespace
}  // namespace lockstep::nn
