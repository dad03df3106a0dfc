#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device_calls.hpp"

/// Finds data races: pairs of accesses to the same bytes of device or shared memory that are not ordered, and of which
/// at least one is a write. A race is found even if the accesses did not collide in this run. Kernels are compiled with
/// -fsanitize=thread but not linked with its runtime. This checker defines the functions that the compiler calls at
/// each access (__tsan_*).
///
/// An access A is ordered before an access B if one of these holds:
/// - A belongs to an earlier launch or to the same thread, or both accesses are atomic.
/// - A and B belong to one block, and a barrier of the block came between them.
/// - A and B belong to one warp, and __syncwarp came between them, with masks that connect both lanes directly or
/// through other lanes. As in CUDA, shuffles and votes order nothing.
/// - Fence and atomic: A's thread (or a thread that the rules above order after A) called __threadfence after A, and
/// then did an atomic operation. B's thread (or a thread that the rules above order before B) later did an atomic
/// operation on the same address. This is the "last block" pattern.
/// - B is a plain write after the same thread's atomic operation on the address, with no other thread in between. This
/// rule permits a thread to reset a counter.
namespace lockstep::emulation::race {

/// A variable in the shared memory of a block.
struct SharedVariable {
  const void* key;
  std::byte* data;
  std::size_t bytes;
  const char* name;
  Place place;
};

struct Location;  ///< address of atomic operations

/// The events that order the accesses of one block in flight. The emulator holds one Block for each block and passes it
/// to the functions below.
struct Block {
  struct Warp {
    std::uint32_t time = 0;                              ///< number of completed __syncwarp calls
    std::array<std::array<std::uint32_t, 32>, 32> seen;  ///< [lane][other]: lane sees other's accesses before this time
  };
  struct Fence {
    std::uint16_t count = 0;
    std::uint32_t phase = 0;
    std::array<std::uint32_t, 32> seen = {};
  };
  struct Acquired {  ///< atomic operation that may have read a value that another thread released
    const Location* location;
    std::uint64_t tick;
    std::uint32_t phase, stamp;
    unsigned thread;
  };

  std::uint32_t number = 0;  ///< linear index in the grid
  std::uint32_t id = 0;      ///< unique id over all launches
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
/// Attributes accesses from now on to this thread. block = nullptr: the accesses belong to no kernel.
void resume(Block* block, unsigned thread);
void watch(const void* begin, std::size_t bytes, bool shared);
void forget(const void* begin, std::size_t bytes);

/// Returns a description of the race after the checker has called give_up(); empty if there was no race.
/// thread_name(block number, thread) returns the name of a thread.
[[nodiscard]] std::string report(std::string (*thread_name)(std::uint64_t, unsigned));
/// Returns "file:line" of a code address. Without the program addr2line, returns "symbol + offset" instead.
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

/// Leaves the kernel without returning, and makes run() throw. The emulator defines this function.
[[noreturn]] void give_up();

}  // namespace lockstep::emulation::race
