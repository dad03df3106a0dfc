// Changes the colours of images (N, H, W, 3) u8 in place. A row of a table (N, 8) f64 lists the changes of an image.
//
// Three launches: the first clears the sums of greys (N). The second sums the greys of images whose list has a
// contrast. The third changes the images. A block of 128 threads takes a tile of 2048 pixels of one image, and reads
// the image's list into shared memory once. A thread takes a piece of 16 pixels, which are three 16-byte accesses
// (pixels.hpp). It changes four pixels at a time, to save registers.
//
// Per pixel 3 bytes are read and 3 written; a contrast reads 3 more. Memory bandwidth bounds images with few changes.
// Each change takes tens of f32 operations per pixel, and a change of hue also takes four divisions, so arithmetic may
// bound images with many changes.

#include <lockstep/kernels/adjust_colours.hpp>
#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/pixels.hpp>

namespace lockstep::ops::backend {
namespace {

using std::uint8_t;
using Word = unsigned long long;  // the type of CUDA's 64-bit atomicAdd

constexpr int kBlock = 128;
constexpr int kClearBlock = 256;
constexpr int64_t kTile = int64_t{kBlock} * gpu::kPiecePixels;  // pixels of one image that a block takes at a time
constexpr int kQuad = 4;                                        // number of pixels that a thread changes at a time
constexpr int kChanges = static_cast<int>(kColourChanges);
constexpr float kGreys = 1U << 30U;  // integer that represents a grey of 1 in a sum; equal to images::kGreyParts

/// A pixel: red, green and blue, each in [0, 1].
struct Pixel {
  float r;
  float g;
  float b;
};

struct Change {
  ColourKind kind;
  float part;   ///< the factor of the change
  float rest;   ///< 1 minus the factor
  float other;  ///< value blended with a pixel: 0 for brightness, the image's mean grey for contrast
};

/// The list of changes of one image. It has no changes of kind none, and no second contrast.
struct List {
  Change at[kChanges];
  int count;
  int contrast;  ///< index of the contrast in `at`, or -1 if the list has no contrast
};

__device__ ColourKind kind_of(double number) {
  const bool known = number == 1 || number == 2 || number == 3 || number == 4;
  return known ? static_cast<ColourKind>(static_cast<int>(number)) : ColourKind::none;
}

/// Fills `list` from `row`, the kColourColumns numbers of one image in the table of changes.
__device__ void read_list(const double* row, List& list) {
  list.count = 0;
  list.contrast = -1;
  for (int i = 0; i < kChanges; ++i) {
    const ColourKind kind = kind_of(row[2 * i]);
    const double factor = row[2 * i + 1];
    if (kind == ColourKind::none || (kind == ColourKind::contrast && list.contrast >= 0)) {
      continue;
    }
    if (kind == ColourKind::contrast) {
      list.contrast = list.count;
    }
    list.at[list.count++] = {kind, static_cast<float>(factor), static_cast<float>(1 - factor), 0.0F};
  }
}

// The functions below have the same bits as kernels/images/colour.cpp, because each operation is rounded by itself: no
// compiler fuses the product of __fmul_rn() with an addition after it. Sums and differences are plain operators. A
// comparison with a NaN is false here and on the host.

__device__ float smaller(float a, float b) {
  return a < b ? a : b;
}

__device__ float larger(float a, float b) {
  return a > b ? a : b;
}

__device__ float clamped(float value) {
  return smaller(larger(value, 0.0F), 1.0F);
}

__device__ float grey(const Pixel& pixel) {
  return __fmul_rn(0.2989F, pixel.r) + __fmul_rn(0.587F, pixel.g) + __fmul_rn(0.114F, pixel.b);
}

__device__ float blend(const Change& change, float value, float other) {
  return clamped(__fmul_rn(change.part, value) + __fmul_rn(change.rest, other));
}

__device__ Pixel blended(const Change& change, const Pixel& pixel, float other) {
  return {blend(change, pixel.r, other), blend(change, pixel.g, other), blend(change, pixel.b, other)};
}

/// Returns `pixel` with its hue turned by `turn`, a fraction of the whole colour circle. colour.cpp explains the steps.
__device__ Pixel turned(const Pixel& pixel, float turn) {
  const float most = larger(larger(pixel.r, pixel.g), pixel.b);
  const float range = most - smaller(smaller(pixel.r, pixel.g), pixel.b);
  const float one_if_grey = range > 0.0F ? 0.0F : 1.0F;
  const float divisor = range + one_if_grey;
  const bool red = most == pixel.r;
  const bool green = most == pixel.g;
  const float begin = red ? 0.0F : (green ? 2.0F : 4.0F);
  const float plus = red ? pixel.b : (green ? pixel.r : pixel.g);
  const float minus = red ? pixel.g : (green ? pixel.b : pixel.r);
  const float ways = begin + __fdiv_rn(most - plus, divisor) - __fdiv_rn(most - minus, divisor);
  const float turns = __fdiv_rn(ways, 6.0F) + 1.0F;
  float hue = turns - (turns >= 1.0F ? 1.0F : 0.0F) + turn;
  hue += hue < 0.0F ? 1.0F : (hue >= 1.0F ? -1.0F : 0.0F);
  const float saturation = __fdiv_rn(range, most + one_if_grey);
  const float sixths = __fmul_rn(hue, 6.0F);
  const auto channel = [=](float way) { return __fmul_rn(most, 1.0F - __fmul_rn(saturation, clamped(way))); };
  return {channel(smaller(sixths - 1.0F, 5.0F - sixths)), channel(larger(1.0F - sixths, sixths - 3.0F)),
          channel(larger(3.0F - sixths, sixths - 5.0F))};
}

/// Applies the first `count` changes of `list` to `pixels`. All threads of a block have the same list, and so take the
/// same branches.
template <int kPixels>
__device__ void change(const List& list, int count, Pixel (&pixels)[kPixels]) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const Change change = list.at[i];
    if (change.kind == ColourKind::hue) {
#pragma unroll
      for (Pixel& pixel : pixels) {
        pixel = turned(pixel, change.part);
      }
    } else if (change.kind == ColourKind::saturation) {
#pragma unroll
      for (Pixel& pixel : pixels) {
        pixel = blended(change, pixel, grey(pixel));
      }
    } else {
#pragma unroll
      for (Pixel& pixel : pixels) {
        pixel = blended(change, pixel, change.other);
      }
    }
  }
}

