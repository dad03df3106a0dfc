#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/onednn/onednn.hpp>
#include <lockstep/kernels/providers.hpp>

// Outside, activations are channels last and weights (K, R, S, C). oneDNN chooses the layout of the weights by itself,
// and with the choice "onednn:blocked" that of the activations too; whatever differs from ours is reordered on the way
// in and out, in the workspace.

namespace lockstep::ops::onednn {
namespace {

using dnnl::memory;

constexpr std::string_view kNhwc = "onednn:nhwc";
constexpr std::string_view kBlocked = "onednn:blocked";

/// Logical order of oneDNN: (N, C, spatial...); in memory channels last.
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

/// Ours: (K, taps..., C / groups). Logical order of oneDNN: ([groups], K, C, taps...) per group.
memory::desc weights_desc(const ConvDesc& d, memory::dims& dims) {
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
  return {dims, memory::data_type::f32, strides};
}

memory::dims spatial(const ConvDesc& d, const std::array<std::int64_t, 3>& values, std::int64_t minus = 0) {
  memory::dims dims;
  for (int i = 0; i < d.spatial_rank; ++i) {
    dims.push_back(values[static_cast<std::size_t>(i)] - minus);
  }
  return dims;
}

/// One operand: the caller's memory, and where oneDNN wants another layout, a copy in the workspace.
struct Operand {
  memory outer;
  memory inner;
  std::optional<std::size_t> offset;  // of inner in the workspace; none: inner is outer
};

class Plan final : public ConvPlan {
 public:
  Plan(Context& context, const ConvDesc& desc, ConvPass pass, bool blocked)
      : ConvPlan(context.device(), desc, pass),
        blocked_(blocked),
        threads_(static_cast<CpuContext&>(context).threads()),
        library_(library(context)) {
    const ThreadScope scope(threads_);
    build();
  }

  std::size_t workspace_bytes() const override { return layout_.bytes(); }
  /// oneDNN splits work by thread count only and joins partial sums in a fixed order.
  bool deterministic() const override { return true; }
  std::string choice() const override { return std::string(blocked_ ? kBlocked : kNhwc); }

  void run(Context& /*context*/, const TensorView& a, const TensorView& b, const TensorView& bias,
           const TensorView& out, const TensorView& workspace) const override {
    const ThreadScope scope(threads_);
    translate_errors("conv2d", [&] {
      auto* base = static_cast<std::byte*>(workspace.data);
      const TensorView* views[] = {&a, &b, &out};
      for (std::size_t i = 0; i < operands_.size(); ++i) {
        operands_[i].outer.set_data_handle(views[i]->data);
        if (operands_[i].offset) {
          operands_[i].inner.set_data_handle(base + *operands_[i].offset);
        }
      }
      if (bias_) {
        bias_.set_data_handle(bias.data);
      }
      for (const auto& [memory, offset] : scratchpads_) {
        memory.set_data_handle(base + offset);
      }
      for (const Step& step : steps_) {
        step.execute(library_.stream);
      }
    });
  }

