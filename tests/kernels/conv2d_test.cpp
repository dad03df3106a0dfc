#include "tests/kernels/conv2d_cases.hpp"
#include "tests/kernels/conv2d_networks.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/detail/known_bad.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/base/openmp.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::ConvDesc;
using ops::ConvPass;
using ops::GradMode;

/// Calls f(index into y, index into x, index into weights) once for every multiply-add of the convolution. Iterates
/// over the explicitly padded image, with pixel and tap numbers that are decomposed into one coordinate for each axis.
template <class F>
void enumerate(const ConvDesc& d, F f) {
  const auto rank = static_cast<std::size_t>(d.spatial_rank);
  const Shape y_shape = d.y_shape();
  // image[axis][padded coordinate]: coordinate in the image, or -1 in the padding
  std::vector<std::vector<std::int64_t>> image(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::int64_t p = -d.pad_before[i]; p < d.in_size[i] + d.pad_after[i]; ++p) {
      std::int64_t inside = p;
      while (d.pad_mode == ops::PadMode::circular && inside < 0) {
        inside += d.in_size[i];
      }
      while (d.pad_mode == ops::PadMode::circular && inside >= d.in_size[i]) {
        inside -= d.in_size[i];
      }
      image[i].push_back(inside >= 0 && inside < d.in_size[i] ? inside : -1);
    }
  }
  const std::int64_t c_group = d.in_channels / d.groups;
  const std::int64_t k_group = d.out_channels / d.groups;
  const std::int64_t pixels = y_shape.numel() / d.batch / d.out_channels;
  const std::int64_t taps = d.weights_shape().numel() / d.out_channels / c_group;
  for (std::int64_t n = 0; n < d.batch; ++n) {
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        std::int64_t in_pixel = 0;
        std::int64_t scale = 1;
        std::int64_t rest_pixel = pixel;
        std::int64_t rest_tap = tap;
        bool inside = true;
        for (std::size_t i = rank; i-- > 0;) {
          const std::int64_t extent = y_shape[static_cast<int>(i) + 1];
          const std::int64_t padded = rest_pixel % extent * d.stride[i] + rest_tap % d.kernel[i] * d.dilation[i];
          rest_pixel /= extent;
          rest_tap /= d.kernel[i];
          const std::int64_t at = image[i].at(static_cast<std::size_t>(padded));
          inside = inside && at >= 0;
          in_pixel += at * scale;
          scale *= d.in_size[i];
        }
        for (std::int64_t k = 0; k < d.out_channels && inside; ++k) {
          for (std::int64_t c = 0; c < c_group; ++c) {
            f((n * pixels + pixel) * d.out_channels + k,
              (n * scale + in_pixel) * d.in_channels + k / k_group * c_group + c, (k * taps + tap) * c_group + c);
          }
        }
      }
    }
  }
}

/// Computes the pass with enumerate(), in double. out: holds the previous contents of the output and receives the
/// result.
void oracle(const ConvDesc& d, ConvPass pass, Inputs inputs, std::vector<double>& out) {
  const std::vector<double> a_values = inputs[0].values();
  const std::vector<double> b_values = inputs[1].values();
  if (pass == ConvPass::forward || d.grad_mode == GradMode::overwrite) {
    std::fill(out.begin(), out.end(), 0.0);
  }
  if (pass == ConvPass::forward && d.bias) {
    const std::vector<double> bias = inputs[2].values();
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = bias[i % bias.size()];
    }
  }
  const double* a = a_values.data();
  const double* b = b_values.data();
  double* sums = out.data();
  switch (pass) {
    case ConvPass::forward:
      enumerate(d, [=](std::int64_t y, std::int64_t x, std::int64_t w) { sums[y] += a[x] * b[w]; });
      break;
    case ConvPass::backward_data:
      enumerate(d, [=](std::int64_t y, std::int64_t x, std::int64_t w) { sums[x] += a[y] * b[w]; });
      break;
    case ConvPass::backward_weights:
      enumerate(d, [=](std::int64_t y, std::int64_t x, std::int64_t w) { sums[w] += a[x] * b[y]; });
      break;
  }
}

void expect_oracle(Context& context, const ConvCase& item, DType dtype) {
  for (const ConvPass pass : kConvPasses) {
    for (const bool variant : {false, true}) {
      ConvDesc d = item.desc;
      d.dtype = dtype;
      d.bias = variant;
      d.grad_mode = variant ? GradMode::accumulate : GradMode::overwrite;
      std::vector<double> sums;  // computed once: every choice has the same inputs
      for (const std::string& choice : ops::conv2d_choices(context, d, pass)) {
        expect_matches(conv2d_case(item.name, d, pass, choice), context, [&](Inputs in, Outputs expected) {
          if (sums.empty()) {
            sums = expected[0].values();
            oracle(d, pass, in, sums);
          }
          expected[0].assign(sums);
        });
      }
    }
  }
}

TEST(Conv2d, EveryChoiceMatchesTheOracleInF32) {
  CpuContext context({.threads = 2});
  for (const ConvCase& item : conv_cases()) {
    expect_oracle(context, item, DType::f32);
  }
}

TEST(Conv2d, ReferenceMatchesTheOracleInF64) {
  CpuContext context({.threads = 3});
  for (const ConvCase& item : conv_cases()) {
    expect_oracle(context, item, DType::f64);
  }
}

