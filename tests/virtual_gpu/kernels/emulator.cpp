#include "emulator.hpp"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <sstream>
#include <utility>

#include "device_calls.hpp"
#include "fiber.hpp"
#include "indices.hpp"
#include "race_checker.hpp"

#if defined(LOCKSTEP_EMULATION_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) (static_cast<void>(begin), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) (static_cast<void>(begin), static_cast<void>(bytes))
#endif

namespace lockstep::emulation {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMostThreads = 4096;  // limit of CUDA threads in flight
constexpr std::size_t kArena = 288 * 1024;
constexpr std::size_t kGap = 64;  // bytes of canaries between shared variables
constexpr std::byte kCanary{0xC5};
constexpr char kDynamicKey = 0;

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.file << ':' << place.line;
}

std::ostream& operator<<(std::ostream& out, const uint3& index) {
  return out << '(' << index.x << ',' << index.y << ',' << index.z << ')';
}

std::ostream& operator<<(std::ostream& out, const dim3& extents) {
  return out << '(' << extents.x << ',' << extents.y << ',' << extents.z << ')';
}

struct Mask {
  unsigned bits;
};
std::ostream& operator<<(std::ostream& out, Mask mask) {
  std::ostringstream digits;
  digits << std::hex << mask.bits;
  return out << "0x" << digits.str();
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

uint3 position(std::uint64_t number, const dim3& extents) {
  return {static_cast<unsigned>(number % extents.x), static_cast<unsigned>(number / extents.x % extents.y),
          static_cast<unsigned>(number / extents.x / extents.y)};
}

std::uint64_t count(const dim3& extents) {
  return std::uint64_t{extents.x} * extents.y * extents.z;
}

/// A random number generator (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  bool one_in(unsigned n) { return (*this)() % n == 0; }

 private:
  std::uint64_t state_;
};

constexpr const char* kBarrierNames[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and",
                                         "__syncthreads_or"};
