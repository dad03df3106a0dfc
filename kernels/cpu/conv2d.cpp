#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/context/parallel.hpp>

// Plain loops for every ConvDesc. The order of sums does not depend on the number of threads. Tests compare the other
// providers with these loops, and use them in f64 for finite differences. Any spatial rank is handled as three axes;
// missing outer axes have extent 1. The plan resolves padding and stride into tables of coordinates.

namespace lockstep::ops::reference {
namespace {

constexpr std::string_view kName = "reference";
constexpr const char* kForNorm = "reference:norm";
constexpr std::int64_t kBlock = 64;     // number of channels that are summed together in one local array
constexpr std::int64_t kRows = 4;       // number of output channels whose weight gradients are summed together
constexpr std::int64_t kOutside = -1;   // coordinate of a tap that reads zero padding
constexpr std::size_t kAlignment = 64;  // alignment of the workspace in bytes
constexpr std::int64_t kWork = 131072;  // number of multiply-adds or copies that justify another thread

/// One spatial axis. `source` holds the input coordinate that each output coordinate reads through each tap. `links`
/// and `first` are the inverse table: for each input coordinate, the taps and output coordinates that read it.
struct Axis {
  struct Link {
    std::int64_t tap;
    std::int64_t out;
  };
  std::int64_t in = 1;
  std::int64_t out = 1;
  std::int64_t taps = 1;
  std::vector<std::int64_t> source{0};    // shape (out, taps): the input coordinate that a tap reads, or kOutside
  std::vector<Link> links{{0, 0}};        // pairs (tap, out), grouped by the input coordinate that they read
  std::vector<std::int64_t> first{0, 1};  // shape (in + 1): input coordinate i has the links [first[i], first[i + 1])
};

std::array<Axis, 3> make_axes(const ConvDesc& d) {
  std::array<Axis, 3> axes;
  const Shape y = d.y_shape();
  for (int i = 0; i < d.spatial_rank; ++i) {
    const auto u = static_cast<std::size_t>(i);
    Axis& axis = axes[static_cast<std::size_t>(3 - d.spatial_rank) + u];
    axis.in = d.in_size[u];
    axis.out = y[1 + i];
    axis.taps = d.kernel[u];
    axis.source.clear();
    std::vector<std::vector<Axis::Link>> by_input(static_cast<std::size_t>(axis.in));
    for (std::int64_t out = 0; out < axis.out; ++out) {
      for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
        std::int64_t in = out * d.stride[u] - d.pad_before[u] + tap * d.dilation[u];
        if (d.pad_mode == PadMode::circular) {
          in = ((in % axis.in) + axis.in) % axis.in;
        }
        const bool inside = in >= 0 && in < axis.in;
        axis.source.push_back(inside ? in : kOutside);
        if (inside) {
          by_input[static_cast<std::size_t>(in)].push_back({tap, out});
        }
      }
    }
    axis.links.clear();
    axis.first.assign(1, 0);
    for (const auto& links : by_input) {
      axis.links.insert(axis.links.end(), links.begin(), links.end());
      axis.first.push_back(static_cast<std::int64_t>(axis.links.size()));
    }
  }
  return axes;
}

/// The extents of a convolution under short names: c and k are the channels of one group, n is the number of images.
struct Geometry {
  explicit Geometry(const ConvDesc& d)
      : axes(make_axes(d)), n(d.batch), groups(d.groups), c(d.in_channels / d.groups), k(d.out_channels / d.groups) {}
  [[nodiscard]] std::int64_t taps() const { return axes[0].taps * axes[1].taps * axes[2].taps; }
  [[nodiscard]] std::int64_t weights() const { return groups * k * taps() * c; }  // multiply-adds per output pixel
  [[nodiscard]] std::int64_t in_pixels() const { return axes[0].in * axes[1].in * axes[2].in; }
  [[nodiscard]] std::int64_t out_pixels() const { return axes[0].out * axes[1].out * axes[2].out; }

