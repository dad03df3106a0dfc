#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/sgd.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int kWidth = gpu::kPerVector<float>;
constexpr int kPieces = 4;  // 16-byte pieces of each tensor that a thread takes from a chunk
constexpr std::int64_t kChunk = kBlock * kPieces * kWidth;
constexpr int kMostSegments = 64;

enum class Rule : unsigned char { plain, momentum, nesterov };

/// Part of a segment that the update reaches: the elements [begin, end) of the views, cut into chunks.
struct Part {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t first_chunk;  ///< of this part, among those of all parts
  double learning_rate_scale;
  float weight_decay;
};

/// A kernel parameter, so that the segments reach the GPU with the launch: no copy, no memory of their own.
struct Table {
  Part parts[kMostSegments];
  std::int64_t chunks;
  int count;
};
static_assert(sizeof(Table) <= 4000, "kernel parameters of 4096 bytes are allowed everywhere");

struct Coefficients {
  float learning_rate;
  float weight_decay;
  float momentum;
};

/// One element in one order of roundings, wherever it lies.
template <Rule kRule>
__device__ void update(const Coefficients& k, float& p, float gradient, float& v) {
  const float g = fmaf(k.weight_decay, p, gradient);
  float step = g;
  if constexpr (kRule != Rule::plain) {
    v = fmaf(k.momentum, v, g);
    step = kRule == Rule::nesterov ? fmaf(k.momentum, v, g) : v;
  }
  p = fmaf(-k.learning_rate, step, p);
}

/// store_vector() where the same memory was loaded before: nvcc splits a plain store there into single elements.
__device__ void store_back(float* to, const gpu::Vector<float>& value) {
  __stwb(reinterpret_cast<float4*>(to), make_float4(value.at[0], value.at[1], value.at[2], value.at[3]));
}

/// A block takes chunks of 4096 elements that lie in one part each, 16 bytes a thread at a time; pieces that reach over
/// an end of the part, and all pieces without `vectors`, go element by element. Reads p, g, v and writes p, v once: 20
/// bytes an element, 12 without momentum. p, g, v: (n).
template <Rule kRule>
__global__ void __launch_bounds__(kBlock)
    update_kernel(const __grid_constant__ Table table, bool vectors, float momentum, const double* learning_rate,
                  float* p, const float* g, float* v) {
  const double rate = *learning_rate;
  int at = 0;
  for (std::int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (at + 1 < table.count && chunk >= table.parts[at + 1].first_chunk) {
      ++at;
    }
    const Part& part = table.parts[at];
    const std::int64_t begin = part.begin;
    const std::int64_t end = part.end;
    const Coefficients k{static_cast<float>(rate * part.learning_rate_scale), part.weight_decay, momentum};
    const std::int64_t base = begin - begin % kWidth + (chunk - part.first_chunk) * kChunk;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const std::int64_t first = base + (i * kBlock + static_cast<int>(threadIdx.x)) * kWidth;
      if (vectors && first >= begin && first + kWidth <= end) {
        gpu::Vector<float> parameters = gpu::load_vector(p + first);
        const gpu::Vector<float> gradients = gpu::load_vector(g + first);
        gpu::Vector<float> velocity{};
        if constexpr (kRule != Rule::plain) {
          velocity = gpu::load_vector(v + first);
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          update<kRule>(k, parameters.at[j], gradients.at[j], velocity.at[j]);
        }
        if constexpr (kRule != Rule::plain) {
          store_back(v + first, velocity);
        }
        store_back(p + first, parameters);
      } else {
        for (std::int64_t e = first < begin ? begin : first; e < first + kWidth && e < end; ++e) {
          float none = 0;
          update<kRule>(k, p[e], g[e], kRule == Rule::plain ? none : v[e]);
        }
      }
    }
  }
}

template <Rule kRule>
void run(CudaContext& context, const SgdOptions& options, std::span<const ArenaSegment> segments,
         std::int64_t arena_begin, const double* rate, std::int64_t n, float* p, const float* g, float* v) {
  const bool vectors = gpu::aligned_to_vectors(p, g, v);
  Table table{};
  const auto flush = [&] {
    if (table.count > 0) {
      gpu::launch(update_kernel<kRule>, dim3(gpu::blocks_for(table.chunks, 1)), dim3(kBlock), 0, context.stream(),
                  table, vectors, static_cast<float>(options.momentum), rate, p, g, v);
    }
    table.count = 0;
    table.chunks = 0;
  };
  for (const ArenaSegment& segment : segments) {
    const std::int64_t begin = segment.offset > arena_begin ? segment.offset - arena_begin : 0;
    const std::int64_t last = segment.offset + segment.count - arena_begin;
    const std::int64_t end = last < n ? last : n;
    if (!segment.trainable || begin >= end) {
      continue;
    }
    table.parts[table.count++] = {begin, end, table.chunks, segment.learning_rate_scale,
                                  static_cast<float>(segment.weight_decay)};
    table.chunks += (end - (begin - begin % kWidth) + kChunk - 1) / kChunk;
    if (table.count == kMostSegments) {
      flush();
    }
  }
  flush();
}

}  // namespace

void sgd_update(CudaContext& context, const SgdOptions& options, std::span<const ArenaSegment> segments,
                std::int64_t begin, const TensorView& learning_rate, const TensorView& parameters,
                const TensorView& gradients, const TensorView& velocity) {
  const auto* rate = learning_rate.as<double>();
  const std::int64_t n = parameters.numel();
  auto* p = parameters.as<float>();
  const auto* g = gradients.as<float>();
  if (options.momentum == 0) {
    run<Rule::plain>(context, options, segments, begin, rate, n, p, g, nullptr);
  } else if (options.nesterov) {
    run<Rule::nesterov>(context, options, segments, begin, rate, n, p, g, velocity.as<float>());
  } else {
    run<Rule::momentum>(context, options, segments, begin, rate, n, p, g, velocity.as<float>());
  }
}

}  // namespace lockstep::ops::backend
