#include <lockstep/kernels/cuda/arena.hpp>
#include <lockstep/kernels/cuda/chunk_sum.hpp>
#include <lockstep/kernels/lars.hpp>
#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops::backend {
namespace {

static_assert(kLarsChunk == gpu::kArenaChunk && gpu::kSumBlock == gpu::kArenaBlock);
constexpr int kBlock = gpu::kArenaBlock;

/// One block per chunk. parameters: (n), gradients: (n), partial: (chunks of the call, 2): sums of squares of both.
template <class G>
__global__ void __launch_bounds__(kBlock) norms_kernel(const __grid_constant__ gpu::ArenaTable table, bool vectors,
                                                       const float* parameters, const G* gradients, double* partial) {
  int number = 0;
  for (std::int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    const gpu::ArenaPart& part = table.part_of(chunk, number);
    const std::int64_t begin = part.begin + (chunk - part.first_chunk) * gpu::kArenaChunk;
    const bool aligned = vectors && part.begin % gpu::kPerVector<G> == 0;
    const double p = gpu::block_sum<kBlock>(gpu::thread_sum<kLarsChunk, gpu::kPerVector<float>>(
        gpu::SumTerm<float, true>{parameters}, begin, part.end, aligned));
    const double g = gpu::block_sum<kBlock>(
        gpu::thread_sum<kLarsChunk, gpu::kPerVector<G>>(gpu::SumTerm<G, true>{gradients}, begin, part.end, aligned));
    if (threadIdx.x == 0) {
      partial[2 * (table.chunks_before + chunk)] = p;
      partial[2 * (table.chunks_before + chunk) + 1] = g;
    }
  }
}

/// One block per part. partial: (chunks of the call, 2), ratios: (parts of the call).
__global__ void __launch_bounds__(kBlock)
    ratios_kernel(const __grid_constant__ gpu::ArenaTable table, double trust_coefficient, double epsilon,
                  const float* factor, const double* partial, double* ratios) {
  for (int number = static_cast<int>(blockIdx.x); number < table.count; number += static_cast<int>(gridDim.x)) {
    const gpu::ArenaPart& part = table.parts[number];
    const std::int64_t first = table.chunks_before + part.first_chunk;
    const std::int64_t chunks = (part.end - part.begin + gpu::kArenaChunk - 1) / gpu::kArenaChunk;
    double sums[2] = {};
    for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += kBlock) {
      sums[0] += partial[2 * (first + chunk)];
      sums[1] += partial[2 * (first + chunk) + 1];
    }
    const double p = sqrt(gpu::block_sum<kBlock>(sums[0]));
    const double scale = factor != nullptr ? fabs(static_cast<double>(*factor)) : 1.0;
    const double g = sqrt(gpu::block_sum<kBlock>(sums[1])) * scale;
    if (threadIdx.x == 0) {
      const double ratio = trust_coefficient * p / (g + part.weight_decay * p + epsilon);
      ratios[table.parts_before + number] = part.adapts && p > 0 && g > 0 ? ratio : 1.0;
    }
  }
}

template <class G>
void find_norms(CudaContext& context, const ArenaUpdate& update, double* partial, const gpu::ArenaTable& table) {
  const auto* parameters = gpu::data<const float>(update.parameters);
  const auto* gradients = gpu::data<const G>(update.gradients);
  gpu::launch(norms_kernel<G>, dim3(gpu::blocks_for(table.chunks, 1)), dim3(kBlock), 0, context.stream(), table,
              gpu::aligned_to_vectors(parameters, gradients), parameters, gradients, partial);
}

}  // namespace

void lars_update(CudaContext& context, const LarsOptions& options, const ArenaUpdate& update,
                 const TensorView& velocity, const TensorView& workspace) {
  auto* ratios = static_cast<double*>(workspace.data);
  auto* partial = ratios + update.segments.size();
  gpu::for_each_table(update, 1, [&](const gpu::ArenaTable& table) {
    gpu::visit_element(update.gradients.dtype, "lars_update",
                       [&]<class G>(std::type_identity<G>) { find_norms<G>(context, update, partial, table); });
    gpu::launch(ratios_kernel, dim3(gpu::blocks_for(table.count, 1)), dim3(kBlock), 0, context.stream(), table,
                options.trust_coefficient, options.epsilon, gpu::data<const float>(update.factor), partial, ratios);
  });
  momentum_update(context, update, {options.momentum, options.nesterov}, velocity, ratios);
}

}  // namespace lockstep::ops::backend
