#include "test_kernels.hpp"

#include <lockstep/emulation/device.hpp>

#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace lockstep::emulation::test {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;

template <class... Parameters, class... Arguments>
void launch(const Launch& launch, void (*kernel)(Parameters...), const Schedule& schedule, Arguments... arguments) {
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  run(launch, schedule, [&] { std::apply(kernel, values); });
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& at, std::size_t shared_bytes,
            Arguments... arguments) {
  launch(Launch{.grid = at.grid, .block = at.block, .shared_bytes = shared_bytes, .name = name}, kernel, at.schedule,
         arguments...);
}

// ---- Kernels with mistakes ----

__global__ void scale_kernel(float* out, const float* in, int n, Bug bug) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (bug == Bug::no_bounds_check) {
    out[i] = 2 * (i < n ? in[i] : 0.0F);
  } else if (bug == Bug::past_the_end ? i <= n : i < n) {
    out[i] = 2 * (i < n ? in[i] : 0.0F);
  }
}

__global__ void scale_vectors_kernel(float* out, const float* in, int n, Bug bug) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const bool aligned = (reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(in)) % 16 == 0;
  const int vectors = aligned || bug == Bug::unaligned_vectors ? n / 4 : 0;
  for (int i = thread; i < vectors; i += threads) {
    float4 v = reinterpret_cast<const float4*>(in)[i];
    v.x *= 2;
    v.y *= 2;
    v.z *= 2;
    v.w *= 2;
    reinterpret_cast<float4*>(out)[i] = v;
  }
  for (int i = 4 * vectors + thread; i < n - (bug == Bug::tail_skipped ? 1 : 0); i += threads) {
    out[i] = 2 * in[i];
  }
}

__device__ float warp_sum(float value, Bug bug) {
  const unsigned mask = bug == Bug::half_mask ? 0xFFFFu : kAll;
  for (int step = 16; step > (bug == Bug::shuffle_step_missing ? 1 : 0); step /= 2) {
    value += __shfl_xor_sync(mask, value, step);
  }
  return value;
}

__device__ float block_sum(float value, float* partial, Bug bug) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const unsigned warps = blockDim.x / 32;
  value = warp_sum(value, bug);
  if (lane == 0) {
    partial[warp] = value;
    if (bug == Bug::barrier_in_if) {
      __syncthreads();
    }
  }
  if (bug == Bug::barrier_against_warp && warp == 0) {
    if (lane == 5) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  } else if (bug != Bug::no_barrier_partials) {
    __syncthreads();
  }
  const bool there = bug == Bug::uninitialised_shared || lane < warps;
  return warp_sum(there ? partial[lane] : 0.0F, Bug::none);
}

__global__ void block_sums_kernel(float* out, const float* in, int n, Bug bug) {
  LOCKSTEP_SHARED(float, partial, [32]);
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  if (bug == Bug::early_return && thread >= n) {
    return;
  }
  float sum = 0;
  float squares = 0;
  for (int i = thread; i < n; i += threads) {
    sum += in[i];
    squares += in[i] * in[i];
  }
  const float total = block_sum(sum, partial, bug);
  if (bug != Bug::no_barrier_reuse) {
    __syncthreads();
  }
  const float total_squares = block_sum(squares, partial, bug);
  if (threadIdx.x == 0) {
    out[2 * blockIdx.x] = total;
    out[2 * blockIdx.x + 1] = total_squares;
  }
}

__global__ void strided_neighbours_kernel(float* out, const float* in, int n, Bug bug) {
  const int lane = static_cast<int>(threadIdx.x);
  float total = 0;
  const int end = bug == Bug::divergent_collective ? n : (n + 31) / 32 * 32;
  for (int i = lane; i < end; i += 32) {
    const float other = __shfl_xor_sync(kAll, i < n ? in[i] : 0.0F, 1);
    total += i < n ? other : 0.0F;
  }
  out[lane] = total;
}

__global__ void swap_pairs_kernel(float* out, const float* in, Bug bug) {
  LOCKSTEP_SHARED(float, exchange, [64]);
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  exchange[threadIdx.x] = in[i];
  if (bug != Bug::no_syncwarp) {
    __syncwarp();
  }
  out[i] = exchange[threadIdx.x ^ 1u];
}