TEST(Conv2d, EveryChoiceMatchesTheOracleInBf16) {
  CpuContext context({.threads = 2});
  const std::vector<ConvCase> cases = conv_cases();
  for (std::size_t i = 0; i < cases.size(); i += 3) {
    expect_oracle(context, cases[i], DType::bf16);
  }
}

// ---- By hand

/// Expects each choice to give exactly `expected`. before: the output's contents before the call, for accumulation.
void expect_by_hand(const ConvDesc& d, ConvPass pass, const std::vector<std::vector<double>>& inputs,
                    const std::vector<double>& expected, const std::vector<double>& before = {}) {
  CpuContext context;
  for (const std::string& choice : ops::conv2d_choices(context, d, pass)) {
    OpCase item = conv2d_case("by hand", d, pass, choice);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      item.inputs[i].start = values(inputs[i]);
    }
    if (!before.empty()) {
      item.outputs[0].start = values(before);
    }
    const CheckedRun instance(item, context);
    EXPECT_EQ(instance.output(0).values(), expected) << item.name;
  }
}

const std::vector<double> kNine{1, 2, 3,  //
                                4, 5, 6,  //
                                7, 8, 9};
const std::vector<double> kDigits{1, 10,  //
                                  100, 1000};

TEST(Conv2d, AChoiceThatIsRefusedIsNotTheLast) {
  int asked = 0;
  const auto plan = [&](const std::string& choice) {
    ++asked;
    require<UnsupportedError>(choice != "a" && choice != "c", choice, " is refused");
    require<Error>(choice != "b", "status 4001");  // some libraries report "not supported" this way
    require<OutOfMemory>(choice != "large", "no memory");
    require<CudaError>(choice != "broken", "an illegal memory access");
    return std::make_unique<std::string>(choice);
  };
  std::exception_ptr refusal;
  const auto made = ops::first_planned({"a", "b", "good", "c"}, refusal, plan);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(*made, "good");
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(ops::first_planned({"c"}, refusal, plan), nullptr);
  EXPECT_EQ(error_of<UnsupportedError>([&] { std::rethrow_exception(refusal); }), "a is refused") << "the first one";
  refusal = nullptr;
  EXPECT_EQ(ops::first_planned({"b", "a"}, refusal, plan), nullptr);
  EXPECT_THROW(std::rethrow_exception(refusal), Error);
  EXPECT_THROW((void)ops::first_planned({"large", "good"}, refusal, plan), OutOfMemory);
  EXPECT_THROW((void)ops::first_planned({"broken", "good"}, refusal, plan), CudaError);
}

TEST(Conv2d, ForwardByHand) {
  ConvDesc d = square(1, 3, 1, 1, 2, 1, 0);
  d.bias = true;
  // 1 * 1 + 10 * 2 + 100 * 4 + 1000 * 5 = 5421. Each step to the right adds 1 to each pixel of the window, so it adds
  // 1111.
  expect_by_hand(d, ConvPass::forward, {kNine, kDigits, {0.5}}, {5421.5, 6532.5, 8754.5, 9865.5});
}

TEST(Conv2d, StrideAndAsymmetricPaddingByHand) {
  ConvDesc d = square(1, 3, 1, 1, 2, 2, 0);
  d.pad_before = {1, 0, 0};
  d.pad_after = {0, 1, 0};
  // The windows cover rows (padding, 0) and (1, 2), and columns (0, 1) and (2, padding).
  expect_by_hand(d, ConvPass::forward, {kNine, kDigits}, {2100, 300, 8754, 906});
}

TEST(Conv2d, CircularPaddingByHand) {
  ConvDesc d;
  d.spatial_rank = 1;
  d.in_size = {4, 1, 1};
  d.kernel = {3, 1, 1};
  d.pad_before = {1, 0, 0};
  d.pad_after = {1, 0, 0};
  d.pad_mode = ops::PadMode::circular;
  expect_by_hand(d, ConvPass::forward, {{1, 2, 3, 4}, {1, 10, 100}}, {214, 321, 432, 143});
  // dx[i] is the sum of dy[i - 1] w[2], dy[i] w[1] and dy[i + 1] w[0], with circular indices.
  expect_by_hand(d, ConvPass::backward_data, {{1, 2, 3, 4}, {1, 10, 100}}, {412, 123, 234, 341});
}

TEST(Conv2d, BackwardByHand) {
  // One pixel, two input channels, two output channels: y[k] = sum over c of w[k][c] x[c].
  ConvDesc d = square(1, 1, 2, 2, 1, 1, 0);
  const std::vector<double> x{3, 5};
  const std::vector<double> w{1, 2,  //
                              4, 8};
  const std::vector<double> dy{10, 100};
  expect_by_hand(d, ConvPass::backward_data, {dy, w}, {410, 820});
  expect_by_hand(d, ConvPass::backward_weights, {x, dy}, {30, 50, 300, 500});
  d.grad_mode = GradMode::accumulate;
  expect_by_hand(d, ConvPass::backward_data, {dy, w}, {411, 822}, {1, 2});
  expect_by_hand(d, ConvPass::backward_weights, {x, dy}, {31, 52, 303, 504}, {1, 2, 3, 4});
}

TEST(Conv2d, ShapesAndFlops) {
  ConvDesc d = square(2, 9, 6, 8, 3, 2, 1);
  d.groups = 2;
  EXPECT_EQ(d.x_shape(), (Shape{2, 9, 9, 6}));
  EXPECT_EQ(d.weights_shape(), (Shape{8, 3, 3, 3}));
  EXPECT_EQ(d.y_shape(), (Shape{2, 5, 5, 8}));
  EXPECT_DOUBLE_EQ(d.flops(), 2.0 * (2 * 5 * 5 * 8) * (3 * 3 * 3));
  d.spatial_rank = 1;
  EXPECT_EQ(d.y_shape(), (Shape{2, 5, 8}));
}

