// Tests that a training step neither allocates nor makes the host wait. Runs on the host, and on a GPU if there is one.
#include <atomic>
#include <cstdint>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/comm/local_ranks.hpp"

namespace lockstep::nn {
namespace {

/// A memory resource that counts the calls of another resource.
class CountingResource final : public MemoryResource {
 public:
  explicit CountingResource(MemoryResource& memory) : memory_(memory) {}
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override {
    ++calls;
    return memory_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override {
    memory_.deallocate(pointer, bytes, alignment, stream);
  }
  [[nodiscard]] Device device() const override { return memory_.device(); }

  std::atomic<std::int64_t> calls{0};

 private:
  MemoryResource& memory_;
};

/// Expects that steps 7 to 14 of a small ResNet neither allocate nor wait for the context's stream. As the control, an
/// allocation and a wait must be counted. The test sees neither waits for the trainer's copy stream, which has a log of
/// its own, nor waits for events. On a GPU, step n waits on purpose for an event, the end of step n - 2.
void expect_quiet(Context& context, CountingResource& memory, Stream communication) {
  const DataSplit data =
      open_data({.synthetic = {.train_size = 256, .test_size = 16, .height = 16, .width = 16, .classes = 4}});
  const Model model = cifar_resnet(8, 4, 16, 16);
  comm::on_ranks(1, [&](comm::Communicator& grad, comm::Communicator& control) {
    TrainerOptions options{.global_batch = 16};
    options.step.plan.augment = {
        .pad = 2, .flip = true, .mean = data.statistics.mean, .std = data.statistics.std, .seed = 1};
    options.schedule.total_steps = 16;
    options.step.average = {.decay = 0.9, .copied_updates = 2};
    Trainer trainer(context, {grad, control, communication}, model, data, options);
    // On a GPU the quiet step is the launch of a graph.
    EXPECT_EQ(trainer.graph_obstacle(), context.device() == Device::cpu() ? "the device is cpu" : "");
    trainer.start();
    for (int i = 0; i < 6; ++i) {  // the first steps warm up and capture the graph
      trainer.step();
    }
    std::vector<std::string> waits;
    const std::int64_t before = memory.calls;
    context.on_synchronisation(
        [&](const Synchronisation& wait) { waits.push_back(concat(wait.call, ": ", name_of(wait.reason))); });
    for (int i = 0; i < 8; ++i) {
      trainer.step();
    }
    EXPECT_EQ(memory.calls - before, 0);
    EXPECT_EQ(waits, std::vector<std::string>{});

    const Tensor more = Tensor::empty(context, Shape{3}, DType::f32);
    EXPECT_EQ(memory.calls - before, 1);
    waits.clear();
    context.synchronize();
    EXPECT_EQ(waits, std::vector<std::string>{"synchronize: requested"});
    context.on_synchronisation({});
  });
}

TEST(QuietSteps, OnTheHost) {
  Stream worker = Stream::host_worker("compute");
  HostMemoryResource host;
  CountingResource memory(host);
  CpuContext context({.threads = 1, .stream = &worker, .memory = &memory});
  expect_quiet(context, memory, Stream::host_inline());
}

TEST(QuietSteps, OnAGpu) {
  if (num_gpus() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  CudaMemoryResource device(Device::cuda(0));
  CountingResource memory(device);
  CudaContext context(Device::cuda(0), {.memory = &memory});
  expect_quiet(context, memory, Stream::cuda(Device::cuda(0), -1));
}

}  // namespace
}  // namespace lockstep::nn