constexpr const char* kCollectiveNames[] = {"__syncwarp",     "a vote",           "__shfl_sync",
                                            "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};

enum class State : unsigned char { fresh, ready, running, at_barrier, at_collective, at_grid, exited };

struct Slot;

/// One CUDA thread in flight.
struct Thread {
  Slot* slot = nullptr;
  unsigned number = 0;  // index of the thread in its block
  uint3 index = {};
  State state = State::fresh;
  Fiber* fiber = nullptr;  // fiber on which the thread is suspended
  std::uint64_t priority = 0;
  Place place = {};  // source line of the barrier or collective

  Barrier barrier = {};
  int predicate = 0;
  int result = 0;

  Collective collective = {};
  unsigned mask = 0;
  int argument = 0;
  int width = 0;
  std::size_t bytes = 0;
  alignas(16) std::byte value[16] = {};
};

struct Warp {
  unsigned alive = 0;    // lanes that have not returned
  unsigned waiting = 0;  // lanes in a collective
  std::uint64_t priority = 0;
};

/// The shared memory of a block, with canary bytes around each variable: [canaries | variable | canaries | variable |
/// ...].
struct Arena {
  std::byte* base = nullptr;
  std::size_t used = 0;      // bytes used, with canaries
  std::size_t occupied = 0;  // bytes used by variables
  std::vector<race::SharedVariable> variables;
};

/// A block in flight, or a free slot for a block.
struct Slot {
  std::uint64_t block = 0;
  uint3 index = {};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  unsigned alive = 0;
  unsigned arrived = 0;  // threads that wait at the block's barrier
  std::uint64_t priority = 0;
  Arena* arena = nullptr;
  race::Block order;
};

class Machine {
 public:
  void run(const Launch& launch, const Schedule& schedule, void (*body)(void*), void* context);

  int barrier(Barrier kind, int predicate, Place place);
  void grid_barrier(Place place);
  void collective(Collective kind, unsigned mask, int argument, int width, void* value, std::size_t bytes, Place place);
  void* shared(const void* key, std::size_t bytes, std::size_t alignment, const char* name, Place place);
  void* dynamic_shared(const char* name, Place place);
  void before_atomic(const void* address, std::size_t bytes, Place place, const void* code);
  void fence(bool device_wide);
  void fiber_main();

  [[nodiscard]] std::string thread_name(const Thread& thread) const;
  [[nodiscard]] std::string thread_name(std::uint64_t block, unsigned thread) const;
  [[nodiscard]] const Thread* current() const { return current_; }
  [[nodiscard]] const Launch* launch() const { return launch_; }
  [[nodiscard]] const FiberPool& fibers() const { return pool_; }
  [[nodiscard]] const Fiber* fiber() const { return fiber_; }

  /// Ends the launch with the error text that make() returns. The call never returns and runs no destructors, so the
  /// caller must own no memory.
  template <class Make>
  [[noreturn]] void fail(Make make) {
    error_ = make();
    abandon();
  }
  [[noreturn]] void abandon();
  void wild_access(const void* address, const void* code) {
    wild_ = true;
    wild_address_ = address;
    wild_code_ = code;
  }

  /// Locked while a kernel runs. Memory can be registered only while it is unlocked.
  std::mutex running;

 private:
  static void entry();
  void check(const Launch& launch) const;
  void start_block(Slot& slot);
  void end_block(Slot& slot);
  void execute(Thread& thread);
  void finish(Thread& thread);
  void enter(Thread& thread);
  void go(Thread& next);
  void wait();
  [[noreturn]] void deadlock();
  void check_barrier(Slot& slot);
  void try_collective(Slot& slot, unsigned warp, unsigned mask);
  void push(Thread& thread);
  Thread* pick();
  void draw_priorities(Slot& slot);
  [[nodiscard]] std::string describe_deadlock() const;
  [[nodiscard]] std::string describe_divergence(const Thread& a, const Thread& b) const;
  [[nodiscard]] std::string describe_exited(const Slot& slot) const;
  [[nodiscard]] std::string describe_overrun(const Slot& slot, std::size_t offset) const;
  bool maybe_switch();

  std::atomic<bool> busy_ = false;
  const Launch* launch_ = nullptr;
  const Schedule* schedule_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  Random random_{0};
  int poison_ = 0xFF;

  std::vector<Slot> slots_;
  std::uint64_t blocks_ = 0;
  std::uint64_t next_block_ = 0;
  std::uint64_t stride_ = 1, offset_ = 0;  // block number i to start is (i * stride_ + offset_) % blocks_
  std::uint64_t alive_ = 0;                // threads in flight that have not returned
  std::uint64_t at_grid_ = 0;              // threads in flight that are in grid_barrier()

  std::deque<Thread*> line_;                             // queue of the ascending and descending orders
  std::vector<std::pair<std::uint64_t, Thread*>> heap_;  // queue of the random order; the largest key runs first

  Fiber home_;
  Fiber* fiber_ = nullptr;  // fiber that runs
  Thread* current_ = nullptr;
  std::vector<Fiber*> idle_;  // fibers in fiber_main that wait for a new thread
  FiberPool pool_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::string error_;
  bool failed_ = false;
  bool wild_ = false;
  const void* wild_address_ = nullptr;
  const void* wild_code_ = nullptr;
};

Machine& machine() {
  static Machine it;
  return it;
}

// ---- Order ----

void Machine::push(Thread& thread) {
  if (thread.state != State::fresh) {
    thread.state = State::ready;
  }
  if (schedule_->order != Order::random) {
    line_.push_back(&thread);
    return;
  }
  std::uint64_t key = 0;
  switch (schedule_->style()) {
    case Style::uniform:
      key = random_();
      break;
    case Style::block_priority:
      key = thread.slot->priority << 42 | thread.slot->warps[thread.number / kWarp].priority << 21 | thread.priority;
      break;
    case Style::thread_priority:
      key = thread.priority;
      break;
  }
  heap_.emplace_back(key, &thread);
  std::push_heap(heap_.begin(), heap_.end());
}

Thread* Machine::pick() {
  Thread* thread = nullptr;
  if (schedule_->order == Order::random) {
    if (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      thread = heap_.back().second;
      heap_.pop_back();
    }
  } else if (!line_.empty()) {
    if (schedule_->order == Order::ascending) {
      thread = line_.front();
      line_.pop_front();
    } else {
      thread = line_.back();
      line_.pop_back();
    }
  }
  return thread;
}

void Machine::draw_priorities(Slot& slot) {
  constexpr std::uint64_t kBits = (std::uint64_t{1} << 21) - 1;
  slot.priority = random_() & kBits;
  for (Warp& warp : slot.warps) {
    warp.priority = random_() & kBits;
  }
  for (Thread& thread : slot.threads) {
    thread.priority = random_() & kBits;
  }
}

// ---- Threads on fibers ----

void Machine::enter(Thread& thread) {
  current_ = &thread;
  thread.state = State::running;
  threadIdx = thread.index;
  blockIdx = thread.slot->index;
  race::resume(&thread.slot->order, thread.number);
}

void Machine::go(Thread& next) {
  Fiber* from = fiber_;
  Fiber* to = next.fiber;
  if (next.state == State::fresh) {
    if (idle_.empty()) {
      to = pool_.take(&Machine::entry);
    } else {
      to = idle_.back();
      idle_.pop_back();
    }
  }
  enter(next);
  fiber_ = to;
  switch_fiber(*from, *to);
}

void Machine::wait() {
  Thread& self = *current_;
  self.fiber = fiber_;
  race::resume(nullptr, 0);
  Thread* next = pick();
  if (next == nullptr) {
    deadlock();
  }
  if (next == &self) {
    enter(self);
  } else {
    go(*next);
  }
}

void Machine::entry() {
  machine().fiber_main();
}

void Machine::fiber_main() {
  for (;;) {
    execute(*current_);
    finish(*current_);
    Thread* next = pick();
    if (next == nullptr) {
      if (alive_ != 0) {
        deadlock();
      }
      switch_fiber(*fiber_, home_);  // this fiber has no more work; the call does not return
    }
    if (next->state == State::fresh) {
      enter(*next);
      continue;
    }
    idle_.push_back(fiber_);
    go(*next);
  }
}

void Machine::execute(Thread&) {
  bool threw = false;
  try {
    body_(context_);
  } catch (const std::exception& error) {
    error_ = text("the kernel threw: ", error.what());
    threw = true;
  } catch (...) {
    error_ = "the kernel threw something";
    threw = true;
  }
  if (threw) {
    abandon();
  }
}

void Machine::finish(Thread& thread) {
  race::resume(nullptr, 0);
  Slot& slot = *thread.slot;
  thread.state = State::exited;
  --alive_;
  Warp& warp = slot.warps[thread.number / kWarp];
  warp.alive &= ~(1u << thread.number % kWarp);
  if (--slot.alive == 0) {
    end_block(slot);
    if (next_block_ < blocks_) {
      start_block(slot);
    }
    return;
  }
  check_barrier(slot);
  // The lane has exited. Now collectives that waited only for this lane can complete.
  const unsigned first = thread.number / kWarp * kWarp;
  for (unsigned left = warp.waiting; left != 0;) {
    const unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
    left &= left - 1;
    if ((warp.waiting >> lane & 1u) != 0) {
      try_collective(slot, thread.number / kWarp, slot.threads[first + lane].mask);
    }
  }
}

void Machine::abandon() {
  race::resume(nullptr, 0);
  failed_ = true;
  switch_fiber(*fiber_, home_);
  __builtin_unreachable();
}

void Machine::deadlock() {
  fail([this] { return describe_deadlock(); });
}

// ---- Blocks ----

void Machine::start_block(Slot& slot) {
  const std::uint64_t turn = next_block_++;
  slot.block = (turn * stride_ + offset_) % blocks_;
  if (schedule_->order == Order::descending) {
    slot.block = blocks_ - 1 - turn;
  }
  slot.index = position(slot.block, launch_->grid);
  const auto threads = static_cast<unsigned>(count(launch_->block));
  if (slot.threads.size() != threads) {
    slot.threads.resize(threads);
    slot.warps.resize((threads + kWarp - 1) / kWarp);
    for (unsigned i = 0; i < threads; ++i) {
      slot.threads[i].slot = &slot;
      slot.threads[i].number = i;
      slot.threads[i].index = position(i, launch_->block);
    }
  }
  if (schedule_->order == Order::random) {
    draw_priorities(slot);
  }
  slot.alive = threads;
  slot.arrived = 0;
  alive_ += threads;
  for (unsigned warp = 0; warp < slot.warps.size(); ++warp) {
    const unsigned lanes = std::min(kWarp, threads - warp * kWarp);
    slot.warps[warp].alive = lanes == kWarp ? ~0u : (1u << lanes) - 1;
    slot.warps[warp].waiting = 0;
  }
  Arena& arena = *slot.arena;
  ASAN_POISON_MEMORY_REGION(arena.base, kArena);
  arena.used = 0;
  arena.occupied = 0;
  arena.variables.clear();
  race::start_block(slot.order, static_cast<std::uint32_t>(slot.block), threads, &arena.variables);
  for (Thread& thread : slot.threads) {
    thread.state = State::fresh;
    push(thread);
  }
}

void Machine::end_block(Slot& slot) {
  Arena& arena = *slot.arena;
  ASAN_UNPOISON_MEMORY_REGION(arena.base, arena.used);
  std::size_t at = 0;
  for (std::size_t i = 0; i <= arena.variables.size(); ++i) {
    const bool last = i == arena.variables.size();
    const std::size_t end = last ? arena.used : static_cast<std::size_t>(arena.variables[i].data - arena.base);
    for (; at < end; ++at) {
      if (arena.base[at] != kCanary) {
        fail([&] { return describe_overrun(slot, at); });
      }
    }
    if (!last) {
      at += arena.variables[i].bytes;
    }
  }
}

void* Machine::shared(const void* key, std::size_t bytes, std::size_t alignment, const char* name, Place place) {
  Slot& slot = *current_->slot;
  Arena& arena = *slot.arena;
  for (const race::SharedVariable& variable : arena.variables) {
    if (variable.key == key) {
      return variable.data;
    }
  }
  if (arena.occupied + bytes > launch_->shared_limit) {
    fail([&] {
      return text("too much shared memory: ", arena.occupied + bytes, " bytes with the ", bytes, " of '", name, "' at ",
                  place, ", allowed are ", launch_->shared_limit);
    });
  }
  // The address is an odd multiple of the type's alignment. So code that needs a larger alignment does not work by
  // chance.
  const auto start = reinterpret_cast<std::uintptr_t>(arena.base);
  const std::uintptr_t odd = (start + std::max(arena.used, kGap) + alignment - 1) / alignment | 1;
  const std::size_t begin = odd * alignment - start;
  const std::size_t end = begin + bytes + kGap;
  if (end > kArena) {
    fail([&] { return text("too many shared variables: no room for '", name, "' at ", place); });
  }
  std::byte* data = arena.base + begin;
  ASAN_UNPOISON_MEMORY_REGION(arena.base + arena.used, end - arena.used);
  std::memset(arena.base + arena.used, static_cast<int>(kCanary), begin - arena.used);
  std::memset(data, poison_, bytes);
  std::memset(data + bytes, static_cast<int>(kCanary), kGap);
  ASAN_POISON_MEMORY_REGION(arena.base + arena.used, end - arena.used);
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  arena.used = end;
  arena.occupied += bytes;
  arena.variables.push_back({key, data, bytes, name, place});
  return data;
}

void* Machine::dynamic_shared(const char* name, Place place) {
  return shared(&kDynamicKey, launch_->shared_bytes, 16, name, place);
}

std::string Machine::describe_overrun(const Slot& slot, std::size_t offset) const {
  const Arena& arena = *slot.arena;
  const std::byte* at = arena.base + offset;
  const race::SharedVariable* nearest = nullptr;
  std::ptrdiff_t distance = 0;
  bool past = true;
  for (const race::SharedVariable& variable : arena.variables) {
    const bool behind = at >= variable.data;
    const std::ptrdiff_t away = behind ? at - (variable.data + variable.bytes) : variable.data - at;
    if (nearest == nullptr || away < distance) {
      nearest = &variable;
      distance = away;
      past = behind;
    }
  }
  return text("shared memory overrun: block ", slot.index, " wrote ", distance,
              past ? " bytes past the end of '" : " bytes before the start of '", nearest->name, "' (", nearest->bytes,
              " bytes, ", nearest->place, ")");
}

// ---- Barriers ----

int Machine::barrier(Barrier kind, int predicate, Place place) {
  Thread& thread = *current_;
  thread.state = State::at_barrier;
  thread.barrier = kind;
  thread.predicate = predicate;
  thread.place = place;
  ++thread.slot->arrived;
  check_barrier(*thread.slot);
  wait();
  return thread.result;
}

void Machine::check_barrier(Slot& slot) {
  if (slot.arrived == 0 || slot.arrived != slot.alive) {
    return;
  }
  if (slot.alive != slot.threads.size()) {
    fail([&] { return describe_exited(slot); });
  }
  const Thread& first = slot.threads[0];
  int votes = 0;
  for (const Thread& thread : slot.threads) {
    const bool same = thread.barrier == first.barrier && thread.place.line == first.place.line &&
                      (thread.place.file == first.place.file || std::strcmp(thread.place.file, first.place.file) == 0);
    if (!same) {
      fail([&] { return describe_divergence(first, thread); });
    }
    votes += thread.predicate != 0 ? 1 : 0;
  }
  int result = 0;
  switch (first.barrier) {
    case Barrier::sync:
      break;
    case Barrier::count:
      result = votes;
      break;
    case Barrier::all:
      result = votes == static_cast<int>(slot.threads.size()) ? 1 : 0;
      break;
    case Barrier::any:
      result = votes != 0 ? 1 : 0;
      break;
  }
  slot.arrived = 0;
  race::block_barrier(slot.order);
  if (schedule_->order == Order::random && random_.one_in(4)) {
    draw_priorities(slot);
  }
  for (Thread& thread : slot.threads) {
    thread.result = result;
    push(thread);
  }
}

// Waits for all threads of the launch. If a thread has returned or waits elsewhere, the emulator reports a deadlock.
void Machine::grid_barrier(Place place) {
  if (!launch_->cooperative) {
    fail([&] {
      return text("grid barrier: ", thread_name(*current_), " calls grid_barrier() at ", place,
                  " in a launch that is not cooperative");
    });
  }
  current_->state = State::at_grid;
  current_->place = place;
  if (++at_grid_ == blocks_ * count(launch_->block)) {
    at_grid_ = 0;
    race::start_launch(blocks_);  // for the race checker, the barrier orders accesses like a new launch
    for (Slot& slot : slots_) {
      race::start_block(slot.order, static_cast<std::uint32_t>(slot.block), static_cast<unsigned>(slot.threads.size()),
                        &slot.arena->variables);
      if (schedule_->order == Order::random) {
        draw_priorities(slot);
      }
      for (Thread& thread : slot.threads) {
        push(thread);
      }
    }
  }
  wait();
}

std::string Machine::describe_divergence(const Thread& a, const Thread& b) const {
  return text("divergent block barrier: ", thread_name(a), " waits at ", kBarrierNames[static_cast<int>(a.barrier)],
              " ", a.place, ", but ", thread_name(b), " at ", kBarrierNames[static_cast<int>(b.barrier)], " ", b.place);
}

std::string Machine::describe_exited(const Slot& slot) const {
  const Thread* gone = nullptr;
  const Thread* waits = nullptr;
  for (const Thread& thread : slot.threads) {
    if (thread.state == State::exited && gone == nullptr) {
      gone = &thread;
    }
    if (thread.state == State::at_barrier && waits == nullptr) {
      waits = &thread;
    }
  }
  return text("exited before a barrier: ", thread_name(*gone), " has returned from the kernel, but ",
              thread_name(*waits), " waits at ", kBarrierNames[static_cast<int>(waits->barrier)], " ", waits->place);
}

std::string Machine::describe_deadlock() const {
  constexpr int kMost = 12;
  std::ostringstream out;
  std::ostringstream list;
  std::uint64_t waiting = 0;
  for (const Slot& slot : slots_) {
    for (const Thread& thread : slot.threads) {
      if (thread.state != State::at_barrier && thread.state != State::at_collective && thread.state != State::at_grid) {
        continue;
      }
      if (++waiting > kMost) {
        continue;
      }
      list << "\n  " << thread_name(thread) << " waits at ";
      if (thread.state == State::at_barrier) {
        list << kBarrierNames[static_cast<int>(thread.barrier)];
      } else if (thread.state == State::at_grid) {
        list << "grid_barrier";
      } else {
        list << kCollectiveNames[static_cast<int>(thread.collective)] << " mask " << Mask{thread.mask};
      }
      list << ' ' << thread.place;
    }
  }
  out << "deadlock: " << waiting << " threads wait and none can run" << (waiting > kMost ? "; the first 12:" : ":")
      << list.str();
  return out.str();
}

// ---- Warps ----

void Machine::collective(Collective kind, unsigned mask, int argument, int width, void* value, std::size_t bytes,
                         Place place) {
  Thread& thread = *current_;
  const unsigned lane = thread.number % kWarp;
  if ((mask >> lane & 1u) == 0) {
    fail([&] {
      return text("bad warp mask: ", thread_name(thread), ", lane ", lane, ", calls ",
                  kCollectiveNames[static_cast<int>(kind)], " at ", place, " with mask ", Mask{mask},
                  ", which does not name it");
    });
  }
  if (width < 1 || width > static_cast<int>(kWarp) || (width & (width - 1)) != 0) {
    fail([&] {
      return text("bad shuffle width: ", thread_name(thread), " calls ", kCollectiveNames[static_cast<int>(kind)],
                  " at ", place, " with width ", width, ", expected a power of two up to 32");
    });
  }
  thread.state = State::at_collective;
  thread.collective = kind;
  thread.mask = mask;
  thread.argument = argument;
  thread.width = width;
  thread.bytes = bytes;
  thread.place = place;
  if (bytes != 0) {
    std::memcpy(thread.value, value, bytes);
  }
  const unsigned warp = thread.number / kWarp;
  thread.slot->warps[warp].waiting |= 1u << lane;
  try_collective(*thread.slot, warp, mask);
  wait();
  if (bytes != 0) {
    std::memcpy(value, thread.value, bytes);
  }
}

/// Returns the lane from which a shuffle reads. The lane is in the same segment of `width` lanes as `lane`.
unsigned source_lane(Collective kind, unsigned lane, int argument, int width) {
  const auto segment = static_cast<unsigned>(width);
  const unsigned first = lane & ~(segment - 1);
  const unsigned last = first + segment - 1;
  const unsigned amount = static_cast<unsigned>(argument) & (kWarp - 1);
  switch (kind) {
    case Collective::shuffle:
      return first + (amount & (segment - 1));
    case Collective::shuffle_up:
      return lane >= first + amount ? lane - amount : lane;
    case Collective::shuffle_down:
      return lane + amount <= last ? lane + amount : lane;
    case Collective::shuffle_xor:
      return (lane ^ amount) <= last ? lane ^ amount : lane;  // lanes of lower segments may be read, too
    default:
      return lane;
  }
}

void Machine::try_collective(Slot& slot, unsigned warp_number, unsigned mask) {
  Warp& warp = slot.warps[warp_number];
  const unsigned need = mask & warp.alive;
  if (need == 0 || (warp.waiting & need) != need) {
    return;
  }
  Thread* lanes = &slot.threads[std::size_t{warp_number} * kWarp];
  const Thread& first = lanes[__builtin_ctz(need)];
  for (unsigned left = need; left != 0; left &= left - 1) {
    const Thread& thread = lanes[__builtin_ctz(left)];
    if (thread.mask != mask || thread.collective != first.collective || thread.bytes != first.bytes) {
      return;
    }
  }
  switch (first.collective) {
    case Collective::sync:
      race::sync_warp(slot.order, warp_number, need);
      break;
    case Collective::ballot: {
      unsigned votes = 0;
      for (unsigned left = need; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        unsigned predicate = 0;
        std::memcpy(&predicate, lanes[lane].value, sizeof(predicate));
        votes |= predicate != 0 ? 1u << lane : 0;
      }
      for (unsigned left = need; left != 0; left &= left - 1) {
        std::memcpy(lanes[__builtin_ctz(left)].value, &votes, sizeof(votes));
      }
      break;
    }
    default: {
      std::byte before[kWarp][16];
      for (unsigned left = need; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        std::memcpy(before[lane], lanes[lane].value, first.bytes);
      }
      for (unsigned left = need; left != 0; left &= left - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(left));
        const unsigned source = source_lane(first.collective, lane, lanes[lane].argument, lanes[lane].width);
        if ((need >> source & 1u) != 0) {
          std::memcpy(lanes[lane].value, before[source], first.bytes);
        } else {
          std::memset(lanes[lane].value, 0xFF, first.bytes);
        }
      }
    }
  }
  warp.waiting &= ~need;
  for (unsigned left = need; left != 0; left &= left - 1) {
    push(lanes[__builtin_ctz(left)]);
  }
}

