// Crops, flips and normalises images (N, H, W, 3) u8 into out (N, H, W, 3 or 4) in f32, bf16 or f16, in one pass over
// pixels.
//
// A block of 256 threads takes tiles of 2048 pixels of one image, so that a thread draws crop and flip once per 8
// pixels. Neighbouring threads take pixels that are neighbours in the memory of images and of out. A table in shared
// memory (3 channels x 256 bytes, 1.5 or 3 KB) holds the normalised value of every byte. So the f64 division is done
// 768 times per block instead of three times per pixel.
//
// Memory bandwidth bounds the kernel. Per pixel it reads 3 bytes. It writes 16 bytes for 4 channels in f32 and 8 in 16
// bits, or 12 bytes for 3 channels in f32 and 6 in 16 bits. A pixel of four channels takes one store, a pixel of three
// channels three stores.

#include <lockstep/kernels/augment.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/philox.hpp>
#include <lockstep/kernels/detail/image_placement.hpp>

namespace lockstep::ops::backend {
namespace {

using placement::reflected;

constexpr int kBlock = 256;
constexpr std::int64_t kTile = 2048;  // number of pixels of one image that a block takes at a time
constexpr std::int64_t kMostPixels = (std::int64_t{1} << 31) - 1;

/// The fields of AugmentDesc, as a kernel parameter.
struct Settings {
  std::uint64_t seed;
  std::int64_t pad;
  bool flip;
  bool alternate;
  bool reflect;
  float mean[3];
  float std[3];
};

struct Placement {
  std::int64_t row = 0;     ///< row h of out shows row h + `row` of the image
  std::int64_t column = 0;  ///< without a flip, column w of out shows column w + `column` of the image
  bool flip = false;
};

__device__ bool alternating_flip(const Settings& settings, std::int64_t epoch, std::int64_t sample_id) {
  gpu::Random random(settings.seed, RandomUse::augment, static_cast<std::uint64_t>(placement::kNoEpoch),
                     static_cast<std::uint64_t>(sample_id));
  return placement::alternating(random.below(2) == 1, epoch);
}

__device__ Placement draw(const Settings& settings, std::int64_t epoch, std::int64_t sample_id) {
  gpu::Random random(settings.seed, RandomUse::augment, static_cast<std::uint64_t>(epoch),
                     static_cast<std::uint64_t>(sample_id));
  Placement at;
  if (settings.pad > 0) {
    const auto offsets = static_cast<std::uint32_t>(2 * settings.pad + 1);
    at.row = static_cast<std::int64_t>(random.below(offsets)) - settings.pad;
    at.column = static_cast<std::int64_t>(random.below(offsets)) - settings.pad;
  }
  at.flip = settings.flip && (settings.alternate ? alternating_flip(settings, epoch, sample_id) : random.below(2) == 1);
  return at;
}

/// Stores a pixel of four channels in one access. `to` must be aligned to the size of the pixel.
template <class T>
__device__ void store_pixel(T* to, const T (&pixel)[4]) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
  Bits bits;
  static_assert(sizeof(bits) == sizeof(pixel));
  memcpy(&bits, pixel, sizeof(bits));
  *reinterpret_cast<Bits*>(to) = bits;
}

/// A block takes one tile of an image after the other. A thread takes one pixel at a time: it reads 3 bytes and writes
/// kChannels elements; neighbouring lanes take neighbouring pixels. If `whole` is true, four channels are one store.
/// The table of normalised values is computed in f64, as on the host, so that host and device get the same bits. Each
/// thread of a block draws the image's crop and flip, which is cheaper than sharing one thread's draw. images: (N, H,
/// W, 3), ids: (N), out: (N, H, W, kChannels); epoch: scalar; valid: scalar or null.
template <class T, int kChannels>
__global__ void __launch_bounds__(kBlock)
    augment_kernel(Settings settings, std::int64_t samples, std::int64_t height, std::int64_t width, std::int64_t tiles,
                   bool whole, const std::uint8_t* images, const std::int64_t* ids, const std::int64_t* epoch,
                   const std::int64_t* valid, T* out) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(T, table, [3][256]);
  for (int value = static_cast<int>(threadIdx.x); value < 256; value += kBlock) {
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const double normalised = (static_cast<double>(value) / 255.0 - static_cast<double>(settings.mean[c])) /
                                static_cast<double>(settings.std[c]);
      table[c][value] = gpu::from_float<T>(static_cast<float>(normalised));
    }
  }
  __syncthreads();
  const std::int64_t now = *epoch;
  const std::int64_t filled = valid != nullptr ? *valid : samples;
  const std::int64_t pixels = height * width;
  for (std::int64_t item = blockIdx.x; item < samples * tiles; item += gridDim.x) {
    const std::int64_t n = item / tiles;
    const std::int64_t first = item % tiles * kTile;
    const auto end = static_cast<std::uint32_t>(first + kTile < pixels ? first + kTile : pixels);
    const Placement at = n < filled ? draw(settings, now, ids[n]) : Placement{};
    for (std::uint32_t i = static_cast<std::uint32_t>(first) + threadIdx.x; i < end; i += kBlock) {
      const std::int64_t h = i / static_cast<std::uint32_t>(width);
      const std::int64_t w = i % static_cast<std::uint32_t>(width);
      std::int64_t row = h + at.row;
      std::int64_t column = (at.flip ? width - 1 - w : w) + at.column;
      if (settings.reflect) {
        row = reflected(row, height);
        column = reflected(column, width);
      }
      const bool inside = row >= 0 && row < height && column >= 0 && column < width;
      const std::uint8_t* from = images + (n * pixels + (inside ? row * width + column : 0)) * 3;
      T pixel[4];
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int value = inside ? from[c] : 0;  // pixels of the padding are black before they are normalised
        pixel[c] = n < filled ? table[c][value] : gpu::from_float<T>(0.0F);
      }
      pixel[3] = gpu::from_float<T>(0.0F);
      T* to = out + (n * pixels + i) * kChannels;
      if (kChannels == 4 && whole) {
        store_pixel(to, pixel);
      } else {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          to[c] = pixel[c];
        }
      }
    }
  }
}

}  // namespace

