// Compares convolutions, transposed convolutions and pools over one, two and three axes with the sums that define them,
// and with results of torch.
#include <algorithm>
#include <array>
#include <tuple>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/runtime/files/tensor_file.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::nn {
namespace {

using Point = std::array<std::int64_t, 3>;
using Values = std::vector<double>;

// These three functions return numbers that all types hold exactly, and whose sums f32 holds exactly.
double of_x(std::int64_t i) {
  return static_cast<double>(i * 7 % 11 - 5) / 4;
}
double of_weight(std::int64_t i) {
  return static_cast<double>(i * 5 % 13 - 6) / 8;
}
double of_bias(std::int64_t i) {
  return static_cast<double>(i * 3 % 7 - 3) / 2;
}

Values filled(std::int64_t count, double (*value)(std::int64_t)) {
  Values values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = value(i);
  }
  return values;
}

/// A batch of samples as (N, D, H, W, C). Samples with one or two spatial axes have extent 1 in the axes that they
/// lack.
struct Grid {
  std::int64_t n = 0;
  Point size{1, 1, 1};
  std::int64_t channels = 0;
  Values values;

  Grid(std::int64_t samples, const Shape& sample) : n(samples), channels(sample.back()) {
    const int axes = sample.rank() - 1;
    for (int i = 0; i < axes; ++i) {
      size[static_cast<std::size_t>(3 - axes + i)] = sample[i];
    }
    values.assign(static_cast<std::size_t>(n * space() * channels), 0);
  }
  [[nodiscard]] std::int64_t space() const { return size[0] * size[1] * size[2]; }
  double& at(std::int64_t sample, const Point& p, std::int64_t c) {
    return values.at(
        static_cast<std::size_t>((((sample * size[0] + p[0]) * size[1] + p[1]) * size[2] + p[2]) * channels + c));
  }
  [[nodiscard]] bool holds(const Point& p) const {
    return p[0] >= 0 && p[0] < size[0] && p[1] >= 0 && p[1] < size[1] && p[2] >= 0 && p[2] < size[2];
  }
};

template <class F>
void for_each(const Point& extents, F&& f) {
  for (std::int64_t i = 0; i < extents[0]; ++i) {
    for (std::int64_t j = 0; j < extents[1]; ++j) {
      for (std::int64_t k = 0; k < extents[2]; ++k) {
        f(Point{i, j, k});
      }
    }
  }
}

/// Returns one number for each of depth, height and width: `sizes` for the last `axes` axes, and `otherwise` for the
/// axes that a sample lacks.
Point per_axis(int axes, const AxisSizes& sizes, std::int64_t otherwise) {
  Point all{otherwise, otherwise, otherwise};
  for (int i = 0; i < axes; ++i) {
    all[static_cast<std::size_t>(3 - axes + i)] = sizes[i];
  }
  return all;
}

/// Returns the input position that position `out` of the output reads through `tap`. For a transposed convolution,
/// pass a position of the input; the result is then a position of the output.
Point reach(const Point& out, const Point& tap, const Point& stride, const Point& pad, const Point& dilation) {
  Point in{};
  for (std::size_t i = 0; i < 3; ++i) {
    in[i] = out[i] * stride[i] - pad[i] + tap[i] * dilation[i];
  }
  return in;
}

/// A function that adds a layer to a model. The layer reads the model's input, and works over all spatial axes of the
/// samples.
using Add = std::function<NodeId(ModelBuilder&)>;

int axes_of(ModelBuilder& b) {
  return b.shape(b.input()).rank() - 1;
}
Add conv(std::int64_t channels, const ConvOptions& o) {
  return [=](ModelBuilder& b) {
    return axes_of(b) == 1   ? b.conv1d("c", b.input(), channels, o)
           : axes_of(b) == 2 ? b.conv2d("c", b.input(), channels, o)
                             : b.conv3d("c", b.input(), channels, o);
  };
}
Add transpose(std::int64_t channels, const ConvTransposeOptions& o) {
  return [=](ModelBuilder& b) {
    return axes_of(b) == 1   ? b.conv_transpose1d("t", b.input(), channels, o)
           : axes_of(b) == 2 ? b.conv_transpose2d("t", b.input(), channels, o)
                             : b.conv_transpose3d("t", b.input(), channels, o);
  };
}
Add max_pool(const AxisSizes& kernel, const AxisSizes& stride, const AxisSizes& pad) {
  return [=](ModelBuilder& b) {
    return axes_of(b) == 1   ? b.max_pool1d("p", b.input(), kernel, stride, pad)
           : axes_of(b) == 2 ? b.max_pool("p", b.input(), kernel, stride, pad)
                             : b.max_pool3d("p", b.input(), kernel, stride, pad);
  };
}
Add average_pool(const AxisSizes& kernel, const AxisSizes& stride, const AxisSizes& pad,
                 ops::AverageOver over = ops::AverageOver::window) {
  return [=](ModelBuilder& b) {
    return axes_of(b) == 1   ? b.average_pool1d("p", b.input(), kernel, stride, pad, over)
           : axes_of(b) == 2 ? b.average_pool("p", b.input(), kernel, stride, pad, over)
                             : b.average_pool3d("p", b.input(), kernel, stride, pad, over);
  };
}

std::int64_t index_of(const Point& tap, const Point& kernel) {
  return (tap[0] * kernel[1] + tap[1]) * kernel[2] + tap[2];
}

/// Computes inference of a model of one or more layers. Parameters have the values of of_weight() and of_bias(), in
/// their logical order.
Values infer(const Model& model, DType dtype, std::int64_t batch, const Values& x) {
  testing::Net net(model, Mode::infer, batch, dtype, 2);
  for (std::size_t i = 0; i < net.parameters().parameters().size(); ++i) {
    const TensorView view = net.parameters().logical(static_cast<int>(i), net.parameters().values());
    const bool bias = net.parameters().parameters()[i].spec.role == ParameterRole::bias;
    testing::from_doubles(filled(view.numel(), bias ? of_bias : of_weight), view);
  }
  net.parameters().round_weights(net.context());
  const TensorView& stored = net.state().view(StateField::values);
  testing::from_doubles(x, stored.slice(stored.shape.rank() - 1, 0, model.input_shape().back()));
  net.run();
  return testing::to_doubles(net.plan().output());
}

