// Forward writes to y (M, D) the rows of table (V, D) that ids (M) name, plus positions (T, D). Backward adds the row
// of dy (M, D) of each token to the row of dtable (V, D) that the token's id names.
//
// Forward has blocks of 256 threads. A warp takes 128 pieces of 16 bytes of one row; neighbouring lanes take
// neighbouring pieces.
//
// Backward adds the rows of dy of an id in the order of the id's tokens, without atomic additions. mark_kernel finds
// the first and last token of each id. Then sum_kernel gives 128 pieces of a row of dtable to a block of 128 threads.
// The block lists the tokens of the row's id in shared memory (2 KB), and keeps the sums in registers. A frequent id
// makes its block scan ids from the id's first to its last token.
//
// Memory bandwidth bounds the kernels. In f32, forward moves 8 bytes per element of y, or 12 with positions. Backward
// reads dy once and writes all of dtable, each 4 bytes per element. With accumulate, backward reads and writes only the
// rows of dtable whose ids occur. The first and last tokens of the ids take 16 bytes per id.

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/embedding.hpp>
#include <lockstep/kernels/fill.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int kPiecesPerLane = 4;
constexpr int kCountBlock = 1024;

__device__ bool in_table(std::int32_t id, int64_t vocabulary) {
  return id >= 0 && id < vocabulary;
}

/// Computes y (M, D) from table (V, D), ids (M) and positions (T, D) or null. A warp takes 128 pieces of a row of y, so
/// that a few long rows still occupy many warps.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock)
    forward_kernel(int64_t tokens, int64_t pieces, int64_t segments, int64_t vocabulary, int64_t length, const T* table,
                   const std::int32_t* ids, const T* positions, T* y) {
  gpu::wait_for_earlier();
  constexpr int kWarps = kBlock / gpu::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int64_t width = pieces * kCount;
  int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / gpu::kWarp;
  for (; item < tokens * segments; item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t token = item / segments;
    const int64_t first = item % segments * (kPiecesPerLane * gpu::kWarp) + lane;
    const std::int32_t id = ids[token];
    const bool known = in_table(id, vocabulary);
    const T* const row = table + (known ? id * width : 0);
    const T* const place = positions == nullptr ? nullptr : positions + token % length * width;
#pragma unroll
    for (int i = 0; i < kPiecesPerLane; ++i) {
      const int64_t piece = first + i * gpu::kWarp;
      if (piece < pieces) {
        gpu::Pack<T, kCount> values;
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          values.at[j] = gpu::from_float<T>(0.0F);
        }
        if (known) {
          values = gpu::load<kCount>(row + piece * kCount);
          if (place != nullptr) {
            const auto add = gpu::load<kCount>(place + piece * kCount);
#pragma unroll
            for (int j = 0; j < kCount; ++j) {
              values.at[j] = gpu::from_float<T>(gpu::to_float(values.at[j]) + gpu::to_float(add.at[j]));
            }
          }
        }
        gpu::store(y + token * width + piece * kCount, values);
      }
    }
  }
}

/// Adds to bad_ids the number of ids of valid samples that lie outside the table. Only one block runs, so no results of
/// several blocks need to be joined. ids: (samples, each); valid, bad_ids: scalars; valid may be null.
__global__ void __launch_bounds__(kCountBlock) count_kernel(const std::int32_t* ids, int64_t samples, int64_t each,
                                                            const int64_t* valid, int64_t vocabulary, double* bad_ids) {
  gpu::wait_for_earlier();
  const int64_t given = valid != nullptr ? *valid : samples;
  const int64_t tokens = (given <= 0 ? 0 : (given < samples ? given : samples)) * each;
  double bad = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < tokens; i += kCountBlock) {
    bad += in_table(ids[i], vocabulary) ? 0.0 : 1.0;
  }
  bad = gpu::block_sum<kCountBlock>(bad);
  if (threadIdx.x == 0) {
    *bad_ids += bad;
  }
}

