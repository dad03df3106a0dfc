// Computes each pass of a convolution as one matrix product per group (implicit GEMM: the operands are read in place),
// in plain f32 tiles without tensor cores. nn::ChoiceVerifier compares cuDNN's results with the results of this code.
// Builds without cuDNN use this code for all convolutions on a GPU.
//
//   pass               i               j             sum over l              a     b
//   forward            output pixel    out channel   tap, in channel         x     weights
//   backward_data      input pixel     in channel    tap, out channel        dy    weights
//   backward_weights   out channel     tap, in ch.   output pixel            dy    x
//
// Any spatial rank is handled as three axes; missing outer axes have extent 1. tile_product.hpp has the tiling: 256
// threads, 64 x 64 outputs, 16 terms at a time in shared memory. f32 arithmetic and the integer divisions of
// coordinates bound the product.
//
// The choice "cuda:norm" also computes the sums for the batch norm next to the convolution (ConvNorm), in a second pass
// over the output (column_sums.hpp). Memory bandwidth bounds this pass. Tests that emulate CUDA on the CPU run
// "cuda:norm" in place of cuDNN's engines, which need no second pass.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <lockstep/kernels/cuda/column_sums.hpp>
#include <lockstep/kernels/cuda/tile_product.hpp>
#include <lockstep/kernels/detail/providers.hpp>

namespace lockstep::ops::plain_cuda {
namespace {

using std::int64_t;

constexpr const char* kForNorm = "cuda:norm";

struct Axis {
  int64_t in, out, taps;
  int64_t stride, dilation, before;
  /// With circular padding one input pixel appears at `copies` coordinates, which are `in` apart. The smallest of these
  /// coordinates is `rounds_before` * `in` before the pixel's own coordinate. With zero padding copies is 1 and
  /// rounds_before is 0.
  int64_t copies, rounds_before;
};

/// The sizes that all passes share. `c` and `k` are the numbers of in and out channels of one group.
struct Geometry {
  Axis axes[3];
  int64_t groups, c, k;
  bool circular;

  __host__ __device__ int64_t taps() const { return axes[0].taps * axes[1].taps * axes[2].taps; }
  __host__ __device__ int64_t in_pixels() const { return axes[0].in * axes[1].in * axes[2].in; }
  __host__ __device__ int64_t out_pixels() const { return axes[0].out * axes[1].out * axes[2].out; }
  __host__ __device__ int64_t copies() const { return axes[0].copies * axes[1].copies * axes[2].copies; }
};

Geometry geometry(const ConvDesc& d) {
  Geometry g{};
  g.groups = d.groups;
  g.c = d.in_channels / d.groups;
  g.k = d.out_channels / d.groups;
  g.circular = d.pad_mode == PadMode::circular;
  const Shape y = d.y_shape();
  for (int i = 0; i < 3; ++i) {
    Axis& axis = g.axes[i];
    const int own = i - (3 - d.spatial_rank);
    if (own < 0) {
      axis = {1, 1, 1, 1, 1, 0, 1, 0};
      continue;
    }
    const auto u = static_cast<std::size_t>(own);
    const auto rounds = [&](int64_t pad) { return g.circular ? (pad + d.in_size[u] - 1) / d.in_size[u] : 0; };
    axis = {d.in_size[u],
            y[1 + own],
            d.kernel[u],
            d.stride[u],
            d.dilation[u],
            d.pad_before[u],
            rounds(d.pad_before[u]) + 1 + rounds(d.pad_after[u]),
            rounds(d.pad_before[u])};
  }
  return g;
}

/// A coordinate on each of the three axes.
struct Point {
  int64_t at[3];
};

/// The input x of a convolution. A Pixel holds the image of an output pixel and the coordinates of this pixel's first
/// tap. A Tap holds an input channel and the tap's offset from the first tap. A Pixel and a Tap together locate an
/// element of x.
template <class T>
struct Window {
  Geometry g;
  const T* x;  // shape (N, D, H, W, groups * C)