 private:
  void build() {
    const ConvDesc& d = desc();
    const auto f32 = memory::data_type::f32;
    const auto any = memory::format_tag::any;
    const auto last = channels_last(d.spatial_rank);
    const memory::dims x_dims = activation_dims(d.batch, d.in_channels, d.x_shape());
    const memory::dims y_dims = activation_dims(d.batch, d.out_channels, d.y_shape());
    memory::dims w_dims;
    const memory::desc x(x_dims, f32, last);
    const memory::desc y(y_dims, f32, last);
    const memory::desc w = weights_desc(d, w_dims);

    Convolution c;
    c.x = blocked_ ? memory::desc(x_dims, f32, any) : x;
    c.y = blocked_ ? memory::desc(y_dims, f32, any) : y;
    c.weights = memory::desc(w_dims, f32, any);
    if (d.bias && pass() == ConvPass::forward) {
      c.bias = memory::desc({d.out_channels}, f32, memory::format_tag::x);
      bias_ = make_memory(library_, c.bias);
    }
    c.strides = spatial(d, d.stride);
    c.dilates = spatial(d, d.dilation, 1);
    c.pad_before = spatial(d, d.pad_before);
    c.pad_after = spatial(d, d.pad_after);

    switch (pass()) {
      case ConvPass::forward:
        add_steps(make_forward(library_, c), {x, w, y}, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
        break;
      case ConvPass::backward_data:
        add_steps(make_backward_data(library_, c), {y, w, x}, {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC});
        break;
      case ConvPass::backward_weights:
        add_steps(make_backward_weights(library_, c), {x, y, w},
                  {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS});
        break;
    }
  }

  /// outer: the caller's layouts of a, b and out; names: oneDNN's for them.
  void add_steps(const Made& made, const std::array<memory::desc, 3>& outer, const std::array<int, 3>& names) {
    require<UnsupportedError>(!made.is_reference(), "conv2d: oneDNN has only unoptimised loops (", made.implementation,
                              ") for this");
    const std::array<memory::desc, 3> inner{made.a, made.b, made.out};
    bool other_layout = false;
    for (std::size_t i = 0; i < 3; ++i) {
      other_layout =
          other_layout || (inner[i] != outer[i] && names[i] != DNNL_ARG_WEIGHTS && names[i] != DNNL_ARG_DIFF_WEIGHTS);
    }
    require<UnsupportedError>(other_layout == blocked_, "conv2d: ", choice(),
                              ": oneDNN wants channels-last activations by itself here");

    const bool accumulate = pass() != ConvPass::forward && desc().grad_mode == GradMode::accumulate;
    for (std::size_t i = 0; i < 3; ++i) {
      Operand& operand = operands_[i];
      operand.outer = make_memory(library_, outer[i]);
      operand.inner = operand.outer;
      if (inner[i] != outer[i] || (i == 2 && accumulate)) {
        operand.inner = make_memory(library_, inner[i]);
        operand.offset = layout_.add(inner[i].get_size());
      }
      if (i < 2 && operand.offset) {
        add_reorder(operand.outer, operand.inner, false);
      }
    }
    std::vector<std::pair<int, memory>> arguments;
    for (std::size_t i = 0; i < 3; ++i) {
      arguments.emplace_back(names[i], operands_[i].inner);
    }
    if (bias_) {
      arguments.emplace_back(DNNL_ARG_BIAS, bias_);
    }
    add_step(made, std::move(arguments));
    if (operands_[2].offset) {
      add_reorder(operands_[2].inner, operands_[2].outer, accumulate);
    }
  }

  void add_reorder(const memory& from, const memory& to, bool accumulate) {
    add_step(make_reorder(library_, from.get_desc(), to.get_desc(), accumulate),
             {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  void add_step(const Made& made, std::vector<std::pair<int, memory>> arguments) {
    if (made.scratchpad.get_size() > 0) {
      scratchpads_.emplace_back(make_memory(library_, made.scratchpad), layout_.add(made.scratchpad.get_size()));
      arguments.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpads_.back().first);
    }
    steps_.emplace_back(made.primitive, std::move(arguments));
  }

  bool blocked_;
  int threads_;
  Library library_;  // shares the context's engine and stream
  std::array<Operand, 3> operands_;
  memory bias_;
  std::vector<std::pair<memory, std::size_t>> scratchpads_;
  std::vector<Step> steps_;
  WorkspaceLayout layout_;
};

std::unique_ptr<ConvPlan> make_plan(Context& context, const ConvDesc& desc, ConvPass pass, bool blocked) {
  require<UnsupportedError>(desc.dtype == DType::f32, "conv2d: onednn computes in f32, not in ", desc.dtype);
  require<UnsupportedError>(desc.pad_mode == PadMode::zero, "conv2d: onednn has no circular padding");
  return translate_errors("conv2d", [&] { return std::make_unique<Plan>(context, desc, pass, blocked); });
}

/// Measured with oneDNN 2.6 on AVX2: where the rows that a tap's neighbours share outgrow a part of the first cache,
/// blocked activations win back more than their reorders cost.
bool guess_blocked(const ConvDesc& d) {
  constexpr std::int64_t kRowBytes = 8192;
  const std::int64_t width = d.in_size[static_cast<std::size_t>(d.spatial_rank - 1)];
  const bool pointwise = d.weights_shape().numel() == d.out_channels * (d.in_channels / d.groups);
  return !pointwise && d.in_channels >= 16 && width * d.in_channels * 4 >= kRowBytes;
}

std::vector<std::string> choices(Context& context, const ConvDesc& desc, ConvPass pass) {
  const bool first = guess_blocked(desc);
  std::vector<std::string> all;
  for (const bool blocked : {first, !first}) {
    try {
      all.push_back(make_plan(context, desc, pass, blocked)->choice());
    } catch (const UnsupportedError&) {
      // not one of the choices
    }
  }
  return all;
}

std::unique_ptr<ConvPlan> plan(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice) {
  require<UsageError>(choice == kConv.name || choice == kNhwc || choice == kBlocked, "conv2d: choice is '", choice,
                      "', expected '", kNhwc, "' or '", kBlocked, "'");
  if (choice == kConv.name) {
    const std::vector<std::string> all = choices(context, desc, pass);
    return make_plan(context, desc, pass, !all.empty() && all.front() == kBlocked);
  }
  return make_plan(context, desc, pass, choice == kBlocked);
}

}  // namespace

constinit const ConvProvider kConv{"onednn", DeviceKind::cpu, choices, plan};

}  // namespace lockstep::ops::onednn