// ---- Gradients

TEST(Conv2d, BackwardIsTheDerivativeOfForwardInF64) {
  CpuContext context({.threads = 2});
  for (const ConvCase& item : conv_cases()) {
    ConvDesc d = item.desc;
    d.dtype = DType::f64;
    OpInstance forward(conv2d_case(item.name, d, ConvPass::forward, {}), context);
    const TensorView x = forward.inputs()[0];
    const TensorView w = forward.inputs()[1];
    GuardedTensor dy(d.y_shape(), DType::f64, uniform(3, -1, 1));
    OpCase to_x = conv2d_case(item.name, d, ConvPass::backward_data, {});
    to_x.inputs[0].start = values(dy.values());
    to_x.inputs[1].start = values(forward.inputs()[1].values());
    OpCase to_w = conv2d_case(item.name, d, ConvPass::backward_weights, {});
    to_w.inputs[0].start = values(forward.inputs()[0].values());
    to_w.inputs[1].start = values(dy.values());
    const CheckedRun dx(to_x, context);
    const CheckedRun dw(to_w, context);
    const auto loss = [&] {
      forward.enqueue();
      return weighted_sum(forward.output(0), dy);
    };
    expect_gradients(loss, {{"x", x, dx.output(0)}, {"weights", w, dw.output(0)}}, 1e-7, item.name, 1e-4, 8);
  }
}

// ---- The same bits

TEST(Conv2d, HasTheSameBitsForEveryThreadCountInBf16) {
  ConvDesc d = square(3, 17, 4, 16, 3, 1, 1);
  d.dtype = DType::bf16;
  CpuContext context({.threads = 2});
  for (const ConvPass pass : kConvPasses) {
    expect_same_bits_for_threads(conv2d_case("bf16", d, pass, "reference"), {1, 2, 5});
    for (const std::string& choice : ops::conv2d_choices(context, d, pass)) {
      expect_repeatable(conv2d_case("bf16", d, pass, choice), context);
    }
  }
}

TEST(Conv2d, ReferenceHasTheSameBitsForEveryThreadCount) {
  for (const ConvCase& item : conv_cases()) {
    for (const ConvPass pass : kConvPasses) {
      expect_same_bits_for_threads(conv2d_case(item.name, item.desc, pass, "reference"), {1, 2, 5});
    }
  }
}

TEST(Conv2d, DeterministicChoicesRepeatTheirBits) {
  CpuContext context({.threads = 2});
  for (const ConvCase& item : resnet20_cases(3)) {
    for (const ConvPass pass : kConvPasses) {
      for (const std::string& choice : ops::conv2d_choices(context, item.desc, pass)) {
        if (!ops::plan_conv2d(context, item.desc, pass, choice)->deterministic()) {
          continue;
        }
        const OpCase same = conv2d_case(item.name, item.desc, pass, choice);
        expect_repeatable(same, context);
      }
    }
  }
}

// ---- Choices

TEST(Conv2d, ChoicesMakeTheirPlanAgain) {
  CpuContext context;
  for (const ConvCase& item : conv_cases()) {
    for (const ConvPass pass : kConvPasses) {
      const auto choices = ops::conv2d_choices(context, item.desc, pass);
      ASSERT_FALSE(choices.empty()) << item.name;
      EXPECT_EQ(ops::plan_conv2d(context, item.desc, pass)->choice(), choices.front());
      EXPECT_EQ(choices.back(), "reference");
      for (const std::string& choice : choices) {
        EXPECT_EQ(ops::plan_conv2d(context, item.desc, pass, choice)->choice(), choice);
        const std::string provider = choice.substr(0, choice.find(':'));
        const std::string best = ops::plan_conv2d(context, item.desc, pass, provider)->choice();
        EXPECT_EQ(best, *std::find_if(choices.begin(), choices.end(),
                                      [&](const std::string& c) { return c.rfind(provider, 0) == 0; }));
      }
    }
  }
}

bool has_onednn() {
  CpuContext context;
  return ops::conv2d_choices(context, square(1, 8, 16, 16, 3, 1, 1), ConvPass::forward).front() != "reference";
}

TEST(Conv2d, OneDnnHasFastImplementationsForResNet) {
  if (!has_onednn()) {
    GTEST_SKIP() << "built without oneDNN";
  }
  CpuContext context;
  auto cases = resnet20_cases(2);
  const auto more = resnet50_cases(1);
  cases.insert(cases.end(), more.begin(), more.end());
  for (const ConvCase& item : cases) {
    for (const ConvPass pass : kConvPasses) {
      EXPECT_EQ(ops::conv2d_choices(context, item.desc, pass).front().rfind("onednn:", 0), 0U) << item.name;
    }
  }
}

// ---- Wrong results of libraries

/// Returns a convolution with a 1 x 1 kernel, over images with `size` pixels along each of `rank` axes.
ConvDesc one_tap(int rank, std::int64_t batch, std::int64_t size, std::int64_t in, std::int64_t out,
                 std::int64_t stride, DType dtype) {
  ConvDesc d;
  d.spatial_rank = rank;
  d.batch = batch;
  d.in_channels = in;
  d.out_channels = out;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    d.in_size[i] = size;
    d.stride[i] = stride;
  }
  d.dtype = dtype;
  return d;
}