void expect_values(const Values& y, const Values& expected, DType dtype, const std::string& what) {
  ASSERT_EQ(y.size(), expected.size()) << what;
  double largest = 1;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  // bf16 has 8 significant bits. Numbers between two layers are rounded, and the result is rounded.
  const double allowed = largest * (dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 1.0 / 128);
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_TRUE(std::abs(y[i] - expected[i]) <= allowed)
        << what << " in " << dtype << ", element " << i << ": " << y[i] << ", expected " << expected[i];
  }
}

constexpr std::int64_t kBatch = 3;

void expect_in_every_type(const Model& model, const std::function<Values(Grid&)>& oracle, const std::string& what) {
  Grid x(kBatch, model.input_shape());
  x.values = filled(static_cast<std::int64_t>(x.values.size()), of_x);
  const Values expected = oracle(x);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    expect_values(infer(model, dtype, kBatch, x.values), expected, dtype, what);
  }
}

// ---- Convolution

struct ConvCase {
  Shape sample;
  std::int64_t channels;
  ConvOptions options;
};

std::vector<ConvCase> conv_cases() {
  return {{{7, 5}, 2, {.kernel = 1}},
          {{9, 3}, 4, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}},
          {{13, 4}, 6, {.kernel = 2, .stride = 3, .groups = 2, .dilation = 3}},
          {{1, 1}, 1, {.kernel = 3, .pad = 1}},
          {{5, 7, 3}, 4, {.kernel = 3, .pad = 1, .bias = true}},
          {{3, 4, 5, 2}, 3, {.kernel = 3, .pad = 1, .bias = true}},
          {{4, 3, 6, 4}, 2, {.kernel = 2, .stride = 2, .pad = 2, .groups = 2, .dilation = 2}},
          {{5, 4, 3, 3}, 5, {.kernel = 3, .stride = 2}},
          {{3, 5, 4, 6}, 6, {.kernel = 3, .pad = 1, .groups = 6}},
          {{1, 1, 2, 1}, 2, {.kernel = 1, .bias = true}},
          {{6, 1, 9, 17}, 16, {.kernel = 3, .stride = 3, .pad = 2}},
          // Cases whose sizes differ between the axes.
          {{9, 3}, 4, {.kernel = {2}, .stride = {2}}},
          {{5, 8, 3}, 4, {.kernel = {1, 3}, .stride = {1, 2}, .pad = {0, 2}, .bias = true}},
          {{9, 6, 4}, 6, {.kernel = {3, 2}, .stride = {2, 1}, .groups = 2, .dilation = {3, 1}}},
          {{4, 6, 7, 2}, 5, {.kernel = {1, 3, 3}, .stride = {1, 2, 2}, .pad = {0, 1, 1}, .bias = true}},
          {{5, 3, 6, 4}, 2, {.kernel = {3, 1, 2}, .stride = 2, .pad = {2, 0, 1}, .groups = 2, .dilation = {1, 2, 3}}},
          {{7, 2, 2, 16}, 16, {.kernel = {5, 1, 1}, .stride = {3, 1, 1}}}};
}

TEST(Fields, ConvolutionIsItsSum) {
  for (const ConvCase& item : conv_cases()) {
    const int axes = item.sample.rank() - 1;
    const ConvOptions& o = item.options;
    ModelBuilder b("conv", item.sample);
    const Shape shape = b.shape(conv(item.channels, o)(b));
    const Model model = b.build();
    for (int i = 0; i < axes; ++i) {
      EXPECT_EQ(shape[i], (item.sample[i] + 2 * o.pad[i] - o.dilation[i] * (o.kernel[i] - 1) - 1) / o.stride[i] + 1);
    }
    const auto oracle = [&](Grid& x) {
      Grid y(kBatch, shape);
      const Point kernel = per_axis(axes, o.kernel, 1);
      const std::int64_t c_group = x.channels / o.groups, k_group = y.channels / o.groups;
      for (std::int64_t n = 0; n < kBatch; ++n) {
        for_each(y.size, [&](const Point& out) {
          for (std::int64_t k = 0; k < y.channels; ++k) {
            double sum = o.bias ? of_bias(k) : 0;
            for (std::int64_t c = 0; c < c_group; ++c) {
              for_each(kernel, [&](const Point& tap) {
                const Point in = reach(out, tap, per_axis(axes, o.stride, 1), per_axis(axes, o.pad, 0),
                                       per_axis(axes, o.dilation, 1));
                if (x.holds(in)) {
                  sum += x.at(n, in, k / k_group * c_group + c) *
                         of_weight((k * c_group + c) * kernel[0] * kernel[1] * kernel[2] + index_of(tap, kernel));
                }
              });
            }
            y.at(n, out, k) = sum;
          }
        });
      }
      return y.values;
    };
    expect_in_every_type(model, oracle, concat("convolution of ", item.sample, ", ", model.layer_texts().at("c")));
  }
}

// ---- Transposed convolution

struct TransposeCase {
  Shape sample;
  std::int64_t channels;
  ConvTransposeOptions options;
};

std::vector<TransposeCase> transpose_cases() {
  return {{{5, 3}, 4, {}},
          {{4, 4}, 6, {.kernel = 3, .stride = 3, .pad = 1, .output_pad = 2, .bias = true, .groups = 2, .dilation = 2}},
          {{3, 4, 5}, 2, {.kernel = 4, .pad = 1, .bias = true}},
          {{1, 1, 2}, 1, {.kernel = 3, .stride = 1}},
          {{2, 3, 4}, 3, {.kernel = 1, .stride = 3, .output_pad = 2, .bias = true}},  // no tap reaches most pixels
          {{4, 3, 6}, 6, {.kernel = 3, .stride = 2, .pad = 1, .output_pad = 1, .groups = 6}},
          {{2, 3, 2, 4}, 2, {.kernel = 3, .pad = 1, .output_pad = 1, .bias = true, .groups = 2}},
          {{3, 1, 2, 2}, 5, {}},
          {{2, 3, 4, 16}, 17, {.kernel = 3, .stride = 1, .pad = 2, .dilation = 2}},
          // Cases whose sizes differ between the axes.
          {{3, 4, 5}, 4, {.kernel = {1, 4}, .stride = {1, 2}, .pad = {0, 1}, .bias = true}},
          {{2, 5, 4}, 6, {.kernel = {3, 2}, .stride = {3, 1}, .output_pad = {2, 0}, .groups = 2, .dilation = {1, 3}}},
          {{3, 2, 4, 2},
           5,
           {.kernel = {1, 2, 3}, .stride = {1, 2, 2}, .pad = {0, 0, 1}, .output_pad = {0, 0, 1}, .bias = true}},
          // Images with three channels, which are stored as four.
          {{4, 5, 3}, 4, {.bias = true}},
          {{3, 2, 3}, 3, {.kernel = 3, .stride = {1, 2}, .pad = 1, .output_pad = {0, 1}}},
          {{2, 3, 3}, 6, {.kernel = 3, .groups = 3}}};
}

