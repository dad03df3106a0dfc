#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/detail/known_bad.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/onednn/onednn.hpp>

// Callers pass activations with channels last, and weights (K, R, S, C). oneDNN chooses its own layout of the weights
// and, with the choice "onednn:blocked", of the activations, too. If layouts differ, inputs and outputs are reordered
// in the workspace. The same reorders convert bf16 tensors to f32 with the choices "onednn:nhwc-via-f32" and
// "onednn:blocked-via-f32", which are the first guess for processors without bf16 instructions.

namespace lockstep::ops::onednn {
namespace {

using dnnl::memory;

constexpr std::string_view kName = "onednn";
constexpr std::string_view kNhwc = "onednn:nhwc";
constexpr std::string_view kBlocked = "onednn:blocked";
constexpr std::string_view kViaF32 = "-via-f32";  // suffix after kNhwc or kBlocked: bf16 is converted to f32

struct Method {
  bool blocked = false;
  bool via_f32 = false;  ///< true if bf16 tensors are converted to f32
  [[nodiscard]] std::string name() const { return concat(blocked ? kBlocked : kNhwc, via_f32 ? kViaF32 : ""); }
};

/// Returns the dimensions of activations in oneDNN's logical order (N, C, spatial...); memory has the channels last.
memory::dims activation_dims(std::int64_t batch, std::int64_t channels, const Shape& shape) {
  memory::dims dims{batch, channels};
  for (int i = 1; i + 1 < shape.rank(); ++i) {
    dims.push_back(shape[i]);
  }
  return dims;
}

memory::format_tag channels_last(int spatial_rank) {
  using tag = memory::format_tag;
  return spatial_rank == 1 ? tag::nwc : spatial_rank == 2 ? tag::nhwc : tag::ndhwc;
}

/// Describes the weights and sets `dims` to their dimensions. In memory the weights are (K, taps..., C / groups). The
/// logical order of oneDNN is ([groups], K, C, taps...), where K and C are the channels of one group.
memory::desc weights_desc(const ConvDesc& d, memory::data_type type, memory::dims& dims) {
  const std::int64_t c = d.in_channels / d.groups;
  const std::int64_t k = d.out_channels / d.groups;
  std::int64_t taps = 1;
  for (int i = 0; i < d.spatial_rank; ++i) {
    taps *= d.kernel[static_cast<std::size_t>(i)];
  }
  memory::dims strides;
  dims.clear();
  if (d.groups > 1) {
    dims.push_back(d.groups);
    strides.push_back(k * taps * c);
  }
  dims.insert(dims.end(), {k, c});
  strides.insert(strides.end(), {taps * c, 1});
  std::int64_t stride = taps * c;
  for (int i = 0; i < d.spatial_rank; ++i) {
    const std::int64_t extent = d.kernel[static_cast<std::size_t>(i)];
    stride /= extent;
    dims.push_back(extent);
    strides.push_back(stride);
  }
  return {dims, type, strides};
}

memory::dims spatial(const ConvDesc& d, const std::array<std::int64_t, 3>& values, std::int64_t minus = 0) {
  memory::dims dims;
  for (int i = 0; i < d.spatial_rank; ++i) {
    dims.push_back(values[static_cast<std::size_t>(i)] - minus);
  }
  return dims;
}

class Plan final : public ConvPlan {
 public:
  Plan(Context& context, const ConvDesc& desc, ConvPass pass, Method method)
      : ConvPlan(context.device(), desc, pass),
        method_(method),
        threads_(static_cast<CpuContext&>(context).threads()),
        program_(library(context)) {
    run_with_threads(threads_, [&] { build(library(context)); });
  }

  std::size_t workspace_bytes() const override { return program_.workspace_bytes(); }
  /// Returns true: for one number of threads, oneDNN always divides the work in the same way, and joins partial sums in
  /// a fixed order.
  bool deterministic() const override { return true; }
  std::string choice() const override { return method_.name(); }
  std::string implementation() const override { return program_.implementation(); }

  void run(Context& /*context*/, const TensorView& a, const TensorView& b, const TensorView& bias,
           const TensorView& out, const TensorView& workspace) const override {
    translate_errors("conv2d", [&] {
      run_with_threads(threads_, [&] { program_.run({a.data, b.data, out.data}, bias.data, workspace.data); });
    });
  }

