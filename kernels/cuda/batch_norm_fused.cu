// Batch norm of x (rows, C) with one cooperative launch per pass (batch_norm.md): all blocks, of 256 threads, run at
// once.
//
// An item is one chunk of rows of one tile of channels. A block computes the sums of its items as batch_norm.cu does,
// with the same bits. It keeps the x of its items in shared memory, and in backward also the gradient g. After a
// barrier of the whole grid all sums are known; then each block computes the outputs of its items from shared memory.
// fused_residence() in detail/batch_norm_tiling.hpp decides whether the tensors fit into the shared memory of all
// multiprocessors. To sum, a thread takes columns of 16 bytes. To compute outputs, it takes pieces of 8 elements, which
// share one byte of the mask.
//
// Memory bandwidth bounds a launch; for small tensors the latency of launch and barrier bounds it. Number of tensors of
// the size of x that are read + written: forward 1 + 1, with a residual 2 + 1; backward 2 + 1. Two launches would take
// 2 + 1, 3 + 1 and 4 + 1. dy2 adds 1 read and masked 1 write, here and with two launches; the mask takes 1 bit per
// element.

#include <lockstep/kernels/batch_norm_fused.hpp>

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cuda/batch_norm_steps.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/grid.hpp>
#include <lockstep/kernels/cuda/tickets.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;

/// Copies `column` (16 bytes) to `to`, a 16-byte aligned address in shared memory. (gpu::store() is for global memory.)
template <class T>
__device__ void keep_column(T* to, const gpu::Vector<T>& column) {
  uint4 bits;
  memcpy(&bits, &column, 16);
  *reinterpret_cast<uint4*>(to) = bits;
}

/// Waits until all blocks have computed their sums, then returns the number of valid rows. `valid` is a scalar or null.
__device__ int64_t when_summed(const Batch& batch, const int64_t* valid) {
  gpu::grid_barrier();
  return valid_rows(batch, valid);
}

/// The position of one item (a chunk of rows of a tile of channels) in the tensor and in shared memory, for use after
/// the barrier of the grid. `turn` is the item's number among the items of the block. A thread takes pieces of 8
/// channels of the item, always the same channels, in every `step`-th row from row `first` on.
template <class T>
struct Kept {
  int64_t rows;     // number of rows of the item
  int64_t counted;  // number of valid rows, which come first; only valid rows are in shared memory
  int64_t first;    // first row that this thread takes, or `rows` if the thread takes none
  int64_t step;
  int64_t channel;
  int64_t begin;   // tensor index of the thread's first element in row 0 of the item
  int64_t stride;  // distance of two rows in the tensor, in elements
  int64_t from;    // index in shared memory of the element that `begin` locates in the tensor
  int width;       // distance of two rows in shared memory, in elements

  __device__ Kept(const Tiling& tiling, const Batch& batch, int64_t valid_row, int64_t number, int64_t turn) {
    const Item item(tiling, number);
    const int64_t row = item.chunk * tiling.chunk;
    const auto rows_before = [&](int64_t end) {
      const int64_t left = end - row;
      return left < 0 ? 0 : left < tiling.chunk ? left : tiling.chunk;
    };
    rows = rows_before(batch.samples * batch.per_sample);
    counted = rows_before(valid_row);
    width = tiling.tile * gpu::kPerVector<T>;
    const int pieces = width / kPiece;  // number of pieces in a row
    step = kBlock / pieces;
    const int lane = static_cast<int>(threadIdx.x) / pieces;
    const int offset = static_cast<int>(threadIdx.x) % pieces * kPiece;
    channel = item.tile * width + offset;
    stride = tiling.channels;
    first = lane < step && channel < tiling.channels ? lane : rows;
    begin = row * stride + channel;
    from = turn * tiling.chunk * width + offset;
  }
  [[nodiscard]] __device__ bool counts(int64_t row) const { return row < counted; }
  [[nodiscard]] __device__ int64_t at(int64_t row) const { return begin + row * stride; }
  [[nodiscard]] __device__ int64_t kept_at(int64_t row) const { return from + row * width; }
  [[nodiscard]] __device__ Eight of(const float* values) const {
    Eight result;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      result.at[j] = values[channel + j];
    }
    return result;
  }
};

