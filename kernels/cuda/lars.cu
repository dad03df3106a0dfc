// LARS on ranges of arenas: parameters, gradients, velocity (n). A segment is one tensor and gets one trust ratio.
//
// There are three steps, because a ratio needs the norms of all elements of the tensor. First norms_kernel, with a
// block of 256 threads per chunk of 4096 elements of a segment, writes the sums of squares of the chunk's parameters
// and gradients (16 bytes). Then ratios_kernel, with a block per segment, joins the sums of the chunks in order and
// writes the ratio. Last momentum_update() (sgd.cu) updates the parameters with the ratio. Fixed chunks instead of
// atomic additions give the same bits in every run.
//
// Memory bandwidth bounds norms_kernel and the update. norms_kernel reads 8 bytes per element in f32 (6 with 16-bit
// gradients); the update moves 20 (sgd.cu). ratios_kernel reads 16 bytes per chunk; the latency of its launch bounds
// it.

#include <lockstep/kernels/cuda/arena.hpp>
#include <lockstep/kernels/cuda/chunk_sum.hpp>
#include <lockstep/kernels/lars.hpp>
#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops::backend {
namespace {

static_assert(kLarsChunk == gpu::kArenaChunk && gpu::kSumBlock == gpu::kArenaBlock);
constexpr int kBlock = gpu::kArenaBlock;

/// Writes two sums of squares for each chunk to partial (chunks of the update, 2): the sum over the chunk's parameters,
/// and the sum over the chunk's gradients. parameters, gradients: (n). A block takes one chunk at a time.
template <class G>
__global__ void __launch_bounds__(kBlock) norms_kernel(const __grid_constant__ gpu::ArenaTable table, bool vectors,
                                                       const float* parameters, const G* gradients, double* partial) {
  gpu::wait_for_earlier();
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

/// Sets joined[0] and joined[1] to the sums of partial (chunks of the update, 2) over the chunks of `part`, in every
/// thread of the block.
__device__ void join(const gpu::ArenaTable& table, const gpu::ArenaPart& part, const double* partial,
                     double (&joined)[2]) {
  const std::int64_t first = table.chunks_before + part.first_chunk;
  const std::int64_t chunks = (part.end - part.begin + gpu::kArenaChunk - 1) / gpu::kArenaChunk;
  double sums[2] = {};
  for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += kBlock) {
    sums[0] += partial[2 * (first + chunk)];
    sums[1] += partial[2 * (first + chunk) + 1];
  }
  joined[0] = gpu::block_sum<kBlock>(sums[0]);
  joined[1] = gpu::block_sum<kBlock>(sums[1]);
}

/// Writes the trust ratio of each part to ratios (parts of the update). A block takes one part. factor: scalar or null;
/// partial: (chunks of the update, 2). If squares (parts of the update, 2) is not null, the kernel reads squares
/// instead of partial.
__global__ void __launch_bounds__(kBlock)
    ratios_kernel(const __grid_constant__ gpu::ArenaTable table, double trust_coefficient, double epsilon,
                  const float* factor, const double* partial, const double* squares, double* ratios) {
  gpu::wait_for_earlier();
  for (int number = static_cast<int>(blockIdx.x); number < table.count; number += static_cast<int>(gridDim.x)) {
    const gpu::ArenaPart& part = table.parts[number];
    const std::int64_t place = table.parts_before + number;
    double sums[2];
    if (squares != nullptr) {
      sums[0] = squares[2 * place];
      sums[1] = squares[2 * place + 1];
    } else {
      join(table, part, partial, sums);
    }
    const double p = sqrt(sums[0]);
    const double scale = factor != nullptr ? fabs(static_cast<double>(*factor)) : 1.0;
    const double g = sqrt(sums[1]) * scale;
    if (threadIdx.x == 0) {
      const double ratio = trust_coefficient * p / (g + part.weight_decay * p + epsilon);
      ratios[place] = part.adapts && p > 0 && g > 0 ? ratio : 1.0;
    }
  }
}

/// Adds up partial (chunks of the update, 2) over the chunks of each part, and adds these sums to squares (parts of the
/// update, 2). A block takes one part.
__global__ void __launch_bounds__(kBlock)
    squares_kernel(const __grid_constant__ gpu::ArenaTable table, const double* partial, double* squares) {
  gpu::wait_for_earlier();
  for (int number = static_cast<int>(blockIdx.x); number < table.count; number += static_cast<int>(gridDim.x)) {
    double sums[2];
    join(table, table.parts[number], partial, sums);
    if (threadIdx.x == 0) {
      double* const row = squares + 2 * (number + table.parts_before);
      row[0] += sums[0];
      row[1] += sums[1];
    }
  }
}

/// Enqueues norms_kernel, which writes the sums of squares of the chunks in `table` to partial (chunks of the update,
/// 2).
void find_squares(CudaContext& context, const ArenaUpdate& update, double* partial, const gpu::ArenaTable& table) {
  const auto* parameters = gpu::data<const float>(update.parameters);
  gpu::visit_element(update.gradients.dtype, "lars", [&]<class G>(std::type_identity<G>) {
    const auto* gradients = gpu::data<const G>(update.gradients);
    gpu::launch(norms_kernel<G>, dim3(gpu::blocks_for(table.chunks, 1)), dim3(kBlock), 0, context.stream(), table,
                gpu::aligned_to_vectors(parameters, gradients), parameters, gradients, partial);
  });
}

/// Returns the address of the first row of `squares` that belongs to a part of `update`.
double* rows_of(const ArenaUpdate& update, const TensorView& squares) {
  return gpu::data<double>(squares) + 2 * lars_first_row(update.segments, update.begin);
}

}  // namespace

void lars_update(CudaContext& context, const LarsOptions& options, const ArenaUpdate& update,
                 const TensorView& velocity, const TensorView& workspace, const TensorView& squares) {
  auto* ratios = static_cast<double*>(workspace.data);
  auto* partial = ratios + update.segments.size();
  const double* const rows = squares.given() ? rows_of(update, squares) : nullptr;
  gpu::for_each_table(update, 1, [&](const gpu::ArenaTable& table) {
    if (rows == nullptr) {
      find_squares(context, update, partial, table);
    }
    gpu::launch(ratios_kernel, dim3(gpu::blocks_for(table.count, 1)), dim3(kBlock), 0, context.stream(), table,
                options.trust_coefficient, options.epsilon, gpu::data<const float>(update.factor),
                static_cast<const double*>(partial), rows, ratios);
  });
  momentum_update(context, update, {options.momentum, options.nesterov}, velocity, ratios);
}

void lars_squares(CudaContext& context, const ArenaUpdate& update, const TensorView& squares,
                  const TensorView& workspace) {
  auto* partial = static_cast<double*>(workspace.data);
  double* const rows = rows_of(update, squares);
  gpu::for_each_table(update, 1, [&](const gpu::ArenaTable& table) {
    find_squares(context, update, partial, table);
    gpu::launch(squares_kernel, dim3(gpu::blocks_for(table.count, 1)), dim3(kBlock), 0, context.stream(), table,
                static_cast<const double*>(partial), rows);
  });
}

}  // namespace lockstep::ops::backend