 private:
  void build(const Library& lib) {
    const ConvDesc& d = desc();
    const auto f32 = memory::data_type::f32;
    const auto any = memory::format_tag::any;
    const auto last = channels_last(d.spatial_rank);
    const memory::data_type outer = type_of(d.dtype);
    const memory::data_type inner = method_.via_f32 ? f32 : outer;
    const memory::dims x_dims = activation_dims(d.batch, d.in_channels, d.x_shape());
    const memory::dims y_dims = activation_dims(d.batch, d.out_channels, d.y_shape());
    memory::dims w_dims;
    const memory::desc x(x_dims, outer, last);
    const memory::desc y(y_dims, outer, last);
    const memory::desc w = weights_desc(d, pass() == ConvPass::backward_weights ? f32 : outer, w_dims);
    const bool added = pass() == ConvPass::backward_data && accumulate();
    const memory::data_type dx_type = added ? f32 : inner;  // f32 when dx accumulates, so that only the sum is rounded
    const memory::desc plain_x(x_dims, inner, last);
    const memory::desc plain_y(y_dims, inner, last);
    const memory::desc plain_dx(x_dims, dx_type, last);

    Convolution c;
    c.x = method_.blocked ? memory::desc(x_dims, inner, any) : plain_x;
    c.y = method_.blocked ? memory::desc(y_dims, inner, any) : plain_y;
    c.dx = method_.blocked ? memory::desc(x_dims, dx_type, any) : plain_dx;
    c.weights = memory::desc(w_dims, inner, any);
    c.dweights = memory::desc(w_dims, f32, any);
    if (d.bias && pass() == ConvPass::forward) {
      c.bias = memory::desc({d.out_channels}, f32, memory::format_tag::x);
    }
    c.strides = spatial(d, d.stride);
    c.dilates = spatial(d, d.dilation, 1);
    c.pad_before = spatial(d, d.pad_before);
    c.pad_after = spatial(d, d.pad_after);

    const std::string version = library_version();
    const auto refusal = [&](std::string_view implementation) {
      const KnownBad* const bad = known_bad({kName, version, implementation, d, pass()});
      return bad == nullptr ? "" : concat("conv2d: oneDNN's ", implementation, ' ', bad->what);
    };
    switch (pass()) {
      case ConvPass::forward: {
        const Made made = make_forward(lib, c, refusal);
        check(made, made.a == plain_x && made.out == plain_y);
        program_.build(made, {x, w, y}, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, c.bias, false);
        break;
      }
      case ConvPass::backward_data: {
        const Made made = make_backward_data(lib, c, refusal);
        check(made, made.out == plain_dx && made.a == plain_y);
        program_.build(made, {y, w, x}, {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC}, c.bias, accumulate());
        break;
      }
      case ConvPass::backward_weights: {
        const Made made = make_backward_weights(lib, c, refusal);
        check(made, made.a == plain_x && made.b == plain_y);
        program_.build(made, {x, y, w}, {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}, c.bias, accumulate());
        break;
      }
    }
  }

  [[nodiscard]] bool accumulate() const { return desc().grad_mode == GradMode::accumulate; }

  void check(const Made& made, bool channels_last) const {
    require<UnsupportedError>(!made.is_reference(), "conv2d: oneDNN has only unoptimised loops (", made.implementation,
                              ") for this convolution, expected optimised ones or another library");
    require<UnsupportedError>(
        channels_last != method_.blocked, "conv2d: ", choice(),
        ": oneDNN chooses channels-last activations by itself here, expected the choice for these");
  }

  Method method_;
  int threads_;
  Program program_;
};

std::unique_ptr<ConvPlan> make_plan(Context& context, const ConvDesc& desc, ConvPass pass, Method method) {
  require<UnsupportedError>(has_type(desc.dtype), "conv2d: dtype is ", desc.dtype,
                            ", expected f32 or bf16 with onednn");
  require<UnsupportedError>(!method.via_f32 || desc.dtype == DType::bf16, "conv2d: ", method.name(), " with dtype ",
                            desc.dtype, ", expected bf16");
  require<UnsupportedError>(desc.pad_mode == PadMode::zero,
                            "conv2d: pad_mode is circular, expected zero: onednn has no circular padding");
  return translate_errors("conv2d", [&] { return std::make_unique<Plan>(context, desc, pass, method); });
}

/// Returns true if blocked activations are the first guess. Measured with oneDNN 2.6 on AVX2: if a row of x has at
/// least kRowBytes bytes as f32, blocked activations save more time than their reorders cost. The reason is the
/// first-level cache, which keeps short rows until the next tap needs them again.
bool guess_blocked(const ConvDesc& d) {
  constexpr std::int64_t kRowBytes = 8192;
  const std::int64_t width = d.in_size[static_cast<std::size_t>(d.spatial_rank - 1)];
  const bool pointwise = d.weights_shape().numel() == d.out_channels * (d.in_channels / d.groups);
  return !pointwise && d.in_channels >= 16 && width * d.in_channels * 4 >= kRowBytes;
}

/// Returns all methods for the element type of `desc`, best guess first.
std::vector<Method> methods(const ConvDesc& desc) {
  const bool first = guess_blocked(desc);
  if (desc.dtype != DType::bf16) {
    return {{.blocked = first}, {.blocked = !first}};
  }
  const bool via = !multiplies_bf16();
  return {{first, via}, {!first, via}, {first, !via}, {!first, !via}};
}

std::vector<std::string> choices(Context& context, const ConvDesc& desc, ConvPass pass,
                                 const ConvListing& /*listing*/) {
  std::vector<std::string> all;
  for (const Method& method : methods(desc)) {
    try {
      all.push_back(make_plan(context, desc, pass, method)->choice());
    } catch (const UnsupportedError&) {
      // this method is not one of the choices
    }
  }
  return all;
}

std::unique_ptr<ConvPlan> plan(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice) {
  const std::vector<std::string> all =
      choice == kConv.name ? choices(context, desc, pass, {}) : std::vector<std::string>{choice};
  for (const bool blocked : {false, true}) {
    for (const bool via_f32 : {false, true}) {
      const Method method{blocked, via_f32};
      if (all.empty() || all.front() == method.name()) {  // nothing supported: the first method throws the reason
        return make_plan(context, desc, pass, method);
      }
    }
  }
  throw UsageError(concat("conv2d: choice is '", choice, "', expected '", kNhwc, "' or '", kBlocked,
                          "', for bf16 also with '", kViaF32, "' after it"));
}

}  // namespace

constinit const ConvProvider kConv{kName, DeviceKind::cpu, choices, plan, library_version};

}  // namespace lockstep::ops::onednn
