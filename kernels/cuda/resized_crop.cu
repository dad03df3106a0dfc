// Resamples a part of each source image (N, B) u8 to out (N, H, W, 3) u8; the table `parts` (N, 13) f64 describes the
// parts.
//
// A block of 256 threads takes tiles of 32 x 32 pixels of out. The weights of a tile's columns and rows are computed
// once, in f64, and kept in shared memory (18 KB: the first 64 weights of 32 columns and of 32 rows). Then a warp takes
// a row of the tile, and a thread a pixel. Neighbouring lanes read neighbouring pixels of the source image. Pixels that
// the output pixels of a tile share stay in the first-level cache.
//
// An output pixel is a sum over about (2 s)^2 pixels of the source image. Here s is the larger of 1 and the step, which
// is the distance in the source image between neighbouring output pixels. Each of these pixels takes one multiplication
// and one addition per colour. So cache accesses (of single bytes) and arithmetic bound the kernel. Memory bandwidth
// does not: memory transfers only about 3 bytes per pixel of the part and 3 per pixel of out.

#include <lockstep/kernels/cuda/port.hpp>
#include <lockstep/kernels/resized_crop.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int kBlock = 256;
constexpr int kTile = 32;                // number of pixels along x and along y that a block takes at a time
constexpr int kKept = 64;                // number of weights of a column or row in shared memory: all if step <= 31
constexpr double kMostPixels = 1 << 27;  // largest number of pixels of a source image: byte offsets fit in 32 bits
constexpr double kFurthest = 2147483648.0;

/// The axis of a resampling, like images::Axis, but with `low` and `high` in 32 bits.
struct Axis {
  double begin;
  double step;
  int low;
  int high;
};

struct Part {
  bool shown;  // true if the image's row of `parts` is valid; if false, all other members are unset
  bool transposed;
  int width;  // number of columns of the source image that are in memory
  int left;   // first column of the source image that is in memory
  int top;
  Axis x;
  Axis y;
};

/// The triangle that defines the weights of the pixels for one output along an axis.
struct Triangle {
  double middle;
  double width;  // distance from the middle to each end, in pixels
  double sum;    // sum of all weights before each is divided by this sum
};

/// The columns or the rows of a tile, called lines. Line i is a weighted sum of count[i] pixels from first[i] on.
/// weights[t][i] is the weight of pixel first[i] + t, for the first kKept of these pixels.
struct Lines {
  Triangle triangles[kTile];
  int first[kTile];
  int count[kTile];
  float weights[kKept][kTile];
};

__device__ bool is_whole(double value, double low, double high) {
  return value >= low && value <= high && value == floor(value);
}

__device__ double undivided(const Triangle& triangle, int pixel) {
  const double weight = 1 - fabs(pixel + 0.5 - triangle.middle) / triangle.width;
  return weight > 0 ? weight : 0;
}

/// Returns the weight of `pixel` under `triangle`, with the same rounding as on the host.
__device__ float weight_of(const Triangle& triangle, int pixel) {
  return static_cast<float>(undivided(triangle, pixel) / triangle.sum);
}

/// The pixels [first, end) of an axis from which one output is computed.
struct Taps {
  double middle;
  double width;  // distance from `middle` to each end of the triangle of weights, in pixels
  int first;
  int end;
};

__device__ Taps taps_of(const Axis& axis, int output) {
  const double low = axis.low;
  const double high = axis.high;
  const double step = fabs(axis.step);
  const double at = __dadd_rn(axis.begin, __dmul_rn(output + 0.5, axis.step));
  const double middle = at < low ? low : at > high ? high : at;
  const double width = step > 1 ? step : 1;
  const double begin = floor(middle - width + 0.5);
  const double end = floor(middle + width + 0.5);
  return {middle, width, static_cast<int>(begin > low ? begin : low), static_cast<int>(end < high ? end : high)};
}

