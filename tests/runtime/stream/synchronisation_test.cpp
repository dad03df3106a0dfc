#include <lockstep/runtime/stream/synchronisation.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/print.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::testing {
namespace {

using Waits = std::vector<std::string>;  // texts "call: reason"

SyncReport into(Waits& waits) {
  return [&waits](const Synchronisation& wait) {
    EXPECT_GE(wait.seconds, 0);
    waits.push_back(concat(wait.call, ": ", name_of(wait.reason)));
  };
}

TEST(Synchronisation, OfAHostWorker) {
  Waits waits;
  {
    Stream worker = Stream::host_worker("w");
    worker.on_synchronisation(into(waits));
    worker.enqueue([] {});
    EXPECT_EQ(waits, Waits{});
    worker.synchronize();
    EXPECT_EQ(waits, Waits{"synchronize: requested"});
    waits.clear();
    // The first task blocks the worker until `opener` releases it. In nearly every try this happens after the last
    // enqueue has found the queue full, so this enqueue must wait.
    Stream opener = Stream::host_worker("opener");
    for (int i = 0; i < 1000 && waits.empty(); ++i) {
      std::atomic<bool> go{false};
      worker.enqueue([&] {
        while (!go) {
        }
      });
      for (std::size_t task = 1; task < Stream::kQueueSlots; ++task) {
        worker.enqueue([] {});
      }
      EXPECT_EQ(waits, Waits{});
      opener.enqueue([&] { go = true; });
      worker.enqueue([] {});
      Event done(Device::cpu());
      worker.record(done);
      done.synchronize();  // `go` must exist until here
    }
    EXPECT_EQ(waits, Waits{"enqueue: queue full"});
    waits.clear();
  }
  EXPECT_EQ(waits, Waits{"~Stream: destruction"});
}

TEST(Synchronisation, OffIsSilentAndTheLastReportCounts) {
  Waits first;
  Waits second;
  Stream worker = Stream::host_worker("w");
  EXPECT_EQ(worker.sync_log(), nullptr);
  worker.on_synchronisation(into(first));
  worker.on_synchronisation(into(second));
  EXPECT_NE(worker.sync_log(), nullptr);
  worker.synchronize();
  worker.on_synchronisation({});
  EXPECT_EQ(worker.sync_log(), nullptr);
  worker.synchronize();
  EXPECT_EQ(first, Waits{});
  EXPECT_EQ(second, Waits{"synchronize: requested"});
}

TEST(Synchronisation, InlineStreamsWaitForEventsOnly) {
  Waits waits;
  Stream worker = Stream::host_worker("w");
  Stream stream = Stream::host_inline();
  stream.on_synchronisation(into(waits));
  stream.enqueue([] {});
  stream.synchronize();
  Event event(Device::cpu());
  stream.wait(event);  // never recorded: complete
  EXPECT_EQ(waits, Waits{});
  // The opener must run after the wait has begun. Otherwise the event is already complete, and stream.wait() does not
  // wait. The loop tries until a wait is reported.
  Stream opener = Stream::host_worker("opener");
  for (int i = 0; i < 1000 && waits.empty(); ++i) {
    std::atomic<bool> go{false};
    worker.enqueue([&] {
      while (!go) {
      }
    });
    worker.record(event);
    opener.enqueue([&] { go = true; });
    const bool complete = event.complete();
    stream.wait(event);
    EXPECT_TRUE(!complete || waits.empty());
    opener.synchronize();
  }
  EXPECT_EQ(waits, Waits{"wait: event"});
}

TEST(Synchronisation, NothingWaitsForAnInlineStream) {
  Waits waits;
  CpuContext context;
  context.on_synchronisation(into(waits));
  static_cast<void>(to_string(context, Tensor::rand(context, Shape{3}, DType::f32, 1)));
  context.synchronize();
  EXPECT_EQ(waits, Waits{});
}

TEST(Synchronisation, TheOutermostCallIsReportedOnce) {
  Waits waits;
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  const Tensor tensor = Tensor::ones(context, Shape{3}, DType::f32);
  context.on_synchronisation(into(waits));
  static_cast<void>(to_string(context, tensor));
  EXPECT_EQ(waits, Waits{"to_string: host data"});
  context.on_synchronisation({});
}

TEST(Synchronisation, Text) {
  EXPECT_EQ(concat(Synchronisation{Device::cuda(1), "copy", SyncReason::host_copy, 4096, 0.25}),
            "copy on cuda:1 waited 0.25 s: host copy, 4096 bytes");
  EXPECT_EQ(concat(Synchronisation{Device::cpu(), "synchronize", SyncReason::requested, 0, 2}),
            "synchronize on cpu waited 2 s: requested");
}

TEST(Synchronisation, AMovedStreamKeepsItsReport) {
  Waits waits;
  Stream from = Stream::host_worker("w");
  from.on_synchronisation(into(waits));
  Stream to = std::move(from);
  to.synchronize();
  EXPECT_EQ(waits, Waits{"synchronize: requested"});
  EXPECT_THROW(from.on_synchronisation({}), StateError);  // NOLINT(bugprone-use-after-move): that is the test
  to.on_synchronisation({});
}

}  // namespace
}  // namespace lockstep::testing