  struct Pixel {
    const T* image;
    Point first;
  };
  struct Tap {
    Point offset;
    int64_t channel;
  };

  __device__ Pixel pixel(int64_t index) const {
    Pixel p;
    for (int i = 2; i >= 0; --i) {
      p.first.at[i] = index % g.axes[i].out * g.axes[i].stride - g.axes[i].before;
      index /= g.axes[i].out;
    }
    p.image = x + index * g.in_pixels() * g.groups * g.c;
    return p;
  }
  /// Returns the Tap of tap `index` / c and of channel `index` % c of the group.
  __device__ Tap tap(int64_t group, int64_t index) const {
    Tap t;
    t.channel = group * g.c + index % g.c;
    index /= g.c;
    for (int i = 2; i >= 0; --i) {
      t.offset.at[i] = index % g.axes[i].taps * g.axes[i].dilation;
      index /= g.axes[i].taps;
    }
    return t;
  }
  __device__ float load(const Pixel& pixel, const Tap& tap) const {
    int64_t at = 0;
    bool inside = true;
    for (int i = 0; i < 3; ++i) {
      const int64_t extent = g.axes[i].in;
      int64_t place = pixel.first.at[i] + tap.offset.at[i];
      if (g.circular) {
        place = (place % extent + extent) % extent;
      }
      inside = inside && place >= 0 && place < extent;
      at = at * extent + place;
    }
    return inside ? gpu::to_float(pixel.image[at * g.groups * g.c + tap.channel]) : 0.0F;
  }
  __device__ bool along_sum() const { return true; }
};

/// Operand a of the matrix product in forward. line() takes the index of an output pixel; term() takes the index of a
/// tap and channel. The line already includes the group's offset in x.
template <class T>
struct PixelsOfX : Window<T> {
  using typename Window<T>::Pixel;
  using typename Window<T>::Tap;
  __device__ Pixel line(int64_t group, int64_t index) const {
    Pixel p = this->pixel(index);
    p.image += group * this->g.c;
    return p;
  }
  __device__ Tap term(int64_t index) const { return this->tap(0, index); }
};

/// Operand b of the matrix product in backward_weights. line() takes the index of a tap and channel; term() takes the
/// index of an output pixel.
template <class T>
struct TapsOfX : Window<T> {
  using typename Window<T>::Pixel;
  using typename Window<T>::Tap;
  __device__ Tap line(int64_t group, int64_t index) const { return this->tap(group, index); }
  __device__ Pixel term(int64_t index) const { return this->pixel(index); }
  __device__ float load(const Tap& tap, const Pixel& pixel) const { return Window<T>::load(pixel, tap); }
};

/// Operand b of the matrix product in forward: the weights of one group as a matrix (K, taps * C). The product sums
/// along the rows.
template <class T>
struct RowsOfWeights {
  Geometry g;
  const T* weights;  // shape (groups * K, taps, C)
  __device__ const T* line(int64_t group, int64_t k) const { return weights + (group * g.k + k) * g.taps() * g.c; }
  __device__ int64_t term(int64_t index) const { return index; }
  __device__ float load(const T* row, int64_t term) const { return gpu::to_float(row[term]); }
  __device__ bool along_sum() const { return true; }
};

/// Operand a of the matrix product in backward_data. line() takes the index of an input pixel. term() takes the index
/// of a term of the sum, which runs over (copy, tap, output channel). The element is dy at the output pixel that reads
/// this copy of the input pixel through this tap, or 0 if there is no such output pixel.
template <class T>
struct PixelsOfDy {
  Geometry g;
  const T* dy;  // shape (N, O, P, Q, groups * K)

  struct Pixel {
    const T* image;
    Point padded;  ///< coordinates of the pixel, counted from the beginning of the padding
  };
  struct Tap {
    Point back;  ///< distance between the beginning of a window and `padded`
    int64_t channel;
  };