__global__ void add_all_kernel(float* out, const float* in, int n, Bug bug) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float sum = warp_sum(i < n ? in[i] : 0.0F, Bug::none);
  if (threadIdx.x % 32 == 0) {
    if (bug == Bug::plain_add) {
      *out += sum;
    } else {
      atomicAdd(out, sum);
    }
  }
}

__global__ void reverse_kernel(float* out, const float* in) {
  LOCKSTEP_DYNAMIC_SHARED(float, buffer);
  const unsigned base = blockIdx.x * blockDim.x;
  buffer[threadIdx.x] = in[base + threadIdx.x];
  __syncthreads();
  out[base + threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
}

__global__ void pool3_kernel(float* out, const float* in, int n, Bug bug) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    const bool clamp = bug != Bug::window_not_clamped;
    const int first = clamp && i == 0 ? 0 : i - 1;
    const int last = clamp && i == n - 1 ? i : i + 1;
    float most = in[i];
    for (int k = first; k <= last; ++k) {
      most = fmaxf(most, in[k]);
    }
    out[i] = most;
  }
}

__global__ void transpose_kernel(float* out, const float* in, int rows, int columns, Bug bug) {
  LOCKSTEP_SHARED(float, tile, [32][32]);
  const int shift = bug == Bug::column_32 ? 1 : 0;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < 32; y += static_cast<int>(blockDim.y)) {
    const int row = static_cast<int>(blockIdx.y) * 32 + y;
    const int column = static_cast<int>(blockIdx.x) * 32 + x;
    tile[y][x + shift] = row < rows && column < columns ? in[row * columns + column] : 0.0F;
  }
  if (bug != Bug::no_barrier_transpose) {
    __syncthreads();
  }
  for (int y = static_cast<int>(threadIdx.y); y < 32; y += static_cast<int>(blockDim.y)) {
    const int row = static_cast<int>(blockIdx.x) * 32 + y;
    const int column = static_cast<int>(blockIdx.y) * 32 + x;
    if (row < columns && column < rows) {
      out[row * rows + column] = tile[x][y + shift];
    }
  }
}

struct TwoTensors {
  float* data[2];
  int count[2];
  int first_chunk[2];
};

__global__ void fill_two_kernel(TwoTensors tensors, Bug bug) {
  constexpr int kChunk = 64;
  const int block = static_cast<int>(blockIdx.x);
  const int which = block >= tensors.first_chunk[1] ? 1 : 0;
  const int begin = (block - tensors.first_chunk[which]) * kChunk;
  const int left = tensors.count[which] - begin;
  const int end = bug == Bug::chunk_not_clamped || left > kChunk ? kChunk : left;
  for (int i = static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    tensors.data[which][begin + i] = static_cast<float>(which + 1);
  }
}

__global__ void last_block_sum_kernel(float* out, float* partial, unsigned* counter, const float* in, int n, Bug bug) {
  LOCKSTEP_SHARED(float, warp_partial, [32]);
  LOCKSTEP_SHARED(int, last, );
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float sum = block_sum(thread < n ? in[thread] : 0.0F, warp_partial, Bug::none);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    if (bug != Bug::no_threadfence && bug != Bug::fence_after_atomic) {
      __threadfence();
    }
    const unsigned ticket = atomicAdd(counter, 1u);
    if (bug == Bug::fence_after_atomic) {
      __threadfence();
    }
    last = ticket == gridDim.x - 1 ? 1 : 0;
  }
  if (bug != Bug::no_barrier_flag) {
    __syncthreads();
  }
  if (last != 0) {
    float mine = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
      mine += partial[i];
    }
    __syncthreads();
    const float total = block_sum(mine, warp_partial, Bug::none);
    if (threadIdx.x == 0) {
      *out = total;
      *counter = 0;
    }
  }
}

