// Tests that a step allocates nothing, on any thread of any rank. The tests also run with a tool that receives ranges
// (tests/support/nvtx).
#include <barrier>
#include <new>

#include "tests/comm/count_allocations.hpp"
#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/nvtx/tool.hpp"

namespace lockstep::nn {
namespace {

/// Expects that steps allocate nothing, with the provider `choice` for all convolutions and products; empty: with the
/// default providers.
void expect_no_allocation(const std::string& choice, std::int64_t microbatches = 1, bool sync_batch_norm = false,
                          bool records = false) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  std::barrier together(2);
  comm::on_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
    HostMemoryResource host;
    TrackingMemoryResource memory(host);
    CpuContext context({.threads = 1, .memory = &memory});
    Stream worker = Stream::host_worker("comm");
    TrainerOptions options{.global_batch = 11, .accumulate = microbatches};
    options.step.sync_batch_norm = sync_batch_norm;
    options.step.optimizer = {.kind = OptimizerKind::adam, .clip_norm = 1};
    for (const char* pass : {"forward", "backward_data", "backward_weights"}) {
      for (const Node& node : model.nodes()) {
        if (node.layer && !choice.empty()) {
          options.step.plan.choices[node.layer->name() + " " + pass] = choice;
        }
      }
    }
    const auto statistics = grad.split(0, grad.rank());
    Trainer trainer(context, {grad, control, worker, nullptr, statistics.get()}, model, data, options);
    trainer.start();
    SpanRecorder recorder(context.device(), 1, 1, 11 * trainer.train_step().spans_of_a_step() + 22);
    if (records) {
      trainer.record_into(&recorder);
      recorder.begin_step(1);
    }
    steps(trainer, 3);
    const testing::ToolRecord* tool = testing::tool_record();
    ASSERT_EQ(tool != nullptr, testing::wants_tool());
    const int told = tool != nullptr ? tool->events.load() : 0;
    const int names = tool != nullptr ? tool->names.load() : 0;
    const auto before = memory.counts();
    const std::int64_t allocations = count_allocations::allocations;
    // Counts allocations on all threads of both ranks: compute, communication and loaders.
    together.arrive_and_wait();
    count_allocations::everywhere = true;
    together.arrive_and_wait();
    steps(trainer, 8);  // the steps pass the end of an epoch
    context.synchronize();
    worker.synchronize();
    together.arrive_and_wait();
    count_allocations::everywhere = false;
    EXPECT_EQ(count_allocations::allocations, allocations);
    EXPECT_EQ(memory.counts().allocations, before.allocations);
    EXPECT_EQ(recorder.take(context.stream()).size() > 11 * model.nodes().size(), records);
    EXPECT_EQ(recorder.dropped(), 0);
    if (tool != nullptr) {
      EXPECT_GT(tool->events, told + static_cast<int>(16 * model.nodes().size()));
      EXPECT_EQ(tool->names, names) << "which the tool may allocate memory for";
      EXPECT_EQ(tool->faults, 0);
    }
  });
}

TEST_F(TrainerTest, AStepAllocatesNothing) {
  expect_no_allocation("reference");
  expect_no_allocation("reference", 2);
  expect_no_allocation("reference", 1, true);
  expect_no_allocation("reference", 2, true, true);
}

TEST_F(TrainerTest, AStepWithOneDnnAllocatesNothingOfItsOwn) {
  if (!LOCKSTEP_HAS_ONEDNN) {
    GTEST_SKIP() << "needs oneDNN, this build has none";
  }
  const std::int64_t before = count_allocations::bracketed;
  expect_no_allocation("");
  EXPECT_GT(count_allocations::bracketed, before) << "the library was used, and its calls were seen";
}

TEST_F(TrainerTest, TheCounterSeesAnAllocation) {
  using count_allocations::allocations;
  // Calls the operator directly: the compiler may leave out a new-expression without use.
  const auto allocate = [] { ::operator delete(::operator new(40)); };
  const auto allocate_aligned = [] {
    ::operator delete (::operator new (40, std::align_val_t{64}), std::align_val_t{64});
  };
  const std::int64_t before = allocations;
  allocate();
  allocate_aligned();
  EXPECT_EQ(allocations, before) << "nothing is counted unless asked for";
  count_allocations::counting = true;
  allocate();
  allocate_aligned();
  count_allocations::counting = false;
  EXPECT_EQ(allocations, before + 2);

  Stream worker = Stream::host_worker("other");
  count_allocations::counting = true;
  worker.enqueue(allocate);
  worker.synchronize();
  count_allocations::counting = false;
  EXPECT_EQ(allocations, before + 2) << "another thread's are not this one's";
  count_allocations::everywhere = true;
  worker.enqueue(allocate);
  worker.enqueue(allocate_aligned);
  worker.synchronize();
  count_allocations::everywhere = false;
  EXPECT_EQ(allocations, before + 4);
}

}  // namespace
}  // namespace lockstep::nn
