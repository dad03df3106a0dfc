#pragma once

#include <array>

#include <lockstep/kernels/cuda/arena_table.hpp>
#include <lockstep/kernels/cuda/element.hpp>

/// Updates of ranges of arenas (n) by an optimizer. A class called Rule updates one element; this file divides the
/// elements among threads and moves the data.
///
/// A launch updates up to kMostArenaParts parts; a part is the elements of one segment that lie in the range. The table
/// of parts is a kernel parameter. A block of 256 threads takes chunks of 4096 elements, each inside one segment, so
/// that the block computes the segment's coefficients once per chunk. A thread takes 4 elements at a time, or 8 if a
/// tensor has 16 bits per element: 16 bytes of the narrowest tensor.
///
/// Memory bandwidth bounds the kernel: each tensor is read and written once, with few operations per element. The file
/// of each rule, such as sgd.cu, states the number of bytes per element.
namespace lockstep::gpu {

/// The scalars of an update in device memory, of which factor and skip may be null, and the update's clip value.
struct ArenaScalars {
  const double* learning_rate;
  const float* factor;
  const std::int32_t* skip;
  float limit;  ///< gradient * factor is clipped to [-limit, limit]; infinity: no clipping
};

/// Returns x brought into [-limit, limit]. Returns NaN for NaN, for which fminf would return the limit.
__device__ inline float clipped(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

/// The tensors of an update, (n) each. `copy` receives the parameters rounded to H, and may be null. If H is float, no
/// copy is written.
template <class G, class H, int kStates>
struct ArenaMemory {
  float* parameters;
  const G* gradients;
  H* copy;
  float* states[kStates == 0 ? 1 : kStates];
};

/// Updates kCount elements from element `first` on. kCount is 1, or the number of elements of whole 16-byte accesses.
template <class Rule, int kCount, class G, class H>
__device__ void update_elements(const typename Rule::Part& k, float factor, float limit,
                                const ArenaMemory<G, H, Rule::kStates>& at, std::int64_t first) {
  constexpr int kStates = Rule::kStates;
  Pack<float, kCount> parameters = load<kCount>(at.parameters + first);
  const Pack<G, kCount> gradients = load<kCount>(at.gradients + first);
  Pack<float, kCount> states[kStates == 0 ? 1 : kStates];
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    states[s] = load<kCount>(at.states[s] + first);
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    float own[kStates == 0 ? 1 : kStates];
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      own[s] = states[s].at[j];
    }
    Rule::update(k, parameters.at[j], clipped(factor * to_float(gradients.at[j]), limit), own);
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      states[s].at[j] = own[s];
    }
  }
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    store(at.states[s] + first, states[s]);
  }
  store(at.parameters + first, parameters);
  if constexpr (!std::is_same_v<H, float>) {
    if (at.copy != nullptr) {
      Pack<H, kCount> copy;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        copy.at[j] = from_float<H>(parameters.at[j]);
      }
      store(at.copy + first, copy);
    }
  }
}

/// Values that the threads of a block share: scalars of the update, and the values that Rule::share() computes once per
/// block.
template <class Shared>
struct ArenaBlock {
  double learning_rate;
  float factor;
  bool skips;
  Shared rule;
};

