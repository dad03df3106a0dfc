#include <string>
#include <vector>

#include <lockstep/kernels/cuda/tile_product.hpp>
#include <lockstep/kernels/detail/providers.hpp>

// Each pass as one product whose operands are read in place (implicit GEMM), in plain f32 tiles without tensor cores:
// the oracle of cuDNN, and the provider of builds without cuDNN. Each group is one product.
//
//   pass               i               j             sum over l              a     b
//   forward            output pixel    out channel   tap, in channel         x     weights
//   backward_data      input pixel     in channel    tap, out channel        dy    weights
//   backward_weights   out channel     tap, in ch.   output pixel            dy    x
//
// Any spatial rank is handled as three axes, missing outer axes having extent 1.

namespace lockstep::ops::plain_cuda {
namespace {

using std::int64_t;

struct Axis {
  int64_t in, out, taps;
  int64_t stride, dilation, before;
  /// Circular padding: one input appears in `copies` places, whole rounds of `in` apart; the first is `rounds_before`
  /// rounds before its own place. 1 and 0 with zero padding.
  int64_t copies, rounds_before;
};

/// The shapes that all passes share. C and K are channels of one group.
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

/// A place on the three axes.
struct Point {
  int64_t at[3];
};

/// x as seen by taps of output pixels. A pixel is (image, coordinates of its first tap), a tap (its offset, channel).
template <class T>
struct Window {
  Geometry g;
  const T* x;  // (N, D, H, W, groups * C)

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
  /// index: (tap, c)
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

/// Forward: a line is an output pixel, a term a tap. The line includes the group's offset in x, so a term need not.
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

/// backward_weights: a line is a tap, a term an output pixel.
template <class T>
struct TapsOfX : Window<T> {
  using typename Window<T>::Pixel;
  using typename Window<T>::Tap;
  __device__ Tap line(int64_t group, int64_t index) const { return this->tap(group, index); }
  __device__ Pixel term(int64_t index) const { return this->pixel(index); }
  __device__ float load(const Tap& tap, const Pixel& pixel) const { return Window<T>::load(pixel, tap); }
};

/// weights of one group as (K, taps * C), the sum running along C.
template <class T>
struct RowsOfWeights {
  Geometry g;
  const T* weights;  // (groups * K, taps, C)
  __device__ const T* line(int64_t group, int64_t k) const { return weights + (group * g.k + k) * g.taps() * g.c; }
  __device__ int64_t term(int64_t index) const { return index; }
  __device__ float load(const T* row, int64_t term) const { return gpu::to_float(row[term]); }
  __device__ bool along_sum() const { return true; }
};

/// backward_data: a line is an input pixel, a term is (copy, tap, k): the output pixel, if any, that reads this copy of
/// the input through this tap.
template <class T>
struct PixelsOfDy {
  Geometry g;
  const T* dy;  // (N, O, P, Q, groups * K)

  struct Pixel {
    const T* image;
    Point padded;  ///< the coordinate, counted from the beginning of the padding
  };
  struct Tap {
    Point back;  ///< subtracted from the padded coordinate: the window's beginning
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

/// backward_data: a line is an input channel, a term (copy, tap, k).
template <class T>
struct ColumnsOfWeights {
  Geometry g;
  const T* weights;  // (groups * K, taps, C)
  __device__ const T* line(int64_t group, int64_t c) const { return weights + group * g.k * g.taps() * g.c + c; }
  __device__ int64_t term(int64_t index) const { return (index % g.k * g.taps() + index / g.k % g.taps()) * g.c; }
  __device__ float load(const T* column, int64_t term) const { return gpu::to_float(column[term]); }
  __device__ bool along_sum() const { return false; }
};

/// backward_weights: a line is an output channel, a term an output pixel.
template <class T>
struct ColumnsOfDy {
  Geometry g;
  const T* dy;  // (pixels, groups * K)
  __device__ const T* line(int64_t group, int64_t k) const { return dy + group * g.k + k; }
  __device__ int64_t term(int64_t index) const { return index * g.groups * g.k; }
  __device__ float load(const T* column, int64_t term) const { return gpu::to_float(column[term]); }
  __device__ bool along_sum() const { return false; }
};

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

// Not final: with a destructor that can be inlined, coverage counts one that is never called.
class Plan : public ConvPlan {
 public:
  Plan(Context& context, const ConvDesc& desc, ConvPass pass)
      : ConvPlan(context.device(), desc, pass), geometry_(geometry(desc)), sizes_(sizes(desc, pass, geometry_)) {}

  std::size_t workspace_bytes() const override { return sizes_.workspace_bytes(); }
  bool deterministic() const override { return true; }
  std::string choice() const override { return std::string(kConv.name); }

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
};

bool supports(const ConvDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::bf16 || desc.dtype == DType::f16;
}

std::vector<std::string> choices(Context& /*context*/, const ConvDesc& desc, ConvPass /*pass*/) {
  return supports(desc) ? std::vector<std::string>{std::string(kConv.name)} : std::vector<std::string>{};
}

std::unique_ptr<ConvPlan> plan(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice) {
  require<UsageError>(choice == kConv.name, "conv2d: choice is '", choice, "', expected '", kConv.name, "'");
  require<UnsupportedError>(supports(desc), "conv2d: cuda computes in f32, bf16 and f16, not in ", desc.dtype);
  return std::make_unique<Plan>(context, desc, pass);
}

}  // namespace

constinit const ConvProvider kConv{"cuda", DeviceKind::cuda, choices, plan};

}  // namespace lockstep::ops::plain_cuda