/// Returns a bf16 convolution of a square image, padded by half of the kernel.
ConvDesc in_bf16(std::int64_t size, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                 std::int64_t dilation, std::int64_t groups) {
  ConvDesc d = square(2, size, in, out, kernel, stride, kernel / 2);
  d.dtype = DType::bf16;
  d.dilation = {dilation, 1, 1};
  d.groups = groups;
  return d;
}

/// Returns a convolution over three axes, in f32 and with two groups. The first axis is shorter than the kernel.
ConvDesc short_3d() {
  ConvDesc d = one_tap(3, 1, 1, 4, 34, 1, DType::f32);
  d.in_size[0] = 3;
  d.kernel[0] = 5;
  d.stride[0] = 2;
  d.pad_before[0] = 3;
  d.pad_after[0] = 1;
  d.groups = 2;
  return d;
}

/// Returns a convolution over three axes, of which only the first is longer than one pixel. Its image, kernel, stride
/// and padding are parameters.
ConvDesc strided_3d(std::int64_t size, std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t before,
                    std::int64_t after, DType dtype) {
  ConvDesc d = one_tap(3, 1, 1, in, 18, 1, dtype);
  d.in_size[0] = size;
  d.kernel[0] = kernel;
  d.stride[0] = stride;
  d.pad_before[0] = before;
  d.pad_after[0] = after;
  d.groups = 2;
  return d;
}

/// Returns the same call with a guard area after its workspace. The call fails the test if it writes to the guard area.
OpCase with_band(OpCase item) {
  constexpr std::int64_t kBand = 1 << 18;
  const auto prepare = item.prepare;
  item.prepare = [=, name = item.name](Context& context) {
    PreparedOp op = prepare(context);
    const auto bytes = static_cast<std::int64_t>(op.workspace_bytes);
    op.workspace_bytes += kBand;
    op.run = [=, run = op.run](Context& on, Views in, Views out, const TensorView& workspace) {
      const std::span<std::uint8_t> band = workspace.slice(0, bytes, bytes + kBand).span<std::uint8_t>();
      std::fill(band.begin(), band.end(), 0x5a);
      run(on, in, out, workspace.slice(0, 0, bytes));
      EXPECT_EQ(std::count(band.begin(), band.end(), 0x5a), kBand) << name << ": written after the workspace";
    };
    return op;
  };
  return item;
}

TEST(Conv2d, ChoicesAreRightWhereOneDnnIsReportedWrong) {
  const std::vector<ConvCase> cases{{"1d", one_tap(1, 2, 284, 12, 32, 2, DType::f32)},
                                    {"2d", one_tap(2, 3, 64, 8, 16, 2, DType::f32)},
                                    {"few", one_tap(2, 2, 108, 2, 3, 4, DType::f32)},
                                    {"odd", one_tap(2, 1, 152, 5, 16, 4, DType::f32)},
                                    {"3d", one_tap(3, 1, 24, 3, 17, 2, DType::f32)},
                                    {"bf16 1d", one_tap(1, 1, 132, 4, 3, 4, DType::bf16)},
                                    {"bf16 2d", one_tap(2, 2, 78, 1, 32, 2, DType::bf16)},
                                    {"bf16 3d", one_tap(3, 1, 20, 5, 8, 2, DType::bf16)},
                                    {"odd sum", one_tap(2, 2, 60, 17, 3, 1, DType::bf16)},
                                    {"odd sum 1d", one_tap(1, 2, 300, 17, 15, 2, DType::bf16)},
                                    {"one to one", one_tap(2, 1, 120, 1, 1, 2, DType::bf16)},
                                    {"dilated", in_bf16(29, 24, 12, 3, 1, 2, 2)},
                                    {"dilated groups", in_bf16(43, 36, 24, 1, 1, 2, 4)},
                                    {"narrow", in_bf16(2, 3, 20, 3, 3, 1, 1)},
                                    {"leaping", in_bf16(14, 5, 18, 2, 4, 1, 1)},
                                    {"short 3d", short_3d()},
                                    {"strided 3d", strided_3d(4, 4, 3, 3, 1, 1, DType::bf16)},
                                    {"strided 3d f32", strided_3d(4, 12, 4, 2, 3, 2, DType::f32)}};
  for (const ConvCase& item : cases) {
    for (const ConvPass pass : kConvPasses) {
      std::vector<double> sums;
      for (int threads = 1; threads <= 4; ++threads) {
        CpuContext context({.threads = threads});
        for (const std::string& choice : ops::conv2d_choices(context, item.desc, pass)) {
          expect_matches(with_band(conv2d_case(item.name, item.desc, pass, choice)), context,
                         [&](Inputs in, Outputs expected) {
                           if (sums.empty()) {
                             sums = expected[0].values();
                             oracle(item.desc, pass, in, sums);
                           }
                           expected[0].assign(sums);
                         });
        }
      }
    }
  }
}