  std::array<Axis, 3> axes;
  std::int64_t n;
  std::int64_t groups;
  std::int64_t c;
  std::int64_t k;
};

/// Calls f(tap, input pixel within the image) for every tap of an output pixel, except taps in the padding.
template <class F>
void for_each_tap(const Geometry& geo, std::int64_t out_pixel, F&& f) {
  const auto& [d, h, w] = geo.axes;
  const std::int64_t q = out_pixel % w.out;
  const std::int64_t p = out_pixel / w.out % h.out;
  const std::int64_t o = out_pixel / w.out / h.out;
  for (std::int64_t i = 0; i < d.taps; ++i) {
    const std::int64_t z = d.source[static_cast<std::size_t>(o * d.taps + i)];
    for (std::int64_t j = 0; j < h.taps && z != kOutside; ++j) {
      const std::int64_t y = h.source[static_cast<std::size_t>(p * h.taps + j)];
      for (std::int64_t l = 0; l < w.taps && y != kOutside; ++l) {
        const std::int64_t x = w.source[static_cast<std::size_t>(q * w.taps + l)];
        if (x != kOutside) {
          f((i * h.taps + j) * w.taps + l, (z * h.in + y) * w.in + x);
        }
      }
    }
  }
}

/// Calls f(tap, output pixel within the image) for every tap through which an output pixel reads the input pixel.
template <class F>
void for_each_reader(const Geometry& geo, std::int64_t in_pixel, F&& f) {
  const auto& [d, h, w] = geo.axes;
  const auto links = [](const Axis& axis, std::int64_t in) {
    const auto i = static_cast<std::size_t>(in);
    return std::span(axis.links)
        .subspan(static_cast<std::size_t>(axis.first[i]), static_cast<std::size_t>(axis.first[i + 1] - axis.first[i]));
  };
  for (const Axis::Link& i : links(d, in_pixel / w.in / h.in)) {
    for (const Axis::Link& j : links(h, in_pixel / w.in % h.in)) {
      for (const Axis::Link& l : links(w, in_pixel % w.in)) {
        f((i.tap * h.taps + j.tap) * w.taps + l.tap, (i.out * h.out + j.out) * w.out + l.out);
      }
    }
  }
}

template <class T>
void forward(const CpuContext& context, const Geometry& geo, const T* x, const T* weights, const Value<T>* bias, T* y,
             Value<T>* packed) {
  using V = Value<T>;
  // Reorders the weights from (K, taps, C) to (groups, taps, C, K per group), so that the innermost loop runs over
  // adjacent output channels.
  parallel_ranges(
      context, geo.groups * geo.taps(), 1 + kWork / (geo.c * geo.k), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t g = i / geo.taps();
          const std::int64_t tap = i % geo.taps();
          for (std::int64_t c = 0; c < geo.c; ++c) {
            for (std::int64_t k = 0; k < geo.k; ++k) {
              packed[(i * geo.c + c) * geo.k + k] = value_of(weights[((g * geo.k + k) * geo.taps() + tap) * geo.c + c]);
            }
          }
        }
      });
  parallel_ranges(
      context, geo.n * geo.out_pixels(), 1 + kWork / geo.weights(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t pixel = begin; pixel < end; ++pixel) {
          const T* image = x + pixel / geo.out_pixels() * geo.in_pixels() * geo.groups * geo.c;  // shape (D, H, W, C)
          for (std::int64_t g = 0; g < geo.groups; ++g) {
            for (std::int64_t k0 = 0; k0 < geo.k; k0 += kBlock) {
              const std::int64_t count = std::min(kBlock, geo.k - k0);
              V sum[kBlock] = {};
              for_each_tap(geo, pixel % geo.out_pixels(), [&](std::int64_t tap, std::int64_t in_pixel) {
                const T* in = image + (in_pixel * geo.groups + g) * geo.c;          // shape (C)
                const V* w = packed + (g * geo.taps() + tap) * geo.c * geo.k + k0;  // shape (C, K)
                for (std::int64_t c = 0; c < geo.c; ++c) {
                  const V value = value_of(in[c]);
                  for (std::int64_t k = 0; k < count; ++k) {
                    sum[k] += value * w[c * geo.k + k];
                  }
                }
              });
              const std::int64_t first = g * geo.k + k0;
              T* out = y + pixel * geo.groups * geo.k + first;
              for (std::int64_t k = 0; k < count; ++k) {
                out[k] = T(bias != nullptr ? sum[k] + bias[first + k] : sum[k]);
              }
            }
          }
        }
      });
}

template <class T>
void backward_data(const CpuContext& context, const Geometry& geo, const T* dy, const T* weights, T* dx,
                   bool accumulate) {
  parallel_ranges(
      context, geo.n * geo.in_pixels(), 1 + kWork / geo.weights(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t pixel = begin; pixel < end; ++pixel) {
          const T* image = dy + pixel / geo.in_pixels() * geo.out_pixels() * geo.groups * geo.k;  // shape (O, P, Q, K)
          for (std::int64_t g = 0; g < geo.groups; ++g) {
            for (std::int64_t c0 = 0; c0 < geo.c; c0 += kBlock) {
              const std::int64_t count = std::min(kBlock, geo.c - c0);
              Value<T> sum[kBlock] = {};
              for_each_reader(geo, pixel % geo.in_pixels(), [&](std::int64_t tap, std::int64_t out_pixel) {
                const T* grad = image + (out_pixel * geo.groups + g) * geo.k;        // shape (K)
                const T* w = weights + (g * geo.k * geo.taps() + tap) * geo.c + c0;  // shape (K, taps, C)
                for (std::int64_t k = 0; k < geo.k; ++k) {
                  const Value<T> value = value_of(grad[k]);
                  for (std::int64_t c = 0; c < count; ++c) {
                    sum[c] += value * value_of(w[k * geo.taps() * geo.c + c]);
                  }
                }
              });
              T* out = dx + (pixel * geo.groups + g) * geo.c + c0;
              for (std::int64_t c = 0; c < count; ++c) {
                out[c] = T(accumulate ? value_of(out[c]) + sum[c] : sum[c]);
              }
            }
          }
        }
      });
}

