#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator.hpp"

/// Kernels for emulator_test.cpp. A kernel with a parameter `bug` is right for Bug::none, and has a mistake for each
/// value that its comment names. Pointers are device memory.
namespace lockstep::emulation::test {

struct Grid {
  Schedule schedule;
  dim3 grid;
  dim3 block;
};

/// The mistake that a kernel makes on purpose.
enum class Bug : int {
  none,
  past_the_end,          // `<=` in place of `<`
  unaligned_vectors,     // 16-byte loads from any address
  tail_skipped,          // the last elements are not computed
  shuffle_step_missing,  // a shuffle reduction lacks a step
  divergent_collective,  // a collective in a loop with a different trip count for each lane
  no_syncwarp,           // no __syncwarp between the accesses of a warp
  no_barrier_partials,   // no barrier before partial sums are read
  no_barrier_reuse,      // no barrier before a buffer is reused
  plain_add,             // plain += on one address by several blocks
  dynamic_too_small,     // launched with less dynamic shared memory than it uses
  uninitialised_shared,  // reads shared memory that no thread has written
  early_return,          // a thread returns before a barrier
  window_not_clamped,    // a window extends beyond the ends of the input
  no_barrier_transpose,  // no barrier within a transpose
  column_32,             // accesses column 32 of an array [32][32]
  no_bounds_check,       // writes beyond the end of the output
  chunk_not_clamped,     // writes beyond the end of one of two tensors
  no_threadfence,        // no __threadfence in a sum by the last block
  no_barrier_flag,       // no barrier after a shared flag is written
  barrier_in_if,         // a barrier in a branch that not all threads take
  half_mask,             // a collective's mask names only half of the warp
  barrier_in_loop,       // a barrier in a loop with a different trip count for each thread
  no_barrier_zero,       // no barrier after counters are set to zero
  plain_count,           // plain increments of shared counters
  fence_after_atomic,    // the fence is called after the atomic operation
  barrier_against_warp,  // some threads wait at __syncthreads, other threads at __syncwarp
  underaligned_shared,   // float4 access to an array that is aligned for float
  no_grid_barrier,       // no grid barrier before values of other blocks are read
  no_second_barrier,     // no grid barrier before values that other blocks read are overwritten
  one_block_goes_on,     // one block skips the grid barrier
};

/// out[i] = 2 in[i]. Possible mistakes: past_the_end, no_bounds_check.
void scale(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[i] = 2 in[i], with float4 if both pointers are aligned. Possible mistakes: unaligned_vectors, tail_skipped.
void scale_vectors(const Grid& at, float* out, const float* in, int n, Bug bug);
/// Each block b sums its share of in: out[2 b] = sum of x, out[2 b + 1] = sum of x^2. Possible mistakes:
/// shuffle_step_missing, no_barrier_partials, no_barrier_reuse, uninitialised_shared, early_return, barrier_in_if,
/// half_mask, barrier_against_warp.
void block_sums(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[lane] = sum of in[i ^ 1] over i = lane, lane + 32, .. Runs in one warp. Possible mistake: divergent_collective.
void strided_neighbours(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[i] = in[i ^ 1], exchanged through shared memory. Possible mistake: no_syncwarp.
void swap_pairs(const Grid& at, float* out, const float* in, Bug bug);
/// *out += sum of in. Possible mistake: plain_add.
void add_all(const Grid& at, float* out, const float* in, int n, Bug bug);
/// Reverses each block's share of in, through dynamic shared memory of `shared_bytes`. The mistake dynamic_too_small is
/// made by the caller, who passes too few bytes.
void reverse(const Grid& at, std::size_t shared_bytes, float* out, const float* in);
/// out[i] = max of in[i - 1], in[i], in[i + 1]. Possible mistake: window_not_clamped.
void pool3(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out (columns, rows) = transpose of in (rows, columns), in tiles of 32 x 32. Possible mistakes: no_barrier_transpose,
/// column_32.
void transpose(const Schedule& schedule, float* out, const float* in, int rows, int columns, Bug bug);
/// Fills two tensors; each block fills a chunk of 64 elements. Possible mistake: chunk_not_clamped.
void fill_two(const Schedule& schedule, float* a, int a_count, float* b, int b_count, Bug bug);
/// *out = sum of in. Each of the gridDim.x blocks writes a partial sum, and the last block adds them up. *counter is 0
/// before and after the launch. Possible mistakes: no_threadfence, no_barrier_flag, fence_after_atomic.
void last_block_sum(const Grid& at, float* out, float* partial, unsigned* counter, const float* in, int n, Bug bug);
/// Cooperative launch: `turns` times, each block of 32 threads takes the values of the next block. Possible mistakes:
/// no_grid_barrier, no_second_barrier, one_block_goes_on.
void pass_round(const Grid& at, float* values, int turns, Bug bug, bool cooperative = true);
/// out[i] = sum of in[i], in[i + block], .., with a barrier in each step. Possible mistake: barrier_in_loop.
void stepwise_sum(const Grid& at, float* out, const float* in, int n, Bug bug);
/// Counts how often each value occurs in `in`, and adds the counts to the 16 bins. Possible mistakes: no_barrier_zero,
/// plain_count.
void histogram(const Grid& at, int* bins, const unsigned char* in, int n, Bug bug);
/// out[i] = in[i], copied through a shared float4 array. Possible mistake: underaligned_shared.
void through_shared_vectors(const Grid& at, float* out, const float* in, Bug bug);

/// Patterns of accesses for tests of the race checker. Patterns whose comment begins with "race" have a race.
enum class Pattern : int {
  byte_neighbours,        ///< each thread writes one of neighbouring bytes
  half_neighbours,        ///< each thread writes one of neighbouring 16-bit numbers
  half_of_a_float,        ///< race: one thread writes a float, another thread writes half of it
  double_buffer,          ///< two buffers and one barrier in each step
  single_buffer,          ///< race: one buffer and one barrier in each step
  half_warp_sync,         ///< each half of a warp calls __syncwarp and reads its own values
  half_warp_sync_wrong,   ///< race: as half_warp_sync, but each half reads the values of the other half
  sync_chain,             ///< __syncwarp of lanes 0 and 1, then of 1 and 2, orders lane 0 before lane 2
  shuffle_is_no_sync,     ///< race: only a shuffle between write and read
  read_only,              ///< all threads read the same numbers
  atomics_then_barrier,   ///< atomicAdd by all threads, barrier, plain read
  atomics_then_read,      ///< race: atomicAdd by all threads, then a plain read without a barrier
  same_flag,              ///< race: many threads store the same value
  same_flag_atomic,       ///< many threads store the same value with atomicExch
  read_then_write,        ///< race: thread 0 writes a value that other threads read
  overlapping_vectors,    ///< race: two float4 stores overlap by one float
  block_order,            ///< race: block 1 reads a value that block 0 writes
  atomic_sum_last_block,  ///< all blocks atomicAdd to a sum, fence, and take a ticket; the last block reads the sum
  ticket_elsewhere,       ///< race: as atomic_sum_last_block, but each block has a counter of its own
  shared_of_two_blocks,   ///< every block uses the same shared variables
};
void pattern(const Schedule& schedule, Pattern which, float* data);  ///< runs 4 blocks of 64 threads; data: 4096 zeros
[[nodiscard]] bool is_right(Pattern which);

// ---- Collectives and indices ----

enum class Shuffle : int { index, up, down, exclusive };
/// Writes the shuffle's result of value_of(global thread) to out[global thread]. Lanes outside of mask write nothing.
template <class T>
void shuffle(const Grid& at, T* out, Shuffle kind, int argument, int width, unsigned mask);
template <class T>
T value_of(unsigned global_thread);

/// Writes six results for each thread: the warp's ballot, any and all, then the block's __syncthreads_count, _and and
/// _or. The predicates depend on the thread modulo `modulus`.
void votes(const Grid& at, unsigned* out /* (threads, 6) */, unsigned modulus);
void indices(const Grid& at, unsigned* out /* (threads, 12) */);
/// Results of every atomic operation, called by all threads. The test describes the expected values.
struct Atomics {
  int add, sub, smallest, largest, bits_and, bits_or, bits_xor, cas_max;
  unsigned inc, dec, exchanged;
  unsigned long long add64;
  long long largest64;
  float add_float;
  double add_double;
  __attribute__((aligned(4))) unsigned short add_half, add_bfloat16;
};
void atomics(const Grid& at, Atomics* out);
/// Writes the results of the arithmetic functions, in the order of the kernel's calls. Runs one thread.
void math(const Grid& at, double* out);

// ---- What must fail ----

enum class Misuse : int {
  static_too_large,  // declares 50 KiB of shared variables
  wild_pointer,      // writes through a pointer near null
  misaligned_atomic,
  trap,
  throws,
  bad_width,
  shared_before_start,  // writes below a variable
  endless_recursion,
  store_past_shared,  // writes with memcpy, which the compiler does not instrument
};
void misuse(const Grid& at, Misuse which, int* data);
void nothing(const Launch& launch, const Schedule& schedule);

}  // namespace lockstep::emulation::test
