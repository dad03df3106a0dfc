// Fills rectangles of images (N, P, H, W, 3) u8, where a sample has P = 1 or 2 images. If P = 2, mixes both images, or
// pastes a part of image 1 into image 0. Writes out (N, H, W, 3) u8.
//
// A block of 128 threads takes a tile of 2048 pixels of one sample. A thread takes a piece of 16 pixels, which are
// three 16-byte accesses (pixels.hpp). It mixes four pixels at a time, to save registers. No shared memory: all threads
// of a block read the same row of the tables.
//
// Memory bandwidth bounds the kernel. Per pixel 3 bytes are read from each image and 3 written: 6 bytes for P = 1 and 9
// for P = 2. If out is the memory of images, an image without an erasure is not touched.

#include <lockstep/kernels/cuda/pixels.hpp>
#include <lockstep/kernels/erase_and_mix.hpp>

namespace lockstep::ops::backend {
namespace {

using std::uint32_t;
using std::uint8_t;

constexpr int kBlock = 128;
constexpr int64_t kTile = int64_t{kBlock} * gpu::kPiecePixels;  // pixels of one image that a block takes at a time
constexpr int kQuad = 4;                                        // number of pixels that a thread mixes at a time

struct Sizes {
  int64_t samples;
  int64_t pixels;  ///< number of pixels of an image
  int height;
  int width;
};

struct Fill {
  uint32_t channel[3];
};

/// Strides of the tables of erasures and of mixtures, counted in numbers (f64).
struct Strides3 {
  int64_t sample;   ///< stride from one sample to the next in the table of erasures
  int64_t picture;  ///< stride from one image of a sample to the next in the table of erasures
  int64_t mixture;  ///< stride from one sample to the next in the table of mixtures
};

struct Rectangle {
  int left;
  int top;
  int right;
  int bottom;
  __device__ bool holds(int x, int y) const { return x >= left && x < right && y >= top && y < bottom; }
  __device__ bool empty() const { return right <= left || bottom <= top; }
};

/// Returns `at` truncated to a whole number and clamped to [0, extent]. Returns 0 if `at` is NaN.
__device__ int edge(double at, int extent) {
  return at > 0 ? (at < extent ? static_cast<int>(at) : extent) : 0;
}

/// Returns the rectangle that `row`, a row of a table, describes by the numbers left, top, right and bottom.
__device__ Rectangle rectangle_of(const double* row, const Sizes& sizes) {
  return {edge(row[0], sizes.width), edge(row[1], sizes.height), edge(row[2], sizes.width), edge(row[3], sizes.height)};
}

/// A sample's rows of the tables of erasures and mixtures, checked and converted.
struct Mixture {
  Rectangle erased[2];
  Rectangle shown;
  bool cut;
  float share;
  float rest;
};

/// Reads a sample's rows of the tables. erasure: (P, 4) with rows `stride` apart; row: (6), the sample's row of
/// mixtures, which is read only if there are two images.
template <bool kTwo>
__device__ Mixture read_mixture(const Sizes& sizes, const double* erasure, int64_t stride, const double* row) {
  Mixture mixture{};
  mixture.erased[0] = rectangle_of(erasure, sizes);
  if constexpr (kTwo) {
    mixture.erased[1] = rectangle_of(erasure + stride, sizes);
    mixture.cut = row[static_cast<int>(MixtureColumn::cut)] == 1;
    mixture.shown = rectangle_of(row + static_cast<int>(MixtureColumn::left), sizes);
    const double share = row[static_cast<int>(MixtureColumn::share)];
    mixture.share = share > 0 ? (share < 1 ? static_cast<float>(share) : 1.0F) : 0.0F;
    mixture.rest = 1.0F - mixture.share;
  }
  return mixture;
}

/// Column x and row y of a pixel.
struct Place {
  int x;
  int y;
  __device__ Place(int64_t pixel, int width)
      : x(static_cast<int>(static_cast<uint32_t>(pixel) % static_cast<uint32_t>(width))),
        y(static_cast<int>(static_cast<uint32_t>(pixel) / static_cast<uint32_t>(width))) {}
  /// Moves to the next pixel.
  __device__ void step(int width) {
    ++x;
    if (x == width) {
      x = 0;
      ++y;
    }
  }
};

/// Computes a pixel of the output. `own` and `other` hold 3 bytes each: the pixel of image 0 and the pixel of image 1.
/// The result overwrites `own`.
template <bool kTwo>
__device__ void mix_pixel(const Mixture& mixture, const Fill& fill, const Place& at, uint32_t* own,
                          const uint32_t* other) {
  const bool erased = mixture.erased[0].holds(at.x, at.y);
  const bool other_erased = kTwo && mixture.erased[1].holds(at.x, at.y);
  const bool shown = kTwo && mixture.shown.holds(at.x, at.y);
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    const uint32_t a = erased ? fill.channel[c] : own[c];
    own[c] = a;
    if constexpr (kTwo) {
      const uint32_t b = other_erased ? fill.channel[c] : other[c];
      // Both products are rounded before the addition, because the compiler never fuses __fmul_rn() with an addition.
      const float sum =
          __fmul_rn(mixture.share, static_cast<float>(a)) + __fmul_rn(mixture.rest, static_cast<float>(b));
      const auto mixed = static_cast<uint32_t>(sum + 0.5F);
      own[c] = mixture.cut ? (shown ? b : a) : mixed;
    }
  }
}

/// Computes one pixel of out, number `pixel`. first and second, (pixels, 3), are images 0 and 1; if there is only one
/// image, both point to it.
template <bool kTwo>
__device__ void mix_single(const Mixture& mixture, const Fill& fill, int width, int64_t pixel, const uint8_t* first,
                           const uint8_t* second, uint8_t* out) {
  uint32_t own[3];
  uint32_t other[3] = {};
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    own[c] = first[pixel * 3 + c];
    if constexpr (kTwo) {
      other[c] = second[pixel * 3 + c];
    }
  }
  mix_pixel<kTwo>(mixture, fill, Place(pixel, width), own, other);
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    out[pixel * 3 + c] = static_cast<uint8_t>(own[c]);
  }
}

