#pragma once

#include <cstddef>

/// Functions of the emulator that device.hpp and its parts call, for the thread that runs now.
namespace lockstep::emulation {

/// A line of kernel source: Place place = {__builtin_FILE(), __builtin_LINE()} as a default argument.
struct Place {
  const char* file;
  int line;
};

enum class Barrier : unsigned char { sync, count, all, any };
enum class Collective : unsigned char { sync, ballot, shuffle, shuffle_up, shuffle_down, shuffle_xor };

/// Waits for all threads of the block. Returns the result of __syncthreads_count/_and/_or; 0 for sync.
int block_barrier(Barrier kind, int predicate, Place place);

/// Waits for all threads of a cooperative launch.
void grid_barrier(Place place = {__builtin_FILE(), __builtin_LINE()});

/// Waits for the lanes in mask, then writes this lane's result to `value` (bytes <= 16). A result that is not defined
/// (a shuffle from a lane that does not take part) is all ones. ballot: value is an unsigned, the predicate.
void warp_collective(Collective kind, unsigned mask, int argument, int width, void* value, std::size_t bytes,
                     Place place);

/// Returns the block's variable with this key, which its first use makes.
void* shared_variable(const void* key, std::size_t bytes, std::size_t alignment, const char* name, Place place);
/// Returns the dynamic shared memory of the launch.
void* dynamic_shared(const char* name, Place place);

/// Is called before each atomic operation. Checks the operation and may let other threads run first.
void before_atomic(const void* address, std::size_t bytes, Place place);
void thread_fence(bool device_wide);

/// Ends the kernel with an error, for __trap() and the like.
[[noreturn]] void fail_kernel(const char* text, Place place);

}  // namespace lockstep::emulation