// ---- Atomics and fences ----

bool Machine::maybe_switch() {
  if (schedule_->order != Order::random || !random_.one_in(5)) {
    return false;
  }
  push(*current_);
  wait();
  return true;
}

void Machine::before_atomic(const void* address, std::size_t bytes, Place place, const void* code) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fail([&] {
      return text("misaligned atomic: ", thread_name(*current_), " at ", place, " uses ", address, " for ", bytes,
                  " bytes");
    });
  }
  maybe_switch();
  race::atomic(address, bytes, code);
}

void Machine::fence(bool device_wide) {
  if (device_wide) {
    race::fence(current_->slot->order, current_->number);
  }
  maybe_switch();
}

// ---- Launch ----

std::string Machine::thread_name(const Thread& thread) const {
  return text("thread ", thread.index, " of block ", thread.slot->index);
}

std::string Machine::thread_name(std::uint64_t block, unsigned thread) const {
  return text("thread ", position(thread, launch_->block), " of block ", position(block, launch_->grid));
}

void Machine::check(const Launch& launch) const {
  const dim3& grid = launch.grid;
  const dim3& block = launch.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
    throw Error(text("launch of '", launch.name, "': invalid grid ", grid,
                     ", expected extents from 1 to 2147483647, 65535, 65535"));
  }
  if (count(grid) > 0x7FFFFFFFu) {
    throw Error(text("launch of '", launch.name, "': a grid of ", count(grid), " blocks is too large to emulate"));
  }
  if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      count(block) > 1024) {
    throw Error(text("launch of '", launch.name, "': invalid block ", block,
                     ", expected extents from 1 to 1024, 1024, 64 and at most 1024 threads"));
  }
  if (launch.cooperative && count(grid) * count(block) > kMostThreads) {
    throw Error(text("launch of '", launch.name, "': a cooperative launch of ", count(grid), " blocks of ",
                     count(block), " threads, expected at most ", kMostThreads, " threads, which run at once"));
  }
  if (launch.shared_limit > kMostShared || launch.shared_bytes > launch.shared_limit) {
    throw Error(text("launch of '", launch.name, "': too much shared memory: ", launch.shared_bytes,
                     " bytes of dynamic shared memory, allowed are ", std::min(launch.shared_limit, kMostShared)));
  }
}