__global__ void pass_round_kernel(float* values, int turns, Bug bug) {
  LOCKSTEP_SHARED(float, own, [32]);
  const int block = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  own[thread] = values[static_cast<int>(blockIdx.x) * block + thread];
  for (int turn = 0; turn < turns; ++turn) {
    if (bug != Bug::no_second_barrier && (bug != Bug::one_block_goes_on || blockIdx.x != 1)) {
      grid_barrier();
    }
    values[static_cast<int>(blockIdx.x) * block + thread] = own[thread];
    if (bug != Bug::no_grid_barrier) {
      grid_barrier();
    }
    own[thread] = values[static_cast<int>((blockIdx.x + 1) % gridDim.x) * block + thread];
  }
  grid_barrier();
  values[static_cast<int>(blockIdx.x) * block + thread] = own[thread];
}

__global__ void stepwise_sum_kernel(float* out, const float* in, int n, Bug bug) {
  LOCKSTEP_SHARED(float, sum, [64]);
  const int i = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockDim.x);
  sum[i] = 0;
  const int end = bug == Bug::barrier_in_loop ? n : (n + block - 1) / block * block;
  for (int k = i; k < end; k += block) {
    sum[i] += k < n ? in[k] : 0.0F;
    __syncthreads();
  }
  __syncthreads();
  out[i] = sum[i];
}