TEST(Conv2d, KnownBadImplementationsByVersionPassAndShape) {
  const auto bad = [](std::string_view library, std::string_view version, std::string_view implementation,
                      const ConvDesc& d, ConvPass pass) {
    return ops::known_bad({library, version, implementation, d, pass}) != nullptr;
  };
  const ConvPass forward = ConvPass::forward;
  const ConvPass to_x = ConvPass::backward_data;
  const ConvPass to_w = ConvPass::backward_weights;
  const ConvDesc narrow = one_tap(2, 1, 8, 15, 16, 2, DType::f32);
  for (const char* version : {"2.0.0", "2.6.3", "3.10", "3.14.0"}) {
    EXPECT_TRUE(bad("onednn", version, "jit_1x1:avx512_core", narrow, to_w)) << version;
  }
  EXPECT_FALSE(bad("onednn", "1.8.1", "jit_1x1:avx512_core", narrow, to_w));
  EXPECT_FALSE(bad("cudnn", "2.6.3", "jit_1x1:avx512_core", narrow, to_w));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit:avx512_core", narrow, to_w));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit_1x1:avx512_core", narrow, to_x));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit_1x1:avx2", narrow, to_w)) << "blocks of 8";
  EXPECT_TRUE(bad("onednn", "2.6.3", "jit_1x1:avx2", one_tap(1, 1, 8, 7, 16, 2, DType::f32), to_w));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit_1x1:avx512_core", one_tap(2, 1, 8, 16, 16, 2, DType::f32), to_w));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit_1x1:avx512_core", one_tap(2, 1, 8, 15, 16, 1, DType::f32), to_w));
  const ConvDesc leaping = square(1, 9, 32, 32, 2, 3, 0);
  EXPECT_TRUE(bad("onednn", "2.6.3", "brgconv:avx512_core_bf16_amx_bf16", leaping, forward));
  EXPECT_TRUE(bad("onednn", "3.12.4", "brg_conv_fwd:avx10_1_512_amx", leaping, forward));
  EXPECT_FALSE(bad("onednn", "3.13.0", "brg_conv_fwd:avx10_1_512_amx", leaping, forward));
  EXPECT_FALSE(bad("onednn", "3.12.4", "brg_conv_fwd:avx512_core", leaping, forward));
  EXPECT_FALSE(bad("onednn", "3.12.4", "brg_conv_fwd:avx10_1_512_amx", square(1, 9, 32, 32, 3, 3, 0), forward));
  const ConvDesc odd = one_tap(2, 1, 8, 2, 3, 1, DType::bf16);
  EXPECT_TRUE(bad("onednn", "3.14.0", "jit_bf16_1x1:avx512_core_bf16", odd, to_x));
  EXPECT_FALSE(bad("onednn", "3.14.0", "jit_bf16_1x1:avx512_core_bf16", odd, forward)) << "2 channels in";
  EXPECT_FALSE(bad("onednn", "3.14.0", "jit_bf16_1x1:avx512_core_bf16", odd, to_w)) << "stride 1";
  for (const ConvDesc& d :
       {in_bf16(29, 24, 12, 3, 1, 2, 1), in_bf16(2, 3, 20, 3, 1, 1, 1), in_bf16(14, 5, 18, 2, 4, 1, 1)}) {
    EXPECT_TRUE(bad("onednn", "2.6.3", "jit_bf16:avx512_core_bf16", d, to_w));
    EXPECT_FALSE(bad("onednn", "2.6.3", "jit_bf16:avx512_core_bf16", d, forward));
    EXPECT_FALSE(bad("onednn", "2.6.3", "jit:avx512_core", d, to_w));
  }
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit_bf16:avx512_core_bf16", in_bf16(3, 24, 12, 3, 2, 1, 1), to_w));
  EXPECT_TRUE(bad("onednn", "2.6.3", "jit:avx512_core", short_3d(), to_w));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit:avx512_core", short_3d(), to_x));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit:avx2", short_3d(), to_w));
  const ConvDesc mixed_up = strided_3d(4, 4, 3, 3, 1, 1, DType::bf16);
  EXPECT_TRUE(bad("onednn", "2.6.3", "jit_bf16:avx512_core_bf16", mixed_up, to_w));
  EXPECT_TRUE(bad("onednn", "2.6.3", "jit:avx512_core", mixed_up, to_w));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit_bf16:avx512_core_bf16", mixed_up, to_x));
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit:avx512_core", strided_3d(6, 4, 3, 3, 1, 1, DType::bf16), to_w)) << "long";
  EXPECT_FALSE(bad("onednn", "2.6.3", "jit:avx512_core", strided_3d(4, 4, 3, 1, 1, 1, DType::bf16), to_w));
}

/// For bf16, each choice of oneDNN for f32 must also be a choice with the suffix -via-f32, which converts to f32.
/// Without bf16 instructions, oneDNN has no other choices for bf16. The test passes on any processor.
TEST(Conv2d, OneDnnTakesBf16AsItIsOrByWayOfF32) {
  if (!has_onednn()) {
    GTEST_SKIP() << "built without oneDNN";
  }
  CpuContext context;
  ConvDesc d = square(1, 8, 16, 16, 3, 1, 1);
  d.dtype = DType::bf16;
  const bool as_it_is = ops::plan_conv2d(context, d, ConvPass::forward)->choice().find("-via-f32") == std::string::npos;
  for (const ConvPass pass : kConvPasses) {
    d.grad_mode = GradMode::overwrite;
    d.dtype = DType::f32;
    std::vector<std::string> expected = ops::conv2d_choices(context, d, pass);
    std::erase(expected, "reference");
    d.dtype = DType::bf16;
    const std::vector<std::string> found = ops::conv2d_choices(context, d, pass);
    for (const std::string& choice : expected) {
      EXPECT_NE(std::find(found.begin(), found.end(), choice + "-via-f32"), found.end()) << choice;
    }
    for (const std::string& choice : found) {
      EXPECT_EQ(ops::plan_conv2d(context, d, pass, choice)->choice(), choice);
    }
    EXPECT_EQ(ops::plan_conv2d(context, d, pass, "onednn")->choice(), found.front());
    EXPECT_EQ(found.back(), "reference");
    // A processor that supports bf16 in one pass supports it in all passes, with and without accumulation. The first
    // choice must then compute in bf16.
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
      d.grad_mode = mode;
      const std::string first = ops::conv2d_choices(context, d, pass).front();
      EXPECT_EQ(first.find("-via-f32") == std::string::npos, as_it_is) << first;
    }
  }
}