#if defined(LOCKSTEP_EMULATION_RACE) && defined(__x86_64__) && defined(__linux__)
#define LOCKSTEP_CATCHES_SEGV 1
struct sigaction former_segv = {};
thread_local bool in_kernel = false;

void abandon_from_signal() {
  machine().abandon();
}

/// Turns the access of a kernel through a bad pointer into an Error. The handler clears the stack, and returns to
/// abandon_from_signal() instead of the kernel.
void on_segv(int number, siginfo_t* info, void* raw) {
  if (!in_kernel || machine().fiber() == nullptr || machine().fiber()->low == nullptr) {
    sigaction(number, &former_segv, nullptr);  // the repeated access will call the former handler
    return;
  }
  auto& registers = static_cast<ucontext_t*>(raw)->uc_mcontext.gregs;
  // wild_access() expects a return address, which lies after the call instruction. So 1 is added to the address of the
  // failed instruction.
  machine().wild_access(info->si_addr, reinterpret_cast<const void*>(registers[REG_RIP] + 1));
  const auto top = reinterpret_cast<greg_t>(machine().fiber()->low + machine().fiber()->bytes);
  registers[REG_RSP] = top - 64 - 8;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&abandon_from_signal);
}

/// Handles SIGSEGV on a separate stack while a kernel runs.
class CatchSegv {
 public:
  CatchSegv() : stack_(64 * 1024) {
    stack_t stack = {};
    stack.ss_sp = stack_.data();
    stack.ss_size = stack_.size();
    sigaltstack(&stack, &former_stack_);
    struct sigaction action = {};
    action.sa_sigaction = &on_segv;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &former_segv);
    in_kernel = true;
  }
  CatchSegv(const CatchSegv&) = delete;
  CatchSegv& operator=(const CatchSegv&) = delete;
  ~CatchSegv() {
    in_kernel = false;
    sigaction(SIGSEGV, &former_segv, nullptr);
    sigaltstack(&former_stack_, nullptr);
  }

 private:
  std::vector<char> stack_;
  stack_t former_stack_ = {};
};
#else
class CatchSegv {
 public:
  CatchSegv() {}  // user-provided, to avoid warnings about unused objects
};
#endif

