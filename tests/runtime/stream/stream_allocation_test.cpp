// Counts every allocation of this program. A stream must allocate nothing after its construction.
#include <lockstep/runtime/stream/stream.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  ++allocations;
  void* pointer = std::malloc(bytes != 0 ? bytes : 1);
  if (pointer == nullptr) {
    throw std::bad_alloc();
  }
  return pointer;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void operator delete(void* pointer) noexcept {
  std::free(pointer);
}
void operator delete[](void* pointer) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  std::free(pointer);
}
void operator delete[](void* pointer, std::size_t) noexcept {
  std::free(pointer);
}

namespace lockstep::testing {
namespace {

/// Returns the number of allocations during f, on all threads.
template <class F>
long allocations_in(F&& f) {
  const long before = allocations.load();
  f();
  return allocations.load() - before;
}

TEST(StreamAllocation, TheCounterCounts) {
  void* volatile pointer = nullptr;  // volatile, so that the pair is not optimised away
  EXPECT_EQ(allocations_in([&] { pointer = ::operator new(3); }), 1);
  ::operator delete(pointer);
}

void use(Stream& a, Stream& b, Event& plain, Event& timed) {
  std::array<double, 100> payload{};
  double sum = 0;
  for (int i = 0; i < 1000; ++i) {
    a.enqueue([payload, &sum] { sum += payload[3]; });
    a.record(plain);
    a.record(timed);
    b.wait(plain);
    b.wait(timed);
    b.enqueue([&sum] { sum += 1; });
    b.record(plain);
    a.wait(plain);
    static_cast<void>(plain.complete());
  }
  timed.synchronize();
  static_cast<void>(timed.seconds_since(timed));
  a.synchronize();
  b.synchronize();
}

TEST(StreamAllocation, WorkersAndEvents) {
  Stream a = Stream::host_worker("a");
  Stream b = Stream::host_worker("b");
  Event plain(Device::cpu());
  Event timed(Device::cpu(), Event::Timing::on);
  EXPECT_EQ(allocations_in([&] { use(a, b, plain, timed); }), 0);
}

TEST(StreamAllocation, InlineStreams) {
  Stream a = Stream::host_inline();
  Stream worker = Stream::host_worker("b");
  Event plain(Device::cpu());
  Event timed(Device::cpu(), Event::Timing::on);
  EXPECT_EQ(allocations_in([&] { use(a, worker, plain, timed); }), 0);
}

}  // namespace
}  // namespace lockstep::testing