TEST(Conv2d, OneDnnLeavesTheThreadCountOfTheCallerAlone) {
  if (!has_onednn()) {
    GTEST_SKIP() << "built without oneDNN";
  }
  const int before = default_threads();
  CpuContext context({.threads = before + 1});
  expect_oracle(context, {"more threads", square(4, 8, 16, 16, 3, 1, 1)}, DType::f32);
  EXPECT_EQ(default_threads(), before);
}

/// The op runs inside an OpenMP parallel region, as if a host program called lockstep from one of its own threads. The
/// results must have the same bits as outside of the region.
TEST(Conv2d, HasTheSameBitsInsideAParallelRegionOfTheHost) {
  if (!has_onednn()) {
    GTEST_SKIP() << "built without oneDNN";
  }
  CpuContext two({.threads = 2});
  for (const ConvPass pass : kConvPasses) {
    const OpCase item = conv2d_case("nested", square(4, 17, 16, 16, 3, 1, 1), pass, "onednn");
    CheckedRun outside(item, two);
    const auto nested = [&] {
      OpInstance instance(item, two);  // planned and run inside the parallel region
      run_checked(instance);
      EXPECT_TRUE(has_same_bits(instance.output(0), outside.output(0))) << item.name;
      outside.enqueue();  // run inside the region, but planned outside
      EXPECT_TRUE(has_same_bits(instance.output(0), outside.output(0))) << item.name;
      EXPECT_EQ(CpuContext({.threads = 2}).threads(), 1);
      EXPECT_EQ(CpuContext().threads(), 1);
    };
    detail::run_parallel(
        2,
        [](void* f, int t, int n) {
          EXPECT_EQ(n, 2);
          if (t == 1) {
            (*static_cast<decltype(nested)*>(f))();
          }
        },
        const_cast<void*>(static_cast<const void*>(&nested)));
  }
}

TEST(Conv2d, RunsOnAWorkerStream) {
  Stream stream = Stream::host_worker("conv2d_test");
  CpuContext context({.threads = 2, .stream = &stream});
  expect_oracle(context, {"worker", square(2, 8, 16, 16, 3, 1, 1)}, DType::f32);
}

// ---- Errors

TEST(Conv2d, PlanningRefusesWhatMakesNoSense) {
  CpuContext context;
  const ConvDesc good = square(1, 8, 16, 16, 3, 1, 1);
  const auto plan = [&](const ConvDesc& d, const std::string& choice = {}, ConvPass pass = ConvPass::backward_data) {
    return ops::plan_conv2d(context, d, pass, choice);
  };
  EXPECT_THROW(plan(good, "no_such_provider"), UsageError);
  EXPECT_THROW(plan(good, "reference:no_such_algorithm"), UsageError);
  EXPECT_THROW(plan(with(good, &ConvDesc::spatial_rank, 4)), ShapeError);
  EXPECT_THROW(plan(with(good, &ConvDesc::groups, 3)), ShapeError);
  EXPECT_THROW(plan(with(good, &ConvDesc::batch, 0)), ShapeError);
  EXPECT_THROW(plan(with(good, &ConvDesc::stride, {1, 0, 1})), ShapeError);
  EXPECT_THROW(plan(with(good, &ConvDesc::pad_before, {-1, 1, 0})), ShapeError);
  ConvDesc d = with(good, &ConvDesc::dilation, {5, 1, 1});  // the dilated kernel spans 11 pixels, the image has 10
  EXPECT_THROW(plan(d), ShapeError);
  EXPECT_THROW((void)d.y_shape(), ShapeError);
  d = with(good, &ConvDesc::grad_mode, GradMode::ignore);
  EXPECT_THROW(plan(d), UsageError);
  EXPECT_NO_THROW(plan(d, {}, ConvPass::forward));
  d = good;
  d.dtype = DType::i32;
  EXPECT_THROW(plan(d), DTypeError);
  d.dtype = DType::f16;
  EXPECT_THROW(plan(d), UnsupportedError);
  EXPECT_THROW(plan(d, "reference"), UnsupportedError);
  EXPECT_TRUE(ops::conv2d_choices(context, d, ConvPass::forward).empty());
}

TEST(Conv2d, OneDnnRefusesByName) {
  if (!has_onednn()) {
    GTEST_SKIP() << "built without oneDNN";
  }
  CpuContext context;
  ConvDesc d = square(1, 8, 16, 16, 3, 1, 1);
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::forward, "onednn:no_such_layout"), UsageError);
  d.pad_mode = ops::PadMode::circular;
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::forward, "onednn:nhwc"), UnsupportedError);
  d.pad_mode = ops::PadMode::zero;
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::forward, "onednn:nhwc-via-f32"), UnsupportedError);
  d.dtype = DType::f64;
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::forward, "onednn"), UnsupportedError);
}

