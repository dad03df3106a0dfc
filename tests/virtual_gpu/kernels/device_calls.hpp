#pragma once

#include <cstddef>

/// What the functions of device.hpp and its parts call in the emulator, as the thread that runs now.
namespace lockstep::emulation {

/// A line of kernel source: Place place = {__builtin_FILE(), __builtin_LINE()} as a default argument.
struct Place {
  const char* file;
  int line;
};

enum class Barrier : unsigned char { sync, count, all, any };
enum class Collective : unsigned char { sync, ballot, shuffle, shuffle_up, shuffle_down, shuffle_xor };

/// Waits for all threads of the block. The result of __syncthreads_count/_and/_or; 0 for sync.
int block_barrier(Barrier kind, int predicate, Place place);

/// Waits for all threads of a cooperative launch.
void grid_barrier(Place place = {__builtin_FILE(), __builtin_LINE()});

/// Waits for the lanes in mask and leaves this lane's result in value (bytes <= 16), all ones where it has no defined
/// one: a shuffle from a lane that does not take part. ballot: value is an unsigned, the predicate.
void warp_collective(Collective kind, unsigned mask, int argument, int width, void* value, std::size_t bytes,
                     Place place);

/// The block's variable with this key, made at its first use.
void* shared_variable(const void* key, std::size_t bytes, std::size_t alignment, const char* name, Place place);
/// The dynamic shared memory of the launch.
void* dynamic_shared(const char* name, Place place);

/// Before each atomic operation: checks it and may let other threads run first.
void before_atomic(const void* address, std::size_t bytes, Place place);
void thread_fence(bool device_wide);

/// __trap() and the like.
[[noreturn]] void fail_kernel(const char* text, Place place);

}  // namespace lockstep::emulation