__global__ void histogram_kernel(int* bins, const unsigned char* in, int n, Bug bug) {
  LOCKSTEP_SHARED(int, counts, [16]);
  if (threadIdx.x < 16) {
    counts[threadIdx.x] = 0;
  }
  if (bug != Bug::no_barrier_zero) {
    __syncthreads();
  }
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += threads) {
    if (bug == Bug::plain_count) {
      counts[in[i]]++;
    } else {
      atomicAdd(&counts[in[i]], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < 16) {
    atomicAdd(&bins[threadIdx.x], counts[threadIdx.x]);
  }
}

__global__ void through_shared_vectors_kernel(float* out, const float* in, Bug bug) {
  LOCKSTEP_SHARED(float4, vectors, [64]);
  LOCKSTEP_SHARED(float, scalars, [256]);
  float4* buffer = bug == Bug::underaligned_shared ? reinterpret_cast<float4*>(scalars) : vectors;
  const unsigned i = threadIdx.x;
  buffer[i] = make_float4(in[4 * i], in[4 * i + 1], in[4 * i + 2], in[4 * i + 3]);
  const float4 v = buffer[i];
  out[4 * i] = v.x;
  out[4 * i + 1] = v.y;
  out[4 * i + 2] = v.z;
  out[4 * i + 3] = v.w;
}

// ---- Patterns ----

__global__ void pattern_kernel(Pattern which, float* data) {
  LOCKSTEP_SHARED(float, words, [2][64]);
  const unsigned t = threadIdx.x;
  const unsigned b = blockIdx.x;
  const unsigned i = b * blockDim.x + t;
  const unsigned lane = t % 32;
  auto* bytes = reinterpret_cast<unsigned char*>(data);
  auto* halves = reinterpret_cast<__half*>(data);
  auto* counters = reinterpret_cast<unsigned*>(data + 2048);
  switch (which) {
    case Pattern::byte_neighbours:
      bytes[i] = static_cast<unsigned char>(bytes[i] + t);
      break;
    case Pattern::half_neighbours:
      halves[i] = __float2half(static_cast<float>(t));
      break;
    case Pattern::half_of_a_float:
      if (i == 0) {
        data[7] = 1;
      } else if (i == 1) {
        halves[15] = __float2half(1.0F);
      }
      break;
    case Pattern::double_buffer:
    case Pattern::single_buffer:
      words[0][t] = static_cast<float>(t);
      __syncthreads();
      for (int step = 0; step < 4; ++step) {
        const int from = which == Pattern::double_buffer ? step % 2 : 0;
        const int to = which == Pattern::double_buffer ? 1 - from : 0;
        const float next = words[from][(t + 1) % 64];
        words[to][t] = next;
        __syncthreads();
      }
      data[i] = words[0][t];
      break;
    case Pattern::half_warp_sync:
    case Pattern::half_warp_sync_wrong: {
      words[0][t] = static_cast<float>(t);
      __syncwarp(lane < 16 ? 0xFFFFu : 0xFFFF0000u);
      data[i] = words[0][t ^ (which == Pattern::half_warp_sync ? 8u : 16u)];
      break;
    }
    case Pattern::sync_chain:
      if (lane < 3) {
        if (lane == 0) {
          words[0][t] = 1;
          __syncwarp(3);
        } else if (lane == 1) {
          __syncwarp(3);
          __syncwarp(6);
        } else {
          __syncwarp(6);
          data[i] = words[0][t - 2];
        }
      }
      break;
    case Pattern::shuffle_is_no_sync:
      words[0][t] = static_cast<float>(t);
      data[i] = __shfl_xor_sync(kAll, 1.0F, 1) + words[0][t ^ 1u];
      break;
    case Pattern::read_only:
      data[i] = data[4000] + data[4001];
      break;
    case Pattern::atomics_then_barrier:
    case Pattern::atomics_then_read:
      if (t == 0) {
        words[0][0] = 0;
      }
      __syncthreads();
      atomicAdd(&words[0][0], 1.0F);
      if (which == Pattern::atomics_then_barrier) {
        __syncthreads();
      }
      data[i] = words[0][0];
      break;
    case Pattern::same_flag:
      data[0] = 1;
      break;
    case Pattern::same_flag_atomic:
      atomicExch(&data[0], 1.0F);
      break;
    case Pattern::read_then_write:
      words[0][t] = 1;
      __syncthreads();
      if (t != 0) {
        data[i] = words[0][0];
      } else {
        words[0][0] = 2;
      }
      break;
    case Pattern::overlapping_vectors:
      if (i < 2) {
        for (unsigned k = 0; k < 4; ++k) {
          data[3 * i + k] = 1;
        }
      }
      break;
    case Pattern::block_order:
      if (t == 0) {
        if (b == 0) {
          data[0] = 1;
        } else if (b == 1) {
          data[1] = data[0];
        }
      }
      break;
    case Pattern::atomic_sum_last_block:
    case Pattern::ticket_elsewhere: {
      LOCKSTEP_SHARED(int, last, );
      atomicAdd(&data[0], 1.0F);
      __syncthreads();
      if (t == 0) {
        __threadfence();
        unsigned* counter = which == Pattern::atomic_sum_last_block ? counters : counters + b;
        const unsigned ticket = atomicAdd(counter, 1u);
        last = (which == Pattern::atomic_sum_last_block ? ticket : b) == gridDim.x - 1 ? 1 : 0;
      }
      __syncthreads();
      if (last != 0) {
        data[64 + t] = data[0];
      }
      break;
    }
    case Pattern::shared_of_two_blocks:
      words[0][t] = static_cast<float>(b);
      __syncthreads();
      data[i] = words[0][63 - t];
      break;
  }
}

// ---- Collectives ----

template <class T>
__global__ void shuffle_kernel(T* out, Shuffle kind, int argument, int width, unsigned mask) {
  const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = block * blockDim.x * blockDim.y * blockDim.z + in_block;
  if ((mask >> in_block % 32 & 1u) == 0) {
    return;
  }
  const T value = value_of<T>(thread);
  switch (kind) {
    case Shuffle::index:
      out[thread] = __shfl_sync(mask, value, argument, width);
      break;
    case Shuffle::up:
      out[thread] = __shfl_up_sync(mask, value, static_cast<unsigned>(argument), width);
      break;
    case Shuffle::down:
      out[thread] = __shfl_down_sync(mask, value, static_cast<unsigned>(argument), width);
      break;
    case Shuffle::exclusive:
      out[thread] = __shfl_xor_sync(mask, value, argument, width);
      break;
  }
}

__global__ void votes_kernel(unsigned* out, unsigned modulus) {
  const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = block * blockDim.x * blockDim.y * blockDim.z + in_block;
  const int predicate = thread % modulus == 0 ? 4 : 0;
  unsigned* row = out + std::size_t{6} * thread;
  row[0] = __ballot_sync(kAll, predicate);
  row[1] = static_cast<unsigned>(__any_sync(kAll, predicate));
  row[2] = static_cast<unsigned>(__all_sync(kAll, predicate));
  row[3] = static_cast<unsigned>(__syncthreads_count(predicate));
  row[4] = static_cast<unsigned>(__syncthreads_and(predicate));
  row[5] = static_cast<unsigned>(__syncthreads_or(predicate));
}

__global__ void indices_kernel(unsigned* out) {
  const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned* row = out + std::size_t{12} * (block * blockDim.x * blockDim.y * blockDim.z + in_block);
  __syncthreads();  // after a switch, too
  const unsigned values[] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z,
                             blockDim.x,  blockDim.y,  blockDim.z,  gridDim.x,  gridDim.y,  gridDim.z};
  for (int i = 0; i < 12; ++i) {
    row[i] = values[i];
  }
}