/// Returns byte / 255, rounded to float: multiplies `byte` by the rounded 1 / 255, then corrects the product by its
/// error. This takes fewer instructions than a division and gives the same bits (adjust_colours_test.cpp tries all 256
/// bytes).
__device__ float value_of(std::uint32_t byte) {
  constexpr float kPart = 1.0F / 255.0F;
  const auto whole = static_cast<float>(byte);
  const float near = __fmul_rn(whole, kPart);
  return fmaf(fmaf(-255.0F, near, whole), kPart, near);
}

/// Returns the byte nearest to 255 * value, for a `value` in [0, 1].
__device__ std::uint32_t byte_of(float value) {
  return static_cast<std::uint32_t>(__fmul_rn(value, 255.0F) + 0.5F);
}

/// Converts the bytes of the first four pixels of `piece` to values in [0, 1].
__device__ void unpack(const gpu::Piece& piece, Pixel (&pixels)[kQuad]) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    pixels[i] = {value_of(gpu::quad_byte(piece, 3 * i)), value_of(gpu::quad_byte(piece, 3 * i + 1)),
                 value_of(gpu::quad_byte(piece, 3 * i + 2))};
  }
}

__device__ Word parts_of_grey(const Pixel& pixel) {
  return static_cast<Word>(static_cast<std::uint32_t>(__fmul_rn(grey(pixel), kGreys)));
}

/// Sets the sums of greys of all images to 0: sums (samples). A thread takes one image at a time.
__global__ void __launch_bounds__(kClearBlock) clear_kernel(int64_t samples, Word* sums) {
  gpu::wait_for_earlier();
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kClearBlock + threadIdx.x; n < samples;
       n += static_cast<int64_t>(gridDim.x) * kClearBlock) {
    sums[n] = 0;
  }
}

/// Adds up the greys of each image whose list has a contrast. The greys are taken after the changes that precede the
/// contrast in the list. A block takes one tile of an image after the other; a thread takes one piece of 16 pixels of a
/// tile. The single pixels at both ends of an image (pixels.hpp) belong to the image's first tile. An image without a
/// contrast is not read.
/// The blocks of an image join their sums by an atomic addition: for integers the order makes no difference.
/// images: (samples, pixels, 3), changes: (samples, kColourColumns) with rows `stride` apart, sums: (samples), zeros.
__global__ void __launch_bounds__(kBlock)
    greys_kernel(int64_t samples, int64_t pixels, int64_t tiles, const uint8_t* images, const double* changes,
                 int64_t stride, Word* sums) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(List, shared, [1]);
  const List& list = shared[0];
  for (int64_t item = blockIdx.x; item < samples * tiles; item += gridDim.x) {
    const int64_t n = item / tiles;
    const int64_t tile = item % tiles;
    if (threadIdx.x == 0) {
      read_list(changes + n * stride, shared[0]);
    }
    __syncthreads();
    const int before = list.contrast;
    if (before >= 0) {
      const uint8_t* const image = images + n * pixels * 3;
      const gpu::PixelParts parts(image, pixels);
      const int64_t number = tile * kBlock + threadIdx.x;
      Word sum = 0;
      if (number < parts.pieces) {
        gpu::Piece piece = gpu::load_piece(image + parts.piece(number) * 3);
#pragma unroll 1
        for (int quad = 0; quad < gpu::kPiecePixels / kQuad; ++quad) {
          Pixel four[kQuad];
          unpack(piece, four);
          change(list, before, four);
#pragma unroll
          for (const Pixel& pixel : four) {
            sum += parts_of_grey(pixel);
          }
          gpu::next_quad(piece, {});
        }
      }
      if (number < parts.singles) {
        const uint8_t* const from = image + parts.single(number) * 3;
        Pixel one[1] = {{value_of(from[0]), value_of(from[1]), value_of(from[2])}};
        change(list, before, one);
        sum += parts_of_grey(one[0]);
      }
      sum = gpu::block_sum<kBlock>(sum);
      if (threadIdx.x == 0) {
        atomicAdd(sums + n, sum);
      }
    }
    __syncthreads();  // waits until all threads have used this list, which the next image overwrites
  }
}