/// Updates the elements of all parts of segments in `table`. `at` holds the tensors (n). A block takes chunks of
/// kArenaChunk elements, each inside one part. A thread takes pieces of a chunk in 16-byte accesses. A piece that
/// reaches beyond the part is updated element by element, with the same roundings. If `vectors` is false, every piece
/// is updated element by element.
///
/// A Rule must have
///   kStates                           number of state arenas
///   Shared share() const              called once per block, by one thread
///   Part part(shared, learning_rate, ArenaPart, number) const     coefficients of part `number` of the update
///   static void update(part, float& p, float g, float* states)    updates one element; states: one number per arena
template <class Rule, class G, class H>
__global__ void __launch_bounds__(kArenaBlock)
    arena_kernel(const __grid_constant__ ArenaTable table, Rule rule, ArenaScalars scalars, bool vectors,
                 ArenaMemory<G, H, Rule::kStates> at) {
  gpu::wait_for_earlier();
  constexpr int kWidth = kPerVector < G >> kPerVector<H> ? kPerVector<G> : kPerVector<H>;
  constexpr int kPieces = kArenaChunk / (kArenaBlock * kWidth);
  LOCKSTEP_SHARED(ArenaBlock<typename Rule::Shared>, block, [1]);
  if (threadIdx.x == 0) {
    block[0].learning_rate = *scalars.learning_rate;
    block[0].factor = scalars.factor != nullptr ? *scalars.factor : 1.0F;
    block[0].skips = scalars.skip != nullptr && *scalars.skip != 0;
    block[0].rule = rule.share();
  }
  __syncthreads();
  const float factor = block[0].factor;
  const std::int64_t chunks = block[0].skips ? 0 : table.chunks;
  int number = 0;
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const ArenaPart& part = table.part_of(chunk, number);
    const std::int64_t begin = part.begin;
    const std::int64_t end = part.end;
    const typename Rule::Part k =
        rule.part(block[0].rule, block[0].learning_rate * part.learning_rate_scale, part, table.parts_before + number);
    const std::int64_t base = begin - begin % kWidth + (chunk - part.first_chunk) * kArenaChunk;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const std::int64_t first = base + (i * kArenaBlock + static_cast<int>(threadIdx.x)) * kWidth;
      if (vectors && first >= begin && first + kWidth <= end) {
        update_elements<Rule, kWidth>(k, factor, scalars.limit, at, first);
      } else {
        for (std::int64_t e = first < begin ? begin : first; e < first + kWidth && e < end; ++e) {
          update_elements<Rule, 1>(k, factor, scalars.limit, at, e);
        }
      }
    }
  }
}

template <class G, class H, class Rule>
void update_arena_of(CudaContext& context, const ops::ArenaUpdate& update, const Rule& rule,
                     const std::array<TensorView, Rule::kStates>& states) {
  constexpr int kWidth = kPerVector < G >> kPerVector<H> ? kPerVector<G> : kPerVector<H>;
  ArenaMemory<G, H, Rule::kStates> at{
      data<float>(update.parameters), data<const G>(update.gradients), data<H>(update.copy), {}};
  bool vectors = aligned_to_vectors(at.parameters, at.gradients, at.copy);
  for (int s = 0; s < Rule::kStates; ++s) {
    at.states[s] = data<float>(states[s]);
    vectors = vectors && aligned_to_vectors(at.states[s]);
  }
  const ArenaScalars scalars{data<const double>(update.learning_rate), data<const float>(update.factor),
                             data<const std::int32_t>(update.skip),
                             update.clip_value > 0 ? static_cast<float>(update.clip_value) : INFINITY};
  for_each_table(update, kWidth, [&](const ArenaTable& table) {
    launch(arena_kernel<Rule, G, H>, dim3(blocks_for(table.chunks, 1)), dim3(kArenaBlock), 0, context.stream(), table,
           rule, scalars, vectors, at);
  });
}

/// Enqueues the update of f32 parameters by `rule`. `states` are the state arenas, in the order in which Rule::update()
/// numbers them.
template <class Rule>
void update_arena(CudaContext& context, const ops::ArenaUpdate& update, const Rule& rule,
                  const std::array<TensorView, Rule::kStates>& states) {
  const auto visit_half = [](DType dtype, auto&& f) {
    if (dtype == DType::bf16) {
      f(std::type_identity<__nv_bfloat16>{});
    } else {
      f(std::type_identity<__half>{});
    }
  };
  if (update.gradients.dtype != DType::f32) {
    visit_half(update.gradients.dtype,
               [&]<class G>(std::type_identity<G>) { update_arena_of<G, G>(context, update, rule, states); });
  } else if (update.copy.given()) {
    visit_half(update.copy.dtype,
               [&]<class H>(std::type_identity<H>) { update_arena_of<float, H>(context, update, rule, states); });
  } else {
    update_arena_of<float, float>(context, update, rule, states);
  }
}

}  // namespace lockstep::gpu