TEST(Conv2d, RunningRefusesOperandsThatDoNotFit) {
  CpuContext context;
  ConvDesc d = square(1, 4, 2, 3, 3, 1, 1);
  d.bias = true;
  const auto plan = ops::plan_conv2d(context, d, ConvPass::forward, "reference");
  const std::vector<float> zeros(256);
  std::vector<float> written(256);
  alignas(64) std::uint8_t memory[1024] = {};
  ASSERT_LT(plan->workspace_bytes(), sizeof(memory));
  const auto view = [](const std::vector<float>& v, const Shape& shape) {
    return TensorView(std::span(v).first(static_cast<std::size_t>(shape.numel())), shape);
  };
  const TensorView x = view(zeros, d.x_shape());
  const TensorView w = view(zeros, d.weights_shape());
  const TensorView bias = view(zeros, Shape{3});
  const TensorView y = view(written, d.y_shape());
  const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
  ASSERT_GT(bytes, 0);
  const TensorView workspace(memory, DType::u8, Device::cpu(), Shape{bytes});
  const auto call = [&](const TensorView& a, const TensorView& b, const TensorView& c, const TensorView& out,
                        const TensorView& ws) { ops::conv2d(context, *plan, a, b, c, out, ws); };
  EXPECT_NO_THROW(call(x, w, bias, y, workspace));
  EXPECT_THROW(call(w, w, bias, y, workspace), ShapeError);
  EXPECT_THROW(call(x, x, bias, y, workspace), ShapeError);
  EXPECT_THROW(call(x, w, bias, x, workspace), ShapeError);
  EXPECT_THROW(call(x, w, {}, y, workspace), ShapeError);
  EXPECT_THROW(call(x, w, view(zeros, Shape{2}), y, workspace), ShapeError);
  EXPECT_THROW(call(with(x, &TensorView::dtype, DType::f64), w, bias, y, workspace), DTypeError);
  EXPECT_THROW(call(with(x, &TensorView::strides, {32, 8, 3, 1}), w, bias, y, workspace), ShapeError);
  EXPECT_THROW(call(with(x, &TensorView::device, Device::cuda(0)), w, bias, y, workspace), DeviceError);
  // The output overlaps an input.
  EXPECT_THROW(call(view(written, d.x_shape()), w, bias, y, workspace), ShapeError);
  // The workspace is missing, too short, unaligned, or of another type.
  EXPECT_THROW(call(x, w, bias, y, {}), Error);
  EXPECT_THROW(call(x, w, bias, y, workspace.slice(0, 0, bytes - 1)), ShapeError);
  EXPECT_THROW(call(x, w, bias, y, TensorView(memory + 1, DType::u8, Device::cpu(), Shape{bytes})), ShapeError);
  EXPECT_THROW(call(x, w, bias, y, view(zeros, Shape{bytes / 4})), DTypeError);

  d.bias = false;
  const auto without_bias = ops::plan_conv2d(context, d, ConvPass::forward, "reference");
  EXPECT_THROW(ops::conv2d(context, *without_bias, x, w, bias, y, workspace), ShapeError);
}

/// The f64 tensors that a convolution plan takes if it also computes sums for a batch norm.
struct NormTensors {
  GuardedTensor shift, addend, mask, x, coefficients, x2, coefficients2, sums;

  NormTensors(const Shape& of, const ops::ConvNorm& norm)
      : shift(Shape{of.back()}, DType::f64),
        addend(of, DType::f64),
        mask(Shape{static_cast<std::int64_t>(ops::relu_mask_bytes(of.numel()))}, DType::u8),
        x(of, DType::f64),
        coefficients(Shape{4, of.back()}, DType::f64),
        x2(of, DType::f64),
        coefficients2(Shape{4, of.back()}, DType::f64),
        sums(Shape{norm.pair ? 3 : 2, of.back()}, DType::f64) {
    std::uint64_t seed = 10;
    for (GuardedTensor* tensor : {&shift, &addend, &x, &coefficients, &x2, &coefficients2}) {
      tensor->normal(seed++);
    }
    mask.integers(seed, 0, 255);
  }
  [[nodiscard]] ops::ConvNormOperands forward() const { return {.sums = sums, .shift = shift}; }
  [[nodiscard]] ops::ConvNormOperands backward(const ops::ConvNorm& norm) const {
    return {.sums = sums,
            .addend = norm.addend ? addend.view() : TensorView(),
            .mask = mask,
            .x = x,
            .coefficients = coefficients,
            .x2 = norm.pair ? x2.view() : TensorView(),
            .coefficients2 = norm.pair ? coefficients2.view() : TensorView()};
  }
};