  __device__ Pixel line(int64_t group, int64_t index) const {
    Pixel p;
    for (int i = 2; i >= 0; --i) {
      p.padded.at[i] = index % g.axes[i].in + g.axes[i].before;
      index /= g.axes[i].in;
    }
    p.image = dy + index * g.out_pixels() * g.groups * g.k + group * g.k;
    return p;
  }
  __device__ Tap term(int64_t index) const {
    Tap t;
    t.channel = index % g.k;
    index /= g.k;
    for (int i = 2; i >= 0; --i) {
      t.back.at[i] = index % g.axes[i].taps * g.axes[i].dilation;
      index /= g.axes[i].taps;
    }
    for (int i = 2; i >= 0; --i) {
      t.back.at[i] += (g.axes[i].rounds_before - index % g.axes[i].copies) * g.axes[i].in;
      index /= g.axes[i].copies;
    }
    return t;
  }
  __device__ float load(const Pixel& pixel, const Tap& tap) const {
    int64_t at = 0;
    bool inside = true;
    for (int i = 0; i < 3; ++i) {
      const int64_t begin = pixel.padded.at[i] - tap.back.at[i];
      const int64_t out = begin / g.axes[i].stride;
      inside = inside && begin >= 0 && out * g.axes[i].stride == begin && out < g.axes[i].out;
      at = at * g.axes[i].out + out;
    }
    return inside ? gpu::to_float(pixel.image[at * g.groups * g.k + tap.channel]) : 0.0F;
  }
  __device__ bool along_sum() const { return true; }
};

/// Operand b of the matrix product in backward_data: the weights. line() takes the index of an input channel. term()
/// takes the index of a term of the sum, which runs over (copy, tap, output channel). The weight is the same for all
/// copies of the input that circular padding makes.
template <class T>
struct ColumnsOfWeights {
  Geometry g;
  const T* weights;  // shape (groups * K, taps, C)
  __device__ const T* line(int64_t group, int64_t c) const { return weights + group * g.k * g.taps() * g.c + c; }
  __device__ int64_t term(int64_t index) const { return (index % g.k * g.taps() + index / g.k % g.taps()) * g.c; }
  __device__ float load(const T* column, int64_t term) const { return gpu::to_float(column[term]); }
  __device__ bool along_sum() const { return false; }
};

/// Operand a of the matrix product in backward_weights. line() takes the index of an output channel; term() takes the
/// index of an output pixel.
template <class T>
struct ColumnsOfDy {
  Geometry g;
  const T* dy;  // shape (pixels, groups * K)
  __device__ const T* line(int64_t group, int64_t k) const { return dy + group * g.k + k; }
  __device__ int64_t term(int64_t index) const { return index * g.groups * g.k; }
  __device__ float load(const T* column, int64_t term) const { return gpu::to_float(column[term]); }
  __device__ bool along_sum() const { return false; }
};

/// A function for gpu::column_sums that sums y - shift and (y - shift)^2. y: (rows, channels), shift: (channels).
template <class T>
struct SumsOfY {
  int64_t channels;
  const T* y;
  const float* shift;

  struct Take {
    const T* y;  // points to the thread's column in row 0
    int64_t channels;
    float shift;
    __device__ void operator()(int64_t row, float (&sums)[2][1]) const {
      const float off = gpu::to_float(y[row * channels]) - shift;
      sums[0][0] += off;
      sums[1][0] += off * off;
    }
  };
  __device__ Take at(int64_t column) const { return {y + column, channels, shift[column]}; }
};

/// The input x (rows, channels) and the coefficients (4, channels) of a norm that gets g; xhat is computed from both.
template <class T>
struct NormInput {
  const T* x;
  const float* coefficients;
};

/// A function for gpu::column_sums. It changes g: it adds the addend, if there is one, and then sets g to 0 where the
/// mask's bit is 0. It sums the new g, and g * xhat for each norm. g, addend (or null): (rows, channels), mask: a bit
/// for each element of g.
template <class T, int kNorms>
struct MaskedSums {
  int64_t channels;
  T* g;
  const T* addend;
  const unsigned char* mask;
  NormInput<T> norms[kNorms];