/// Computes stats, coefficients, y and the mask. x, residual (null unless kResidual), y: (rows, C), y may be x or
/// residual; valid: the number of valid samples, or null if all are valid; means, squares: (chunks, C); tickets:
/// counters that are 0 before and after the launch; stats: (2C + 1); mask: a bit per element, or null. Reads x and
/// residual once, writes y once, and writes one bit of the mask per element. Shared memory keeps only the valid rows of
/// x. The padding rows, which come after the valid rows, are read from x after the barrier of the grid.
template <class T, bool kResidual>
__global__ void __launch_bounds__(kBlock, 2)
    forward_kernel(Tiling tiling, Batch batch, const T* x, const int64_t* valid, double* means, float* squares,
                   unsigned* tickets, float* stats, Finalize to, const T* residual, bool relu, T* y,
                   std::uint8_t* mask) {
  gpu::wait_for_earlier();
  LOCKSTEP_DYNAMIC_SHARED(T, kept);
  constexpr int kCount = gpu::kPerVector<T>;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile * kCount;
  const int width = tiling.tile * kCount;
  sum_moments<kCount>(tiling, batch, x, valid, means, squares, tickets, stats, to,
                      [&](int64_t turn, int row, const Pack<T, kCount>& raw) {
                        keep_column(kept + (turn * tiling.chunk + row) * width + column, raw);
                      });
  const int64_t valid_row = when_summed(batch, valid);
  int64_t turn = 0;
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Kept<T> item(tiling, batch, valid_row, number, turn);
    Eight scale{};
    Eight shift{};
    if (item.first < item.rows) {
      scale = item.of(to.coefficients);
      shift = item.of(to.coefficients + tiling.channels);
    }
    // Processes kRows rows: row `first`, and then every item.step-th row. The residuals of all these rows are loaded
    // before the first residual is used.
    const auto take = [&]<int kRows>(int64_t first, std::integral_constant<int, kRows>) {
      Pack<T, kPiece> raw_residual[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        raw_residual[k] = {};
        if constexpr (kResidual) {
          raw_residual[k] = gpu::load<kPiece>(residual + item.at(first + k * item.step));
        }
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const int64_t row = first + k * item.step;
        const Eight value =
            item.counts(row) ? load_floats<kPiece>(kept + item.kept_at(row)) : load_floats<kPiece>(x + item.at(row));
        Pack<T, kPiece> result;
        const unsigned positive = normalise(value, scale, shift, floats(raw_residual[k]), relu, kPiece, result);
        gpu::store(y + item.at(row), result);
        if (mask != nullptr) {
          mask[item.at(row) / kPiece] = static_cast<std::uint8_t>(positive);
        }
      }
    };
    constexpr int kRows = 4;
    int64_t row = item.first;
    for (; row + (kRows - 1) * item.step < item.rows; row += kRows * item.step) {
      take(row, std::integral_constant<int, kRows>{});
    }
    for (; row < item.rows; row += item.step) {
      take(row, std::integral_constant<int, 1>{});
    }
    ++turn;
  }
  if (mask != nullptr && blockIdx.x == 0) {  // clears the mask's last bytes, which belong to no element
    const int64_t bytes = batch.samples * batch.per_sample * tiling.channels / kPiece;
    if (threadIdx.x < (4 - bytes % 4) % 4) {
      mask[bytes + threadIdx.x] = 0;
    }
  }
}

