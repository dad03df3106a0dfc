#include <gtest/gtest.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/runtime/tensor_view.hpp>

#include "tests/kernels/conv2d_cases.hpp"

namespace lockstep {
namespace {

using ops::ConvDesc;
using ops::ConvPass;
using ops::GradMode;
using testing::conv_cases;
using testing::ConvCase;
using testing::square;

constexpr ConvPass kPasses[] = {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};

std::string describe(const ConvCase& item, ConvPass pass) {
  return std::string(item.name) + ", pass " + std::to_string(static_cast<int>(pass));
}

Shape a_shape(const ConvDesc& d, ConvPass pass) {
  return pass == ConvPass::backward_data ? d.y_shape() : d.x_shape();
}
Shape b_shape(const ConvDesc& d, ConvPass pass) {
  return pass == ConvPass::backward_weights ? d.y_shape() : d.weights_shape();
}
Shape out_shape(const ConvDesc& d, ConvPass pass) {
  return pass == ConvPass::forward ? d.y_shape() : pass == ConvPass::backward_data ? d.x_shape() : d.weights_shape();
}

/// Calls f(index into y, index into x, index into weights) once for every multiply-add of the convolution: walks an
/// explicitly padded image, with coordinates counted like the digits of a number.
void enumerate(const ConvDesc& d, const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& f) {
  const auto rank = static_cast<std::size_t>(d.spatial_rank);
  const Shape y_shape = d.y_shape();
  // padded coordinate -> image coordinate, or -1, for each axis
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

template <class T>
std::vector<double> oracle(const ConvDesc& d, ConvPass pass, const std::vector<T>& a, const std::vector<T>& b,
                           const std::vector<T>& bias, const std::vector<T>& before) {
  std::vector<double> out(before.size(), 0.0);
  const auto at = [](const std::vector<T>& v, std::int64_t i) {
    return static_cast<double>(v[static_cast<std::size_t>(i)]);
  };
  enumerate(d, [&](std::int64_t y, std::int64_t x, std::int64_t w) {
    switch (pass) {
      case ConvPass::forward:
        out[static_cast<std::size_t>(y)] += at(a, x) * at(b, w);
        break;
      case ConvPass::backward_data:
        out[static_cast<std::size_t>(x)] += at(a, y) * at(b, w);
        break;
      case ConvPass::backward_weights:
        out[static_cast<std::size_t>(w)] += at(a, x) * at(b, y);
        break;
    }
  });
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (pass == ConvPass::forward && d.bias) {
      out[i] += static_cast<double>(bias[i % bias.size()]);
    }
    if (pass != ConvPass::forward && d.grad_mode == GradMode::accumulate) {
      out[i] += static_cast<double>(before[i]);
    }
  }
  return out;
}

template <class T>
std::vector<T> random_values(const Shape& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  std::vector<T> values(static_cast<std::size_t>(shape.numel()));
  std::generate(values.begin(), values.end(), [&] { return static_cast<T>(uniform(generator)); });
  return values;
}

template <class T>
double relative_error(const std::vector<T>& out, const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    error += std::pow(static_cast<double>(out[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-30);
}

/// A vector of exactly `count` elements at a 64-byte boundary, with guard bytes on both sides.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(std::size_t count) : count_(count), bytes_(count * sizeof(T) + 4 * kGuard, kPattern) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuard;
    begin_ = kGuard + (kGuard - address % kGuard) % kGuard;
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data() + begin_); }
  [[nodiscard]] bool intact() const {
    const auto clean = [](unsigned char byte) { return byte == kPattern; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_), clean) &&
           std::all_of(bytes_.begin() + static_cast<std::ptrdiff_t>(begin_ + count_ * sizeof(T)), bytes_.end(), clean);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kPattern = 0xA5;
  std::size_t count_;
  std::vector<unsigned char> bytes_;
  std::size_t begin_ = 0;
};

/// Plans, runs with poisoned output and workspace, checks the guards.
template <class T>
std::vector<T> run(Context& context, const ConvDesc& d, ConvPass pass, const std::string& choice,
                   const std::vector<T>& a, const std::vector<T>& b, const std::vector<T>& bias,
                   const std::vector<T>& before) {
  const auto plan = ops::plan_conv2d(context, d, pass, choice);
  EXPECT_EQ(plan->pass(), pass);
  GuardedArray<T> out(before.size());
  const bool accumulate = pass != ConvPass::forward && d.grad_mode == GradMode::accumulate;
  std::fill_n(out.data(), before.size(), std::numeric_limits<T>::quiet_NaN());
  if (accumulate) {
    std::copy(before.begin(), before.end(), out.data());
  }
  GuardedArray<std::uint8_t> workspace(plan->workspace_bytes());
  std::memset(workspace.data(), 0xFF, plan->workspace_bytes());  // NaN in every type
  const TensorView bias_view =
      d.bias && pass == ConvPass::forward ? TensorView(std::span(bias), Shape{d.out_channels}) : TensorView();
  ops::conv2d(context, *plan, TensorView(std::span(a), a_shape(d, pass)), TensorView(std::span(b), b_shape(d, pass)),
              bias_view, TensorView(out.data(), d.dtype, Device::cpu(), out_shape(d, pass)),
              TensorView(workspace.data(), DType::u8, Device::cpu(),
                         Shape{static_cast<std::int64_t>(plan->workspace_bytes())}));
  context.synchronize();
  EXPECT_TRUE(out.intact()) << "output guard, " << plan->choice();
  EXPECT_TRUE(workspace.intact()) << "workspace guard, " << plan->choice();
  return {out.data(), out.data() + before.size()};
}

/// Inputs of one pass, drawn from the case.
template <class T>
struct Inputs {
  Inputs(const ConvDesc& d, ConvPass pass)
      : a(random_values<T>(a_shape(d, pass), 1)),
        b(random_values<T>(b_shape(d, pass), 2)),
        bias(random_values<T>(Shape{d.out_channels}, 3)),
        before(random_values<T>(out_shape(d, pass), 4)) {}
  std::vector<T> a;
  std::vector<T> b;
  std::vector<T> bias;
  std::vector<T> before;
};

template <class T>
void compare_with_oracle(Context& context, const ConvCase& item, double tolerance) {
  for (const ConvPass pass : kPasses) {
    for (const bool variant : {false, true}) {
      ConvDesc d = item.desc;
      d.dtype = dtype_of<T>;
      d.bias = variant;
      d.grad_mode = variant ? GradMode::accumulate : GradMode::overwrite;
      const Inputs<T> in(d, pass);
      const std::vector<double> expected = oracle(d, pass, in.a, in.b, in.bias, in.before);
      for (const std::string& choice : ops::conv2d_choices(context, d, pass)) {
        SCOPED_TRACE(describe(item, pass) + ", " + choice + (variant ? ", bias or accumulate" : ""));
        const std::vector<T> out = run(context, d, pass, choice, in.a, in.b, in.bias, in.before);
        EXPECT_FALSE(!(relative_error(out, expected) <= tolerance)) << relative_error(out, expected);
      }
    }
  }
}

TEST(Conv2d, EveryChoiceMatchesTheOracleInF32) {
  CpuContext context({.threads = 2});
  for (const ConvCase& item : conv_cases()) {
    compare_with_oracle<float>(context, item, 2e-6);
  }
}

TEST(Conv2d, ReferenceMatchesTheOracleInF64) {
  CpuContext context({.threads = 3});
  for (const ConvCase& item : conv_cases()) {
    compare_with_oracle<double>(context, item, 1e-14);
  }
}

// ---- By hand

TEST(Conv2d, ForwardByHand) {
  CpuContext context;
  ConvDesc d = square(1, 3, 1, 1, 2, 1, 0);
  d.bias = true;
  const std::vector<float> x{1, 2, 3,  //
                             4, 5, 6,  //
                             7, 8, 9};
  const std::vector<float> w{1, 10,  //
                             100, 1000};
  // 1 * 1 + 10 * 2 + 100 * 4 + 1000 * 5 = 5421, and one more of each for every step to the right
  const std::vector<float> expected{5421.5F, 6532.5F, 8754.5F, 9865.5F};
  for (const std::string& choice : ops::conv2d_choices(context, d, ConvPass::forward)) {
    EXPECT_EQ(run<float>(context, d, ConvPass::forward, choice, x, w, {0.5F}, std::vector<float>(4)), expected)
        << choice;
  }
}

TEST(Conv2d, StrideAndAsymmetricPaddingByHand) {
  CpuContext context;
  ConvDesc d = square(1, 3, 1, 1, 2, 2, 0);
  d.pad_before = {1, 0, 0};
  d.pad_after = {0, 1, 0};
  const std::vector<float> x{1, 2, 3,  //
                             4, 5, 6,  //
                             7, 8, 9};
  const std::vector<float> w{1, 10,  //
                             100, 1000};
  // rows (padding, first) and (second, third); columns (first, second) and (third, padding)
  const std::vector<float> expected{2100, 300, 8754, 906};
  for (const std::string& choice : ops::conv2d_choices(context, d, ConvPass::forward)) {
    EXPECT_EQ(run<float>(context, d, ConvPass::forward, choice, x, w, {}, std::vector<float>(4)), expected) << choice;
  }
}

TEST(Conv2d, CircularPaddingByHand) {
  CpuContext context;
  ConvDesc d;
  d.spatial_rank = 1;
  d.in_size = {4, 1, 1};
  d.kernel = {3, 1, 1};
  d.pad_before = {1, 0, 0};
  d.pad_after = {1, 0, 0};
  d.pad_mode = ops::PadMode::circular;
  const std::vector<float> x{1, 2, 3, 4};
  const std::vector<float> w{1, 10, 100};
  EXPECT_EQ(run<float>(context, d, ConvPass::forward, {}, x, w, {}, std::vector<float>(4)),
            (std::vector<float>{214, 321, 432, 143}));
  // each dx[i] gathers w[2], w[1], w[0] from the outputs before, at and after i, round the end
  EXPECT_EQ(run<float>(context, d, ConvPass::backward_data, {}, {1, 2, 3, 4}, w, {}, std::vector<float>(4)),
            (std::vector<float>{412, 123, 234, 341}));
}

TEST(Conv2d, BackwardByHand) {
  CpuContext context;
  // one pixel, two channels in, two out: y[k] = sum over c of w[k][c] x[c]
  ConvDesc d = square(1, 1, 2, 2, 1, 1, 0);
  const std::vector<float> x{3, 5};
  const std::vector<float> w{1, 2,  //
                             4, 8};
  const std::vector<float> dy{10, 100};
  for (const std::string& choice : ops::conv2d_choices(context, d, ConvPass::backward_data)) {
    EXPECT_EQ(run<float>(context, d, ConvPass::backward_data, choice, dy, w, {}, std::vector<float>(2)),
              (std::vector<float>{410, 820}))
        << choice;
  }
  for (const std::string& choice : ops::conv2d_choices(context, d, ConvPass::backward_weights)) {
    EXPECT_EQ(run<float>(context, d, ConvPass::backward_weights, choice, x, dy, {}, std::vector<float>(4)),
              (std::vector<float>{30, 50, 300, 500}))
        << choice;
  }
  d.grad_mode = GradMode::accumulate;
  for (const std::string& choice : ops::conv2d_choices(context, d, ConvPass::backward_weights)) {
    EXPECT_EQ(run<float>(context, d, ConvPass::backward_weights, choice, x, dy, {}, {1, 2, 3, 4}),
              (std::vector<float>{31, 52, 303, 504}))
        << choice;
  }
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
    const auto x = random_values<double>(d.x_shape(), 1);
    const auto w = random_values<double>(d.weights_shape(), 2);
    const auto dy = random_values<double>(d.y_shape(), 3);
    const auto loss = [&](const std::vector<double>& x_at, const std::vector<double>& w_at) {
      const auto y = run<double>(context, d, ConvPass::forward, {}, x_at, w_at, {}, std::vector<double>(dy.size()));
      return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
    };
    const auto directional = [&](bool of_x) {
      const auto direction = random_values<double>(of_x ? d.x_shape() : d.weights_shape(), 4);
      double ends[2];
      for (const int side : {0, 1}) {
        auto x_at = x;
        auto w_at = w;
        auto& moved = of_x ? x_at : w_at;
        for (std::size_t i = 0; i < moved.size(); ++i) {
          moved[i] += (side == 0 ? -1e-3 : 1e-3) * direction[i];
        }
        ends[side] = loss(x_at, w_at);
      }
      const auto gradient =
          of_x ? run<double>(context, d, ConvPass::backward_data, {}, dy, w, {}, std::vector<double>(x.size()))
               : run<double>(context, d, ConvPass::backward_weights, {}, x, dy, {}, std::vector<double>(w.size()));
      const double expected = (ends[1] - ends[0]) / 2e-3;
      const double actual = std::inner_product(gradient.begin(), gradient.end(), direction.begin(), 0.0);
      EXPECT_FALSE(!(std::abs(actual - expected) <= 1e-9 * (1.0 + std::abs(expected))))
          << item.name << (of_x ? ", dx " : ", dweights ") << actual << " and " << expected;
    };
    directional(true);
    directional(false);
  }
}

