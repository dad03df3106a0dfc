#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <vector_types.h>

/// Runs a CUDA kernel on the CPU. Each thread of each block is a fiber on the calling OS thread. README.md lists the
/// errors that the emulator finds. Kernel code uses the emulator through device.hpp.
namespace lockstep::emulation {

/// The error of a kernel that did something that CUDA forbids or leaves undefined. what() names the kernel, the block,
/// the thread, the source lines, and the schedule. The launch has been abandoned, but another launch may follow.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kDefaultShared =
    48 * 1024;  ///< limit of a block's static and dynamic shared memory, in bytes, unless the kernel opted in to more
inline constexpr std::size_t kMostShared = 227 * 1024;  ///< limit of a block's shared bytes on sm_90 after opting in

struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  ///< bytes of dynamic shared memory
  const char* name = "kernel";   ///< kernel's name in error messages
  /// Limit of static and dynamic shared memory together, in bytes. A kernel with
  /// cudaFuncAttributeMaxDynamicSharedMemorySize may have up to kMostShared.
  std::size_t shared_limit = kDefaultShared;
  /// True: all blocks are in flight at once, whatever the schedule says, so that they may call grid_barrier(). More
  /// than 4096 threads are an error.
  bool cooperative = false;
};

enum class Order : unsigned char {
  ascending,   ///< threads and blocks by number; the fastest order, and easy to follow
  descending,  ///< threads and blocks by number, the highest number first
  random,      ///< chosen at random by `seed`, in a Style; may also switch threads at one in five atomics and fences
};

/// How random(seed) chooses the next thread. With uniform choices hardly any thread falls far behind the other threads;
/// with priorities some do.
enum class Style : unsigned char {
  uniform,         ///< any thread that can run, with equal probability
  block_priority,  ///< favours one block, within the block one warp, and within the warp one lane
  thread_priority  ///< each thread has a random priority
};

/// How the emulator chooses the next thread if several threads can run.
struct Schedule {
  Order order = Order::ascending;
  std::uint64_t seed = 0;
  /// Number of blocks in flight at a time, but no more than fit in 4096 threads. 0: one block, or with random() a
  /// random number. In a cooperative launch all blocks are in flight.
  unsigned resident_blocks = 0;

  [[nodiscard]] static Schedule ascending() { return {}; }
  [[nodiscard]] static Schedule descending() { return {.order = Order::descending}; }
  [[nodiscard]] static Schedule random(std::uint64_t seed) { return {.order = Order::random, .seed = seed}; }
  [[nodiscard]] Style style() const { return static_cast<Style>(seed % 3); }
  [[nodiscard]] std::string text() const;  ///< e.g. "random, seed 3, 2 resident blocks"
};

/// Calls body(context) as each thread of the launch, and returns when all threads have returned. Throws Error if the
/// kernel makes a mistake; memory then keeps what the kernel has written. A failed launch abandons its threads without
/// running destructors, so body must own nothing when it calls a barrier or a collective. Only one launch at a time may
/// run in a process (Error otherwise).
///
/// Shared memory that was not written reads as 0xFF bytes (NaN, -1) for odd seeds, and as 0x7F bytes (large numbers)
/// for even seeds. Large numbers change a maximum of floats, while a NaN may not. In the ascending and descending
/// schedules, seed 0 counts as odd.
void run(const Launch& launch, const Schedule& schedule, void (*body)(void*), void* context);

template <class Body>
void run(const Launch& launch, const Schedule& schedule, Body&& body) {
  using Type = std::remove_reference_t<Body>;
  run(
      launch, schedule, [](void* it) { (*static_cast<Type*>(it))(); },
      const_cast<std::remove_const_t<Type>*>(std::addressof(body)));
}

/// Makes the race checker watch this memory of cudaMalloc(). The checker ignores all other addresses. Waits while a
/// kernel runs. Does nothing in builds without the checker.
void register_memory(const void* begin, std::size_t bytes);
void unregister_memory(const void* begin, std::size_t bytes);

#if defined(LOCKSTEP_EMULATION_RACE)
inline constexpr bool kFindsRaces = true;
#else
inline constexpr bool kFindsRaces = false;
#endif
#if defined(LOCKSTEP_EMULATION_ASAN)
inline constexpr bool kFindsBadAddresses = true;  ///< the build has ASan and UBSan
#else
inline constexpr bool kFindsBadAddresses = false;
#endif

}  // namespace lockstep::emulation