TEST(Fields, TransposedConvolutionIsItsSum) {
  for (const TransposeCase& item : transpose_cases()) {
    const int axes = item.sample.rank() - 1;
    const ConvTransposeOptions& o = item.options;
    ModelBuilder b("transpose", item.sample);
    const Shape shape = b.shape(transpose(item.channels, o)(b));
    const Model model = b.build();
    for (int i = 0; i < axes; ++i) {
      EXPECT_EQ(shape[i], (item.sample[i] - 1) * o.stride[i] - 2 * o.pad[i] + o.dilation[i] * (o.kernel[i] - 1) +
                              o.output_pad[i] + 1);
    }
    const auto oracle = [&](Grid& x) {
      Grid y(kBatch, shape);
      const Point kernel = per_axis(axes, o.kernel, 1);
      const std::int64_t c_group = x.channels / o.groups, k_group = y.channels / o.groups;
      for (std::int64_t n = 0; n < kBatch; ++n) {
        for_each(y.size, [&](const Point& out) {
          for (std::int64_t k = 0; k < y.channels; ++k) {
            y.at(n, out, k) = o.bias ? of_bias(k) : 0;
          }
        });
        for_each(x.size, [&](const Point& in) {
          for_each(kernel, [&](const Point& tap) {
            const Point out =
                reach(in, tap, per_axis(axes, o.stride, 1), per_axis(axes, o.pad, 0), per_axis(axes, o.dilation, 1));
            for (std::int64_t c = 0; c < x.channels && y.holds(out); ++c) {
              for (std::int64_t k = 0; k < k_group; ++k) {
                y.at(n, out, c / c_group * k_group + k) +=
                    x.at(n, in, c) *
                    of_weight((c * k_group + k) * kernel[0] * kernel[1] * kernel[2] + index_of(tap, kernel));
              }
            }
          });
        });
      }
      return y.values;
    };
    expect_in_every_type(model, oracle,
                         concat("transposed convolution of ", item.sample, ", ", model.layer_texts().at("t")));
  }
}

// ---- Pools

struct PoolCase {
  Shape sample;
  AxisSizes kernel, stride, pad;
};

std::vector<PoolCase> pool_cases() {
  return {{{9, 3}, 3, 2, 1},
          {{8, 2}, 2, 3, 0},
          {{7, 17}, 3, 1, 1},
          {{1, 1}, 1, 1, 0},
          {{5, 6, 4}, 3, 2, 1},
          {{4, 5, 3, 2}, 2, 2, 1},
          {{3, 4, 5, 1}, 3, 1, 1},
          {{5, 4, 7, 4}, 3, 2, 1},
          {{6, 3, 3, 17}, 3, 3, 0},
          // Cases whose sizes differ between the axes. With three axes, there are also windows of one plane, and of one
          // row and column.
          {{6, 9, 5}, {1, 3}, {1, 2}, {0, 1}},
          {{7, 5, 4}, {3, 2}, {2, 3}, {1, 0}},
          {{4, 6, 7, 2}, {1, 2, 2}, {1, 2, 2}, 0},
          {{7, 3, 4, 3}, {3, 1, 1}, {2, 1, 1}, {1, 0, 0}},
          {{5, 4, 6, 4}, {2, 3, 1}, {3, 1, 2}, {1, 1, 0}},
          {{3, 2, 4, 2}, 1, 1, 0},
          {{5, 3, 4, 2}, 1, {2, 1, 1}, 0}};
}

/// Calls f(n, out, c, elements in the window) for each element of the output.
void for_each_window(const PoolCase& item, Grid& x, Grid& y,
                     const std::function<void(double& result, const std::vector<double>& inside)>& f) {
  const int axes = item.sample.rank() - 1;
  for (std::int64_t n = 0; n < y.n; ++n) {
    for_each(y.size, [&](const Point& out) {
      for (std::int64_t c = 0; c < y.channels; ++c) {
        std::vector<double> inside;
        for_each(per_axis(axes, item.kernel, 1), [&](const Point& tap) {
          const Point in = reach(out, tap, per_axis(axes, item.stride, 1), per_axis(axes, item.pad, 0), {1, 1, 1});
          if (x.holds(in)) {
            inside.push_back(x.at(n, in, c));
          }
        });
        f(y.at(n, out, c), inside);
      }
    });
  }
}

TEST(Fields, PoolsAreTheirWindows) {
  for (const PoolCase& p : pool_cases()) {
    const int axes = p.sample.rank() - 1;
    const auto expect = [&](const Add& add, auto window) {
      ModelBuilder b("pool", p.sample);
      const Shape shape = b.shape(add(b));
      const Model model = b.build();
      expect_in_every_type(
          model,
          [&](Grid& x) {
            Grid y(kBatch, shape);
            for_each_window(p, x, y, window);
            return y.values;
          },
          concat(model.layer_texts().at("p"), ", samples ", p.sample));
    };
    expect(max_pool(p.kernel, p.stride, p.pad),
           [](double& y, const Values& inside) { y = *std::max_element(inside.begin(), inside.end()); });
    Shape window;
    for (const std::int64_t extent : per_axis(axes, p.kernel, 1)) {
      window.push_back(extent);
    }
    for (const ops::AverageOver over : {ops::AverageOver::window, ops::AverageOver::inside}) {
      expect(average_pool(p.kernel, p.stride, p.pad, over), [&](double& y, const Values& inside) {
        const auto count =
            over == ops::AverageOver::inside ? static_cast<double>(inside.size()) : static_cast<double>(window.numel());
        y = std::accumulate(inside.begin(), inside.end(), 0.0) / count;
      });
    }
  }
}