/// Sets line number `line` of `lines` to the triangle, pixels and weights of output `output` along `axis`.
__device__ void find_taps(const Axis& axis, int output, int line, Lines& lines) {
  const Taps taps = taps_of(axis, output);
  const int count = taps.end - taps.first;
  Triangle triangle{taps.middle, taps.width, 0};
  for (int tap = 0; tap < count; ++tap) {
    triangle.sum += undivided(triangle, taps.first + tap);
  }
  for (int tap = 0; tap < count && tap < kKept; ++tap) {
    lines.weights[tap][line] = weight_of(triangle, taps.first + tap);
  }
  lines.triangles[line] = triangle;
  lines.first[line] = taps.first;
  lines.count[line] = count;
}

/// Sets `axis` from four cells: begin, step, low, high. Returns false if a number is out of its range, otherwise true.
__device__ bool read_axis(const double* cells, Axis& axis) {
  const double low = cells[2];
  const double high = cells[3];
  if (!is_whole(high, 1, kMostPixels) || !is_whole(low, 0, high - 1) || !(fabs(cells[1]) <= kMostPixels) ||
      !(fabs(cells[0]) <= kFurthest)) {
    return false;
  }
  axis = {cells[0], cells[1], static_cast<int>(low), static_cast<int>(high)};
  return true;
}

/// Returns true if the pixels of the first `outputs` outputs lie in [first, first + count). Checks only the first and
/// the last output, because the pixels of every other output lie between the pixels of these two.
__device__ bool covers(const Axis& axis, int outputs, int first, int count) {
  const Taps one = taps_of(axis, 0);
  const Taps other = taps_of(axis, outputs - 1);
  return min(one.first, other.first) >= first && max(one.end, other.end) <= first + count;
}

/// Sets `part` from a row of the table `parts`, which has one number for each PartColumn. Returns true if the row is
/// valid for a source image whose memory has `bytes` bytes, otherwise false.
__device__ bool read_part(const double* row, std::int64_t bytes, int image_height, int image_width, Part& part) {
  const auto cell = [row](PartColumn column) { return row[static_cast<int>(column)]; };
  const double width = cell(PartColumn::width);
  const double height = cell(PartColumn::height);
  const double left = cell(PartColumn::left);
  const double top = cell(PartColumn::top);
  const double transposed = cell(PartColumn::transposed);
  if (!is_whole(width, 1, kMostPixels) || !is_whole(height, 1, kMostPixels) || !(width * height <= kMostPixels) ||
      static_cast<std::int64_t>(width * height) * 3 > bytes || !is_whole(left, 0, kMostPixels) ||
      !is_whole(top, 0, kMostPixels) || !is_whole(transposed, 0, 1)) {
    return false;
  }
  part.width = static_cast<int>(width);
  part.left = static_cast<int>(left);
  part.top = static_cast<int>(top);
  part.transposed = transposed == 1;
  return read_axis(row + static_cast<int>(PartColumn::x_begin), part.x) &&
         read_axis(row + static_cast<int>(PartColumn::y_begin), part.y) &&
         covers(part.x, part.transposed ? image_height : image_width, part.left, part.width) &&
         covers(part.y, part.transposed ? image_width : image_height, part.top, static_cast<int>(height));
}

/// Adds `weight` times the three numbers at `from` to `sum`; each product and each addition is rounded separately.
template <class T>
__device__ void add(float weight, const T* from, float (&sum)[3]) {
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    sum[c] = __fadd_rn(sum[c], __fmul_rn(weight, static_cast<float>(from[c])));
  }
}

/// Adds to `sum` the pixels of one row of the source image that column `column` needs, each times its weight. `from` is
/// the first of these pixels.
__device__ void add_across(const Lines& columns, int column, const std::uint8_t* from, float (&sum)[3]) {
  const int count = columns.count[column];
  const int kept = count < kKept ? count : kKept;
#pragma unroll 4
  for (int tap = 0; tap < kept; ++tap) {
    add(columns.weights[tap][column], from + 3 * tap, sum);
  }
  for (int tap = kept; tap < count; ++tap) {
    add(weight_of(columns.triangles[column], columns.first[column] + tap), from + 3 * tap, sum);
  }
}

__device__ std::uint8_t rounded(float sum) {
  const float up = __fadd_rn(sum, 0.5F);
  return static_cast<std::uint8_t>(static_cast<int>(up < 255.0F ? up : 255.0F));
}

__host__ __device__ int tiles_of(int extent) {
  return (extent + kTile - 1) / kTile;
}