__global__ void atomics_kernel(Atomics* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const auto u = static_cast<unsigned>(i);
  atomicAdd(&out->add, i - 10);
  atomicSub(&out->sub, i);
  atomicMin(&out->smallest, 50 - i);
  atomicMax(&out->largest, i - 50);
  atomicAnd(&out->bits_and, ~(1 << i % 20));
  atomicOr(&out->bits_or, 1 << i % 20);
  atomicXor(&out->bits_xor, i);
  atomicInc(&out->inc, 10u);
  atomicDec(&out->dec, 10u);
  atomicExch(&out->exchanged, 7u);
  atomicAdd(&out->add64, 0x100000000ull + u);
  atomicMax(&out->largest64, static_cast<long long>(i) << 33);
  atomicAdd(&out->add_float, 0.5F);
  atomicAdd(&out->add_double, 0.25);
  atomicAdd(reinterpret_cast<__half*>(&out->add_half), __float2half(1.0F));
  atomicAdd(reinterpret_cast<__nv_bfloat16*>(&out->add_bfloat16), __float2bfloat16(1.0F));
  int seen = atomicCAS(&out->cas_max, -1, -1);
  while (seen < i * 7 % 101) {
    const int before = atomicCAS(&out->cas_max, seen, i * 7 % 101);
    if (before == seen) {
      break;
    }
    seen = before;
  }
}

__global__ void math_kernel(double* out) {
  int k = 0;
  const auto put = [&](double value) { out[k++] = value; };
  put(rsqrtf(4.0F));
  put(__expf(1.0F));
  put(__logf(10.0F));
  put(__fdividef(1.0F, 3.0F));
  put(__frcp_rn(7.0F));
  put(fmaf(2.0F, 3.0F, 4.0F));
  put(__saturatef(1.5F));
  put(__saturatef(__int_as_float(0x7FC00000)));
  put(__popc(0xF0F1u));
  put(__clz(1));
  put(__clz(0));
  put(__ffs(8));
  put(__ffs(0));
  put(__brev(1u));
  put(__umulhi(0x80000000u, 6u));
  put(__mulhi(-2, 1));
  put(static_cast<double>(__umul64hi(1ull << 63, 10ull)));
  put(__float_as_int(1.0F));
  put(__uint_as_float(0x40000000u));
  put(min(3, -4));
  put(max(-1, 1u));
  put(min(__int_as_float(0x7FC00000), 5.0F));
  put(max(2.0F, 3.0));
  put(__float2int_rn(2.5F));
  put(__float2int_rz(-2.9F));
  put(__float2int_rd(-2.1F));
  put(__float2int_ru(2.1F));
  put(__float2int_rn(3e9F));
  put(__float2uint_rz(-1.0F));
  put(__byte_perm(0x03020100u, 0x07060504u, 0x7531u));
  put(__funnelshift_l(0x80000000u, 1u, 1u));
  put(__funnelshift_r(0u, 1u, 1u));
  put(__half2float(__hfma(__float2half(1.5F), __float2half(2.0F), __float2half(0.25F))));
  put(__bfloat162float(__hfma(__float2bfloat16(1.5F), __float2bfloat16(2.0F), __float2bfloat16(0.25F))));
  const __half2 pair =
      __hfma2(__floats2half2_rn(1.0F, 2.0F), __floats2half2_rn(3.0F, 4.0F), __floats2half2_rn(5.0F, 6.0F));
  put(__low2float(pair));
  put(__high2float(pair));
  put(__half2float(hsqrt(__float2half(9.0F))));
  put(__half2float(hexp(__float2half(0.0F))));
  put(__bfloat162float(hrsqrt(__float2bfloat16(0.25F))));
  put(__bfloat162float(hfloor(__float2bfloat16(-1.5F))));
  put(__half2float(h2rcp(__floats2half2_rn(2.0F, 4.0F)).y));
  put(__half2float(__float2half(1.0F) + __float2half(2.0F)));
  const float4 vector = make_float4(1, 2, 3, 4);
  put(__ldg(&vector).w);
  float4 target = {};
  __stcs(&target, __ldcs(&vector));
  put(target.z);
  const __half half = __float2half(3.0F);
  put(__half2float(__ldg(&half)));
}