/// Computes the gradient of weights[k0 .. k0 + rows)[tap][c0 .. c0 + count) of group g. Each image is summed
/// separately, so that a sum in Value<T> has few terms.
template <class T>
void weight_tile(const Geometry& geo, const T* x, const T* dy, std::int64_t g, std::int64_t tap, std::int64_t k0,
                 std::int64_t rows, std::int64_t c0, std::int64_t count, Value<T> (&total)[kRows][kBlock]) {
  const auto& [d, h, w] = geo.axes;
  const std::int64_t i = tap / w.taps / h.taps;
  const std::int64_t j = tap / w.taps % h.taps;
  const std::int64_t l = tap % w.taps;
  for (std::int64_t n = 0; n < geo.n; ++n) {
    const T* x_image = x + n * geo.in_pixels() * geo.groups * geo.c + g * geo.c + c0;
    const T* dy_image = dy + n * geo.out_pixels() * geo.groups * geo.k + g * geo.k + k0;
    Value<T> sum[kRows][kBlock] = {};
    for (std::int64_t row = 0; row < d.out * h.out; ++row) {
      const std::int64_t z = d.source[static_cast<std::size_t>(row / h.out * d.taps + i)];
      const std::int64_t y = h.source[static_cast<std::size_t>(row % h.out * h.taps + j)];
      for (std::int64_t q = 0; q < w.out && z != kOutside && y != kOutside; ++q) {
        const std::int64_t in = w.source[static_cast<std::size_t>(q * w.taps + l)];
        if (in == kOutside) {
          continue;
        }
        const T* from = x_image + ((z * h.in + y) * w.in + in) * geo.groups * geo.c;  // shape (C)
        const T* grad = dy_image + (row * w.out + q) * geo.groups * geo.k;            // shape (K)
        for (std::int64_t k = 0; k < rows; ++k) {
          const Value<T> value = value_of(grad[k]);
          for (std::int64_t c = 0; c < count; ++c) {
            sum[k][c] += value * value_of(from[c]);
          }
        }
      }
    }
    for (std::int64_t k = 0; k < rows; ++k) {
      for (std::int64_t c = 0; c < count; ++c) {
        total[k][c] += sum[k][c];
      }
    }
  }
}

template <class T>
void backward_weights(const CpuContext& context, const Geometry& geo, const T* x, const T* dy, Value<T>* dweights,
                      bool accumulate) {
  const std::int64_t row_blocks = (geo.k + kRows - 1) / kRows;
  const std::int64_t grain = 1 + kWork / (geo.n * geo.out_pixels() * kRows * geo.c);
  parallel_ranges(context, geo.groups * row_blocks * geo.taps(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t tap = item % geo.taps();
      const std::int64_t k0 = item / geo.taps() % row_blocks * kRows;
      const std::int64_t g = item / geo.taps() / row_blocks;
      const std::int64_t rows = std::min(kRows, geo.k - k0);
      for (std::int64_t c0 = 0; c0 < geo.c; c0 += kBlock) {
        const std::int64_t count = std::min(kBlock, geo.c - c0);
        Value<T> total[kRows][kBlock] = {};
        weight_tile(geo, x, dy, g, tap, k0, rows, c0, count, total);
        for (std::int64_t k = 0; k < rows; ++k) {
          Value<T>* out = dweights + ((g * geo.k + k0 + k) * geo.taps() + tap) * geo.c + c0;
          for (std::int64_t c = 0; c < count; ++c) {
            out[c] = accumulate ? out[c] + total[k][c] : total[k][c];
          }
        }
      }
    }
  });
}