/// Computes out in tiles of kTile x kTile pixels, along x and y of the source image. A block takes one tile after the
/// other. One thread reads the row of the table. 64 threads compute, in f64 like the host, the pixels and weights from
/// which the tile's columns and rows are summed. Then a warp takes a row of the tile, and a thread a pixel.
///
/// The pixel is a sum over rows of the source image; the term of a row is a sum over pixels of this row. The host
/// computes the sum of a row once for all pixels that share it. Here each thread computes the sum again, so nothing is
/// stored between two passes. The eight warps read the same rows of the source image soon after each other, from the
/// cache. Weights after the first kKept are computed again for each pixel, so that any step works.
///
/// pictures: (samples, bytes), parts: (samples, kPartColumns) with rows `stride` apart, out: (samples, height, width,
/// 3).
__global__ void __launch_bounds__(kBlock)
    crop_kernel(std::int64_t samples, std::int64_t bytes, int height, int width, const std::uint8_t* pictures,
                std::int64_t stride, const double* parts, std::uint8_t* out) {
  gpu::wait_for_earlier();
  LOCKSTEP_SHARED(Part, part, [1]);
  LOCKSTEP_SHARED(Lines, columns, [1]);
  LOCKSTEP_SHARED(Lines, rows, [1]);
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const int warp = static_cast<int>(threadIdx.x) / kTile;
  const int tiles = tiles_of(height) * tiles_of(width);
  for (std::int64_t item = blockIdx.x; item < samples * tiles; item += gridDim.x) {
    const std::int64_t n = item / tiles;
    const int tile = static_cast<int>(item % tiles);
    if (threadIdx.x == 0) {
      part->shown = read_part(parts + n * stride, bytes, height, width, *part);
    }
    __syncthreads();
    const bool shown = part->shown;
    const bool transposed = shown && part->transposed;
    const int across = transposed ? height : width;
    const int down = transposed ? width : height;
    const int left = tile % tiles_of(across) * kTile;
    const int top = tile / tiles_of(across) * kTile;
    if (shown && warp == 0) {
      find_taps(part->x, left + lane, lane, *columns);
    } else if (shown && warp == 1) {
      find_taps(part->y, top + lane, lane, *rows);
    }
    __syncthreads();
    const std::uint8_t* picture = pictures + n * bytes;
    const int i = left + lane;
    for (int line = warp; line < kTile; line += kBlock / kTile) {
      const int j = top + line;
      if (i < across && j < down) {
        float sum[3] = {0.0F, 0.0F, 0.0F};  // the pixel stays black if the row of the table is not valid
        const int count = shown ? rows->count[line] : 0;
        for (int tap = 0; tap < count; ++tap) {
          const int row = rows->first[line] + tap;
          float along[3] = {0.0F, 0.0F, 0.0F};
          const int pixel = (row - part->top) * part->width + columns->first[lane] - part->left;
          add_across(*columns, lane, picture + 3 * pixel, along);
          add(tap < kKept ? rows->weights[tap][line] : weight_of(rows->triangles[line], row), along, sum);
        }
        const int place = transposed ? i * down + j : j * across + i;
        std::uint8_t* to = out + (n * height * width + place) * 3;
#pragma unroll
        for (int c = 0; c < 3; ++c) {
          to[c] = rounded(sum[c]);
        }
      }
    }
    __syncthreads();  // waits until all threads have read part, columns and rows, which the next tile overwrites
  }
}

}  // namespace

void resized_crop(CudaContext& context, const TensorView& pictures, const TensorView& parts, const TensorView& out) {
  const std::int64_t samples = pictures.shape[0];
  const auto height = static_cast<int>(out.shape[1]);
  const auto width = static_cast<int>(out.shape[2]);
  if (out.numel() == 0) {
    return;
  }
  gpu::launch(crop_kernel, dim3(gpu::blocks_for(samples * tiles_of(height) * tiles_of(width), 1)), dim3(kBlock), 0,
              context.stream(), samples, pictures.shape[1], height, width, pictures.as<std::uint8_t>(),
              parts.strides[0], parts.as<double>(), out.as<std::uint8_t>());
}

}  // namespace lockstep::ops::backend