TEST(Fields, OfEqualValuesTheFirstOneWins) {
  // A convolution with weight 0 makes equal values, so the first element of each window wins. The weight's gradient is
  // the sum of x at the winners, each times its window's gradient.
  for (const PoolCase& p : {PoolCase{{4, 5, 3, 1}, 3, 2, 1}, PoolCase{{4, 5, 3, 1}, {1, 3, 2}, {1, 2, 1}, 0},
                            PoolCase{{4, 5, 3, 1}, {3, 1, 1}, {2, 1, 1}, {1, 0, 0}}}) {
    ModelBuilder b("ties", p.sample);
    const Shape pooled =
        b.shape(b.max_pool3d("p", b.conv3d("c", b.input(), 1, {.kernel = 1, .bias = true}), p.kernel, p.stride, p.pad));
    testing::CheckedNet net(b.build(), Mode::train, 1, DType::f64, 1, {.loss = Loss::mse});
    ParameterSet& set = net.parameters();
    set.value(set.find("c.weight")).span<double>()[0] = 0;
    set.value(set.find("c.bias")).span<double>()[0] = 1;
    net.run();
    Grid x(1, p.sample);
    Grid y(1, pooled);
    x.values = testing::to_doubles(net.state().view(StateField::values));
    const Values target = testing::to_doubles(net.state().view(StateField::targets));
    double expected = 0;
    std::size_t window = 0;
    for_each_window(p, x, y, [&](double&, const Values& inside) {
      expected += 2 * (1 - target.at(window)) / static_cast<double>(target.size()) * inside.front();
      ++window;
    });
    EXPECT_EQ(window, target.size());
    EXPECT_NEAR(set.gradient(set.find("c.weight")).span<double>()[0], expected, 1e-14);
  }
}

TEST(Fields, TheMeanOverAllOfASampleAndAProductOfAllOfIt) {
  for (const Shape& sample : {Shape{9, 3}, Shape{4, 5, 2}, Shape{2, 5, 3, 4}}) {
    ModelBuilder b("mean", sample);
    EXPECT_EQ(b.shape(b.global_average_pool("p", b.input())), Shape{sample.back()});
    expect_in_every_type(
        b.build(),
        [&](Grid& x) {
          Grid y(kBatch, {sample.back()});
          for (std::int64_t n = 0; n < kBatch; ++n) {
            for_each(x.size, [&](const Point& at) {
              for (std::int64_t c = 0; c < x.channels; ++c) {
                y.at(n, {0, 0, 0}, c) += x.at(n, at, c) / static_cast<double>(x.space());
              }
            });
          }
          return y.values;
        },
        concat("mean of ", sample));
  }
  // the features are in the order of torch.flatten(x, 1) of (N, C, D, H, W)
  ModelBuilder b("flat", {2, 3, 4, 3});
  b.linear("fc", b.input(), 5);
  const Model model = b.build();
  EXPECT_EQ(model.parameters().front().spec.shape, (Shape{5, 3 * 2 * 3 * 4}));
  expect_in_every_type(
      model,
      [&](Grid& x) {
        Grid y(kBatch, {5});
        for (std::int64_t i = 0; i < kBatch * 5; ++i) {
          double sum = of_bias(i % 5);
          for_each(x.size, [&](const Point& at) {
            for (std::int64_t c = 0; c < 3; ++c) {
              sum += x.at(i / 5, at, c) * of_weight((i % 5 * 3 + c) * x.space() + index_of(at, x.size));
            }
          });
          y.values.at(static_cast<std::size_t>(i)) = sum;
        }
        return y.values;
      },
      "product of a field");
}

// ---- Results of torch 2.15, in f64, exact. `call` is the call of torch.nn.functional on these inputs:
//
//   def x(*s): return ((torch.arange(math.prod(s), dtype=torch.float64) * 7 % 11 - 5) / 4).reshape(s)
//   def w(*s): return ((torch.arange(math.prod(s), dtype=torch.float64) * 5 % 13 - 6) / 8).reshape(s)
//   def b(n): return (torch.arange(n, dtype=torch.float64) * 3 % 7 - 3) / 2
//
// `result` is the call's result times `scale`, in torch's order of axes.

struct TorchCase {
  const char* call;
  Shape sample;  ///< shape of a sample in lockstep: channels last
  Add add;
  double scale;
  std::vector<int> result;
};