/// Finds for each id its last token, and how many tokens of the batch come after its first token. Both numbers are
/// maxima and start at -1; the order of atomic operations does not affect a maximum. ids: (M); last, first_from_end:
/// (V).
__global__ void __launch_bounds__(kBlock) mark_kernel(const std::int32_t* ids, int64_t tokens, int64_t vocabulary,
                                                      std::int32_t* last, std::int32_t* first_from_end) {
  gpu::wait_for_earlier();
  int64_t token = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  for (; token < tokens; token += static_cast<int64_t>(gridDim.x) * kBlock) {
    const std::int32_t id = ids[token];
    if (in_table(id, vocabulary)) {
      atomicMax(last + id, static_cast<int>(token));
      atomicMax(first_from_end + id, static_cast<int>(tokens - 1 - token));
    }
  }
}

constexpr int kSumBlock = 128;  // number of threads of a block, which sums 1024 columns of a 16-bit dy
constexpr int kSumWarps = kSumBlock / gpu::kWarp;
constexpr int kScan = 4;  // number of ids that a thread checks between two barriers

/// Writes to `list`, in ascending order, the tokens whose id is `wanted`. Searches kScan * kSumBlock tokens from
/// `first` on, but none after `last`. Returns the number of tokens in `list`. ids: (M). All threads of the block must
/// call list_tokens(). The function has two barriers; the first one waits until all threads have read the previous
/// list.
__device__ int list_tokens(const std::int32_t* ids, int64_t first, int64_t last, int64_t wanted,
                           int (&counts)[kScan * kSumWarps], std::int32_t (&list)[kScan * kSumBlock]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % gpu::kWarp;
  const int warp = thread / gpu::kWarp;
  unsigned votes[kScan];
#pragma unroll
  for (int i = 0; i < kScan; ++i) {
    const int64_t token = first + i * kSumBlock + thread;
    votes[i] = __ballot_sync(gpu::kAllLanes, token <= last && ids[token] == wanted ? 1 : 0);
    if (lane == 0) {
      counts[i * kSumWarps + warp] = __popc(votes[i]);
    }
  }
  __syncthreads();
  int total = 0;  // sum of counts[0 .. i); after the loop the length of the list
#pragma unroll
  for (int i = 0; i < kScan * kSumWarps; ++i) {
    if (i % kSumWarps == warp && (votes[i / kSumWarps] >> lane & 1U) != 0) {
      const int place = total + __popc(votes[i / kSumWarps] & ((1U << lane) - 1));
      list[place] = static_cast<std::int32_t>(first + i / kSumWarps * kSumBlock + thread);
    }
    total += counts[i];
  }
  __syncthreads();
  return total;
}

/// Computes dtable (V, D). A block takes 128 pieces of the row of an id. It searches for tokens with this id, from the
/// id's first to its last token. Each thread adds its piece of the rows of dy of these tokens, in order, to the piece's
/// present value, or to 0. Most ids of a vocabulary occur in no token of a batch, or in one: then nothing is searched.
/// dy: (M, D), ids: (M), last, first_from_end: (V).
template <class T, int kCount>
__global__ void __launch_bounds__(kSumBlock)
    sum_kernel(int64_t tokens, int64_t pieces, int64_t segments, int64_t vocabulary, bool accumulate, const T* dy,
               const std::int32_t* ids, const std::int32_t* last, const std::int32_t* first_from_end, float* dtable) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(int, counts, [kScan * kSumWarps]);
  LOCKSTEP_SHARED(std::int32_t, list, [kScan * kSumBlock]);
  const int64_t width = pieces * kCount;
  for (int64_t item = blockIdx.x; item < vocabulary * segments; item += gridDim.x) {
    const int64_t id = item / segments;
    const int64_t piece = item % segments * kSumBlock + threadIdx.x;
    const int64_t end = last[id];
    if (end < 0 && accumulate) {
      continue;
    }
    float* const to = dtable + id * width + piece * kCount;
    gpu::Pack<float, kCount> sum{};
    if (accumulate && piece < pieces) {
      sum = gpu::load<kCount>(to);
    }
    const auto add = [&](int64_t token) {
      const auto values = gpu::load<kCount>(dy + token * width + piece * kCount);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sum.at[j] += gpu::to_float(values.at[j]);
      }
    };
    const int64_t begin = tokens - 1 - first_from_end[id];
    if (begin == end) {
      if (piece < pieces) {
        add(end);
      }
    } else {
      for (int64_t first = begin; first <= end; first += kScan * kSumBlock) {
        const int found = list_tokens(ids, first, end, id, counts, list);
        if (piece < pieces) {
#pragma unroll 4
          for (int i = 0; i < found; ++i) {
            add(list[i]);
          }
        }
      }
    }
    if (piece < pieces) {
      gpu::store(to, sum);
    }
  }
}

}  // namespace

