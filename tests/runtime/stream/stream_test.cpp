#include <lockstep/runtime/stream/stream.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/gate.hpp"

namespace lockstep::testing {
namespace {

TEST(HostStream, InlineRunsAtOnceInTheCaller) {
  Stream stream = Stream::host_inline();
  EXPECT_TRUE(stream.is_inline());
  EXPECT_EQ(stream.device(), Device::cpu());
  std::thread::id id;
  stream.enqueue([&] { id = std::this_thread::get_id(); });
  EXPECT_EQ(id, std::this_thread::get_id());
  EXPECT_THROW(stream.enqueue([] { throw DataError("x"); }), DataError);
  stream.enqueue([&] { id = {}; });  // an exception does not end the stream
  EXPECT_EQ(id, std::thread::id());
  Event event(Device::cpu());
  stream.record(event);
  EXPECT_TRUE(event.complete());
  EXPECT_NO_THROW(stream.synchronize());
}

TEST(HostStream, WorkerRunsInOrderOnOneOtherThread) {
  Stream stream = Stream::host_worker("a name longer than fifteen characters");
  EXPECT_FALSE(stream.is_inline());
  EXPECT_EQ(stream.device(), Device::cpu());
  std::vector<int> order;
  std::vector<std::thread::id> ids;
  for (int i = 0; i < 1000; ++i) {
    stream.enqueue([&, i] {
      order.push_back(i);
      ids.push_back(std::this_thread::get_id());
    });
  }
  stream.synchronize();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
    ASSERT_EQ(ids[static_cast<std::size_t>(i)], ids[0]);
  }
  EXPECT_NE(ids[0], std::this_thread::get_id());
}

TEST(HostStream, DestructorAndMoveWaitForWork) {
  std::atomic<int> done{0};
  {
    Stream stream = Stream::host_worker("w");
    for (int i = 0; i < 100; ++i) {
      stream.enqueue([&] { ++done; });
    }
    Stream moved = std::move(stream);
    moved.enqueue([&] { ++done; });
    EXPECT_THROW(stream.synchronize(), StateError);  // NOLINT(bugprone-use-after-move): the check under test
    moved = Stream::host_inline();
    EXPECT_EQ(done, 101);
  }
}

TEST(HostStream, LargeAndMoveOnlyCallables) {
  Stream stream = Stream::host_worker("w");
  std::array<unsigned char, Stream::kTaskBytes - 2 * sizeof(void*)> large{};
  large.front() = 1;
  large.back() = 2;
  int sum = 0;
  auto task = [large, &sum] { sum = large.front() + large.back(); };
  static_assert(sizeof(task) <= Stream::kTaskBytes && sizeof(task) > Stream::kTaskBytes - 64);
  stream.enqueue(task);
  auto owned = std::make_unique<int>(4);
  int seen = 0;
  stream.enqueue([owned = std::move(owned), &seen] { seen = *owned; });
  stream.synchronize();
  EXPECT_EQ(sum, 3);
  EXPECT_EQ(seen, 4);
}

TEST(HostStream, CallablesAreDestroyedOnceRun) {
  Stream stream = Stream::host_worker("w");
  auto token = std::make_shared<int>(0);
  for (int i = 0; i < 10; ++i) {
    stream.enqueue([token] { ++*token; });
  }
  stream.synchronize();
  EXPECT_EQ(*token, 10);
  EXPECT_EQ(token.use_count(), 1);
}

TEST(HostStream, EnqueueBlocksWhileTheRingIsFull) {
  Stream stream = Stream::host_worker("w");
  Gate gate;
  std::atomic<std::size_t> enqueued{0};
  std::atomic<bool> opened{false};
  std::vector<std::size_t> order;
  std::thread opener([&] {
    std::size_t seen = 0;
    while ((seen = enqueued.load()) < Stream::kQueueSlots) {
      enqueued.wait(seen);
    }
    opened = true;
    gate.open();
  });
  stream.enqueue(gate.task());
  ++enqueued;
  enqueued.notify_one();
  for (std::size_t i = 1; i < 4 * Stream::kQueueSlots; ++i) {
    stream.enqueue([&, i] { order.push_back(i); });
    if (i >= Stream::kQueueSlots) {
      EXPECT_TRUE(opened.load());  // the queue had no free slot until the blocked task ended
    }
    ++enqueued;
    enqueued.notify_one();
  }
  stream.synchronize();
  opener.join();
  ASSERT_EQ(order.size(), 4 * Stream::kQueueSlots - 1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    ASSERT_EQ(order[i], i + 1);
  }
}

TEST(HostStream, OwnTasksMayNotWaitForTheStream) {
  Stream stream = Stream::host_worker("w");
  stream.enqueue([&] { stream.synchronize(); });
  EXPECT_THROW(stream.synchronize(), StateError);
}

TEST(HostStream, CudaHandleIsRefused) {
  EXPECT_THROW(static_cast<void>(Stream::host_inline().cuda_handle()), StateError);
  EXPECT_THROW(static_cast<void>(Stream::host_worker("w").cuda_handle()), StateError);
  EXPECT_THROW(static_cast<void>(Stream::cuda(Device::cpu())), DeviceError);
  EXPECT_THROW(static_cast<void>(Stream::borrow_cuda(Device::cpu(), nullptr)), DeviceError);
}

TEST(HostStream, LaunchesNoKernels) {
  Stream stream = Stream::host_worker("w");
  EXPECT_FALSE(stream.launches_dependently());
  EXPECT_THROW(stream.launch_dependently(true), StateError);
  EXPECT_FALSE(stream.launches_dependently());
}

TEST(HostStream, CudaWithoutADeviceIsRefused) {
  const Device missing = Device::cuda(num_gpus());
  EXPECT_THROW(static_cast<void>(Stream::cuda(missing)), DeviceError);
  EXPECT_THROW(static_cast<void>(Stream::borrow_cuda(missing, nullptr)), DeviceError);
  EXPECT_THROW(static_cast<void>(Event(missing)), DeviceError);
}

TEST(HostEvent, NeverRecordedIsComplete) {
  Event event(Device::cpu());
  EXPECT_TRUE(event.complete());
  EXPECT_NO_THROW(event.synchronize());
  Stream worker = Stream::host_worker("w");
  worker.wait(event);
  worker.synchronize();
  Stream stream = Stream::host_inline();
  stream.wait(event);
}

TEST(HostEvent, CompletesWithTheWorkBeforeIt) {
  Stream stream = Stream::host_worker("w");
  Gate first;
  Gate second;
  stream.enqueue(first.task());
  Event event(Device::cpu());
  stream.record(event);
  stream.enqueue(second.task());
  EXPECT_FALSE(event.complete());
  first.open();
  event.synchronize();  // returns before the second gate opens
  EXPECT_TRUE(event.complete());
  second.open();
}

TEST(HostEvent, OutlivesItsStreamAndItsHandle) {
  std::optional<Event> event(std::in_place, Device::cpu(), Event::Timing::on);
  Stream waiter = Stream::host_worker("waiter");
  {
    Stream stream = Stream::host_worker("w");
    Gate gate;
    stream.enqueue(gate.task());
    stream.record(*event);
    waiter.wait(*event);
    event.reset();
    gate.open();
  }
  waiter.synchronize();

  Event other(Device::cpu());
  { Stream::host_worker("w").record(other); }
  EXPECT_TRUE(other.complete());
  other.synchronize();
}

TEST(HostEvent, OrdersWorkAcrossStreams) {
  Stream a = Stream::host_worker("a");
  Stream b = Stream::host_worker("b");
  Event from_a(Device::cpu());
  Event from_b(Device::cpu());
  std::int64_t value = 0;  // not atomic: only the events order the accesses
  for (int i = 0; i < 500; ++i) {
    a.wait(from_b);
    a.enqueue([&] { value = value * 3 + 1; });
    a.record(from_a);
    b.wait(from_a);
    b.enqueue([&] { value %= 1000003; });
    b.record(from_b);
  }
  Stream here = Stream::host_inline();
  here.wait(from_b);
  std::int64_t expected = 0;
  for (int i = 0; i < 500; ++i) {
    expected = (expected * 3 + 1) % 1000003;
  }
  EXPECT_EQ(value, expected);
}

TEST(HostEvent, WaitMeansTheLatestRecordBeforeIt) {
  // b waits for the first record. The second record of the same event comes after work of b. If the wait followed the
  // second record, both streams would wait for each other.
  Stream a = Stream::host_worker("a");
  Stream b = Stream::host_worker("b");
  Gate gate;
  Event event(Device::cpu(), Event::Timing::on);
  Event back(Device::cpu());
  a.record(event);
  b.enqueue(gate.task());
  b.wait(event);
  b.record(back);
  a.wait(back);
  a.record(event);
  gate.open();
  b.synchronize();
  a.synchronize();
  EXPECT_TRUE(event.complete());
}

TEST(HostEvent, ALaterRecordOnAFasterStreamIsTheOneThatCounts) {
  Stream slow = Stream::host_worker("slow");
  Stream fast = Stream::host_worker("fast");
  Gate gate;
  Event event(Device::cpu());
  slow.enqueue(gate.task());
  slow.record(event);
  EXPECT_FALSE(event.complete());
  fast.record(event);
  event.synchronize();
  EXPECT_TRUE(event.complete());
}

TEST(HostEvent, ManyThreadsMayWait) {
  Stream stream = Stream::host_worker("w");
  Gate gate;
  Event event(Device::cpu());
  int value = 0;
  stream.enqueue(gate.task());
  stream.enqueue([&] { value = 7; });
  stream.record(event);
  std::vector<std::thread> threads;
  std::atomic<int> sum{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      event.synchronize();
      sum += value;
    });
  }
  gate.open();
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(sum, 28);
}

