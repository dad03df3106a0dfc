#include <lockstep/nn/plan/memory_plan.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/memory/guard_band.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

bool disjoint(const MemoryPlan& plan, std::span<const Lifetime> lives) {
  for (std::size_t i = 0; i < lives.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool in_time = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
      const bool in_memory =
          plan.offsets[i] < plan.offsets[j] + lives[j].bytes && plan.offsets[j] < plan.offsets[i] + lives[i].bytes;
      if (in_time && in_memory && lives[i].bytes > 0 && lives[j].bytes > 0) {
        return false;
      }
    }
  }
  return true;
}

TEST(MemoryPlan, ReusesMemoryOfDeadSlots) {
  const std::vector<Lifetime> chain{{1000, 0, 1}, {1000, 1, 2}, {1000, 2, 3}, {1000, 3, 4}};
  const MemoryPlan plan = plan_memory(chain, 256);
  EXPECT_EQ(plan.sum_bytes, 4096U);
  EXPECT_EQ(plan.peak_bytes, 2048U) << "only two of the chain are alive at once";
  EXPECT_TRUE(disjoint(plan, chain));
}

TEST(MemoryPlan, FillsAGap) {
  // Both large tensors live at time 2, so they need 6144 bytes. The small tensor must share the memory of the second
  // large tensor, which is free until time 2.
  const std::vector<Lifetime> lives{{4096, 0, 2}, {2048, 2, 4}, {1024, 0, 1}};
  const MemoryPlan plan = plan_memory(lives, 256);
  EXPECT_EQ(plan.peak_bytes, 6144U);
  EXPECT_TRUE(disjoint(plan, lives));
}

TEST(MemoryPlan, RandomLifetimesNeverOverlapAndAreAligned) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, RandomUse::test);
    std::vector<Lifetime> lives(1 + random.below(60));
    std::size_t at_once = 0;
    for (Lifetime& life : lives) {
      life.bytes = random.below(5000);
      life.first = static_cast<int>(random.below(30));
      life.last = life.first + static_cast<int>(random.below(12));
    }
    for (int t = 0; t < 42; ++t) {
      std::size_t alive = 0;
      for (const Lifetime& life : lives) {
        alive += life.first <= t && t <= life.last ? (life.bytes + 63) / 64 * 64 : 0;
      }
      at_once = std::max(at_once, alive);
    }
    const MemoryPlan plan = plan_memory(lives, 64);
    EXPECT_TRUE(disjoint(plan, lives)) << "seed " << seed;
    EXPECT_GE(plan.peak_bytes, at_once) << "seed " << seed;
    EXPECT_LE(plan.peak_bytes, plan.sum_bytes) << "seed " << seed;
    for (const std::size_t offset : plan.offsets) {
      EXPECT_EQ(offset % 64, 0U);
    }
  }
}

TEST(MemoryPlan, OverlapCheckCanFail) {
  const std::vector<Lifetime> lives{{100, 0, 1}, {100, 1, 2}};
  MemoryPlan plan = plan_memory(lives, 1);
  EXPECT_TRUE(disjoint(plan, lives));
  plan.offsets[1] = plan.offsets[0] + 99;
  EXPECT_FALSE(disjoint(plan, lives));
}

TEST(MemoryPlan, EmptyAndBackwards) {
  EXPECT_EQ(plan_memory({}).peak_bytes, 0U);
  const std::vector<Lifetime> backwards{{1, 3, 2}};
  EXPECT_THROW((void)plan_memory(backwards), ShapeError);
}

TEST(GuardBand, TellsHowMuchWasWrittenAndWhere) {
  std::vector<std::byte> band(kGuardBandBytes);
  write_guard_band(band.data());
  EXPECT_EQ(damage_of_guard_band(band.data()), "");
  band[3] ^= std::byte{1};
  band[kGuardBandBytes - 1] ^= std::byte{0x80};
  EXPECT_EQ(damage_of_guard_band(band.data()), "wrote over 2 bytes, the first 3 bytes after the end");
  write_guard_band(band.data());
  std::memmove(band.data(), band.data() + 4, kGuardBandBytes - 4);
  EXPECT_NE(damage_of_guard_band(band.data()), "") << "a band that was shifted by a float";
}

/// A layer that copies its input, and writes `beyond` bytes after its scratch memory of 100 bytes.
class Overrun final : public Layer {
 public:
  explicit Overrun(const int* beyond) : Layer("clumsy"), beyond_(beyond) {}
  [[nodiscard]] std::string kind() const override { return "overrun"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  void plan(PlanBuilder& builder) const override {
    const SlotId x = builder.input();
    const SlotId y = builder.activation("y", builder.batched(builder.input_shape()));
    const SlotId scratch = builder.scratch(100);
    const auto run = [x, y, scratch, beyond = beyond_](Context& context, const Frame& frame) {
      context.stream().enqueue([from = frame[x], to = frame[y], memory = frame[scratch], beyond] {
        std::memcpy(to.data, from.data, to.bytes());
        std::memset(memory.data, 1, 100 + static_cast<std::size_t>(*beyond));
      });
    };
    builder.call("copy", {x}, {y, scratch}, 0, run);
    builder.set_output(y);
  }

 private:
  const int* beyond_;
};

TEST(GuardBand, NamesTheCallThatWroteBehindItsScratchMemory) {
  int beyond = 0;
  ModelBuilder b("m", {4});
  b.linear("last", b.add(std::make_shared<Overrun>(&beyond), {b.linear("first", b.input(), 8)}), 3);
  const Model model = b.build();
  CpuContext context({.threads = 1});
  const ParameterSet parameters(context, model, DType::f32);
  StepState state(context, 2, step_layout(model, {}));
  Plan guarded(context, model, Mode::infer, 2, {.guard_bands = true});
  Plan bare(context, model, Mode::infer, 2, {.guard_bands = false});
  EXPECT_GE(guarded.workspace_bytes(), bare.workspace_bytes() + kGuardBandBytes);
  Buffer workspace(guarded.workspace_bytes(), context);
  const auto run = [&](Plan& plan) {
    plan.bind(parameters, state, workspace);
    plan.run(context);
    context.synchronize();
  };
  run(guarded);
  run(guarded);
  beyond = 5;
  run(bare);  // without guards the error is not found
  EXPECT_EQ(testing::error_of<Error>([&] { run(guarded); }),
            "clumsy copy: wrote over 5 bytes, the first 0 bytes after the end of 'scratch' (100 bytes), expected no "
            "write outside of it");
}

}  // namespace
}  // namespace lockstep::nn
