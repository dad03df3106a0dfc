#include <set>
#include <stdexcept>

#include <lockstep/runtime/stream/graph.hpp>

#include "tests/runtime/cuda/support.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/gate.hpp"

namespace lockstep::testing {
namespace {

using CudaGraphTest = CudaTest;

constexpr std::int64_t kCount = 517;

/// Work with the dependencies of a training step. The compute stream copies in -> a and then a -> c. A side stream is
/// forked after the first copy and copies a -> b. Then the streams join and the compute stream copies c and b to the
/// host.
struct Diamond {
  explicit Diamond(Device device)
      : context(device),
        side(device, {.memory = &context.memory()}),
        in(context, kCount),
        out_b(context, kCount, -1),
        out_c(context, kCount, -1),
        a(Tensor::zeros(context, Shape{kCount}, DType::f32)),
        b(Tensor::zeros(context, Shape{kCount}, DType::f32)),
        c(Tensor::zeros(context, Shape{kCount}, DType::f32)),
        fork(device),
        join(device) {
    context.synchronize();
  }
  ~Diamond() { idle(); }
  Diamond(const Diamond&) = delete;
  Diamond& operator=(const Diamond&) = delete;

  void enqueue(bool forks = true, bool joins = true) {
    copy(context, in, a);
    context.stream().record(fork);
    if (forks) {
      side.stream().wait(fork);
    }
    copy(side, a, b);
    side.stream().record(join);
    copy(context, a, c);
    if (joins) {
      context.stream().wait(join);
    }
    copy(context, b, out_b);
    copy(context, c, out_c);
  }
  void set(float value) {
    for (float& element : in.span()) {
      element = value;
    }
  }
  void idle() {
    try {
      side.synchronize();
      context.synchronize();
    } catch (const Error&) {  // the test makes some CUDA calls fail
    }
  }
  [[nodiscard]] bool holds(float value) const { return out_b.holds(value) && out_c.holds(value); }