TEST(HostEvent, DevicesMustMatch) {
  if (num_gpus() == 0) {
    GTEST_SKIP() << "an event of another device needs a CUDA device";
  }
  Event event(Device::cuda(0));
  Stream stream = Stream::host_inline();
  EXPECT_THROW(stream.record(event), DeviceError);
}

TEST(HostEvent, Timing) {
  Stream worker = Stream::host_worker("w");
  Stream here = Stream::host_inline();
  Event a(Device::cpu(), Event::Timing::on);
  Event b(Device::cpu(), Event::Timing::on);
  EXPECT_THROW(static_cast<void>(b.seconds_since(a)), StateError);  // never recorded
  here.record(a);
  Gate gate;
  worker.enqueue(gate.task());
  worker.record(b);
  EXPECT_THROW(static_cast<void>(b.seconds_since(a)), StateError);  // not complete
  gate.open();
  b.synchronize();
  const double seconds = b.seconds_since(a);
  EXPECT_GT(seconds, 0);
  EXPECT_LT(seconds, 60);
  EXPECT_EQ(a.seconds_since(b), -seconds);
  worker.record(a);
  worker.synchronize();
  EXPECT_LT(b.seconds_since(a), 0);  // negative, because the latest record of event a counts
  Event off(Device::cpu());
  here.record(off);
  EXPECT_THROW(static_cast<void>(off.seconds_since(a)), StateError);
  EXPECT_THROW(static_cast<void>(a.seconds_since(off)), StateError);
}

