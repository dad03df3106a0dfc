#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device_calls.hpp"

/// Finds pairs of accesses to device or shared memory, one of them a write, that nothing orders, whether or not they
/// met in this run. Kernels are compiled with -fsanitize=thread and linked without that runtime: the functions that the
/// compiler calls at each access (__tsan_*) are ours. What orders two accesses A and B:
///   - A belongs to an earlier launch, or to the same thread, or both are atomic;
///   - same block: a barrier of the block came between;
///   - same warp: __syncwarp came between, with masks that name both lanes, directly or through others. Shuffles and
///     votes give no order, as in CUDA;
///   - A's thread, or one that A is ordered before as above, called __threadfence after A and then did an atomic
///     operation on some address, and B's thread, or one ordered before B as above, did one on the same address later
///     (the "last block" pattern).
/// Besides: a plain write after the same thread's atomic on that address, when no other thread came between (resetting
/// a counter).
namespace lockstep::emulation::race {

/// A variable in the shared memory of a block.
struct SharedVariable {
  const void* key;
  std::byte* data;
  std::size_t bytes;
  const char* name;
  Place place;
};

struct Location;  ///< an address of atomic operations

/// The events that have ordered the accesses of a block in flight. The emulator has one Block for each, and calls the
/// functions below.
struct Block {
  struct Warp {
    std::uint32_t time = 0;                              ///< number of completed __syncwarp
    std::array<std::array<std::uint32_t, 32>, 32> seen;  ///< [lane][other]: the other's accesses before this time
  };
  struct Fence {
    std::uint16_t count = 0;
    std::uint32_t phase = 0;
    std::array<std::uint32_t, 32> seen = {};
  };
  struct Acquired {  ///< an atomic operation that may have read what others released
    const Location* location;
    std::uint64_t tick;
    std::uint32_t phase, stamp;
    unsigned thread;
  };

  std::uint32_t number = 0;  ///< linear index in the grid
  std::uint32_t id = 0;      ///< number of the block, unique over all launches
  std::uint32_t phase = 0;   ///< number of barriers that the block has passed
  std::vector<Warp> warps;
  std::map<unsigned, Fence> fences;  ///< last fence of each thread
  std::vector<Acquired> acquired;
  std::vector<SharedVariable>* variables = nullptr;
};

#if defined(LOCKSTEP_EMULATION_RACE)

void start_launch(std::uint64_t blocks);
void end_launch();
void start_block(Block& block, std::uint32_t number, unsigned threads, std::vector<SharedVariable>* variables);
void block_barrier(Block& block);
void sync_warp(Block& block, unsigned warp, unsigned lanes);
void fence(Block& block, unsigned thread);
void atomic(const void* address, std::size_t bytes, const void* code);
/// Attributes the accesses from now on to this thread; nullptr: to no kernel.
void resume(Block* block, unsigned thread);
void watch(const void* begin, std::size_t bytes, bool shared);
void forget(const void* begin, std::size_t bytes);

/// Returns the finding, after the checker has called give_up(); empty when there is none. thread_name(block number,
/// thread) names a thread.
[[nodiscard]] std::string report(std::string (*thread_name)(std::uint64_t, unsigned));
/// Returns "file:line" of a code address, through addr2line if it is installed.
[[nodiscard]] std::string source_line(const void* code);

#else

inline void start_launch(std::uint64_t) {}
inline void end_launch() {}
inline void start_block(Block&, std::uint32_t, unsigned, std::vector<SharedVariable>*) {}
inline void block_barrier(Block&) {}
inline void sync_warp(Block&, unsigned, unsigned) {}
inline void fence(Block&, unsigned) {}
inline void atomic(const void*, std::size_t, const void*) {}
inline void resume(Block*, unsigned) {}
inline void watch(const void*, std::size_t, bool) {}
inline void forget(const void*, std::size_t) {}
inline std::string report(std::string (*)(std::uint64_t, unsigned)) {
  return {};
}
inline std::string source_line(const void*) {
  return {};
}

#endif

/// Leaves the kernel for good and makes run() throw. The emulator defines this function.
[[noreturn]] void give_up();

}  // namespace lockstep::emulation::race
