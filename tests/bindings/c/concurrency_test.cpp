// Tests the guarantees of docs/embedding.md about threads. Handles of different contexts are independent. A context may
// move from one thread to another. No call holds a lock while a function of the host program runs. The tests also run
// under ThreadSanitizer (scripts/nightly.sh).
#include <atomic>
#include <cstdlib>
#include <thread>

#include "host.hpp"

namespace host {
namespace {

constexpr std::int64_t kSamples = 50;

std::vector<double> inputs() {
  return drawn(kSamples * 3);
}

/// Returns the outputs for x. Infers blocks of 1, 2, 3, ... samples, so that calls have different sizes.
std::vector<double> inferred(lockstep_model model, const std::vector<double>& x) {
  std::vector<double> y(kSamples * 2);
  for (std::int64_t begin = 0, n = 1; begin < kSamples; begin += n, ++n) {
    const std::int64_t count = std::min(n, kSamples - begin);
    const View in(x.data() + 3 * begin, {count, 3}), out(y.data() + 2 * begin, {count, 2});
    EXPECT_TRUE(ok(infer(model, in, out)));
  }
  return y;
}

void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back(body, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Four threads share the parameters of one model, each in contexts of its own. The results must equal those of the
// original model, although the threads also create and destroy contexts, handles and errors.
TEST(Threads, ShareAModelAndGetTheSameBits) {
  for (const lockstep_dtype dtype : {LOCKSTEP_F32, LOCKSTEP_F64}) {
    const HostContext context;
    const Mlp model(context, {3, 16, 2}, dtype);
    const std::vector<double> expected = inferred(model, inputs());
    const lockstep_model original = model;
    in_threads(4, [&](int thread) {
      for (int life = 0; life < 5; ++life) {
        const HostContext own;
        Model shared;
        ASSERT_TRUE(ok(lockstep_model_share(original, own, &shared)));
        for (int call = 0; call < 5; ++call) {
          EXPECT_EQ(inferred(shared, inputs()), expected);
        }
        const std::string name = "of thread " + std::to_string(thread);
        double value = 0;
        View view(&value, {1});
        EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_read(shared, name.c_str(), 0, &view), {name}));
        EXPECT_TRUE(ok(lockstep_parameter_read(shared, "2.bias", 0, &view)) ||
                    is(LOCKSTEP_ERR_SHAPE, lockstep_parameter_read(shared, "2.bias", 0, &view)));
      }
    });
  }
}

/// Trains eight steps and returns the last parameters. If `threads` is true, each step runs in a new thread.
std::vector<double> trained(bool threads) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, {3, 16, 2});
  const NewTrainer trainer(model, comm, trainer_options(kSamples));
  for (int step = 0; step < 8; ++step) {
    const auto body = [&](int) {
      const std::vector<double> x = inputs();
      const std::vector<double> y = inferred(model, x);
      std::vector<double> goal(y.size());
      for (std::size_t i = 0; i < goal.size(); ++i) {
        goal[i] = y[i] / 2 + x[i];
      }
      EXPECT_TRUE(ok(add(trainer, View(x.data(), {kSamples, 3}), View(goal.data(), {kSamples, 2}))));
      EXPECT_TRUE(ok(lockstep_trainer_update(trainer, 1e-2)));
    };
    if (threads) {
      in_threads(1, body);
    } else {
      body(0);
    }
  }
  return parameter(model, "2.weight", {2, 16});
}

TEST(Threads, HandAContextOn) {
  const std::vector<double> alone = trained(false);
  EXPECT_EQ(trained(true), alone);
}

// The host program's allocator waits for a thread that also calls lockstep. If a call held a lock while the allocator
// runs, this thread would never end.
TEST(Threads, GoOnWhileAFunctionOfTheHostProgramRuns) {
  std::atomic<int> lives{0};
  lockstep_allocator functions{};
  functions.struct_size = sizeof functions;
  functions.user = &lives;
  functions.allocate = [](void* user, std::size_t bytes, std::size_t alignment, lockstep_stream) {
    in_threads(1, [user](int) {
      const HostContext own;
      const Mlp model(own, {3, 4, 2});
      EXPECT_EQ(inferred(model, inputs()).size(), kSamples * 2U);
      ++*static_cast<std::atomic<int>*>(user);
    });
    return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
  };
  functions.deallocate = [](void*, void* memory, std::size_t, lockstep_stream) { std::free(memory); };
  const HostContext context(&functions);
  const Mlp model(context, {3, 4, 2});
  inferred(model, inputs());
  EXPECT_GT(lives, 0);
}

}  // namespace
}  // namespace host