/// Applies all changes of an image's list to the image. Blocks take tiles and threads take pieces, as in greys_kernel.
/// An image with an empty list is neither read nor written.
/// images: (samples, pixels, 3), changes: (samples, kColourColumns) with rows `stride` apart, sums: (samples).
__global__ void __launch_bounds__(kBlock) adjust_kernel(int64_t samples, int64_t pixels, int64_t tiles, uint8_t* images,
                                                        const double* changes, int64_t stride, const Word* sums) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(List, shared, [1]);
  const List& list = shared[0];
  for (int64_t item = blockIdx.x; item < samples * tiles; item += gridDim.x) {
    const int64_t n = item / tiles;
    const int64_t tile = item % tiles;
    if (threadIdx.x == 0) {
      read_list(changes + n * stride, shared[0]);
      if (list.contrast >= 0) {
        const double all = static_cast<double>(kGreys) * static_cast<double>(pixels);
        shared[0].at[list.contrast].other = static_cast<float>(static_cast<double>(sums[n]) / all);
      }
    }
    __syncthreads();
    const int count = list.count;
    if (count > 0) {
      uint8_t* const image = images + n * pixels * 3;
      const gpu::PixelParts parts(image, pixels);
      const int64_t number = tile * kBlock + threadIdx.x;
      if (number < parts.pieces) {
        uint8_t* const at = image + parts.piece(number) * 3;
        gpu::Piece piece = gpu::load_piece(at);
#pragma unroll 1
        for (int quad = 0; quad < gpu::kPiecePixels / kQuad; ++quad) {
          Pixel four[kQuad];
          unpack(piece, four);
          change(list, count, four);
          std::uint32_t bytes[3 * kQuad];
#pragma unroll
          for (int i = 0; i < kQuad; ++i) {
            bytes[3 * i] = byte_of(four[i].r);
            bytes[3 * i + 1] = byte_of(four[i].g);
            bytes[3 * i + 2] = byte_of(four[i].b);
          }
          gpu::next_quad(piece, bytes);
        }
        gpu::store_piece(at, piece);
      }
      if (number < parts.singles) {
        uint8_t* const at = image + parts.single(number) * 3;
        Pixel one[1] = {{value_of(at[0]), value_of(at[1]), value_of(at[2])}};
        change(list, count, one);
        at[0] = static_cast<uint8_t>(byte_of(one[0].r));
        at[1] = static_cast<uint8_t>(byte_of(one[0].g));
        at[2] = static_cast<uint8_t>(byte_of(one[0].b));
      }
    }
    __syncthreads();  // waits until all threads have used this list, which the next image overwrites
  }
}

}  // namespace

void adjust_colours(CudaContext& context, const TensorView& images, const TensorView& changes,
                    const TensorView& workspace) {
  const int64_t samples = images.shape[0];
  const int64_t pixels = images.shape[1] * images.shape[2];
  if (samples * pixels == 0) {
    return;
  }
  const int64_t tiles = (pixels + kTile - 1) / kTile;
  const dim3 grid(gpu::blocks_for(samples * tiles, 1));
  auto* const bytes = gpu::data<uint8_t>(images);
  auto* const sums = gpu::data<Word>(workspace);
  const auto* const table = gpu::data<const double>(changes);
  gpu::launch(clear_kernel, dim3(gpu::blocks_for(samples, kClearBlock)), dim3(kClearBlock), 0, context.stream(),
              samples, sums);
  gpu::launch(greys_kernel, grid, dim3(kBlock), 0, context.stream(), samples, pixels, tiles, bytes, table,
              changes.strides[0], sums);
  gpu::launch(adjust_kernel, grid, dim3(kBlock), 0, context.stream(), samples, pixels, tiles, bytes, table,
              changes.strides[0], sums);
}

}  // namespace lockstep::ops::backend
