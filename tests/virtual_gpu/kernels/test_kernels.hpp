#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator.hpp"

/// Kernels for emulator_test.cpp. Those with a parameter `bug` are right for bug = 0 and have one mistake for each
/// number that their comment names. Pointers are device memory.
namespace lockstep::emulation::test {

struct Grid {
  Schedule schedule;
  dim3 grid;
  dim3 block;
};

/// The mistake that a kernel below makes on purpose. A comment gives its number in the feasibility study's table, if it
/// has one, and where the mistake is.
enum class Bug : int {
  none,
  past_the_end,          // 1  `<=` in place of `<`
  unaligned_vectors,     // 2  16-byte loads at any address
  tail_skipped,          // 3  the last elements are skipped
  shuffle_step_missing,  // 4  a step of a shuffle reduction is missing
  divergent_collective,  // 5  a collective in a loop of unequal trip count
  no_syncwarp,           // 6  no __syncwarp between accesses of a warp
  no_barrier_partials,   // 7  no barrier before reading partial sums
  no_barrier_reuse,      // 8  no barrier before using the buffer again
  plain_add,             // 9  += from several blocks
  dynamic_too_small,     // 10 less dynamic shared memory than the kernel uses
  uninitialised_shared,  // 11 shared memory that no thread has set
  early_return,          // 12 a thread returns before a barrier
  window_not_clamped,    // 13 a window that reaches past the ends
  no_barrier_transpose,  // 15 no barrier inside a transpose
  column_32,             // 16 column 32 of an array [32][32]
  no_bounds_check,       // 17 no check of the output's end
  chunk_not_clamped,     // 18 the end of one of several tensors
  no_threadfence,        // 20 in a sum by the last block
  no_barrier_flag,       // 21 no barrier after a shared flag
  barrier_in_if,         // 22 a barrier in an if
  half_mask,             // 23 names half of the warp
  barrier_in_loop,       // 24 a barrier in a loop of unequal trip count
  no_barrier_zero,       // 25 no barrier after zeroing bins
  plain_count,           // 26 h[i]++ in shared memory
  fence_after_atomic,    //    last-block sum
  barrier_against_warp,  //    __syncthreads here, __syncwarp there
  underaligned_shared,   //    float4 access to a float array
  no_grid_barrier,       //    before reading what other blocks wrote
  no_second_barrier,     //    before writing what other blocks read
  one_block_goes_on,     //    without the grid barrier
};

/// out[i] = 2 in[i]. Mistakes: past_the_end, no_bounds_check.
void scale(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[i] = 2 in[i] with float4 where both pointers are aligned. Mistakes: unaligned_vectors, tail_skipped.
void scale_vectors(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[2 b] = sum of x, out[2 b + 1] = sum of x^2 over block b's share of in. Mistakes: shuffle_step_missing,
/// no_barrier_partials, no_barrier_reuse, uninitialised_shared, early_return, barrier_in_if, half_mask,
/// barrier_against_warp.
void block_sums(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[lane] = sum over i = lane, lane + 32, .. of in[i ^ 1]; n even. One warp. Mistakes: divergent_collective.
void strided_neighbours(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out[i] = in[i ^ 1] through shared memory. Mistakes: no_syncwarp.
void swap_pairs(const Grid& at, float* out, const float* in, Bug bug);
/// *out += sum of in. Mistakes: plain_add.
void add_all(const Grid& at, float* out, const float* in, int n, Bug bug);
/// Block b's share of in, reversed, through dynamic shared memory of `shared_bytes`. Mistakes: none; dynamic_too_small
/// is the caller's.
void reverse(const Grid& at, std::size_t shared_bytes, float* out, const float* in);
/// out[i] = max of in[i - 1], in[i], in[i + 1]. Mistakes: window_not_clamped.
void pool3(const Grid& at, float* out, const float* in, int n, Bug bug);
/// out (columns, rows) from in (rows, columns), tiles of 32 x 32. Mistakes: no_barrier_transpose, column_32.
void transpose(const Schedule& schedule, float* out, const float* in, int rows, int columns, Bug bug);
/// Fills two tensors, a chunk of 64 elements a block. Mistakes: chunk_not_clamped.
void fill_two(const Schedule& schedule, float* a, int a_count, float* b, int b_count, Bug bug);
/// *out = sum of in: partial sums of the blocks (gridDim.x), joined by the last one. *counter is 0 before and after.
/// Mistakes: no_threadfence, no_barrier_flag, fence_after_atomic.
void last_block_sum(const Grid& at, float* out, float* partial, unsigned* counter, const float* in, int n, Bug bug);
/// A cooperative launch in which each block of 32 threads takes over the values of the next block, `turns` times.
/// Mistakes: no_grid_barrier, no_second_barrier, one_block_goes_on.
void pass_round(const Grid& at, float* values, int turns, Bug bug, bool cooperative = true);
/// out[i] = sum of in[i], in[i + block], .. with a barrier in each step. Mistakes: barrier_in_loop.
void stepwise_sum(const Grid& at, float* out, const float* in, int n, Bug bug);
/// Adds to bins (16) how often each value of in occurs. Mistakes: no_barrier_zero, plain_count.
void histogram(const Grid& at, int* bins, const unsigned char* in, int n, Bug bug);
/// out[i] = in[i] through shared float4. Mistakes: underaligned_shared.
void through_shared_vectors(const Grid& at, float* out, const float* in, Bug bug);

/// The patterns of accesses for the race checker. One that is marked "wrong" has a race.
enum class Pattern : int {
  byte_neighbours,        ///< threads write neighbouring bytes
  half_neighbours,        ///< threads write neighbouring halves
  half_of_a_float,        ///< wrong: a float, and a half of it, by two threads
  double_buffer,          ///< two buffers, one barrier in each step
  single_buffer,          ///< wrong: one buffer, one barrier in each step
  half_warp_sync,         ///< __syncwarp of each half orders its half
  half_warp_sync_wrong,   ///< wrong: a thread reads what the other half wrote
  sync_chain,             ///< 0 to 1, then 1 to 2: orders 0 before 2
  shuffle_is_no_sync,     ///< wrong: a shuffle between write and read
  read_only,              ///< all threads read the same words
  atomics_then_barrier,   ///< atomicAdd by all, barrier, plain read
  atomics_then_read,      ///< wrong: atomicAdd by all, then a plain read without a barrier
  same_flag,              ///< wrong: many threads store the same value
  same_flag_atomic,       ///< many threads store the same value through atomicExch
  read_then_write,        ///< wrong: thread 0 writes what others may be reading
  overlapping_vectors,    ///< wrong: float4 stores that overlap by one float
  block_order,            ///< wrong: block 1 reads what block 0 wrote
  atomic_sum_last_block,  ///< blocks atomicAdd into a sum, fence, ticket; the last reads the sum
  ticket_elsewhere,       ///< wrong: blocks fence and take tickets on different counters
  shared_of_two_blocks,   ///< every block uses the same variables
};
void pattern(const Schedule& schedule, Pattern which, float* data);  ///< 4 blocks of 64 threads; data: 4096 zeros
[[nodiscard]] bool is_right(Pattern which);

// ---- Collectives and indices ----

enum class Shuffle : int { index, up, down, exclusive };
/// out[global thread] = the shuffle of value(global thread), or untouched when the lane is not in mask.
template <class T>
void shuffle(const Grid& at, T* out, Shuffle kind, int argument, int width, unsigned mask);
template <class T>
T value_of(unsigned global_thread);

/// Per thread: ballot, any, all of (lane and global thread) parity-like predicates; then the block's count, and, or.
void votes(const Grid& at, unsigned* out /* (threads, 6) */, unsigned modulus);
void indices(const Grid& at, unsigned* out /* (threads, 12) */);
/// Every atomic operation from all threads; see the test for the layout.
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
/// Results of the arithmetic helpers, in the order of the kernel. One thread.
void math(const Grid& at, double* out);

// ---- What must fail ----

enum class Misuse : int {
  static_too_large,  // 50 KiB of shared variables
  wild_pointer,      // writes through a null pointer
  misaligned_atomic,
  trap,
  throws,
  bad_width,
  shared_before_start,  // writes below a variable
  endless_recursion,
  store_past_shared,  // through memcpy, which the compiler's instrumentation does not see
};
void misuse(const Grid& at, Misuse which, int* data);
void nothing(const Launch& launch, const Schedule& schedule);

}  // namespace lockstep::emulation::test