/// Computes a piece of 16 pixels of out, from pixel `pixel` on. first, second and out, (pixels, 3), all begin at the
/// same distance from a 16-byte boundary.
template <bool kTwo>
__device__ void mix_piece(const Mixture& mixture, const Fill& fill, int width, int64_t pixel, const uint8_t* first,
                          const uint8_t* second, uint8_t* out) {
  gpu::Piece piece = gpu::load_piece(first + pixel * 3);
  gpu::Piece others{};
  if constexpr (kTwo) {
    others = gpu::load_piece(second + pixel * 3);
  }
  Place at(pixel, width);
#pragma unroll 1
  for (int quad = 0; quad < gpu::kPiecePixels / kQuad; ++quad) {
    uint32_t own[3 * kQuad];
    uint32_t other[3 * kQuad];
#pragma unroll
    for (int i = 0; i < 3 * kQuad; ++i) {
      own[i] = gpu::quad_byte(piece, i);
      other[i] = gpu::quad_byte(others, i);
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      mix_pixel<kTwo>(mixture, fill, at, own + 3 * i, other + 3 * i);
      at.step(width);
    }
    gpu::next_quad(piece, own);
    gpu::next_quad(others, other);
  }
  gpu::store_piece(out + pixel * 3, piece);
}

/// A block takes one tile of an image after the other; a thread takes one piece of 16 pixels of a tile, each image in
/// three 16-byte loads. If out is the memory of images, an image without an erasure is not touched.
///
/// The single pixels at both ends of an image (pixels.hpp) belong to the image's first tile. An image and its output
/// may begin at different distances from a 16-byte boundary, for example if images have an odd number of pixels. Then
/// all pixels are single pixels, and neighbouring lanes take neighbouring pixels.
///
/// images: (samples, P, pixels, 3), erasures: (samples, P, 4), mixtures: (samples, 6) or null, out: (samples, pixels,
/// 3).
template <bool kTwo>
__global__ void __launch_bounds__(kBlock)
    mix_kernel(Sizes sizes, Fill fill, Strides3 strides, int64_t tiles, const uint8_t* images, const double* erasures,
               const double* mixtures, uint8_t* out) {
  gpu::wait_for_earlier();
  for (int64_t item = blockIdx.x; item < sizes.samples * tiles; item += gridDim.x) {
    const int64_t n = item / tiles;
    const int64_t tile = item % tiles;
    const Mixture mixture = read_mixture<kTwo>(sizes, erasures + n * strides.sample, strides.picture,
                                               kTwo ? mixtures + n * strides.mixture : nullptr);
    const uint8_t* const first = images + n * (kTwo ? 2 : 1) * sizes.pixels * 3;
    const uint8_t* const second = kTwo ? first + sizes.pixels * 3 : first;
    uint8_t* const to = out + n * sizes.pixels * 3;
    if (!kTwo && to == first && mixture.erased[0].empty()) {
      continue;
    }
    const auto place = [](const uint8_t* begin) { return reinterpret_cast<std::uintptr_t>(begin) % 16; };
    if (place(first) == place(to) && place(second) == place(to)) {
      const gpu::PixelParts parts(to, sizes.pixels);
      const int64_t number = tile * kBlock + threadIdx.x;
      if (number < parts.pieces) {
        mix_piece<kTwo>(mixture, fill, sizes.width, parts.piece(number), first, second, to);
      }
      if (number < parts.singles) {
        mix_single<kTwo>(mixture, fill, sizes.width, parts.single(number), first, second, to);
      }
    } else {
      const int64_t end = (tile + 1) * kTile < sizes.pixels ? (tile + 1) * kTile : sizes.pixels;
      for (int64_t pixel = tile * kTile + threadIdx.x; pixel < end; pixel += kBlock) {
        mix_single<kTwo>(mixture, fill, sizes.width, pixel, first, second, to);
      }
    }
  }
}

}  // namespace

void erase_and_mix(CudaContext& context, const std::array<uint8_t, 3>& fill, const TensorView& images,
                   const TensorView& erasures, const TensorView& mixtures, const TensorView& out) {
  const int64_t pixels = images.shape[2] * images.shape[3];
  const Sizes sizes{images.shape[0], pixels, static_cast<int>(images.shape[2]), static_cast<int>(images.shape[3])};
  if (sizes.samples * pixels == 0) {
    return;
  }
  const bool two = images.shape[1] == 2;
  const int64_t tiles = (pixels + kTile - 1) / kTile;
  const Strides3 strides{erasures.strides[0], erasures.strides[1], two ? mixtures.strides[0] : 0};
  gpu::launch(two ? mix_kernel<true> : mix_kernel<false>, dim3(gpu::blocks_for(sizes.samples * tiles, 1)), dim3(kBlock),
              0, context.stream(), sizes, Fill{{fill[0], fill[1], fill[2]}}, strides, tiles,
              gpu::data<const uint8_t>(images), gpu::data<const double>(erasures), gpu::data<const double>(mixtures),
              gpu::data<uint8_t>(out));
}

}  // namespace lockstep::ops::backend