  struct Take {
    MaskedSums of;
    int64_t column;
    float mean[kNorms];
    float inv_std[kNorms];
    __device__ void operator()(int64_t row, float (&sums)[1 + kNorms][1]) const {
      const int64_t i = row * of.channels + column;
      float g = 0.0F;
      if ((of.mask[i / 8] >> (i % 8) & 1) != 0) {
        g = gpu::to_float(of.g[i]) + (of.addend != nullptr ? gpu::to_float(of.addend[i]) : 0.0F);
      }
      of.g[i] = gpu::from_float<T>(g);
      g = gpu::to_float(of.g[i]);  // g as the norm will read it: rounded to T
      sums[0][0] += g;
#pragma unroll
      for (int k = 0; k < kNorms; ++k) {
        sums[1 + k][0] += g * (gpu::to_float(of.norms[k].x[i]) - mean[k]) * inv_std[k];
      }
    }
  };
  __device__ Take at(int64_t column) const {
    Take take{*this, column, {}, {}};
#pragma unroll
    for (int k = 0; k < kNorms; ++k) {
      take.mean[k] = norms[k].coefficients[2 * channels + column];
      take.inv_std[k] = norms[k].coefficients[3 * channels + column];
    }
    return take;
  }
};

template <class T>
void serve_norm(CudaContext& context, const TensorView& out, ConvPass pass, float* partial,
                const ConvNormOperands& norm) {
  const int64_t channels = out.shape.back();
  const int64_t rows = out.numel() / channels;
  auto* const sums = gpu::data<float>(norm.sums);
  if (pass == ConvPass::forward) {
    const SumsOfY<T> of{channels, gpu::data<const T>(out), gpu::data<const float>(norm.shift)};
    gpu::column_sums<2, 1>(context, of, rows, channels, false, partial, gpu::ColumnSums<2>{{sums, sums + channels}});
    return;
  }
  auto* const g = gpu::data<T>(out);
  const auto* const addend = gpu::data<const T>(norm.addend);
  const auto* const mask = gpu::data<const unsigned char>(norm.mask);
  const NormInput<T> first{gpu::data<const T>(norm.x), gpu::data<const float>(norm.coefficients)};
  if (!norm.x2.given()) {
    const MaskedSums<T, 1> of{channels, g, addend, mask, {first}};
    gpu::column_sums<2, 1>(context, of, rows, channels, false, partial, gpu::ColumnSums<2>{{sums, sums + channels}});
    return;
  }
  const NormInput<T> second{gpu::data<const T>(norm.x2), gpu::data<const float>(norm.coefficients2)};
  const MaskedSums<T, 2> of{channels, g, addend, mask, {first, second}};
  gpu::column_sums<3, 1>(context, of, rows, channels, false, partial,
                         gpu::ColumnSums<3>{{sums, sums + channels, sums + 2 * channels}});
}

gpu::ProductSizes sizes(const ConvDesc& d, ConvPass pass, const Geometry& g) {
  switch (pass) {
    case ConvPass::forward:
      return gpu::product_sizes(g.groups, d.batch * g.out_pixels(), g.k, g.taps() * g.c);
    case ConvPass::backward_data:
      return gpu::product_sizes(g.groups, d.batch * g.in_pixels(), g.c, g.copies() * g.taps() * g.k);
    case ConvPass::backward_weights:
      break;
  }
  return gpu::product_sizes(g.groups, g.k, g.taps() * g.c, d.batch * g.out_pixels());
}

// The class is not final: otherwise the destructor could be inlined, and coverage would count it as never called.
class Plan : public ConvPlan {
 public:
  Plan(Context& context, const ConvDesc& desc, ConvPass pass, bool serves_norm)
      : ConvPlan(context.device(), desc, pass),
        geometry_(geometry(desc)),
        sizes_(sizes(desc, pass, geometry_)),
        serves_norm_(serves_norm) {}