// ---- Misuse ----

/// Returns x, but hides its value from the compiler's optimisation.
template <class T>
__device__ T opaque(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ int recurse(int depth, volatile int* data) {
  volatile int frame[64];
  frame[depth % 64] = data[0] + depth;
  return depth == 1000000 ? 0 : recurse(depth + 1, data) + frame[depth % 64];
}

__global__ void misuse_kernel(Misuse which, int* data) {
  const unsigned t = threadIdx.x;
  switch (which) {
    case Misuse::static_too_large: {
      LOCKSTEP_SHARED(int, small, [256]);
      LOCKSTEP_SHARED(int, large, [49 * 256]);
      small[t] = 0;
      large[t] = 0;
      break;
    }
    case Misuse::wild_pointer: {
      if (t == 3) {
        opaque<int*>(nullptr)[5] = 1;
      }
      break;
    }
    case Misuse::misaligned_atomic:
      if (t == 3) {
        atomicAdd(reinterpret_cast<int*>(reinterpret_cast<char*>(data) + 2), 1);
      }
      break;
    case Misuse::trap:
      if (t == 3) {
        __trap();
      }
      break;
    case Misuse::throws:
      __syncthreads();
      if (t == 3) {
        throw std::runtime_error("out of luck");
      }
      __syncthreads();
      break;
    case Misuse::bad_width:
      data[t] = __shfl_sync(kAll, 1, 0, 12);
      break;
    case Misuse::shared_before_start: {
      LOCKSTEP_SHARED(int, values, [64]);
      if (t == 3) {
        opaque<int*>(values)[-1] = 1;
      }
      break;
    }
    case Misuse::endless_recursion:
      data[0] = recurse(0, data);
      break;
    case Misuse::store_past_shared: {
      LOCKSTEP_SHARED(unsigned char, values, [61]);
      if (t == 3) {
        std::memset(opaque<void*>(values), 0, opaque<std::size_t>(62));
      }
      break;
    }
  }
}

__global__ void nothing_kernel() {}

}  // namespace

void scale(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("scale", scale_kernel, at, 0, out, in, n, bug);
}
void scale_vectors(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("scale_vectors", scale_vectors_kernel, at, 0, out, in, n, bug);
}
void block_sums(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("block_sums", block_sums_kernel, at, 0, out, in, n, bug);
}
void strided_neighbours(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("strided_neighbours", strided_neighbours_kernel, at, 0, out, in, n, bug);
}
void swap_pairs(const Grid& at, float* out, const float* in, Bug bug) {
  launch("swap_pairs", swap_pairs_kernel, at, 0, out, in, bug);
}
void add_all(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("add_all", add_all_kernel, at, 0, out, in, n, bug);
}
void reverse(const Grid& at, std::size_t shared_bytes, float* out, const float* in) {
  launch("reverse", reverse_kernel, at, shared_bytes, out, in);
}
void pool3(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("pool3", pool3_kernel, at, 0, out, in, n, bug);
}
void transpose(const Schedule& schedule, float* out, const float* in, int rows, int columns, Bug bug) {
  const Grid at = {schedule, dim3((columns + 31) / 32, (rows + 31) / 32), dim3(32, 8)};
  launch("transpose", transpose_kernel, at, 0, out, in, rows, columns, bug);
}
void fill_two(const Schedule& schedule, float* a, int a_count, float* b, int b_count, Bug bug) {
  const int chunks = (a_count + 63) / 64;
  const TwoTensors tensors = {{a, b}, {a_count, b_count}, {0, chunks}};
  launch("fill_two", fill_two_kernel, {schedule, dim3(chunks + (b_count + 63) / 64), dim3(32)}, 0, tensors, bug);
}
void last_block_sum(const Grid& at, float* out, float* partial, unsigned* counter, const float* in, int n, Bug bug) {
  launch("last_block_sum", last_block_sum_kernel, at, 0, out, partial, counter, in, n, bug);
}
void pass_round(const Grid& at, float* values, int turns, Bug bug, bool cooperative) {
  launch(Launch{.grid = at.grid, .block = at.block, .name = "pass_round", .cooperative = cooperative},
         pass_round_kernel, at.schedule, values, turns, bug);
}
void stepwise_sum(const Grid& at, float* out, const float* in, int n, Bug bug) {
  launch("stepwise_sum", stepwise_sum_kernel, at, 0, out, in, n, bug);
}
void histogram(const Grid& at, int* bins, const unsigned char* in, int n, Bug bug) {
  launch("histogram", histogram_kernel, at, 0, bins, in, n, bug);
}
void through_shared_vectors(const Grid& at, float* out, const float* in, Bug bug) {
  launch("through_shared_vectors", through_shared_vectors_kernel, at, 0, out, in, bug);
}