TEST(Poison, LaterWorkIsSkippedAndTheExceptionComesBack) {
  Stream stream = Stream::host_worker("w");
  Event before(Device::cpu());
  Event after(Device::cpu());
  Event timed(Device::cpu(), Event::Timing::on);
  Gate gate;
  auto token = std::make_shared<int>(0);
  bool ran = false;
  stream.enqueue(gate.task());
  stream.record(before);
  stream.enqueue([] { throw DataError("record 17 is damaged"); });
  stream.enqueue([&ran, token] { ran = true; });
  stream.record(after);
  stream.record(timed);
  gate.open();
  for (int i = 0; i < 2; ++i) {  // every call throws the error
    EXPECT_EQ(error_of<DataError>([&] { stream.synchronize(); }), "record 17 is damaged");
    EXPECT_EQ(error_of<DataError>([&] { stream.enqueue([] {}); }), "record 17 is damaged");
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(token.use_count(), 1) << "the skipped task was not destroyed";
  EXPECT_TRUE(before.complete());
  EXPECT_NO_THROW(before.synchronize());
  EXPECT_TRUE(after.complete());
  EXPECT_EQ(error_of<DataError>([&] { after.synchronize(); }), "record 17 is damaged");
  EXPECT_TRUE(timed.complete());
  EXPECT_EQ(error_of<DataError>([&] { static_cast<void>(timed.seconds_since(timed)); }), "record 17 is damaged");
  // An event that is recorded after the stream's failure was seen must give the same error.
  Event late(Device::cpu());
  stream.record(late);
  EXPECT_EQ(error_of<DataError>([&] { late.synchronize(); }), "record 17 is damaged");
  Event late_timed(Device::cpu(), Event::Timing::on);
  stream.record(late_timed);
  EXPECT_EQ(error_of<DataError>([&] { late_timed.synchronize(); }), "record 17 is damaged");
}

TEST(Poison, SpreadsThroughEvents) {
  Stream a = Stream::host_worker("a");
  Stream b = Stream::host_worker("b");
  Stream c = Stream::host_worker("c");
  Stream here = Stream::host_inline();
  Event from_a(Device::cpu());
  Event from_b(Device::cpu());
  bool ran = false;
  Gate gate;
  a.enqueue(gate.task());
  a.enqueue([] { throw MpiError("all_reduce failed"); });
  a.record(from_a);
  b.wait(from_a);
  b.enqueue([&] { ran = true; });
  b.record(from_b);
  c.wait(from_b);
  gate.open();
  EXPECT_EQ(error_of<MpiError>([&] { c.synchronize(); }), "all_reduce failed");
  EXPECT_EQ(error_of<MpiError>([&] { b.synchronize(); }), "all_reduce failed");
  EXPECT_EQ(error_of<MpiError>([&] { here.wait(from_b); }), "all_reduce failed");
  EXPECT_FALSE(ran);
  EXPECT_NO_THROW(here.synchronize());
}

TEST(Poison, DoesNotReachEventsRecordedBefore) {
  Stream a = Stream::host_worker("a");
  Stream b = Stream::host_worker("b");
  Event good(Device::cpu());
  int value = 0;
  a.enqueue([&] { value = 3; });
  a.record(good);
  a.enqueue([] { throw DataError("x"); });
  EXPECT_THROW(a.synchronize(), DataError);
  int seen = 0;
  b.wait(good);
  b.enqueue([&] { seen = value; });
  EXPECT_NO_THROW(b.synchronize());
  EXPECT_EQ(seen, 3);
}

TEST(Poison, EndsAnEnqueueThatWaitsForASlot) {
  Stream stream = Stream::host_worker("w");
  Gate gate;
  stream.enqueue(gate.task());
  stream.enqueue([] { throw DataError("x"); });
  std::atomic<bool> full{false};
  std::thread opener([&] {
    full.wait(false);
    gate.open();
  });
  for (std::size_t i = 2; i < Stream::kQueueSlots; ++i) {
    stream.enqueue([] {});
  }
  full = true;
  full.notify_one();
  EXPECT_THROW(
      for (std::size_t i = 0; i < 3 * Stream::kQueueSlots; ++i) { stream.enqueue([] {}); }, DataError);
  opener.join();
}

TEST(Poison, AnUnfetchedExceptionIsDropped) {
  Stream stream = Stream::host_worker("w");
  stream.enqueue([] { throw DataError("nobody asks"); });
}

TEST(HostEvent, RandomGraphsKeepTheirOrder) {
  // Runs work items on random streams. Each item reads the results of earlier items, on its stream or covered by its
  // waits. If a wait did not work, a number here would be wrong, and ThreadSanitizer would report a race.
  constexpr std::size_t kStreams = 3;
  constexpr std::size_t kItems = 600;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed, RandomUse::test);
    std::vector<Stream> streams;
    std::vector<Event> events;
    std::array<std::uint64_t, kStreams> last{};      // the host's copy of the latest value of each stream
    std::array<std::uint64_t, kStreams> recorded{};  // the host's copy of the value at each event
    std::array<std::uint64_t, kStreams> cells{};     // one cell for each stream, written by its tasks
    std::vector<std::uint64_t> seen(kItems, 0);
    std::vector<std::uint64_t> expected(kItems, 0);
    for (std::size_t i = 0; i < kStreams; ++i) {
      streams.push_back(Stream::host_worker("graph"));
      events.emplace_back(Device::cpu(), i == 0 ? Event::Timing::on : Event::Timing::off);
    }
    for (std::size_t i = 0; i < kItems; ++i) {
      const std::size_t s = random.below(kStreams);
      const std::size_t other = (s + 1 + random.below(kStreams - 1)) % kStreams;
      // Stream `other` publishes its cell and stream `s` reads it. Stream `other` may write its cell again only after
      // this read.
      streams[other].record(events[other]);
      recorded[other] = last[other];
      streams[s].wait(events[other]);
      expected[i] = recorded[other] * 31 + i;
      last[s] = expected[i];
      streams[s].enqueue([&cells, &seen, s, other, i] { cells[s] = seen[i] = cells[other] * 31 + i; });
      streams[s].record(events[s]);
      streams[other].wait(events[s]);
    }
    for (Stream& stream : streams) {
      stream.synchronize();
    }
    EXPECT_EQ(seen, expected);
  }
}

}  // namespace
}  // namespace lockstep::testing