// ---- The same bits

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST(Conv2d, ReferenceHasTheSameBitsForEveryThreadCount) {
  for (const ConvCase& item : conv_cases()) {
    for (const ConvPass pass : kPasses) {
      const Inputs<float> in(item.desc, pass);
      const auto with_threads = [&](int threads, const std::vector<float>& a) {
        CpuContext context({.threads = threads});
        return run(context, item.desc, pass, "reference", a, in.b, in.bias, in.before);
      };
      const auto one = with_threads(1, in.a);
      EXPECT_TRUE(same_bits(one, with_threads(2, in.a))) << describe(item, pass);
      EXPECT_TRUE(same_bits(one, with_threads(5, in.a))) << describe(item, pass);
      auto changed = in.a;
      std::transform(changed.begin(), changed.end(), changed.begin(),
                     [](float v) { return std::nextafter(v, 2.0F) * 1.0001F; });
      EXPECT_FALSE(same_bits(one, with_threads(2, changed))) << describe(item, pass);
    }
  }
}

TEST(Conv2d, DeterministicChoicesRepeatTheirBits) {
  CpuContext context({.threads = 2});
  for (const ConvCase& item : testing::resnet20_cases(5)) {
    for (const ConvPass pass : kPasses) {
      const Inputs<float> in(item.desc, pass);
      for (const std::string& choice : ops::conv2d_choices(context, item.desc, pass)) {
        if (!ops::plan_conv2d(context, item.desc, pass, choice)->deterministic()) {
          continue;
        }
        const auto first = run(context, item.desc, pass, choice, in.a, in.b, in.bias, in.before);
        for (int repeat = 0; repeat < 3; ++repeat) {
          EXPECT_TRUE(same_bits(first, run(context, item.desc, pass, choice, in.a, in.b, in.bias, in.before)))
              << describe(item, pass) << ", " << choice;
        }
        auto changed = in.a;
        changed[changed.size() / 2] += 0.5F;
        EXPECT_FALSE(same_bits(first, run(context, item.desc, pass, choice, changed, in.b, in.bias, in.before)))
            << describe(item, pass) << ", " << choice;
      }
    }
  }
}