/// A convolution plan must also compute the sums of a batch norm. The expected sums come from plain loops over the
/// output of a plan that computes no sums.
TEST(Conv2d, ServesANorm) {
  CpuContext context({.threads = 2});
  for (const ops::ConvNorm norm : {ops::ConvNorm{true}, ops::ConvNorm{true, true}, ops::ConvNorm{true, false, true},
                                   ops::ConvNorm{true, true, true}}) {
    for (const ConvPass pass : {ConvPass::forward, ConvPass::backward_data}) {
      const bool forward = pass == ConvPass::forward;
      if (forward && (norm.addend || norm.pair)) {
        continue;
      }
      ConvDesc d = square(3, 7, 5, 6, 3, 2, 1);
      d.dtype = DType::f64;
      d.norm = norm;
      const auto bare = ops::plan_conv2d(context, d, pass, "reference");
      const auto serving = ops::plan_conv2d(context, d, pass, "reference:norm");
      EXPECT_FALSE(bare->serves_norm());
      EXPECT_TRUE(serving->serves_norm());
      EXPECT_EQ(ops::plan_conv2d(context, d, pass)->serves_norm(), false) << "it is no first guess";
      GuardedTensor a(forward ? d.x_shape() : d.y_shape(), DType::f64, normal(1)),
          b(d.weights_shape(), DType::f64, normal(2)), out(forward ? d.y_shape() : d.x_shape(), DType::f64),
          plain(Shape(out.view().shape), DType::f64);
      const GuardedTensor workspace(Shape{static_cast<std::int64_t>(serving->workspace_bytes()) + 64}, DType::u8);
      NormTensors tensors(out.view().shape, norm);
      ops::conv2d(context, *bare, a, b, {}, plain, workspace);
      ops::conv2d_for_norm(context, *serving, a, b, out, workspace,
                           forward ? tensors.forward() : tensors.backward(norm));
      std::vector<double> g = plain.values();
      const std::size_t channels = static_cast<std::size_t>(out.view().shape.back());
      std::vector<double> sums(static_cast<std::size_t>(tensors.sums.view().numel()), 0.0);
      const std::vector<double> shift = tensors.shift.values();
      const std::vector<double> more = tensors.addend.values();
      for (std::size_t i = 0; i < g.size(); ++i) {
        const std::size_t c = i % channels;
        if (forward) {
          sums[c] += g[i] - shift[c];
          sums[channels + c] += (g[i] - shift[c]) * (g[i] - shift[c]);
          continue;
        }
        const bool kept = (tensors.mask.span<std::uint8_t>()[i >> 3] >> (i & 7) & 1) != 0;
        g[i] = kept ? g[i] + (norm.addend ? more[i] : 0) : 0;
        sums[c] += g[i];
        for (std::size_t row = 1; row < sums.size() / channels; ++row) {
          const std::vector<double> k = (row == 1 ? tensors.coefficients : tensors.coefficients2).values();
          const double x = (row == 1 ? tensors.x : tensors.x2).values()[i];
          sums[row * channels + c] += g[i] * (x - k[2 * channels + c]) * k[3 * channels + c];
        }
      }
      GuardedTensor expected(Shape(tensors.sums.view().shape), DType::f64, sums);
      plain.assign(g);
      EXPECT_LE(relative_error(out, plain), 1e-14);
      EXPECT_LE(relative_error(tensors.sums, expected), 1e-13);
    }
  }
}

TEST(Conv2d, RefusesANormThatDoesNotFit) {
  CpuContext context;
  ConvDesc d = square(2, 4, 8, 8, 3, 1, 1);
  d.dtype = DType::f64;
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::forward, "reference:norm"), UnsupportedError);
  d.norm = {.wanted = true, .addend = true};
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::forward), UsageError);
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::backward_weights), UsageError);
  d.grad_mode = ops::GradMode::accumulate;
  EXPECT_THROW((void)ops::plan_conv2d(context, d, ConvPass::backward_data), UsageError);
  d.grad_mode = ops::GradMode::overwrite;
  const auto bare = ops::plan_conv2d(context, d, ConvPass::backward_data, "reference");
  const auto serving = ops::plan_conv2d(context, d, ConvPass::backward_data, "reference:norm");
  GuardedTensor dy(d.y_shape(), DType::f64, normal(1)), weights(d.weights_shape(), DType::f64, normal(2)),
      dx(d.x_shape(), DType::f64);
  const NormTensors tensors(d.x_shape(), d.norm);
  const ops::ConvNormOperands good = tensors.backward(d.norm);
  const auto call = [&](const ops::ConvNormOperands& norm) {
    ops::conv2d_for_norm(context, *serving, dy, weights, dx, {}, norm);
  };
  EXPECT_NO_THROW(call(good));
  EXPECT_THROW(ops::conv2d(context, *serving, dy, weights, {}, dx, {}), UsageError) << "nothing for the norm";
  EXPECT_THROW(ops::conv2d_for_norm(context, *bare, dy, weights, dx, {}, good), UsageError)
      << "a plan that serves none";
  using Member = TensorView ops::ConvNormOperands::*;
  for (const Member member :
       {&ops::ConvNormOperands::sums, &ops::ConvNormOperands::addend, &ops::ConvNormOperands::mask,
        &ops::ConvNormOperands::x, &ops::ConvNormOperands::coefficients}) {
    ops::ConvNormOperands other = good;
    other.*member = TensorView();
    EXPECT_THROW(call(other), UsageError);
    other.*member = (good.*member).slice(0, 0, (good.*member).shape[0] - 1);
    EXPECT_THROW(call(other), ShapeError);
    other.*member = good.*member;
    (other.*member).dtype = DType::f32;
    EXPECT_THROW(call(other), DTypeError);
    other.*member = good.*member;
    (other.*member).device = Device::cuda(0);
    EXPECT_THROW(call(other), DeviceError);
  }
  EXPECT_THROW(call(with(good, &ops::ConvNormOperands::shift, tensors.shift)), UsageError) << "shift is of forward";
  EXPECT_THROW(call(with(good, &ops::ConvNormOperands::x2, tensors.x2)), UsageError) << "no pair";
  EXPECT_THROW(call(with(good, &ops::ConvNormOperands::addend, dx)), ShapeError) << "the output on the addend";
  EXPECT_THROW(call(with(good, &ops::ConvNormOperands::sums, tensors.coefficients.view().slice(0, 0, 2))), ShapeError)
      << "sums on the coefficients";
}

}  // namespace
}  // namespace lockstep::testing