/// Computes the sums and dx. kSecond needs kStore: shared memory keeps g in the type of x, so the sum of dy and dy2
/// must be rounded to this type before it is used.
///
/// dy, dy2 (null unless kSecond), masked (null unless kStore), dx: (rows, C), dx and masked may each be dy or dy2;
/// mask: a bit per element; stats: (2C + 1); valid: scalar or null; partial: (2, chunks, C); tickets: counters that are
/// 0 before and after the launch; items: the largest number of items of a block.
///
/// Reads the valid rows of dy, dy2, x and the mask once; writes dx and, with kStore, masked once.
template <class T, bool kSecond, bool kMask, bool kStore>
__global__ void __launch_bounds__(kBlock, 2)
    backward_kernel(Tiling tiling, Batch batch, const T* dy, const T* dy2, const std::uint8_t* mask, Summed<T> norm,
                    const float* stats, const int64_t* valid, T* masked, T* dx, float* partial, unsigned* tickets,
                    int64_t items) {
  gpu::wait_for_earlier();
  static_assert(kStore || !kSecond);
  LOCKSTEP_DYNAMIC_SHARED(T, kept);
  constexpr int kCount = gpu::kPerVector<T>;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile * kCount;
  const int width = tiling.tile * kCount;
  T* const kept_g = kept + items * tiling.chunk * width;
  sum_gradients<kSecond, kMask, kStore, false, kCount>(
      tiling, batch, dy, dy2, mask, norm, norm, valid, masked, partial, tickets,
      [&](int64_t turn, int64_t row, const Pack<T, kCount>& raw, const Pack<float, kCount>& g) {
        const int64_t at = (turn * tiling.chunk + row) * width + column;
        keep_column(kept + at, raw);
        keep_column(kept_g + at, gpu::rounded<T>(g.at));  // exact: g is loaded, zero, or already rounded to T
      });
  const int64_t valid_row = when_summed(batch, valid);
  int64_t turn = 0;
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Kept<T> item(tiling, batch, valid_row, number, turn);
    if (item.first < item.rows) {
      const int64_t channels = tiling.channels;
      const Slopes<kPiece> slopes(item.of(norm.coefficients), item.of(norm.coefficients + 2 * channels),
                                  item.of(norm.coefficients + 3 * channels), item.of(norm.to.sums),
                                  item.of(norm.to.sums + channels), stats[2 * channels]);
      for (int64_t row = item.first; row < item.rows; row += item.step) {
        Pack<T, kPiece> result{};
        if (item.counts(row)) {
          const Eight value = load_floats<kPiece>(kept + item.kept_at(row));
          const Eight g = load_floats<kPiece>(kept_g + item.kept_at(row));
#pragma unroll
          for (int j = 0; j < kPiece; ++j) {
            result.at[j] = gpu::from_float<T>(slopes.at(j, g.at[j], value.at[j]));
          }
        }
        gpu::store(dx + item.at(row), result);
      }
    }
    ++turn;
  }
}

/// Returns the number of blocks with which to launch `kernel`, so that all blocks run at once, and the largest number
/// of items that a block keeps in shared memory. A forward pass keeps one tensor, a backward pass two.
template <class Kernel>
Residence residence_on(CudaContext& context, Kernel* kernel, const Tiling& tiling, int per_column, NormPass pass) {
  return fused_residence(tiling, per_column, pass == NormPass::forward ? 1 : 2,
                         [&](std::size_t bytes) { return gpu::resident_blocks(kernel, kBlock, bytes, context); });
}

/// Calls f(kernel) with the instance of backward_kernel that fits the three flags: with or without dy2 (`second`),
/// `mask` and masked (`store`). With dy2 the kernel always writes masked.
template <class T, class F>
void visit_backward(bool second, bool mask, bool store, F f) {
  visit_flag(mask, [&]<bool kMask>(std::bool_constant<kMask>) {
    if (second) {
      f(backward_kernel<T, true, kMask, true>);
    } else {
      visit_flag(store, [&]<bool kStore>(std::bool_constant<kStore>) { f(backward_kernel<T, false, kMask, kStore>); });
    }
  });
}

std::size_t shared_bytes(const Tiling& tiling, const Residence& room, int tensors) {
  return static_cast<std::size_t>(room.items * tiling.chunk * tiling.tile * tensors) * 16;
}

}  // namespace

/// Returns true if x fits into shared memory for every kernel of `pass`. All kernels are checked, because the caller
/// does not know yet which kernel it will launch. This function loads the kernels, so call it when a step is planned,
/// not while the step is captured.
bool batch_norm_fits(const CudaContext& context, const TensorView& x, NormPass pass) {
  return gpu::visit_element(x.dtype, "batch_norm_fits", [&]<class T>(std::type_identity<T>) {
    constexpr int kCount = gpu::kPerVector<T>;
    if (x.shape.back() % kCount != 0) {
      return false;
    }
    const Tiling tiling = tiling_of(x, kCount);
    const auto fits = [&](auto* kernel, int tensors) {
      return fused_residence(tiling, kCount, tensors, [&](std::size_t bytes) {
               return gpu::resident_blocks(kernel, kBlock, bytes, context.device());
             }).blocks > 0;
    };
    if (pass == NormPass::forward) {
      return fits(forward_kernel<T, false>, 1) && fits(forward_kernel<T, true>, 1);
    }
    bool all = true;
    for (const bool mask : {false, true}) {
      for (const bool second : {false, true}) {
        for (const bool store : {false, true}) {
          visit_backward<T>(second, mask, store, [&](auto* kernel) { all = all && fits(kernel, 2); });
        }
      }
    }
    return all;
  });
}