void pattern(const Schedule& schedule, Pattern which, float* data) {
  launch("pattern", pattern_kernel, {schedule, dim3(4), dim3(64)}, 0, which, data);
}

bool is_right(Pattern which) {
  switch (which) {
    case Pattern::half_of_a_float:
    case Pattern::single_buffer:
    case Pattern::half_warp_sync_wrong:
    case Pattern::shuffle_is_no_sync:
    case Pattern::atomics_then_read:
    case Pattern::same_flag:
    case Pattern::read_then_write:
    case Pattern::overlapping_vectors:
    case Pattern::block_order:
    case Pattern::ticket_elsewhere:
      return false;
    default:
      return true;
  }
}

template <>
int value_of(unsigned thread) {
  return 1000 - static_cast<int>(thread);
}
template <>
unsigned value_of(unsigned thread) {
  return 0xF0000000u + thread;
}
template <>
long long value_of(unsigned thread) {
  return -0x123456789ll - thread;
}
template <>
unsigned long long value_of(unsigned thread) {
  return 0xFEDCBA9800000000ull + thread;
}
template <>
float value_of(unsigned thread) {
  return 0.5F + static_cast<float>(thread);
}
template <>
double value_of(unsigned thread) {
  return 1e100 + 1e90 * thread;
}
template <>
__half value_of(unsigned thread) {
  return __float2half(static_cast<float>(thread % 1024));
}
template <>
__nv_bfloat162 value_of(unsigned thread) {
  return __floats2bfloat162_rn(static_cast<float>(thread % 128), static_cast<float>(thread / 128));
}

template <class T>
void shuffle(const Grid& at, T* out, Shuffle kind, int argument, int width, unsigned mask) {
  launch("shuffle", shuffle_kernel<T>, at, 0, out, kind, argument, width, mask);
}
template void shuffle(const Grid&, int*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, unsigned*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, long long*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, unsigned long long*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, float*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, double*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, __half*, Shuffle, int, int, unsigned);
template void shuffle(const Grid&, __nv_bfloat162*, Shuffle, int, int, unsigned);

void votes(const Grid& at, unsigned* out, unsigned modulus) {
  launch("votes", votes_kernel, at, 0, out, modulus);
}
void indices(const Grid& at, unsigned* out) {
  launch("indices", indices_kernel, at, 0, out);
}
void atomics(const Grid& at, Atomics* out) {
  launch("atomics", atomics_kernel, at, 0, out);
}
void math(const Grid& at, double* out) {
  launch("math", math_kernel, at, 0, out);
}
void misuse(const Grid& at, Misuse which, int* data) {
  launch("misuse", misuse_kernel, at, 0, which, data);
}
void nothing(const Launch& launch_, const Schedule& schedule) {
  run(launch_, schedule, [] { nothing_kernel(); });
}

}  // namespace lockstep::emulation::test