// ---- Choices

TEST(Conv2d, ChoicesMakeTheirPlanAgain) {
  CpuContext context;
  for (const ConvCase& item : conv_cases()) {
    for (const ConvPass pass : kPasses) {
      const auto choices = ops::conv2d_choices(context, item.desc, pass);
      ASSERT_FALSE(choices.empty()) << describe(item, pass);
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
  auto cases = testing::resnet20_cases(2);
  const auto more = testing::resnet50_cases(1);
  cases.insert(cases.end(), more.begin(), more.end());
  for (const ConvCase& item : cases) {
    for (const ConvPass pass : kPasses) {
      EXPECT_EQ(ops::conv2d_choices(context, item.desc, pass).front().rfind("onednn:", 0), 0U) << describe(item, pass);
    }
  }
}

TEST(Conv2d, OneDnnLeavesTheThreadCountOfTheCallerAlone) {
  if (!has_onednn()) {
    GTEST_SKIP() << "built without oneDNN";
  }
  const int before = omp_get_max_threads();
  CpuContext context({.threads = before + 1});
  const ConvDesc d = square(4, 8, 16, 16, 3, 1, 1);
  const Inputs<float> in(d, ConvPass::backward_weights);
  const auto expected = oracle(d, ConvPass::backward_weights, in.a, in.b, in.bias, in.before);
  const auto out = run(context, d, ConvPass::backward_weights, "onednn", in.a, in.b, in.bias, in.before);
  EXPECT_FALSE(!(relative_error(out, expected) <= 2e-6));
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(Conv2d, RunsOnAWorkerStream) {
  Stream stream = Stream::host_worker("conv2d_test");
  CpuContext context({.threads = 2, .stream = &stream});
  const ConvDesc d = square(2, 8, 16, 16, 3, 1, 1);
  for (const ConvPass pass : kPasses) {
    const Inputs<float> in(d, pass);
    const auto expected = oracle(d, pass, in.a, in.b, in.bias, in.before);
    for (const std::string& choice : ops::conv2d_choices(context, d, pass)) {
      const auto plan = ops::plan_conv2d(context, d, pass, choice);
      GuardedArray<std::uint8_t> workspace(plan->workspace_bytes());
      std::vector<float> out(in.before.size());
      for (int repeat = 0; repeat < 3; ++repeat) {
        ops::conv2d(context, *plan, TensorView(std::span(in.a), a_shape(d, pass)),
                    TensorView(std::span(in.b), b_shape(d, pass)), {}, TensorView(std::span(out), out_shape(d, pass)),
                    TensorView(workspace.data(), DType::u8, Device::cpu(),
                               Shape{static_cast<std::int64_t>(plan->workspace_bytes())}));
      }
      context.synchronize();
      EXPECT_FALSE(!(relative_error(out, expected) <= 2e-6)) << choice;
    }
  }
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
  ConvDesc d = good;
  d.spatial_rank = 4;
  EXPECT_THROW(plan(d), ShapeError);
  d = good;
  d.groups = 3;
  EXPECT_THROW(plan(d), ShapeError);
  d = good;
  d.batch = 0;
  EXPECT_THROW(plan(d), ShapeError);
  d = good;
  d.stride[1] = 0;
  EXPECT_THROW(plan(d), ShapeError);
  d = good;
  d.pad_before[0] = -1;
  EXPECT_THROW(plan(d), ShapeError);
  d = good;
  d.dilation[0] = 5;  // spans 11 of 10
  EXPECT_THROW(plan(d), ShapeError);
  EXPECT_THROW((void)d.y_shape(), ShapeError);
  d = good;
  d.grad_mode = GradMode::ignore;
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
  GuardedArray<std::uint8_t> memory(plan->workspace_bytes() + 1);
  const auto view = [](const std::vector<float>& v, const Shape& shape) {
    return TensorView(std::span(v).first(static_cast<std::size_t>(shape.numel())), shape);
  };
  const TensorView x = view(zeros, d.x_shape());
  const TensorView w = view(zeros, d.weights_shape());
  const TensorView bias = view(zeros, Shape{3});
  const TensorView y = view(written, d.y_shape());
  const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
  ASSERT_GT(bytes, 0);
  const TensorView workspace(memory.data(), DType::u8, Device::cpu(), Shape{bytes});
  const auto call = [&](const TensorView& a, const TensorView& b, const TensorView& c, const TensorView& out,
                        const TensorView& ws) { ops::conv2d(context, *plan, a, b, c, out, ws); };
  EXPECT_NO_THROW(call(x, w, bias, y, workspace));
  EXPECT_THROW(call(w, w, bias, y, workspace), ShapeError);
  EXPECT_THROW(call(x, x, bias, y, workspace), ShapeError);
  EXPECT_THROW(call(x, w, bias, x, workspace), ShapeError);
  EXPECT_THROW(call(x, w, {}, y, workspace), ShapeError);
  EXPECT_THROW(call(x, w, view(zeros, Shape{2}), y, workspace), ShapeError);
  TensorView other = x;
  other.dtype = DType::f64;
  EXPECT_THROW(call(other, w, bias, y, workspace), DTypeError);
  other = x;
  other.strides[2] = 3;
  EXPECT_THROW(call(other, w, bias, y, workspace), ShapeError);
  other = x;
  other.device = Device::cuda(0);
  EXPECT_THROW(call(other, w, bias, y, workspace), DeviceError);
  // the output lies on an input
  EXPECT_THROW(call(view(written, d.x_shape()), w, bias, y, workspace), ShapeError);
  // too short, not aligned, of another type, on an operand
  EXPECT_THROW(call(x, w, bias, y, {}), Error);
  EXPECT_THROW(call(x, w, bias, y, workspace.slice(0, 0, bytes - 1)), ShapeError);
  EXPECT_THROW(call(x, w, bias, y, TensorView(memory.data() + 1, DType::u8, Device::cpu(), Shape{bytes})), ShapeError);
  EXPECT_THROW(call(x, w, bias, y, view(zeros, Shape{bytes / 4})), DTypeError);

  d.bias = false;
  const auto without_bias = ops::plan_conv2d(context, d, ConvPass::forward, "reference");
  EXPECT_THROW(ops::conv2d(context, *without_bias, x, w, bias, y, workspace), ShapeError);
}

}  // namespace
}  // namespace lockstep