std::vector<TorchCase> torch_cases() {
  return {
      {"conv1d(x(1, 4, 9), w(4, 2, 3), b(4), stride=2, padding=2, dilation=2, groups=2)",
       {9, 4},
       conv(4, {.stride = 2, .pad = 2, .bias = true, .groups = 2, .dilation = 2}),
       32,
       {-78, -41, 3, -41, -68, 25, -20, -26, 23, 0, 57, 26, 69, 79, 26, -7, -7, -19, -64, -5}},
      {"conv3d(x(1, 2, 3, 4, 5), w(2, 2, 2, 2, 2), b(2), stride=2, padding=1)",
       {3, 4, 5, 2},
       conv(2, {.kernel = 2, .stride = 2, .pad = 1, .bias = true}),
       32,
       {-75, -62, -39, -59, -31, -65, -60, 1,   -56, -67, 21, -38, -51, 2,   -117, -58, -61, -44,
        -43, -6,  19,  20,  15,  -54, -17, -13, 36,  1,   44, -50, -29, -74, 23,   35,  31,  -9}},
      {"conv_transpose1d(x(1, 4, 4), w(4, 2, 3), b(4), stride=2, padding=1, output_padding=1, dilation=2, groups=2)",
       {4, 4},
       transpose(4, {.kernel = 3, .stride = 2, .pad = 1, .output_pad = 1, .bias = true, .groups = 2, .dilation = 2}),
       32,
       {-48, -46, -48, -80, -48, -41, -48, -81, -48, -28, 0,   -8, 0,   -38, 0,   19,  0,   -19, 0,   30,
        48,  62,  48,  72,  48,  31,  48,  92,  48,  56,  -16, 22, -16, -51, -16, -44, -16, 28,  -16, -16}},
      {"conv_transpose2d(x(1, 2, 2, 3), w(2, 2, 3, 3), b(2), stride=2, padding=1, output_padding=1)",
       {2, 3, 2},
       transpose(2, {.kernel = 3, .pad = 1, .output_pad = 1, .bias = true}),
       32,
       {-53, -66, -46, -8,  -50, -80, -66, -34, -41, -53, -49, -41, -43, -2,  -47, -10,
        -51, -91, -27, -90, -47, -26, -67, -3,  54,  1,   -12, -10, -12, 10,  37,  -23,
        -7,  -12, -7,  27,  -12, -10, -12, -10, -12, 13,  -35, 6,   1,   -26, 37,  -3}},
      {"conv_transpose3d(x(1, 2, 2, 1, 2), w(2, 1, 2, 2, 2), b(1), stride=2)",
       {2, 1, 2, 2},
       transpose(1, {.bias = true}),
       32,
       {-23, -43, -45, -50, -63, -31, -55, -47, -51, -84, -52, -18, -39, -59, -49, -54,
        -56, -46, -78, -53, -36, -52, -28, -68, -42, -84, -43, -18, -48, -38, -58, -33}},
      {"max_pool1d(x(1, 2, 9), 3, 2, 1)", {9, 2}, max_pool(3, 2, 1), 4, {2, 5, 5, 4, 0, 3, 2, 5, 5, 4}},
      {"max_pool3d(x(1, 2, 3, 4, 5), 3, 2, 1)", {3, 4, 5, 2}, max_pool(3, 2, 1), 4, {5, 5, 5, 5, 5, 5, 5, 5,
                                                                                     4, 5, 5, 5, 5, 4, 5, 5,
                                                                                     5, 5, 5, 5, 4, 5, 5, 5}},
      {"avg_pool1d(x(1, 2, 8), 2, 3, 1)", {8, 2}, average_pool(2, 3, 1), 8, {-5, 3, 1, -4, -6, 3}},
      {"avg_pool3d(x(1, 1, 4, 5, 3), 2, 2, 1)",
       {4, 5, 3, 1},
       average_pool(2, 2, 1),
       32,
       {-5, 0, 9, -6, 5, -3, -3, 3, -1, -6, 2, 0, 2, 3, 1, 0, -3, 3}},
      {"avg_pool3d(x(1, 1, 4, 5, 3), 2, 2, 1, count_include_pad=False)",
       {4, 5, 3, 1},
       average_pool(2, 2, 1, ops::AverageOver::inside),
       32,
       {-40, 0, 36, -12, 20, -6, -12, 6, -2, -6, 4, 0, 16, 12, 4, 0, -12, 6}},
      {"conv2d(x(1, 2, 4, 5), w(2, 2, 3, 1), b(2), stride=(2, 1), padding=(1, 0))",
       {4, 5, 2},
       conv(2, {.kernel = {3, 1}, .stride = {2, 1}, .pad = {1, 0}, .bias = true}),
       32,
       {-22, -29, -69, -43, -39, -61, -50, -17, -61, -61, 0, -22, -22, 33, -22, -16, -8, -22, -14, 27}},
      {"conv3d(x(1, 2, 3, 4, 5), w(2, 2, 1, 3, 3), b(2), stride=(1, 2, 2), padding=(0, 1, 1))",
       {3, 4, 5, 2},
       conv(2, {.kernel = {1, 3, 3}, .stride = {1, 2, 2}, .pad = {0, 1, 1}, .bias = true}),
       32,
       {-57, -34, -104, -48, -56, 39,  -53, -41, -86, -92, -82, -36, -82, -37, -24, -15, -64, -100,
        -41, 14,  -24,  26,  108, -14, 47,  -29, -43, -76, -8,  122, -8,  71,  -7,  -35, -80, -39}},
      {"conv3d(x(1, 2, 5, 2, 4), w(2, 1, 2, 1, 2), None, stride=(1, 1, 2), padding=(1, 0, 0), dilation=(3, 1, 2), "
       "groups=2)",
       {5, 2, 4, 2},
       conv(2, {.kernel = {2, 1, 2}, .stride = {1, 1, 2}, .pad = {1, 0, 0}, .groups = 2, .dilation = {3, 1, 2}}),
       32,
       {-12, 32, 20, 22, 13, 15, 18, -13, 11, 6, -3, -10, 5, -2, 32, -3}},
      {"conv_transpose2d(x(1, 3, 2, 3), w(3, 2, 3, 3), b(2), stride=2, padding=1, output_padding=1)",
       {2, 3, 3},
       transpose(2, {.kernel = 3, .pad = 1, .output_pad = 1, .bias = true}),
       32,
       {-55, -46, -44, -46, -55, -60, -67, -27, -34, -71, -56, -3, -44, 20,  -44, -46,
        -55, -75, -26, -72, -50, -60, -63, 21,  64,  -5,  -22, -4, 13,  -5,  28,  -28,
        -4,  7,   -25, 2,   -7,  -13, -27, -1,  8,   1,   -41, -1, 19,  -15, 13,  -7}},
      {"conv_transpose3d(x(1, 2, 2, 2, 3), w(2, 1, 1, 2, 3), b(1), stride=(1, 2, 2), padding=(0, 0, 1), "
       "output_padding=(0, 1, 0))",
       {2, 2, 3, 2},
       transpose(1,
                 {.kernel = {1, 2, 3}, .stride = {1, 2, 2}, .pad = {0, 0, 1}, .output_pad = {0, 1, 0}, .bias = true}),
       32,
       {-37, -86, -56, -28, -31, -43, -92, -56, -22, -25, -50, -33, -58, -19, -33, -38, -25,
        -62, -21, -31, -48, -48, -48, -48, -48, -52, -24, -60, -10, -35, -44, -24, -68, -20,
        -37, -54, -15, -62, -1,  -37, -50, -23, -74, -19, -43, -48, -48, -48, -48, -48}},
      {"max_pool2d(x(1, 2, 4, 7), (2, 3), (1, 2), (0, 1))",
       {4, 7, 2},
       max_pool({2, 3}, {1, 2}, {0, 1}),
       4,
       {2, 5, 5, 4, 5, 4, 4, 3, 5, 4, 5, 3, 5, 5, 4, 2, 5, 5, 5, 5, 4, 4, 5, 5}},
      {"max_pool3d(x(1, 2, 3, 4, 5), (1, 2, 3), (1, 2, 1), (0, 1, 1))",
       {3, 4, 5, 2},
       max_pool({1, 2, 3}, {1, 2, 1}, {0, 1, 1}),
       4,
       {2, 2, 5, 5, 5,  4, 4, 4, 5, 5, 1, 4, 4, 4, 0,  3, 3, 2, 2, 2, 5, 5, 4, 4, 4, 5, 5, 5, 4, 4,
        0, 3, 3, 3, -1, 4, 5, 5, 5, 3, 2, 2, 5, 5, 5,  4, 4, 4, 3, 3, 1, 4, 4, 5, 5, 3, 3, 2, 2, 2,
        5, 5, 4, 4, 4,  5, 5, 5, 4, 4, 0, 3, 3, 3, -1, 2, 5, 5, 5, 1, 4, 4, 5, 5, 5, 4, 4, 4, 3, 3}},
      {"avg_pool2d(x(1, 2, 3, 5), (1, 2), (1, 3), (0, 1), count_include_pad=False)",
       {3, 5, 2},
       average_pool({1, 2}, {1, 3}, {0, 1}, ops::AverageOver::inside),
       8,
       {-10, 3, -6, -4, -2, 0, 2, 4, 6, -3, 10, 1}},
      {"avg_pool3d(x(1, 1, 5, 4, 3), (2, 1, 2), (3, 2, 1), (1, 0, 1))",
       {5, 4, 3, 1},
       average_pool({2, 1, 2}, {3, 2, 1}, {1, 0, 1}),
       16,
       {-5, -3, 0, -2, 4, 4, -4, -4, 3, 9, 4, -2, -1, 1, -4, -6}}};
}