void embedding_forward(CudaContext& context, const TensorView& table, const TensorView& ids,
                       const TensorView& positions, const TensorView& valid, const TensorView& y,
                       const TensorView& bad_ids) {
  const int64_t tokens = ids.numel();
  const int64_t vocabulary = table.shape[0];
  const int64_t width = table.shape[1];
  const auto* id = gpu::data<const std::int32_t>(ids);
  if (tokens > 0 && width > 0) {
    gpu::visit_element(table.dtype, "embedding_forward", [&]<class T>(std::type_identity<T>) {
      const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(table), gpu::data<T>(positions), gpu::data<T>(y));
      gpu::visit_pieces<T>(aligned, width, [&]<int kCount>(std::integral_constant<int, kCount>) {
        const int64_t pieces = width / kCount;
        constexpr int kSegment = kPiecesPerLane * gpu::kWarp;
        const int64_t segments = (pieces + kSegment - 1) / kSegment;
        gpu::launch(forward_kernel<T, kCount>, dim3(gpu::blocks_for(tokens * segments, kBlock / gpu::kWarp)),
                    dim3(kBlock), 0, context.stream(), tokens, pieces, segments, vocabulary, ids.shape.back(),
                    gpu::data<T>(table), id, gpu::data<T>(positions), gpu::data<T>(y));
      });
    });
  }
  if (bad_ids.given() && tokens > 0) {
    gpu::launch(count_kernel, dim3(1), dim3(kCountBlock), 0, context.stream(), id, ids.shape[0], tokens / ids.shape[0],
                gpu::data<const int64_t>(valid), vocabulary, gpu::data<double>(bad_ids));
  }
}

void embedding_backward(CudaContext& context, const TensorView& dy, const TensorView& ids, GradMode mode,
                        const TensorView& dtable, const TensorView& workspace) {
  const int64_t tokens = ids.numel();
  const int64_t vocabulary = dtable.shape[0];
  const int64_t width = dtable.shape[1];
  if (vocabulary == 0 || width == 0) {
    return;
  }
  const auto* id = gpu::data<const std::int32_t>(ids);
  auto* last = gpu::data<std::int32_t>(workspace);
  auto* first_from_end = last + vocabulary;
  fill(context, -1, TensorView(workspace.data, DType::i32, workspace.device, Shape{2 * vocabulary}));
  if (tokens > 0) {
    gpu::launch(mark_kernel, dim3(gpu::blocks_for(tokens, kBlock)), dim3(kBlock), 0, context.stream(), id, tokens,
                vocabulary, last, first_from_end);
  }
  gpu::visit_element(dy.dtype, "embedding_backward", [&]<class T>(std::type_identity<T>) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<T>(dy), gpu::data<float>(dtable));
    gpu::visit_pieces<T>(aligned, width, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const int64_t pieces = width / kCount;
      const int64_t segments = (pieces + kSumBlock - 1) / kSumBlock;
      gpu::launch(sum_kernel<T, kCount>, dim3(gpu::blocks_for(vocabulary * segments, 1)), dim3(kSumBlock), 0,
                  context.stream(), tokens, pieces, segments, vocabulary, mode == GradMode::accumulate,
                  gpu::data<T>(dy), id, last, first_from_end, gpu::data<float>(dtable));
    });
  });
}

}  // namespace lockstep::ops::backend