/// Computes the sums that a plan with ConvNorm also returns, from the output `out` of the convolution: one loop over
/// the rows for each channel, in double. In backward_data it also adds the addend to `out` and applies the mask.
template <class T>
void serve_norm(const CpuContext& context, const TensorView& out, bool forward, const ConvNormOperands& norm) {
  const std::int64_t channels = out.shape.back();
  const std::int64_t rows = out.numel() / channels;
  T* const y = out.as<T>();
  parallel_ranges(context, channels, 1 + kWork / rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      double sums[3] = {};
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t i = row * channels + c;
        if (forward) {
          const double off = static_cast<double>(value_of(y[i])) - static_cast<double>(norm.shift.as<Value<T>>()[c]);
          sums[0] += off;
          sums[1] += off * off;
          continue;
        }
        const bool positive = (norm.mask.as<std::uint8_t>()[i / 8] >> (i % 8) & 1) != 0;
        store(positive ? value_of(y[i]) + (norm.addend.given() ? value_of(norm.addend.as<T>()[i]) : 0) : 0, y[i]);
        const auto g = static_cast<double>(value_of(y[i]));
        const auto normalised = [&](const TensorView& x, const TensorView& coefficients) {
          const Value<T>* const of = coefficients.as<Value<T>>();
          return (static_cast<double>(value_of(x.as<T>()[i])) - static_cast<double>(of[2 * channels + c])) *
                 static_cast<double>(of[3 * channels + c]);
        };
        sums[0] += g;
        sums[1] += g * normalised(norm.x, norm.coefficients);
        if (norm.x2.given()) {
          sums[2] += g * normalised(norm.x2, norm.coefficients2);
        }
      }
      for (std::int64_t row = 0; row < norm.sums.shape[0]; ++row) {
        norm.sums.as<Value<T>>()[row * channels + c] = static_cast<Value<T>>(sums[row]);
      }
    }
  });
}

class Plan final : public ConvPlan {
 public:
  Plan(const ConvDesc& desc, ConvPass pass, bool serves_norm)
      : ConvPlan(Device::cpu(), desc, pass), geometry_(desc), serves_norm_(serves_norm) {}

  std::size_t workspace_bytes() const override {
    if (pass() != ConvPass::forward) {
      return 0;
    }
    const std::size_t bytes =
        static_cast<std::size_t>(desc().weights_shape().numel()) * size_of(accumulation_dtype(desc().dtype));
    return align_up(bytes, kAlignment);
  }
  bool deterministic() const override { return true; }
  bool serves_norm() const override { return serves_norm_; }
  std::string choice() const override { return serves_norm_ ? kForNorm : std::string(kName); }

  void run_for_norm(Context& context, const TensorView& a, const TensorView& b, const TensorView& out,
                    const TensorView& workspace, const ConvNormOperands& norm) const override {
    run(context, a, b, {}, out, workspace);
    visit_element(desc().dtype, "conv2d", [&]<class T>(std::type_identity<T>) {
      serve_norm<T>(static_cast<const CpuContext&>(context), out, pass() == ConvPass::forward, norm);
    });
  }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& out,
           const TensorView& workspace) const override {
    const auto& cpu = static_cast<const CpuContext&>(context);
    const bool accumulate = desc().grad_mode == GradMode::accumulate;
    visit_element(desc().dtype, "conv2d", [&]<class T>(std::type_identity<T>) {
      switch (pass()) {
        case ConvPass::forward:
          forward(cpu, geometry_, a.as<T>(), b.as<T>(), desc().bias ? bias.as<Value<T>>() : nullptr, out.as<T>(),
                  static_cast<Value<T>*>(workspace.data));
          break;
        case ConvPass::backward_data:
          backward_data(cpu, geometry_, a.as<T>(), b.as<T>(), out.as<T>(), accumulate);
          break;
        case ConvPass::backward_weights:
          backward_weights(cpu, geometry_, a.as<T>(), b.as<T>(), out.as<Value<T>>(), accumulate);
          break;
      }
    });
  }

 private:
  Geometry geometry_;
  bool serves_norm_;
};

bool supports(const ConvDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::f64 || desc.dtype == DType::bf16;
}

std::vector<std::string> choices(Context& /*context*/, const ConvDesc& desc, ConvPass /*pass*/,
                                 const ConvListing& /*listing*/) {
  std::vector<std::string> all;
  if (supports(desc)) {
    all.emplace_back(kName);
    if (desc.norm.wanted) {
      all.emplace_back(kForNorm);
    }
  }
  return all;
}

std::unique_ptr<ConvPlan> plan(Context& /*context*/, const ConvDesc& desc, ConvPass pass, const std::string& choice) {
  const bool for_norm = choice == kForNorm;
  require<UsageError>(for_norm || choice == kName, "conv2d: choice is '", choice, "', expected '", kName, "' or '",
                      kForNorm, "'");
  require<UnsupportedError>(supports(desc), "conv2d: dtype is ", desc.dtype,
                            ", expected f32, f64 or bf16 with 'reference'");
  require<UnsupportedError>(!for_norm || desc.norm.wanted, "conv2d: choice '", choice,
                            "' without a norm, expected norm.wanted");
  return std::make_unique<Plan>(desc, pass, for_norm);
}

}  // namespace

ConvProvider conv_provider() {
  return {kName, DeviceKind::cpu, choices, plan};
}

}  // namespace lockstep::ops::reference