/// Returns the transposed matrix: (rows, columns) -> (columns, rows).
Values turned(const Values& values, std::int64_t columns) {
  const auto width = static_cast<std::size_t>(columns);
  const std::size_t rows = values.size() / width;
  Values result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i % width * rows + i / width] = values[i];
  }
  return result;
}

TEST(Fields, NumbersOfTorch) {
  for (const TorchCase& item : torch_cases()) {
    ModelBuilder b("torch", item.sample);
    const Shape shape = b.shape(item.add(b));
    const std::int64_t positions = item.sample.numel() / item.sample.back();
    const Values x = turned(filled(item.sample.numel(), of_x), positions);  // x with channels last
    const Values y = turned(infer(b.build(), DType::f64, 1, x), shape.back());
    Values expected;
    for (const int value : item.result) {
      expected.push_back(value / item.scale);
    }
    expect_values(y, expected, DType::f64, item.call);
  }
}

// ---- A surrogate of a solver

TEST(Fields, AConvolutionLearnsTheStencilOfAField) {
  // The layer learns a step of heat conduction from examples: u + (sum of the six neighbours - 6 u) / 8. The input has
  // one more point at each side.
  constexpr std::int64_t kSamples = 4;
  constexpr std::int64_t kPlanes = 6, kRows = 5, kColumns = 7;
  ModelBuilder b("heat3d", {kPlanes + 2, kRows + 2, kColumns + 2, 1});
  EXPECT_EQ(b.shape(b.conv3d("stencil", b.input(), 1)), (Shape{kPlanes, kRows, kColumns, 1}));
  testing::Net net(b.build(), Mode::train, kSamples, DType::f64, 1, {.loss = Loss::mse});
  Grid u(kSamples, {kPlanes + 2, kRows + 2, kColumns + 2, 1});
  Grid next(kSamples, {kPlanes, kRows, kColumns, 1});
  u.values = testing::to_doubles(net.state().view(StateField::values));
  for (std::int64_t n = 0; n < kSamples; ++n) {
    for_each(next.size, [&](const Point& p) {
      const auto [d, h, w] = p;
      const double around = u.at(n, {d, h + 1, w + 1}, 0) + u.at(n, {d + 2, h + 1, w + 1}, 0) +
                            u.at(n, {d + 1, h, w + 1}, 0) + u.at(n, {d + 1, h + 2, w + 1}, 0) +
                            u.at(n, {d + 1, h + 1, w}, 0) + u.at(n, {d + 1, h + 1, w + 2}, 0);
      next.at(n, p, 0) = u.at(n, {d + 1, h + 1, w + 1}, 0) / 4 + around / 8;
    });
  }
  testing::from_doubles(next.values, net.state().view(StateField::targets));
  const double before = net.run();
  const auto weight = net.parameters().values().span<double>();
  for (int step = 0; step < 100; ++step) {
    net.run();
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] -= 0.3 * net.parameters().gradients().span<double>()[i];
    }
  }
  EXPECT_TRUE(net.run() < 1e-12 * before);
  const Point kernel{3, 3, 3};
  for_each(kernel, [&](const Point& tap) {
    const std::int64_t away = std::abs(tap[0] - 1) + std::abs(tap[1] - 1) + std::abs(tap[2] - 1);
    EXPECT_NEAR(weight[static_cast<std::size_t>(index_of(tap, kernel))],
                away == 0   ? 0.25
                : away == 1 ? 0.125
                            : 0,
                1e-6);
  });
}

// ---- What a model says

TEST(Fields, LayersAreNamedWithTheirAxesAndSettings) {
  ModelBuilder b("fields", {4, 6, 6, 2});
  NodeId x = b.conv3d("down", b.input(), 8, {.stride = 2, .pad = 1, .bias = true, .groups = 2});
  EXPECT_EQ(b.shape(x), (Shape{2, 3, 3, 8}));
  x = b.conv_transpose3d("up", x, 6, {.output_pad = 1, .groups = 2});
  EXPECT_EQ(b.shape(x), (Shape{5, 7, 7, 6}));
  x = b.max_pool3d("max", x, 3, 2, 1);
  b.average_pool3d("mean", x, 2, 1, 0, ops::AverageOver::inside);
  const Model model = b.build();
  const auto texts = model.layer_texts();
  EXPECT_EQ(texts.at("down"), "conv3d of input: stride 2, pad 1, groups 2");
  EXPECT_EQ(texts.at("up"), "conv_transpose3d of down: stride 2, pad 0, output_pad 1, groups 2");
  EXPECT_EQ(texts.at("max"), "max_pool3d of up: kernel 3, stride 2, pad 1");
  EXPECT_EQ(texts.at("mean"), "average_pool3d of max: kernel 2, stride 1, pad 0, padding does not count");
  const auto parameters = model.parameters();
  ASSERT_EQ(parameters.size(), 3U);
  EXPECT_EQ(parameters[0].spec.shape, (Shape{8, 3, 2, 2, 2})) << "as torch.nn.ConvTranspose3d";
  EXPECT_EQ(parameters[1].spec.shape, (Shape{8, 1, 3, 3, 3}));
  EXPECT_EQ(parameters[1].spec.stored_shape(), (Shape{8, 3, 3, 3, 1}));

  ModelBuilder s("series", {16, 4});
  x = s.conv1d("c", s.input(), 6, {.dilation = 2});
  x = s.max_pool1d("m", x, 2, 2, 0);
  x = s.conv_transpose1d("t", x, 5, {.dilation = 3});
  s.average_pool1d("a", x, 2, 2, 0);
  const Model series = s.build();
  EXPECT_EQ(series.layer_texts().at("c"), "conv1d of input: stride 1, pad 0, dilation 2");
  EXPECT_EQ(series.layer_texts().at("m"), "max_pool1d of c: kernel 2, stride 2, pad 0");
  EXPECT_EQ(series.layer_texts().at("t"), "conv_transpose1d of m: stride 2, pad 0, dilation 3");
  EXPECT_EQ(series.layer_texts().at("a"), "average_pool1d of t: kernel 2, stride 2, pad 0");
  EXPECT_EQ(series.parameters()[1].spec.shape, (Shape{6, 4, 3}));
}