void augment(CudaContext& context, const AugmentDesc& desc, const TensorView& images, const TensorView& sample_ids,
             const TensorView& epoch, const TensorView& valid, const TensorView& out) {
  const std::int64_t samples = images.shape[0];
  const std::int64_t height = images.shape[1];
  const std::int64_t width = images.shape[2];
  const std::int64_t pixels = height * width;
  require<ShapeError>(pixels <= kMostPixels, "augment: images are ", images.shape, ", expected at most ", kMostPixels,
                      " pixels an image on a GPU");
  if (samples * pixels == 0) {
    return;
  }
  const std::int64_t tiles = (pixels + kTile - 1) / kTile;
  const Settings settings{desc.seed,
                          desc.pad,
                          desc.flip,
                          desc.alternate,
                          desc.reflect,
                          {desc.mean[0], desc.mean[1], desc.mean[2]},
                          {desc.std[0], desc.std[1], desc.std[2]}};
  gpu::visit_element(out.dtype, "augment", [&]<class T>(std::type_identity<T>) {
    auto* to = static_cast<T*>(out.data);
    const bool whole = reinterpret_cast<std::uintptr_t>(to) % (4 * sizeof(T)) == 0;
    gpu::launch(out.shape[3] == 4 ? augment_kernel<T, 4> : augment_kernel<T, 3>,
                dim3(gpu::blocks_for(samples * tiles, 1)), dim3(kBlock), 0, context.stream(), settings, samples, height,
                width, tiles, whole, images.as<std::uint8_t>(), sample_ids.as<std::int64_t>(), epoch.as<std::int64_t>(),
                valid.given() ? valid.as<std::int64_t>() : nullptr, to);
  });
}

}  // namespace lockstep::ops::backend
