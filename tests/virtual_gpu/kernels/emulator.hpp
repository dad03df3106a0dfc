#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <vector_types.h>

/// Runs a CUDA kernel on the CPU: every thread of every block is a fiber on the calling OS thread. README.md lists the
/// errors that this finds. Kernel code uses it through device.hpp.
namespace lockstep::emulation {

/// A kernel did something that CUDA forbids or leaves undefined. what() names the kernel, the block, the thread, the
/// source lines involved, and the schedule. The launch has been abandoned; another launch can follow.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kDefaultShared =
    48 * 1024;  ///< bytes of a block, static and dynamic, unless the kernel opted in
inline constexpr std::size_t kMostShared = 227 * 1024;  ///< most shared memory of a block on sm_90, in bytes

struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  ///< bytes of dynamic shared memory
  const char* name = "kernel";   ///< name of the kernel in reports
  /// Most bytes of static and dynamic shared memory together; up to kMostShared for a kernel that was given
  /// cudaFuncAttributeMaxDynamicSharedMemorySize.
  std::size_t shared_limit = kDefaultShared;
  /// All blocks are in flight at once, whatever the schedule says, so that they may call grid_barrier(). It is an error
  /// if they have more than 4096 threads.
  bool cooperative = false;
};

enum class Order : unsigned char {
  ascending,   ///< threads and blocks by number, first come first served: the fastest order, and easy to follow
  descending,  ///< threads and blocks by number, the last first
  random,      ///< drawn by seed, in one of three styles; may switch threads at a fifth of the atomics and fences, too
};

/// The way in which the order of random(seed) is drawn. Fair drawing hardly ever leaves one thread far behind;
/// priorities do.
enum class Style : unsigned char {
  uniform,         ///< any thread that can run, with equal odds
  block_priority,  ///< a favourite block first, in it a favourite warp, in it a favourite lane
  thread_priority  ///< each thread has a priority
};

/// The choice of the thread that runs on when several can.
struct Schedule {
  Order order = Order::ascending;
  std::uint64_t seed = 0;
  /// Number of blocks in flight at a time; 0: one, or for random() a number drawn by seed. At most so many that 4096
  /// threads are in flight. A cooperative launch has all blocks in flight.
  unsigned resident_blocks = 0;

  [[nodiscard]] static Schedule ascending() { return {}; }
  [[nodiscard]] static Schedule descending() { return {.order = Order::descending}; }
  [[nodiscard]] static Schedule random(std::uint64_t seed) { return {.order = Order::random, .seed = seed}; }
  [[nodiscard]] Style style() const { return static_cast<Style>(seed % 3); }
  [[nodiscard]] std::string text() const;  ///< "random, seed 3, 2 resident blocks"
};

/// Calls body(context) as every thread of the launch; returns when all have returned from it. Throws Error, after which
/// what the kernel has written stays written. body must not own anything when it calls a barrier or a collective: a
/// launch that fails abandons its threads where they are. One launch at a time in a process (Error otherwise).
///
/// Shared memory that was not written reads as 0xFF bytes (NaN, -1) for odd seeds, else 0x7F bytes (large numbers,
/// which a maximum does not swallow as it does NaN); seed 0 of the ordered schedules counts as odd.
void run(const Launch& launch, const Schedule& schedule, void (*body)(void*), void* context);

template <class Body>
void run(const Launch& launch, const Schedule& schedule, Body&& body) {
  using Type = std::remove_reference_t<Body>;
  run(
      launch, schedule, [](void* it) { (*static_cast<Type*>(it))(); },
      const_cast<std::remove_const_t<Type>*>(std::addressof(body)));
}

/// Tells the race checker to watch memory that cudaMalloc gave out; it ignores other addresses. Waits while a kernel
/// runs. Does nothing in builds without the checker.
void register_memory(const void* begin, std::size_t bytes);
void unregister_memory(const void* begin, std::size_t bytes);

#if defined(LOCKSTEP_EMULATION_RACE)
inline constexpr bool kFindsRaces = true;
#else
inline constexpr bool kFindsRaces = false;
#endif
#if defined(LOCKSTEP_EMULATION_ASAN)
inline constexpr bool kFindsBadAddresses = true;  ///< the build has AddressSanitizer and UndefinedBehaviorSanitizer
#else
inline constexpr bool kFindsBadAddresses = false;
#endif

}  // namespace lockstep::emulation