  /// Returns the larger of two numbers of bytes: for the product's partial sums, and for the norm's sums, which use the
  /// same memory later.
  std::size_t workspace_bytes() const override {
    if (!serves_norm_) {
      return sizes_.workspace_bytes();
    }
    const Shape out = pass() == ConvPass::forward ? desc().y_shape() : desc().x_shape();
    return std::max(sizes_.workspace_bytes(),
                    gpu::column_sums_bytes(out.numel() / out.back(), out.back(), desc().norm.pair ? 3 : 2));
  }
  bool deterministic() const override { return true; }
  bool serves_norm() const override { return serves_norm_; }
  std::string choice() const override { return serves_norm_ ? kForNorm : std::string(kConv.name); }

  void run_for_norm(Context& context, const TensorView& a, const TensorView& b, const TensorView& out,
                    const TensorView& workspace, const ConvNormOperands& norm) const override {
    run(context, a, b, {}, out, workspace);
    gpu::visit_element(desc().dtype, "conv2d", [&]<class T>(std::type_identity<T>) {
      serve_norm<T>(static_cast<CudaContext&>(context), out, pass(), gpu::data<float>(workspace), norm);
    });
  }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& out,
           const TensorView& workspace) const override {
    auto& cuda = static_cast<CudaContext&>(context);
    const Geometry& g = geometry_;
    auto* const partial = gpu::data<float>(workspace);
    const bool accumulate = desc().grad_mode == GradMode::accumulate;
    gpu::visit_element(desc().dtype, "conv2d", [&]<class T>(std::type_identity<T>) {
      switch (pass()) {
        case ConvPass::forward:
          gpu::tile_product(
              cuda, sizes_, PixelsOfX<T>{{g, gpu::data<const T>(a)}}, RowsOfWeights<T>{g, gpu::data<const T>(b)},
              gpu::ProductOutput<T>{gpu::data<T>(out), g.k, g.groups * g.k, gpu::data<const float>(bias), g.k, false},
              partial);
          break;
        case ConvPass::backward_data:
          gpu::tile_product(
              cuda, sizes_, PixelsOfDy<T>{g, gpu::data<const T>(a)}, ColumnsOfWeights<T>{g, gpu::data<const T>(b)},
              gpu::ProductOutput<T>{gpu::data<T>(out), g.c, g.groups * g.c, nullptr, 0, accumulate}, partial);
          break;
        case ConvPass::backward_weights:
          gpu::tile_product(cuda, sizes_, ColumnsOfDy<T>{g, gpu::data<const T>(b)},
                            TapsOfX<T>{{g, gpu::data<const T>(a)}},
                            gpu::ProductOutput<float>{gpu::data<float>(out), g.k * g.taps() * g.c, g.taps() * g.c,
                                                      nullptr, 0, accumulate},
                            partial);
          break;
      }
    });
  }

 private:
  Geometry geometry_;
  gpu::ProductSizes sizes_;
  bool serves_norm_;
};

bool supports(const ConvDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::bf16 || desc.dtype == DType::f16;
}

std::vector<std::string> choices(Context& /*context*/, const ConvDesc& desc, ConvPass /*pass*/,
                                 const ConvListing& /*listing*/) {
  std::vector<std::string> all;
  if (supports(desc)) {
    all.emplace_back(kConv.name);
    if (desc.norm.wanted) {
      all.emplace_back(kForNorm);
    }
  }
  return all;
}

std::unique_ptr<ConvPlan> plan(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice) {
  const bool for_norm = choice == kForNorm;
  require<UsageError>(for_norm || choice == kConv.name, "conv2d: choice is '", choice, "', expected '", kConv.name,
                      "' or '", kForNorm, "'");
  require<UnsupportedError>(supports(desc), "conv2d: dtype is ", desc.dtype, ", expected f32, bf16 or f16 with 'cuda'");
  require<UnsupportedError>(!for_norm || desc.norm.wanted, "conv2d: choice '", choice,
                            "' without a norm, expected norm.wanted");
  return std::make_unique<Plan>(context, desc, pass, for_norm);
}

}  // namespace

constinit const ConvProvider kConv{"cuda", DeviceKind::cuda, choices, plan};

}  // namespace lockstep::ops::plain_cuda