void batch_norm_fused_forward(CudaContext& context, const TensorView& x, const TensorView& valid,
                              const TensorView& weight, const TensorView& bias, double epsilon, double momentum,
                              const TensorView& residual, bool relu, const TensorView& stats,
                              const TensorView& running_mean, const TensorView& running_var,
                              const TensorView& coefficients, const TensorView& y, const TensorView& mask,
                              const TensorView& workspace) {
  const bool launched = gpu::visit_element(x.dtype, "batch_norm_fused_forward", [&]<class T>(std::type_identity<T>) {
    constexpr int kCount = gpu::kPerVector<T>;
    if (x.shape.back() % kCount != 0 ||
        !gpu::aligned_to_vectors(gpu::data<const T>(x), pointer<const T>(residual), gpu::data<const T>(y))) {
      return false;
    }
    const Tiling tiling = tiling_of(x, kCount);
    return visit_flag(residual.given(), [&]<bool kResidual>(std::bool_constant<kResidual>) {
      const auto kernel = forward_kernel<T, kResidual>;
      const Residence room = residence_on(context, kernel, tiling, kCount, NormPass::forward);
      if (room.blocks == 0) {
        return false;
      }
      auto* means = static_cast<double*>(workspace.data);
      auto* squares = reinterpret_cast<float*>(means + tiling.chunks * tiling.channels);
      gpu::launch_together(kernel, dim3(static_cast<unsigned>(room.blocks)), dim3(kBlock),
                           shared_bytes(tiling, room, 1), context.stream(), tiling, batch_of(x), gpu::data<const T>(x),
                           pointer<const int64_t>(valid), means, squares, gpu::tickets(context),
                           gpu::data<float>(stats),
                           finalize_to(weight, bias, epsilon, momentum, running_mean, running_var, coefficients),
                           pointer<const T>(residual), relu, gpu::data<T>(y), pointer<std::uint8_t>(mask));
      return true;
    });
  });
  if (!launched) {
    batch_norm_coefficients(context, x, valid, weight, bias, epsilon, momentum, stats, running_mean, running_var,
                            coefficients, workspace);
    batch_norm_apply(context, x, coefficients, residual, relu, y, mask);
  }
}

void batch_norm_fused_backward(CudaContext& context, const TensorView& dy, const TensorView& dy2,
                               const TensorView& mask, const TensorView& x, const TensorView& coefficients,
                               const TensorView& stats, const TensorView& valid, GradMode mode, const TensorView& sums,
                               const TensorView& dweight, const TensorView& dbias, const TensorView& masked,
                               const TensorView& dx, const TensorView& workspace) {
  bool launched = false;
  gpu::visit_element(x.dtype, "batch_norm_fused_backward", [&]<class T>(std::type_identity<T>) {
    constexpr int kCount = gpu::kPerVector<T>;
    if (x.shape.back() % kCount != 0 ||
        !gpu::aligned_to_vectors(gpu::data<const T>(x), gpu::data<const T>(dy), pointer<const T>(dy2),
                                 static_cast<const T*>(pointer<T>(masked)), gpu::data<const T>(dx))) {
      return;
    }
    const Tiling tiling = tiling_of(x, kCount);
    visit_backward<T>(dy2.given(), mask.given(), masked.given(), [&](auto* kernel) {
      const Residence room = residence_on(context, kernel, tiling, kCount, NormPass::backward);
      if (room.blocks == 0) {
        return;
      }
      const NormBackward norm{x, coefficients, sums, dweight, dbias, mode};
      gpu::launch_together(kernel, dim3(static_cast<unsigned>(room.blocks)), dim3(kBlock),
                           shared_bytes(tiling, room, 2), context.stream(), tiling, batch_of(x), gpu::data<const T>(dy),
                           pointer<const T>(dy2), pointer<const std::uint8_t>(mask), summed_of<T>(norm),
                           gpu::data<const float>(stats), pointer<const int64_t>(valid), pointer<T>(masked),
                           gpu::data<T>(dx), static_cast<float*>(workspace.data), gpu::tickets(context), room.items);
      launched = true;
    });
  });
  if (!launched) {
    batch_norm_backward_reduce(context, dy, dy2, mask, x, coefficients, valid, mode, sums, dweight, dbias, masked,
                               workspace);
    batch_norm_backward_apply(context, masked.given() ? masked : dy, {}, masked.given() ? TensorView() : mask, x,
                              coefficients, sums, stats, valid, dx, {});
  }
}

}  // namespace lockstep::ops::backend
