#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/runtime/cuda/support.hpp"
#include "tests/support/gate.hpp"

namespace lockstep::testing {
namespace {

using CudaStreamTest = CudaTest;
using CudaStreamPairTest = CudaPairTest;

constexpr std::int64_t kCount = 1031;

/// A context whose stream copies a value to the device and back. `over` is the event after both copies.
struct RoundTrip {
  explicit RoundTrip(float value) : in(context, kCount, value) {}
  void start() {
    copy(context, in, device);
    copy(context, device, out);
    context.stream().record(over);
  }
  CudaContext context{Device::cuda(0)};
  const Pinned in;
  const Pinned out{context, kCount};
  const Tensor device = Tensor::empty(context, Shape{kCount}, DType::f32);
  Event over{context.device()};
};

/// Lets two streams take turns: a fills a buffer, b fetches it, a fills it again with the next number, ... Returns the
/// number of turns in which b fetched a wrong number. Each of the two event waits of a turn can be left out.
int wrong_turns(Device device_a, Device device_b, bool b_waits, bool a_waits) {
  constexpr int kTurns = 4;
  CudaContext a(device_a);
  CudaContext b(device_b);
  const Tensor shared = Tensor::zeros(a, Shape{kCount}, DType::f32);
  a.synchronize();
  std::vector<std::unique_ptr<Pinned>> in;
  std::vector<std::unique_ptr<Pinned>> out;
  for (int i = 0; i < kTurns; ++i) {
    in.push_back(std::make_unique<Pinned>(a, kCount, static_cast<float>(i + 1)));
    out.push_back(std::make_unique<Pinned>(b, kCount, -1.0F));
  }
  const bool one_device = device_a == device_b;
  const Tensor far = one_device ? Tensor() : Tensor::zeros(b, Shape{kCount}, DType::f32);
  Event filled(device_a);
  Event fetched(device_b);
  for (std::size_t i = 0; i < kTurns; ++i) {
    if (a_waits) {
      a.stream().wait(fetched);
    }
    copy(a, *in[i], shared);
    a.stream().record(filled);
    if (b_waits) {
      b.stream().wait(filled);
    }
    if (one_device) {
      copy(b, shared, *out[i]);
    } else {
      copy(b, shared, far);
      copy(b, far, *out[i]);
    }
    b.stream().record(fetched);
  }
  b.synchronize();
  a.synchronize();
  int wrong = 0;
  for (std::size_t i = 0; i < kTurns; ++i) {
    wrong += out[i]->holds(static_cast<float>(i + 1)) ? 0 : 1;
  }
  return wrong;
}

TEST_F(CudaStreamTest, EventsOrderTwoStreams) {
  for_seeds([](std::uint64_t seed) {
    EXPECT_EQ(wrong_turns(Device::cuda(0), Device::cuda(0), true, true), 0) << "seed " << seed;
  });
}

TEST_F(CudaStreamPairTest, EventsOrderStreamsOfTwoDevices) {
  for_seeds(
      [](std::uint64_t seed) {
        EXPECT_EQ(wrong_turns(Device::cuda(0), Device::cuda(1), true, true), 0) << "seed " << seed;
      },
      2);
}

#if LOCKSTEP_CUDA_STANDIN
TEST_F(CudaStreamTest, AMissingWaitIsSeenForSomeSeed) {
  int late_reader = 0;
  int early_writer = 0;
  for_seeds([&](std::uint64_t) {
    late_reader += wrong_turns(Device::cuda(0), Device::cuda(0), false, true) > 0 ? 1 : 0;
    early_writer += wrong_turns(Device::cuda(0), Device::cuda(0), true, false) > 0 ? 1 : 0;
  });
  EXPECT_GT(late_reader, 20);
  EXPECT_GT(early_writer, 20);
}
#endif

TEST_F(CudaStreamTest, AnEventNeverRecordedIsComplete) {
  Stream stream = Stream::cuda(Device::cuda(0));
  Stream host = Stream::host_worker("host");
  Event event(Device::cuda(0));
  EXPECT_TRUE(event.complete());
  event.synchronize();
  stream.wait(event);
  host.wait(event);
  stream.wait(Event(Device::cpu()));
  stream.synchronize();
  host.synchronize();
}

TEST_F(CudaStreamTest, AnEventBelongsToItsDevice) {
  Stream stream = Stream::cuda(Device::cuda(0));
  Event host_event(Device::cpu());
  EXPECT_THROW(stream.record(host_event), DeviceError);
  Event event(Device::cuda(0));
  Stream host = Stream::host_inline();
  EXPECT_THROW(host.record(event), DeviceError);
}

TEST_F(CudaStreamTest, PollingSeesCompletion) {
  for_seeds([](std::uint64_t) {
    RoundTrip trip(2.0F);
    trip.start();
    while (!trip.over.complete()) {
    }
    EXPECT_TRUE(trip.out.holds(2.0F));
  });
}

TEST_F(CudaStreamTest, Seconds) {
  CudaContext context(Device::cuda(0));
  Event first(context.device(), Event::Timing::on);
  Event second(context.device(), Event::Timing::on);
  EXPECT_THROW(static_cast<void>(second.seconds_since(first)), StateError);  // never recorded
  context.stream().record(first);
  const Tensor zeros = Tensor::zeros(context, Shape{1 << 20}, DType::f32);
  context.stream().record(second);
  second.synchronize();
  EXPECT_GT(second.seconds_since(first), 0);
  const Event without(context.device());
  EXPECT_THROW(static_cast<void>(second.seconds_since(without)), StateError);
}

/// A CUDA stream copies numbers to the host, and a host worker reads them. If `wait` is true, the worker first waits
/// for the copies. Returns true if the worker reads the right numbers.
bool worker_sees_copy(bool wait) {
  RoundTrip trip(6.0F);
  Stream worker = Stream::host_worker("reader");
  trip.start();
  if (wait) {
    worker.wait(trip.over);
  }
  bool seen = false;
  worker.enqueue([&] { seen = trip.out.holds(6.0F); });
  worker.synchronize();
  trip.context.synchronize();
  return seen;
}

TEST_F(CudaStreamTest, AWorkerWaitsForACudaEvent) {
  for_seeds([](std::uint64_t seed) { EXPECT_TRUE(worker_sees_copy(true)) << "seed " << seed; });
}

#if LOCKSTEP_CUDA_STANDIN
TEST_F(CudaStreamTest, AWorkerThatDoesNotWaitIsSeenForSomeSeed) {
  int unseen = 0;
  for_seeds([&](std::uint64_t) { unseen += worker_sees_copy(false) ? 0 : 1; });
  EXPECT_GT(unseen, 20);
}
#endif

TEST_F(CudaStreamTest, AnInlineStreamWaitsForACudaEvent) {
  for_seeds([](std::uint64_t) {
    RoundTrip trip(6.0F);
    trip.start();
    Stream here = Stream::host_inline();
    here.wait(trip.over);
    EXPECT_TRUE(trip.out.holds(6.0F));
  });
}

/// A host worker writes numbers once `gate` is open, and a CUDA stream copies them. If `wait` is true, the CUDA stream
/// first waits for the worker. Returns true if the copy has the worker's numbers.
bool copy_sees_worker(bool wait) {
  CudaContext context(Device::cuda(0));
  const Pinned in(context, kCount, -1.0F);
  const Pinned out(context, kCount);
  const Tensor device = Tensor::empty(context, Shape{kCount}, DType::f32);
  Gate gate;
  Stream worker = Stream::host_worker("writer");
  worker.enqueue(gate.task());
  worker.enqueue([&] { std::ranges::fill(in.span(), 9.0F); });
  Event written(Device::cpu());
  worker.record(written);
  if (wait) {
    context.stream().wait(written);
  }
  copy(context, in, device);
  copy(context, device, out);
  if (!wait) {
    context.synchronize();  // without a wait, the copies run before the worker may write
  }
  gate.open();
  context.synchronize();
  worker.synchronize();
  return out.holds(9.0F);
}

TEST_F(CudaStreamTest, ACudaStreamWaitsForAHostEvent) {
  for_seeds([](std::uint64_t seed) { EXPECT_TRUE(copy_sees_worker(true)) << "seed " << seed; });
}

TEST_F(CudaStreamTest, ACudaStreamThatDoesNotWaitForTheHostCopiesTooEarly) {
  EXPECT_FALSE(copy_sees_worker(false));
}

TEST_F(CudaStreamTest, AStreamThatWaitsForAWorkerHoldsUpNoOther) {
  const auto until = [](std::atomic<bool>& go) {
    while (!go) {
      std::this_thread::yield();
    }
  };
  Stream first = Stream::cuda(Device::cuda(0));
  Stream second = Stream::cuda(Device::cuda(0));
  std::atomic<bool> go_slow{false};
  std::atomic<bool> go_quick{false};
  Stream slow = Stream::host_worker("slow");
  Stream quick = Stream::host_worker("quick");
  Event slow_is_done(Device::cpu());
  Event quick_is_done(Device::cpu());
  slow.enqueue([&] { until(go_slow); });
  slow.record(slow_is_done);
  quick.enqueue([&] { until(go_quick); });
  quick.record(quick_is_done);
  first.wait(slow_is_done);
#if LOCKSTEP_CUDA_STANDIN
  standin::step(1);  // the device executes the first stream's wait, if waits are work of the device
#endif
  second.wait(quick_is_done);
  std::promise<void> passed;
  std::thread rescue([&, over = passed.get_future()] {
    over.wait_for(std::chrono::seconds(3));
    go_slow = true;
  });
  go_quick = true;
  second.synchronize();
  EXPECT_FALSE(go_slow) << "the second stream waited for what the first one waits for";
  passed.set_value();
  rescue.join();
  first.synchronize();
}

TEST_F(CudaStreamTest, ThereAndBackThroughAWorker) {
  // The streams work as in an all-reduce on the host: the compute stream gives a buffer to a worker and continues with
  // the worker's result.
  for_seeds([](std::uint64_t seed) {
    CudaContext context(Device::cuda(0));
    const Pinned staged(context, kCount, 1.0F);
    const Tensor device = Tensor::empty(context, Shape{kCount}, DType::f32);
    Stream worker = Stream::host_worker("reduce");
    Event ready(context.device());
    Event reduced(Device::cpu());
    copy(context, staged, device);
    for (int i = 0; i < 5; ++i) {
      copy(context, device, staged);
      context.stream().record(ready);
      worker.wait(ready);
      worker.enqueue([&staged] {
        for (float& element : staged.span()) {
          element *= 2;
        }
      });
      worker.record(reduced);
      context.stream().wait(reduced);
      copy(context, staged, device);
    }
    const Pinned out(context, kCount);
    copy(context, device, out);
    context.synchronize();
    EXPECT_TRUE(out.holds(32.0F)) << "seed " << seed;
  });
}

TEST_F(CudaStreamTest, AWorkerWaitsForTheRecordBeforeItsWaitNotForALaterOne) {
  for_seeds([](std::uint64_t) {
    CudaContext context(Device::cuda(0));
    Stream worker = Stream::host_worker("waiter");
    Event event(context.device());
    Event passed(Device::cpu());
    Gate gate;
    worker.enqueue(gate.task());
    context.stream().record(event);
    worker.wait(event);
    worker.record(passed);
    context.stream().wait(passed);
    context.stream().record(event);  // completes only after the worker has passed its own wait
    gate.open();
    worker.synchronize();
    context.synchronize();
    EXPECT_TRUE(event.complete());
  });
}

TEST_F(CudaStreamTest, AFailedWorkerPoisonsStreamsThatWaitForIt) {
  for_seeds([](std::uint64_t) {
    Stream first = Stream::cuda(Device::cuda(0));
    Stream second = Stream::cuda(Device::cuda(0));
    Stream good = Stream::cuda(Device::cuda(0));
    Stream worker = Stream::host_worker("thrower");
    Stream reader = Stream::host_worker("reader");
    worker.enqueue([] { throw DataError("a task failed"); });
    Event failed(Device::cpu());
    worker.record(failed);
    Event before(Device::cuda(0));
    Event after(Device::cuda(0));
    first.record(before);
    first.wait(failed);
    first.record(after);
    second.wait(after);
    reader.wait(after);
    good.wait(before);
    const auto text = [](Stream& stream) { return error_text<DataError>([&] { stream.synchronize(); }); };
    EXPECT_EQ(text(first), "a task failed");
    EXPECT_EQ(text(first), "a task failed");
    EXPECT_EQ(text(second), "a task failed");
    EXPECT_EQ(text(reader), "a task failed");
    good.synchronize();
    before.synchronize();
    EXPECT_TRUE(after.complete());
    EXPECT_EQ(error_text<DataError>([&] { after.synchronize(); }), "a task failed");
  });
}

TEST_F(CudaStreamTest, StreamsThatWaitForEachOtherKnowOneFailure) {
  for_seeds([](std::uint64_t) {
    Stream first = Stream::cuda(Device::cuda(0));
    Stream second = Stream::cuda(Device::cuda(0));
    Stream good = Stream::host_worker("good");
    Stream bad = Stream::host_worker("bad");
    Gate gate;
    bad.enqueue(gate.task());
    bad.enqueue([] { throw DataError("a task failed"); });
    Event fine(Device::cpu());
    Event failed(Device::cpu());
    good.record(fine);
    bad.record(failed);
    Event to_second(Device::cuda(0));
    Event to_first(Device::cuda(0));
    Event last(Device::cuda(0));
    first.wait(fine);
    first.record(to_second);
    second.wait(to_second);
    second.wait(failed);
    second.record(to_first);
    first.wait(to_first);
    first.record(last);
    second.wait(last);
    gate.open();
    to_second.synchronize();
    EXPECT_EQ(error_text<DataError>([&] { last.synchronize(); }), "a task failed");
    EXPECT_EQ(error_text<DataError>([&] { first.synchronize(); }), "a task failed");
    EXPECT_EQ(error_text<DataError>([&] { second.synchronize(); }), "a task failed");
  });
}

TEST_F(CudaStreamTest, AnEventMayDieWhileItIsAwaited) {
  for_seeds([](std::uint64_t) {
    CudaContext a(Device::cuda(0));
    CudaContext b(Device::cuda(0));
    Stream worker = Stream::host_worker("waiter");
    const Pinned in(a, kCount, 3.0F);
    const Pinned out(b, kCount);
    const Tensor device = Tensor::empty(a, Shape{kCount}, DType::f32);
    copy(a, in, device);
    {
      Event event(a.device());
      a.stream().record(event);
      b.stream().wait(event);
      worker.wait(event);
    }
    copy(b, device, out);
    b.synchronize();
    worker.synchronize();
    EXPECT_TRUE(out.holds(3.0F));
    a.synchronize();
  });
}

TEST_F(CudaStreamTest, ABorrowedStreamMayOutliveItsWrapperWithAHostWaitQueued) {
  for_seeds([](std::uint64_t) {
    cudaStream_t theirs = nullptr;
    ASSERT_EQ(cudaStreamCreateWithPriority(&theirs, cudaStreamNonBlocking, 0), cudaSuccess);
    {
      Stream worker = Stream::host_worker("late");
      worker.enqueue([] { std::this_thread::yield(); });
      Event event(Device::cpu());
      worker.record(event);
      Stream borrowed = Stream::borrow_cuda(Device::cuda(0), theirs);
      borrowed.wait(event);
    }
    EXPECT_EQ(cudaStreamSynchronize(theirs), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
  });
}

}  // namespace
}  // namespace lockstep::testing