TEST(Fields, SizesAreTheSameHoweverTheyAreWritten) {
  const auto text = [](const AxisSizes& sizes) { return concat(sizes); };
  EXPECT_EQ(text(3), "3");
  EXPECT_EQ(text({3}), "3");
  EXPECT_EQ(text({3, 3, 3}), "3");
  EXPECT_EQ(text({1, 3, 3}), "1x3x3");
  EXPECT_EQ(text({2, 0}), "2x0");
  EXPECT_EQ(AxisSizes{3}, AxisSizes(3));
  EXPECT_EQ((AxisSizes{1, 2}), (AxisSizes{1, 2}));
  EXPECT_FALSE((AxisSizes{1, 2}) == (AxisSizes{2, 1}));
  EXPECT_FALSE((AxisSizes{3, 3}) == (AxisSizes{3, 3, 3})) << "they fit other layers";
  static_assert(AxisSizes(2).fits(1) && AxisSizes(2).fits(3) && AxisSizes{2, 2}.fits(2) && !AxisSizes{2, 2}.fits(3));
  static_assert(AxisSizes{1, 3, 2}.least() == 1 && AxisSizes{1, 3, 2}[1] == 3 && AxisSizes(4)[2] == 4);
  static_assert(AxisSizes{2, 2}.all(2) && !AxisSizes{2, 1}.all(2) && AxisSizes(2).all(2));
  // These texts describe the layers in a checkpoint, and a resumed run compares them. Equal numbers for all axes must
  // give the same text as a single number.
  const auto texts = [](const ConvOptions& conv, const ConvTransposeOptions& transpose, const AxisSizes& kernel,
                        const AxisSizes& stride, const AxisSizes& pad) {
    ModelBuilder b("net", {8, 8, 8, 2});
    const NodeId x = b.max_pool3d("m", b.conv3d("c", b.input(), 4, conv), kernel, stride, pad);
    b.average_pool3d("a", b.conv_transpose3d("t", x, 2, transpose), kernel, stride, pad);
    return b.build().layer_texts();
  };
  EXPECT_EQ(
      texts({.kernel = {3, 3, 3}, .stride = {1, 1, 1}, .pad = {1, 1, 1}, .dilation = {1, 1, 1}},
            {.stride = {2, 2, 2}, .output_pad = {0, 0, 0}, .dilation = {1, 1, 1}}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
      texts({.pad = 1}, {}, 3, 2, 1));
  const auto uneven =
      texts({.kernel = {1, 3, 3}, .stride = {1, 2, 2}, .pad = {0, 1, 1}, .dilation = {3, 1, 1}},
            {.stride = {2, 1, 2}, .output_pad = {1, 0, 0}, .dilation = {1, 2, 1}}, {1, 2, 2}, {1, 2, 2}, {0, 1, 0});
  EXPECT_EQ(uneven.at("c"), "conv3d of input: stride 1x2x2, pad 0x1x1, dilation 3x1x1");
  EXPECT_EQ(uneven.at("m"), "max_pool3d of c: kernel 1x2x2, stride 1x2x2, pad 0x1x0");
  EXPECT_EQ(uneven.at("t"), "conv_transpose3d of m: stride 2x1x2, pad 0, output_pad 1x0x0, dilation 1x2x1");
  EXPECT_EQ(uneven.at("a"), "average_pool3d of t: kernel 1x2x2, stride 1x2x2, pad 0x1x0");
}

TEST(Fields, OneNumberAndEqualNumbersHaveTheSameBits) {
  const auto gradients = [](const AxisSizes& kernel, const AxisSizes& stride, const AxisSizes& pad) {
    ModelBuilder b("net", {4, 5, 6, 2});
    NodeId x = b.conv3d("c", b.input(), 4, {.kernel = kernel, .stride = stride, .pad = pad, .bias = true});
    x = b.max_pool3d("m", x, kernel, stride, pad);
    x = b.average_pool3d("a", b.conv_transpose3d("t", x, 2, {.kernel = kernel, .stride = stride, .pad = pad}), kernel,
                         stride, pad);
    b.linear("fc", x, 3);
    testing::Net net(b.build(), Mode::train, 2, DType::f32);
    net.run();
    return testing::to_doubles(net.parameters().gradients());
  };
  EXPECT_EQ(gradients({3, 3, 3}, {2, 2, 2}, {1, 1, 1}), gradients(3, 2, 1));
  EXPECT_NE(gradients({3, 3, 3}, {2, 1, 2}, {1, 1, 1}), gradients(3, 2, 1)) << "the control";
}

TEST(Fields, TheIdentityOfAnUnevenKernelIsInItsMiddle) {
  ModelBuilder b("same", {4, 5, 6, 2});
  b.conv3d("c", b.input(), 2, {.kernel = {1, 3, 5}, .pad = {0, 1, 2}, .init = ConvInit::identity});
  testing::Net net(b.build(), Mode::infer, 2, DType::f64);
  net.run();
  EXPECT_EQ(testing::to_doubles(net.plan().output()), testing::to_doubles(net.state().view(StateField::values)));
}

TEST(Fields, WeightsGoThroughAFileInTheShapesOfTorch) {
  ModelBuilder b("fields", {2, 3, 4, 3});
  NodeId x = b.conv3d("c", b.input(), 4, {.kernel = 2, .bias = true});
  x = b.conv_transpose3d("t", x, 2, {.kernel = 3, .groups = 2});
  b.linear("fc", x, 3);
  const Model model = b.build();
  CpuContext context;
  ParameterSet from(context, model, DType::f32);
  ParameterSet to(context, model, DType::f32);
  from.initialise(context, 1);
  to.initialise(context, 2);
  ASSERT_FALSE(testing::has_same_bits(from.values(), to.values()));
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/model.safetensors";
  save_model(path, context, from, {});
  load_model(path, context, to);
  testing::expect_same_bits(from.values(), to.values());
  const TensorFile file = open_tensor_file(path);
  const auto shape_of = [&](const std::string& name) {
    const TensorEntry* entry = file.find(name);
    return entry == nullptr ? std::vector<std::int64_t>{}
                            : std::vector<std::int64_t>(entry->shape.begin(), entry->shape.end());
  };
  EXPECT_EQ(shape_of("c.weight"), (std::vector<std::int64_t>{4, 3, 2, 2, 2}));
  EXPECT_EQ(shape_of("t.weight"), (std::vector<std::int64_t>{4, 1, 3, 3, 3}));
  EXPECT_EQ(shape_of("fc.weight"), (std::vector<std::int64_t>{3, 2 * 3 * 5 * 7}));
}

TEST(Fields, BadInput) {
  const auto conv3d = [](const ConvOptions& options) {
    return [=](ModelBuilder& b) { return b.conv3d("c", b.input(), 4, options); };
  };
  const auto transpose2d = [](const ConvTransposeOptions& options) {
    return [=](ModelBuilder& b) { return b.conv_transpose2d("t", b.input(), 4, options); };
  };
  const std::vector<std::tuple<Shape, Add, const char*>> cases{
      {{5, 4, 2}, conv3d({}), "c: input (5, 4, 2), expected (D, H, W, C)"},
      {{5, 4, 2, 6},
       conv3d({}),
       "model net: layer c: conv2d: spatial axis 2: a kernel of 3 with dilation 1 does not fit in 2"},
      {{5, 4, 3, 6}, conv3d({.stride = 0}), "c: channels 4, kernel 3, stride 0"},
      {{5, 4, 3, 6}, conv3d({.groups = 4}), "groups is 4, expected a divisor of the 6"},
      {{5, 4, 2}, [](ModelBuilder& b) { return b.conv1d("c", b.input(), 4); }, "c: input (5, 4, 2), expected (T, C)"},
      {{5, 4},
       [](ModelBuilder& b) { return b.max_pool3d("p", b.input(), 2, 2, 0); },
       "p: input (5, 4), expected (D, H, W, C)"},
      {{5, 4, 3, 2},
       [](ModelBuilder& b) { return b.average_pool1d("p", b.input(), 2, 2, 0); },
       "p: input (5, 4, 3, 2), expected (T, C)"},
      {{5, 4, 3, 2}, max_pool(4, 1, 0), "model net: layer p: pooled_shape: a window of 4 does not fit extent 3"},
      {{5, 4, 3, 2}, average_pool(2, 2, 2), "model net: layer p: "},
      {{5, 4, 3, 2}, average_pool(2, 2, 2), "lies in padding only"},
      {{5},
       [](ModelBuilder& b) { return b.global_average_pool("p", b.input()); },
       "p: input (5), expected (T, C), (H, W, C) or (D, H, W, C)"},
      {{2, 2, 2, 2, 2}, [](ModelBuilder& b) { return b.input(); }, "input shape is (2, 2, 2, 2, 2), expected"},
      {{5, 4}, transpose2d({}), "t: input (5, 4), expected (H, W, C)"},
      {{5, 4, 2}, transpose2d({.output_pad = 2}), "t: output_pad is 2, expected less than the stride 2"},
      {{5, 4, 2}, transpose2d({.output_pad = -1}), "output_pad -1"},
      {{5, 4, 2}, transpose2d({.kernel = 0}), "t: channels 4, kernel 0"},
      {{5, 1, 2},
       transpose2d({.pad = 1}),
       "t: of an extent of 1 it makes 0 with kernel 2, stride 2 and pad 1, expected at least 1"},
      {{5, 4, 6}, transpose2d({.groups = 3}), "groups is 3, expected a divisor of the 6"},
      {{5, 4, 2},
       transpose2d({.stride = {1, 2}, .output_pad = 1}),
       "t: output_pad is 1, expected less than the stride 1x2"},
      {{5, 1, 2},
       transpose2d({.stride = {1, 2}, .pad = {0, 1}}),
       "t: of an extent of 1 it makes 0 with kernel 2, stride 2 and pad 1"},
      {{5, 4, 3, 6}, conv3d({.kernel = {1, 3, 3}, .stride = {1, 0, 2}}), "c: channels 4, kernel 1x3x3, stride 1x0x2"},
      {{5, 4, 3, 6}, conv3d({.pad = {0, -1, 0}}), "pad 0x-1x0"},
      {{5, 4, 3, 6}, conv3d({.kernel = {1, 3, 4}}), "a kernel of 4 with dilation 1"},
      {{5, 4, 3, 6}, max_pool({1, 2, 2}, 1, {0, 0, 2}), "lies in padding only"}};
  for (const auto& [sample, add, text] : cases) {
    const auto build = [&, &shape = sample, &layer = add] {
      ModelBuilder b("net", shape);
      layer(b);
    };
    testing::expect_holds(testing::error_of<ShapeError>(build), text);
  }
}

TEST(Fields, AnotherNumberOfSizesThanAxesIsRefusedByName) {
  const Shape field{5, 4, 3, 2}, image{5, 4, 2}, series{5, 2};
  const std::vector<std::tuple<Shape, Add, const char*>> cases{
      {field, conv(4, {.kernel = {1, 3}}), "c: kernel has 2 numbers, expected 1, or 3 for the axes of (D, H, W, C)"},
      {image, conv(4, {.stride = {1, 2, 2}}), "c: stride has 3 numbers, expected 1, or 2 for the axes of (H, W, C)"},
      {image, conv(4, {.pad = {1, 1, 1, 1}}), "c: pad has 4 numbers, expected 1, or 2"},
      {series, conv(4, {.dilation = {1, 1}}), "c: dilation has 2 numbers, expected 1"},
      {image, transpose(4, {.output_pad = {0, 0, 1}}), "t: output_pad has 3 numbers"},
      {field, conv(4, {.kernel = {}}), "c: kernel has 0 numbers"},
      {field, max_pool({2, 2}, 2, 0), "p: kernel has 2 numbers, expected 1, or 3"},
      {image, max_pool(2, {2, 2, 2}, 0), "p: stride has 3 numbers, expected 1, or 2"},
      {series, average_pool(2, 2, {0, 0}), "p: pad has 2 numbers, expected 1"}};
  for (const auto& [sample, add, text] : cases) {
    ModelBuilder b("net", sample);
    testing::expect_holds(testing::error_of<UsageError>([&, &layer = add] { layer(b); }), text);
  }
}

}  // namespace
}  // namespace lockstep::nn