  CudaContext context;
  CudaContext side;
  Pinned in;
  Pinned out_b;
  Pinned out_c;
  Tensor a;
  Tensor b;
  Tensor c;
  Event fork;
  Event join;
};

TEST_F(CudaGraphTest, RunsWhatWasCapturedInTheOrderOfStreamsAndEvents) {
  for_seeds([](std::uint64_t seed) {
    Diamond diamond(Device::cuda(0));
    diamond.set(1);
    Graph graph = Graph::capture(diamond.context.stream(), [&] { diamond.enqueue(); });
    diamond.idle();
    EXPECT_TRUE(diamond.holds(-1)) << "a capture runs nothing, seed " << seed;
    EXPECT_EQ(graph.nodes(), 5U);
    EXPECT_FALSE(is_capturing(diamond.context.stream()));
    EXPECT_FALSE(is_capturing(diamond.side.stream()));
    graph.upload(diamond.context.stream());
    for (int turn = 2; turn < 5; ++turn) {
      diamond.set(static_cast<float>(turn));
      graph.launch(diamond.context.stream());
      diamond.context.synchronize();
      EXPECT_TRUE(diamond.holds(static_cast<float>(turn))) << "seed " << seed;
    }
    // After the error, the streams must still work.
    diamond.set(9);
    diamond.enqueue();
    diamond.context.synchronize();
    EXPECT_TRUE(diamond.holds(9)) << "seed " << seed;
  });
}

/// Launches one graph twice. In between, the stream replaces the numbers that the second launch reads.
TEST_F(CudaGraphTest, LaunchesKeepTheOrderOfTheStream) {
  for_seeds([](std::uint64_t seed) {
    CudaContext context(Device::cuda(0));
    const Pinned one(context, kCount, 1);
    const Pinned two(context, kCount, 2);
    const Pinned first(context, kCount);
    const Pinned second(context, kCount);
    const Tensor a = Tensor::zeros(context, Shape{kCount}, DType::f32);
    const Tensor b = Tensor::zeros(context, Shape{kCount}, DType::f32);
    Graph graph = Graph::capture(context.stream(), [&] { copy(context, a, b); });
    copy(context, one, a);
    graph.launch(context.stream());
    copy(context, b, first);
    copy(context, two, a);
    graph.launch(context.stream());
    copy(context, b, second);
    {
      const Graph gone = std::move(graph);  // launches in progress must continue after the graph is destroyed
    }
    context.synchronize();
    EXPECT_TRUE(first.holds(1) && second.holds(2)) << "seed " << seed;
  });
}

#if LOCKSTEP_CUDA_STANDIN
TEST_F(CudaGraphTest, AMissingJoinIsSeenForSomeSeedInAnOrderThatIsAllowed) {
  int wrong = 0;
  for_seeds([&](std::uint64_t) {
    // Without the join, the graph allows the copy from b to run before b is written. Some seed must choose this order.
    CudaContext context(Device::cuda(0));
    CudaContext side(Device::cuda(0), {.memory = &context.memory()});
    const Pinned in(context, kCount, 3);
    const Pinned out(context, kCount);
    const Tensor a = Tensor::zeros(context, Shape{kCount}, DType::f32);
    Event fork(context.device());
    Event join(context.device());
    Graph graph = Graph::capture(context.stream(), [&] {
      context.stream().record(fork);
      side.stream().wait(fork);
      copy(side, in, a);
      side.stream().record(join);
      copy(context, a, out);
      context.stream().wait(join);
    });
    graph.launch(context.stream());
    context.synchronize();
    wrong += out.holds(3) ? 0 : 1;
  });
  EXPECT_GT(wrong, 20);
}
#endif

TEST_F(CudaGraphTest, AStreamThatIsNotJoinedIsAnError) {
  Diamond diamond(Device::cuda(0));
  EXPECT_EQ(error_text<StateError>([&] {
              static_cast<void>(Graph::capture(diamond.context.stream(), [&] { diamond.enqueue(true, false); }));
            }),
            "graph capture on cuda:0: a stream waited for an event of the capture (fork) and was not waited for at the "
            "end of it (join), expected a wait for that stream");
  EXPECT_FALSE(is_capturing(diamond.context.stream()));
  EXPECT_FALSE(is_capturing(diamond.side.stream()));
  diamond.set(4);
  diamond.enqueue();
  diamond.context.synchronize();
  EXPECT_TRUE(diamond.holds(4));
}

/// Calls f while a graph is captured and returns the text of the error. Expects that the stream works afterwards.
template <class E, class F>
std::string text_during_capture(F&& f) {
  CudaContext context(Device::cuda(0));
  const Pinned in(context, kCount, 5);
  const Pinned out(context, kCount);
  const Tensor a = Tensor::zeros(context, Shape{kCount}, DType::f32);
  const std::string text = error_text<E>([&] {
    static_cast<void>(Graph::capture(context.stream(), [&] {
      copy(context, in, a);
      f(context);
    }));
  });
  EXPECT_FALSE(is_capturing(context.stream()));
  copy(context, in, a);
  copy(context, a, out);
  context.synchronize();
  EXPECT_TRUE(out.holds(5)) << text;
  return text;
}

TEST_F(CudaGraphTest, WhatIsNotAllowedWhileCapturingSaysSo) {
  std::vector<float> pageable(kCount);
  const TensorView host(std::span<float>(pageable), Shape{kCount});
  expect_holds(text_during_capture<StateError>([&](CudaContext& context) {
                 copy(context, host, TensorView(host.data, DType::f32, context.device(), Shape{kCount}));
               }),
               "graph capture on cuda:0: copy: the stream is being captured, and f32 (517) on cpu is pageable");
  expect_holds(
      text_during_capture<CudaError>([](CudaContext& context) { context.synchronize(); }),
      "graph capture on cuda:0: cudaStreamSynchronize(stream_) failed on cuda:0: cudaErrorStreamCaptureUnsupported");
  expect_holds(text_during_capture<StateError>(
                   [](CudaContext& context) { static_cast<void>(Tensor::empty(context, Shape{4}, DType::f32)); }),
               "allocate: the stream is being captured, expected memory that was taken before");
  expect_holds(text_during_capture<CudaError>([](CudaContext& context) {
                 CudaMemoryResource plain(context.device());
                 const Buffer buffer(4, plain, context.stream());
               }),
               "failed on cuda:0: cudaErrorStreamCaptureUnsupported");
  expect_holds(text_during_capture<StateError>([](CudaContext& context) {
                 Event timed(context.device(), Event::Timing::on);
                 context.stream().record(timed);
               }),
               "record: the stream is being captured into a graph, where events with timing have no time");
  expect_holds(text_during_capture<StateError>([](CudaContext& context) {
                 Event event(context.device());
                 context.stream().record(event);
                 event.synchronize();
               }),
               "the event was last recorded in a graph");
  // Made before the capture, because a new context queries the free memory, which a capture forbids.
  CudaContext other(Device::cuda(0));
  Event outside(other.device());
  expect_holds(text_during_capture<CudaError>([&](CudaContext& context) {
                 other.stream().record(outside);
                 context.stream().wait(outside);
               }),
               "cudaErrorStreamCaptureIsolation");
  expect_holds(text_during_capture<StateError>(
                   [](CudaContext& context) { static_cast<void>(Graph::capture(context.stream(), [] {})); }),
               "a graph is being captured from the stream already");
  Stream worker = Stream::host_worker("writer");
  Event host_event(Device::cpu());
  Gate gate;
  worker.enqueue(gate.task());
  worker.record(host_event);
  expect_holds(text_during_capture<StateError>([&](CudaContext& context) { context.stream().wait(host_event); }),
               "a graph cannot wait for a host event");
  gate.open();
  worker.synchronize();
  EXPECT_EQ(text_during_capture<std::runtime_error>([](CudaContext&) { throw std::runtime_error("their own"); }),
            "their own");
}

TEST_F(CudaGraphTest, MemoryGivenBackWhileCapturingIsFreedLater) {
  CudaContext context(Device::cuda(0));
  // If asked_again is false, no allocation follows, so the pool's destructor frees the memory that was given back
  // during the capture.
  for (const bool asked_again : {true, false}) {
    CudaPoolResource pool(context.device());
    auto dropped = std::make_unique<Buffer>(4096, pool, context.stream());
    const std::string text =
        error_text<StateError>([&] { static_cast<void>(Graph::capture(context.stream(), [&] { dropped.reset(); })); });
    EXPECT_NE(text.find("not allowed during a capture"), std::string::npos) << text;
    EXPECT_EQ(pool.usage()->in_use, 4096U);
    if (asked_again) {
      const Buffer next(64, pool, context.stream());
      EXPECT_EQ(pool.usage()->in_use, 64U);
    }
  }
}

TEST_F(CudaGraphTest, ASwallowedErrorStillSpoilsTheCapture) {
  const std::string text = text_during_capture<StateError>([](CudaContext& context) {
    try {
      context.synchronize();
    } catch (const CudaError&) {
    }
  });
  expect_holds(text, "a call was made that is not allowed during a capture and that nobody reported");
}

TEST_F(CudaGraphTest, AnEventOfAGraphIsNeverCompleteOnItsOwn) {
  CudaContext context(Device::cuda(0));
  Event event(context.device());
  Graph graph = Graph::capture(context.stream(), [&] { context.stream().record(event); });
  EXPECT_EQ(graph.nodes(), 0U);
  EXPECT_THROW(static_cast<void>(event.complete()), StateError);
  EXPECT_THROW(event.synchronize(), StateError);
  context.stream().record(event);
  event.synchronize();
  EXPECT_TRUE(event.complete());
}

TEST_F(CudaGraphTest, EmptyGraphsAndOtherDevices) {
  Graph none;
  CudaContext context(Device::cuda(0));
  Stream host = Stream::host_inline();
  EXPECT_FALSE(none.given());
  EXPECT_EQ(none.nodes(), 0U);
  EXPECT_EQ(error_text<StateError>([&] { none.launch(context.stream()); }),
            "graph launch: the graph is empty, expected a captured one");
  EXPECT_EQ(error_text<UnsupportedError>([&] { static_cast<void>(Graph::capture(host, [] {})); }),
            "graph capture: the stream is on cpu, expected a CUDA stream");
  Graph graph = Graph::capture(context.stream(), [] {});
  EXPECT_EQ(error_text<DeviceError>([&] { graph.launch(host); }),
            "graph launch: the graph is for cuda:0, the stream is on cpu, expected both on one device");
  EXPECT_FALSE(is_capturing(host));
}

#if LOCKSTEP_CUDA_STANDIN
TEST_F(CudaGraphTest, EveryCallFailingInTurnEndsTheCaptureAndLeaksNothing) {
  std::set<std::string> hit;
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    bool passed = false;
    for (int n = 1; !passed; ++n) {
      ASSERT_LT(n, 300);
      standin::reset({.devices = 1, .seed = seed});
      std::string failed;
      bool threw = false;
      bool reached = false;  // true after the last call that may throw: a later failure is in a destructor
      {
        Diamond diamond(Device::cuda(0));
        diamond.set(1);
        standin::fail_call(n, cudaErrorUnknown);
        try {
          Graph graph = Graph::capture(diamond.context.stream(), [&] { diamond.enqueue(); });
          graph.upload(diamond.context.stream());
          graph.launch(diamond.context.stream());
          diamond.context.synchronize();
          EXPECT_TRUE(diamond.holds(1));
          reached = true;
        } catch (const Error&) {
          threw = true;
        }
        failed = standin::failed_call();
        standin::fail_call(0, cudaSuccess);
        EXPECT_FALSE(is_capturing(diamond.context.stream())) << failed;
        EXPECT_FALSE(is_capturing(diamond.side.stream())) << failed;
        diamond.idle();
        diamond.set(2);
        diamond.enqueue();
        diamond.context.synchronize();
        EXPECT_TRUE(diamond.holds(2)) << failed;
      }
      passed = failed.empty();
      hit.insert(failed);
      const std::string when = "call " + std::to_string(n) + ", " + failed + ", seed " + std::to_string(seed);
      EXPECT_EQ(threw, !reached) << when;
      EXPECT_TRUE(threw || passed || failed == "cudaGraphDestroy" || failed == "cudaGraphExecDestroy" ||
                  failed == "cuCtxGetDevice")
          << when;
      expect_clean(when);
      if (HasFailure()) {
        return;
      }
    }
  }
  for (const char* name :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaStreamIsCapturing", "cudaGraphGetNodes",
        "cudaGraphInstantiate", "cudaGraphUpload", "cudaGraphLaunch", "cudaGraphDestroy", "cudaGraphExecDestroy",
        "cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync"}) {
    EXPECT_TRUE(hit.contains(name)) << name << " was never made to fail";
  }
}

