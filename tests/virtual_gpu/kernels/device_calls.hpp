#pragma once

#include <cstddef>

/// Functions of the emulator that device.hpp and its parts call. They act on the CUDA thread that is running.
namespace lockstep::emulation {

/// A source line. As a default argument, {__builtin_FILE(), __builtin_LINE()} gives the line of the caller.
struct Place {
  const char* file;
  int line;
};

enum class Barrier : unsigned char { sync, count, all, any };
enum class Collective : unsigned char { sync, ballot, shuffle, shuffle_up, shuffle_down, shuffle_xor };

/// Waits for all threads of the block. Returns the result of __syncthreads_count, _and or _or; 0 for __syncthreads.
int block_barrier(Barrier kind, int predicate, Place place);

/// Waits for all threads of a cooperative launch.
void grid_barrier(Place place = {__builtin_FILE(), __builtin_LINE()});

/// Waits for the lanes in mask, then writes this lane's result to `value`, of at most 16 bytes. An undefined result (a
/// shuffle from a lane outside of mask) is all ones. For ballot, `value` is an unsigned that holds the predicate.
void warp_collective(Collective kind, unsigned mask, int argument, int width, void* value, std::size_t bytes,
                     Place place);

/// Returns the block's shared variable with this key. The first use of a key creates the variable.
void* shared_variable(const void* key, std::size_t bytes, std::size_t alignment, const char* name, Place place);
/// Returns the dynamic shared memory of the launch.
void* dynamic_shared(const char* name, Place place);

/// The emulator's hook before each atomic operation. It checks the operation, and may let other threads run first.
void before_atomic(const void* address, std::size_t bytes, Place place);
void thread_fence(bool device_wide);

/// Ends the kernel with an error. __trap() and similar functions call it.
[[noreturn]] void fail_kernel(const char* text, Place place);

}  // namespace lockstep::emulation