/// Ensures that only one launch runs at a time. first() is true for the launch that set the flag.
class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag) : flag_(flag), first_(!flag.exchange(true)) {}
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() {
    if (first_) {
      flag_ = false;
    }
  }
  [[nodiscard]] bool first() const { return first_; }

 private:
  std::atomic<bool>& flag_;
  bool first_;
};

#if defined(LOCKSTEP_EMULATION_ASAN)
/// Prints the name of the running CUDA thread when a sanitizer ends the program.
void name_thread() {
  const Machine& it = machine();
  if (it.current() != nullptr && it.launch() != nullptr) {
    std::fprintf(stderr, "in kernel '%s', %s\n", it.launch()->name, it.thread_name(*it.current()).c_str());
  }
}
#endif

void Machine::run(const Launch& launch, const Schedule& schedule, void (*body)(void*), void* context) {
  check(launch);
  const Busy busy(busy_);
  if (!busy.first()) {
    throw Error(text("launch of '", launch.name, "': another kernel is running"));
  }
  const std::lock_guard lock(running);
  launch_ = &launch;
  schedule_ = &schedule;
  body_ = body;
  context_ = context;
  random_ = Random(schedule.seed);
  const bool ordered = schedule.order != Order::random;
  poison_ = schedule.seed % 2 == 1 || (ordered && schedule.seed == 0) ? 0xFF : 0x7F;
  blocks_ = count(launch.grid);
  next_block_ = 0;
  alive_ = 0;
  at_grid_ = 0;
  stride_ = 1;
  offset_ = 0;
  std::uint64_t resident = std::max(schedule.resident_blocks, 1u);
  const std::uint64_t most = std::max<std::uint64_t>(kMostThreads / count(launch.block), 1);
  if (!ordered) {
    // A stride that is coprime with the number of blocks visits each block once.
    offset_ = random_() % blocks_;
    do {
      stride_ = random_() % blocks_ + 1;
    } while (std::gcd(stride_, blocks_) != 1);
    if (schedule.resident_blocks == 0) {
      constexpr std::uint64_t kChoices[] = {1, 2, 5, kMostThreads};
      resident = kChoices[random_() % 4];
    }
  }
  resident = launch.cooperative ? blocks_ : std::min({resident, most, blocks_});
  while (arenas_.size() < resident) {
    void* map = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
      throw std::bad_alloc();
    }
    arenas_.push_back(std::make_unique<Arena>());
    arenas_.back()->base = static_cast<std::byte*>(map);
    race::watch(map, kArena, true);
  }
  failed_ = false;
  wild_ = false;
  error_.clear();
  line_.clear();
  heap_.clear();
  idle_.clear();
  idle_.reserve(kMostThreads);
  home_ = Fiber();
  ::blockDim = launch.block;
  ::gridDim = launch.grid;
  race::start_launch(blocks_);
  slots_ = std::vector<Slot>(resident);
  for (std::size_t i = 0; i < resident; ++i) {
    slots_[i].arena = arenas_[i].get();
    start_block(slots_[i]);
  }