TEST_F(CudaGraphTest, NodesKeepThePrioritiesOfTheirStreams) {
  const Device device = Device::cuda(0);
  Stream urgent = Stream::cuda(device, -3);
  CudaContext context(device);
  CudaContext side(device, {.stream = urgent.cuda_handle(), .memory = &context.memory()});
  const Pinned in(context, kCount, 3);
  const Tensor a = Tensor::zeros(context, Shape{kCount}, DType::f32);
  const Tensor b = Tensor::zeros(context, Shape{kCount}, DType::f32);
  Event fork(device);
  Event join(device);
  Graph graph = Graph::capture(context.stream(), [&] {
    copy(context, in, a);
    context.stream().record(fork);
    side.stream().wait(fork);
    copy(side, a, b);
    side.stream().record(join);
    context.stream().wait(join);
    copy(context, b, a);
  });
  graph.launch(context.stream());
  EXPECT_EQ(standin::launched_priorities(), (std::vector<int>{0, -3, 0}));
  context.synchronize();
  graph.launch(urgent);
  EXPECT_EQ(standin::launched_priorities(), (std::vector<int>{0, -3, 0}));
  urgent.synchronize();
}

TEST_F(CudaGraphTest, ALaunchIsOneCall) {
  Diamond diamond(Device::cuda(0));
  Graph graph = Graph::capture(diamond.context.stream(), [&] { diamond.enqueue(); });
  const auto before = standin::call_log().size();
  graph.launch(diamond.context.stream());
  const auto log = standin::call_log();
  EXPECT_EQ(std::vector<std::string>(log.begin() + static_cast<std::ptrdiff_t>(before), log.end()),
            (std::vector<std::string>{"cuCtxGetDevice", "cudaGraphLaunch"}));
}
#endif

}  // namespace
}  // namespace lockstep::testing