#if defined(LOCKSTEP_EMULATION_ASAN)
  __sanitizer_set_death_callback(&name_thread);
#endif
  {
    const CatchSegv segv;
    fiber_ = &home_;
    go(*pick());
  }
  race::resume(nullptr, 0);
  pool_.take_back_all(failed_);
  if (failed_) {
    for (const Slot& slot : slots_) {
      ASAN_UNPOISON_MEMORY_REGION(slot.arena->base, kArena);
    }
  }
  std::string problem;
  if (failed_) {
    problem = error_;
    if (const std::string found = race::report([](std::uint64_t b, unsigned t) { return machine().thread_name(b, t); });
        !found.empty()) {
      problem = found;
    } else if (wild_) {
      problem = pool_.in_guard(wild_address_)
                    ? text("stack overflow: ", thread_name(*current_), " at ", race::source_line(wild_code_))
                    : text("bad address: ", thread_name(*current_), " uses ", wild_address_, " at ",
                           race::source_line(wild_code_));
    }
  }
  race::end_launch();
  slots_.clear();
  current_ = nullptr;
  launch_ = nullptr;
  fiber_ = nullptr;
  if (failed_) {
    throw Error(text("kernel '", launch.name, "', grid ", launch.grid, ", block ", launch.block, ": ", problem,
                     "\n  schedule: ", schedule.text()));
  }
}

}  // namespace

std::string Schedule::text() const {
  static constexpr const char* kOrders[] = {"ascending", "descending", "random"};
  static constexpr const char* kStyles[] = {"uniform", "block priority", "thread priority"};
  std::string result = kOrders[static_cast<int>(order)];
  if (order == Order::random) {
    result += ", seed " + std::to_string(seed) + " (" + kStyles[static_cast<int>(style())] + ")";
  }
  if (resident_blocks != 0) {
    result += ", " + std::to_string(resident_blocks) + " resident blocks";
  }
  return result;
}

void run(const Launch& launch, const Schedule& schedule, void (*body)(void*), void* context) {
  machine().run(launch, schedule, body, context);
}

void register_memory(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(machine().running);
  race::watch(begin, bytes, false);
}

void unregister_memory(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(machine().running);
  race::forget(begin, bytes);
}

int block_barrier(Barrier kind, int predicate, Place place) {
  return machine().barrier(kind, predicate, place);
}

void grid_barrier(Place place) {
  machine().grid_barrier(place);
}

void warp_collective(Collective kind, unsigned mask, int argument, int width, void* value, std::size_t bytes,
                     Place place) {
  machine().collective(kind, mask, argument, width, value, bytes, place);
}

void* shared_variable(const void* key, std::size_t bytes, std::size_t alignment, const char* name, Place place) {
  return machine().shared(key, bytes, alignment, name, place);
}

void* dynamic_shared(const char* name, Place place) {
  return machine().dynamic_shared(name, place);
}

void before_atomic(const void* address, std::size_t bytes, Place place) {
  machine().before_atomic(address, bytes, place, __builtin_return_address(0));
}

void thread_fence(bool device_wide) {
  machine().fence(device_wide);
}

void fail_kernel(const char* what, Place place) {
  machine().fail([&] { return text(what, ": ", machine().thread_name(*machine().current()), " at ", place); });
}

void race::give_up() {
  machine().abandon();
}

}  // namespace lockstep::emulation
