// Tests models, parameters and inference of the C interface. The expected results come from plain loops in this file.
#include <cstdio>
#include <thread>

#include "host.hpp"

namespace host {
namespace {

/// Computes y = W2 tanh(W1 x + b1) + b2 with plain loops.
struct PlainMlp {
  std::int64_t in, hidden, out;
  std::vector<double> w1, b1, w2, b2;

  explicit PlainMlp(lockstep_model model, std::int64_t i, std::int64_t h, std::int64_t o)
      : in(i),
        hidden(h),
        out(o),
        w1(parameter(model, "1.weight", {h, i})),
        b1(parameter(model, "1.bias", {h})),
        w2(parameter(model, "2.weight", {o, h})),
        b2(parameter(model, "2.bias", {o})) {}

  [[nodiscard]] std::vector<double> operator()(const std::vector<double>& x) const {
    std::vector<double> y(b2);
    for (std::int64_t j = 0; j < hidden; ++j) {
      double sum = b1[static_cast<std::size_t>(j)];
      for (std::int64_t i = 0; i < in; ++i) {
        sum += w1[static_cast<std::size_t>(j * in + i)] * x[static_cast<std::size_t>(i)];
      }
      for (std::int64_t k = 0; k < out; ++k) {
        y[static_cast<std::size_t>(k)] += w2[static_cast<std::size_t>(k * hidden + j)] * std::tanh(sum);
      }
    }
    return y;
  }
};

class InferenceTest : public ::testing::Test {
 protected:
  HostContext context;
  Mlp model{context, {3, 8, 2}};
};

TEST_F(InferenceTest, ParametersAreThoseOfTheModel) {
  std::int32_t count = 0;
  ASSERT_TRUE(ok(lockstep_parameter_count(model, &count)));
  ASSERT_EQ(count, 4);
  std::int64_t numbers = 0;
  bool found = false;
  for (std::int32_t i = 0; i < count; ++i) {
    lockstep_parameter info{};
    info.struct_size = sizeof info;
    ASSERT_TRUE(ok(lockstep_parameter_info(model, i, &info)));
    std::int64_t here = 1;
    for (int axis = 0; axis < info.ndim; ++axis) {
      here *= info.shape[axis];
    }
    numbers += here;
    if (std::strcmp(info.name, "1.weight") == 0) {
      found = true;
      EXPECT_EQ(info.ndim, 2);
      EXPECT_EQ(info.shape[0], 8);
      EXPECT_EQ(info.shape[1], 3);
    }
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(numbers, 3 * 8 + 8 + 8 * 2 + 2);
}

TEST_F(InferenceTest, AnyNumberOfSamplesIsWhatALoopGives) {
  const PlainMlp plain(model, 3, 8, 2);
  ASSERT_TRUE(ok(lockstep_model_prepare(model, 100)));
  for (const std::int64_t n : {1, 2, 3, 7, 31, 99, 100, 101, 257}) {  // some of these numbers exceed the prepared size
    const std::vector<double> x = drawn(static_cast<std::size_t>(n * 3));
    std::vector<double> y(static_cast<std::size_t>(n * 2), kNan);
    ASSERT_TRUE(ok(infer(model, View(x.data(), {n, 3}), View(y.data(), {n, 2}))));
    for (std::int64_t s = 0; s < n; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const std::vector<double> expected = plain({x[3 * at], x[3 * at + 1], x[3 * at + 2]});
      EXPECT_NEAR(y[2 * at], expected[0], 1e-14) << n << " samples, sample " << s;
      EXPECT_NEAR(y[2 * at + 1], expected[1], 1e-14);
    }
  }
  double* const none = nullptr;
  EXPECT_TRUE(ok(infer(model, View(none, {0, 3}), View(none, {0, 2}))));
}

// If the views of a call have the same type, shape, strides and axes as those of the previous call, lockstep skips most
// checks. Here calls with equal views, with other views and with errors follow each other. All must give the right
// result.
TEST_F(InferenceTest, CallsLikeTheOneBefore) {
  const auto plain = [this](const std::vector<double>& x) { return PlainMlp(model, 3, 8, 2)(x); };
  std::vector<double> memory = drawn(64), y(64, kNan);
  const auto expect = [&](std::size_t sample, std::vector<double> x, std::size_t at, std::size_t step) {
    const std::vector<double> expected = plain(x);
    EXPECT_NEAR(y[at], expected[0], 1e-14) << sample;
    EXPECT_NEAR(y[at + step], expected[1], 1e-14) << sample;
  };
  const auto rows = [&](std::size_t first) {  // two samples from `first` on
    y.assign(64, kNan);
    ASSERT_TRUE(ok(infer(model, View(&memory[first], {2, 3}), View(&y[first], {2, 2}))));
    expect(0, {memory[first], memory[first + 1], memory[first + 2]}, first, 1);
    expect(1, {memory[first + 3], memory[first + 4], memory[first + 5]}, first + 2, 1);
    EXPECT_TRUE(std::isnan(y[first + 4]));
  };
  rows(0);
  rows(0);
  rows(30);
  ASSERT_TRUE(ok(infer(model, View(memory.data(), {3, 2}, "cn"), View(y.data(), {2, 2}, "cn"))));
  expect(0, {memory[0], memory[2], memory[4]}, 0, 2);
  ASSERT_TRUE(ok(infer(model, View(memory.data(), {3, 2}, "cn", {7, 1}), View(y.data(), {2, 2}, "cn"))));
  expect(0, {memory[0], memory[7], memory[14]}, 0, 2);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(model, View(memory.data(), {3, 2}, "ch", {7, 1}), View(y.data(), {2, 2})),
                    {"axis 'h'"}));
  rows(10);
  double* const none = nullptr;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(model, View(none, {2, 3}), View(y.data(), {2, 2})), {"data is NULL"}));
  rows(10);
  auto* const odd = reinterpret_cast<double*>(reinterpret_cast<char*>(memory.data()) + 4);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(model, View(odd, {2, 3}), View(y.data(), {2, 2})), {"multiple of 8"}));
  rows(10);
  y = memory;  // the outputs overwrite the inputs
  ASSERT_TRUE(ok(infer(model, View(&y[2], {2, 3}), View(&y[0], {2, 2}))));
  expect(0, {memory[2], memory[3], memory[4]}, 0, 1);
  expect(1, {memory[5], memory[6], memory[7]}, 2, 1);
  rows(10);
  const std::vector<double> bias{5, -5};
  const std::int64_t two[] = {2};
  const lockstep_view value{const_cast<double*>(bias.data()), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, two, nullptr, nullptr};
  ASSERT_TRUE(ok(lockstep_parameter_write(model, "2.bias", 0, &value)));
  rows(10);
  ASSERT_TRUE(ok(lockstep_model_prepare(model, 5)));
  rows(10);
}

TEST_F(InferenceTest, AfterPreparingNothingIsAllocated) {
  ASSERT_TRUE(ok(lockstep_model_prepare(model, 64)));
  std::int64_t before = 0;
  std::int64_t peak_before = 0;
  ASSERT_TRUE(ok(lockstep_context_memory(context, &before, &peak_before)));
  EXPECT_GT(before, 0);
  std::vector<float> x(64 * 3), y(64 * 2);
  for (std::int64_t n = 1; n <= 64; ++n) {
    ASSERT_TRUE(ok(infer(model, View(x.data(), {n, 3}), View(y.data(), {n, 2}))));
  }
  std::int64_t after = 0;
  std::int64_t peak_after = 0;
  ASSERT_TRUE(ok(lockstep_context_memory(context, &after, &peak_after)));
  EXPECT_EQ(after, before);
  EXPECT_EQ(peak_after, peak_before);
}

// The input is a grid (levels, variables, columns) with a halo of one column on either side. Its variables are the
// middle axis. Inference must read the grid in place, and write only the inner columns of the output.
TEST_F(InferenceTest, HaloViewsAreReadInPlaceAndWrittenInsideOnly) {
  const PlainMlp plain(model, 3, 8, 2);
  constexpr std::int64_t kLevels = 4, kColumns = 5, kPitch = kColumns + 2;
  constexpr double kCanary = 12345.5;
  std::vector<double> field(kLevels * 3 * kPitch, kCanary);
  std::vector<float> result(kLevels * 2 * kPitch, static_cast<float>(kCanary));
  const auto in_at = [](std::int64_t l, std::int64_t v, std::int64_t c) {
    return static_cast<std::size_t>((l * 3 + v) * kPitch + 1 + c);
  };
  const auto out_at = [](std::int64_t l, std::int64_t v, std::int64_t c) {
    return static_cast<std::size_t>((l * 2 + v) * kPitch + 1 + c);
  };
  for (std::int64_t l = 0; l < kLevels; ++l) {
    for (std::int64_t v = 0; v < 3; ++v) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        field[in_at(l, v, c)] = draw(in_at(l, v, c));
      }
    }
  }
  const std::vector<double> field_before = field;
  const View in(field.data() + 1, {kLevels, 3, kColumns}, "ncn", {3 * kPitch, kPitch, 1});
  const View out(result.data() + 1, {kLevels, 2, kColumns}, "ncn", {2 * kPitch, kPitch, 1});
  ASSERT_TRUE(ok(infer(model, in, out)));
  EXPECT_EQ(field, field_before);
  std::vector<bool> inside(result.size(), false);
  for (std::int64_t l = 0; l < kLevels; ++l) {
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const std::vector<double> expected = plain({field[in_at(l, 0, c)], field[in_at(l, 1, c)], field[in_at(l, 2, c)]});
      for (std::int64_t v = 0; v < 2; ++v) {
        inside[out_at(l, v, c)] = true;
        EXPECT_EQ(result[out_at(l, v, c)], static_cast<float>(expected[static_cast<std::size_t>(v)])) << l << v << c;
      }
    }
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    EXPECT_TRUE(inside[i] || result[i] == static_cast<float>(kCanary)) << "element " << i << " outside was written";
  }
}

TEST_F(InferenceTest, NegativeStridesReadFromTheEnd) {
  const PlainMlp plain(model, 3, 8, 2);
  std::vector<double> x{0.1, 0.2, 0.3, -0.4, 0.5, -0.6};
  std::vector<double> y(4);
  const View in(x.data() + 5, {2, 3}, "nc", {-3, -1}), out(y.data() + 2, {2, 2}, nullptr, {-2, 1});
  ASSERT_TRUE(ok(infer(model, in, out)));
  const std::vector<double> first = plain({x[5], x[4], x[3]});
  EXPECT_NEAR(y[2], first[0], 1e-14);
  EXPECT_NEAR(y[3], first[1], 1e-14);
  const std::vector<double> second = plain({x[2], x[1], x[0]});
  EXPECT_NEAR(y[0], second[0], 1e-14);
}

TEST_F(InferenceTest, ManyViewsAreComputedTogether) {
  ASSERT_TRUE(ok(lockstep_model_prepare(model, 10)));
  std::vector<std::vector<double>> xs, ys;
  std::vector<View> ins, outs;
  const std::vector<std::int64_t> sizes{1, 4, 0, 7, 10, 3, 3, 3, 3, 2};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    xs.push_back(drawn(static_cast<std::size_t>(sizes[i] * 3), 100 * i));
    ys.emplace_back(static_cast<std::size_t>(sizes[i] * 2));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ins.emplace_back(xs[i].data(), std::vector<std::int64_t>{sizes[i], 3});
    outs.emplace_back(ys[i].data(), std::vector<std::int64_t>{sizes[i], 2});
  }
  std::vector<lockstep_view> in, out;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    in.push_back(*ins[i].get());
    out.push_back(*outs[i].get());
  }
  const auto n = static_cast<std::int64_t>(sizes.size());
  ASSERT_TRUE(ok(lockstep_infer_many(model, in.data(), out.data(), n, nullptr)));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<double> alone(ys[i].size());
    ASSERT_TRUE(ok(infer(model, View(xs[i].data(), {sizes[i], 3}), View(alone.data(), {sizes[i], 2}))));
    EXPECT_EQ(alone, ys[i]) << "view " << i;
  }
  EXPECT_TRUE(ok(lockstep_infer_many(model, nullptr, nullptr, 0, nullptr)));
  // If one input does not fit, no output may be written.
  const std::vector<std::vector<double>> before = ys;
  for (std::vector<double>& x : xs) {
    for (double& value : x) {
      value += 1;
    }
  }
  const std::int64_t wrong[] = {2, 4};
  in.back().shape = wrong;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_infer_many(model, in.data(), out.data(), n, nullptr),
                    {"lockstep_infer_many", "view 9 of 10", "4 features"}));
  EXPECT_EQ(ys, before);
}

TEST_F(InferenceTest, SharedModelsOnThreadsGiveTheSameBits) {
  constexpr std::int64_t kSamples = 50;
  const std::vector<double> x = drawn(kSamples * 3);
  std::vector<double> expected(kSamples * 2);
  ASSERT_TRUE(ok(infer(model, View(x.data(), {kSamples, 3}), View(expected.data(), {kSamples, 2}))));
  std::vector<std::vector<double>> results(4, std::vector<double>(kSamples * 2));
  std::vector<std::thread> threads;
  const lockstep_model original = model;
  for (std::vector<double>& result : results) {
    threads.emplace_back([&x, &result, original] {
      const HostContext own;
      Model shared;
      ASSERT_TRUE(ok(lockstep_model_share(original, own, &shared)));
      for (int block = 0; block < 40; ++block) {
        for (std::int64_t begin = 0; begin < kSamples; begin += 7) {
          const std::int64_t n = std::min<std::int64_t>(7, kSamples - begin);
          const View from(x.data() + 3 * begin, {n, 3}), to(result.data() + 2 * begin, {n, 2});
          ASSERT_TRUE(ok(infer(shared, from, to)));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<double>& result : results) {
    EXPECT_EQ(result, expected);
  }
}

TEST_F(InferenceTest, WrittenParametersAreWhatIsComputedAndReadBack) {
  const std::vector<double> weight = drawn(16);
  // The written view is the transpose of an (8, 2) array, so its first axis varies fastest.
  std::vector<double> turned(16);
  for (std::size_t k = 0; k < 2; ++k) {
    for (std::size_t j = 0; j < 8; ++j) {
      turned[j * 2 + k] = weight[k * 8 + j];
    }
  }
  View view(turned.data(), {2, 8}, nullptr, {1, 2});
  ASSERT_TRUE(ok(lockstep_parameter_write(model, "2.weight rest", 8, &view)));
  EXPECT_EQ(parameter(model, "2.weight", {2, 8}), weight);
  const PlainMlp plain(model, 3, 8, 2);
  std::vector<double> x{0.3, -0.7, 0.9}, y(2);
  ASSERT_TRUE(ok(infer(model, View(x.data(), {1, 3}), View(y.data(), {1, 2}))));
  EXPECT_NEAR(y[0], plain(x)[0], 1e-14);
}

TEST_F(InferenceTest, SavedModelsLoadWithTheirBits) {
  const std::string path = temporary("model") + ".safetensors";
  ASSERT_TRUE(ok(lockstep_model_save(model, path.c_str(), 0)));
  const BareMlp loaded(context, {3, 8, 2});
  ASSERT_TRUE(ok(lockstep_model_load(loaded, path.data(), path.size())));
  EXPECT_EQ(parameter(loaded, "1.weight", {8, 3}), parameter(model, "1.weight", {8, 3}));
  EXPECT_EQ(parameter(loaded, "2.bias", {2}), parameter(model, "2.bias", {2}));
  // Loading a file of another model, a damaged file or a missing file fails and changes nothing.
  const Mlp other(context, {4, 8, 2});
  const std::vector<double> before = parameter(other, "1.weight", {8, 4});
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_FORMAT, lockstep_model_load(other, path.c_str(), 0), {"1.weight", "(8, 3)", "(8, 4)"}));
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fputs("garbage!", file);
  std::fclose(file);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_FORMAT, lockstep_model_load(other, path.c_str(), 0), {"lockstep_model_load", path}));
  std::filesystem::remove(path);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_IO, lockstep_model_load(other, path.c_str(), 0), {path, "no such file"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_IO, lockstep_model_save(other, "/proc/none/model", 0), {"/proc/none"}));
  EXPECT_EQ(parameter(other, "1.weight", {8, 4}), before);
}

// The input is a grid with a halo of one point on each side. A 3 x 3 convolution without padding computes the stencil
// at each point that is not in the halo. A 2-D array is passed as a batch of one sample with one channel.
TEST(Convolution, OfAHaloFieldIsItsStencil) {
  const HostContext context;
  constexpr std::int64_t kRows = 6, kColumns = 7;
  const NewModel model(context, LOCKSTEP_F64, {kRows + 2, kColumns + 2, 1});
  std::int32_t node = 0;
  add_layer(model, "conv2d", "stencil", node, 1);
  EXPECT_EQ(node, 1);
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 3)));
  std::vector<double> weight{0, 0.25, 0.5, -1, 2, 0.125, 3, -0.75, 1};
  ASSERT_TRUE(ok(write(model, "stencil.weight", View(weight.data(), {1, 1, 3, 3}))));
  const std::vector<double> u = drawn((kRows + 2) * (kColumns + 2));
  std::vector<double> v(kRows * kColumns);
  const View in(u.data(), {kRows + 2, kColumns + 2}, "hw"), out(v.data(), {kRows, kColumns}, "hw");
  ASSERT_TRUE(ok(infer(model, in, out)));
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      double sum = 0;
      for (std::int64_t a = 0; a < 3; ++a) {
        for (std::int64_t b = 0; b < 3; ++b) {
          sum += weight[static_cast<std::size_t>(3 * a + b)] *
                 u[static_cast<std::size_t>((row + a) * (kColumns + 2) + column + b)];
        }
      }
      EXPECT_NEAR(v[static_cast<std::size_t>(row * kColumns + column)], sum, 1e-14);
    }
  }
}

// Layers for samples with planes, rows and columns, in f32. The first convolution only shifts its input by one column,
// so the expected output is simple. The tests of nn check what each layer computes.
TEST(Convolution, OfAFieldWithPlanes) {
  const HostContext context;
  constexpr std::int64_t kPlanes = 5, kRows = 4, kColumns = 3;
  const NewModel model(context, LOCKSTEP_F32, {kPlanes, kRows, kColumns, 1});
  lockstep_layer_options options = layer_options([](auto& o) { o.pad[0] = 1; });
  std::int32_t node = 0;
  add_layer(model, "conv3d", "move", node, 1, &options);
  add_layer(model, "conv_transpose3d", "spread", node, 1);
  add_layer(model, "max_pool3d", "max", node);
  options.pad[0] = 0;
  options.kernel[0] = 1;
  add_layer(model, "average_pool3d", "mean", node, 0, &options);
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 3)));
  std::vector<float> weight(27), corners{1, 2, 3, 4, 5, 6, 7, -8};
  weight[9 + 3 + 2] = 1;  // copies the pixel of the next column
  ASSERT_TRUE(ok(write(model, "move.weight", View(weight.data(), {1, 1, 3, 3, 3}))));
  ASSERT_TRUE(ok(write(model, "spread.weight", View(corners.data(), {1, 1, 2, 2, 2}))));
  const std::vector<float> u = drawn<float>(kPlanes * kRows * kColumns);
  std::vector<float> v(u.size());
  const View in(u.data(), {kPlanes, kRows, kColumns}, "dhw"), out(v.data(), {kPlanes, kRows, kColumns}, "dhw");
  ASSERT_TRUE(ok(infer(model, in, out)));
  for (std::size_t i = 0; i < v.size(); ++i) {
    const float moved = i % kColumns + 1 < kColumns ? u[i + 1] : 0;
    EXPECT_NEAR(v[i], moved >= 0 ? 7 * moved : -8 * moved, 1e-5F) << i;
  }
  const NewModel other(context, LOCKSTEP_F32, {6, 2});
  node = 0;
  for (const char* kind : {"conv1d", "max_pool1d", "conv_transpose1d", "average_pool1d"}) {  // 6, 4, 2, 4, 2
    add_layer(other, kind, kind, node, std::strncmp(kind, "conv", 4) == 0 ? 2 : 0);
  }
  ASSERT_TRUE(ok(lockstep_model_initialise(other, 3)));
  EXPECT_TRUE(ok(infer(other, View(u.data(), {3, 6, 2}), View(v.data(), {3, 2, 2}))));
}

/// Returns the output, channels first, of a model with one layer. Parameters and input are those of
/// tests/nn/model/fields_test.cpp.
std::vector<double> one_layer(lockstep_context context, const std::vector<std::int64_t>& sample, const char* kind,
                              std::int64_t channels, const lockstep_layer_options& options,
                              const std::vector<std::int64_t>& result) {
  const NewModel model(context, LOCKSTEP_F64, sample);
  std::int32_t node = 0;
  add_layer(model, kind, "c", node, channels, &options);
  EXPECT_TRUE(ok(lockstep_model_initialise(model, 3)));
  std::int32_t parameters = 0;
  EXPECT_TRUE(ok(lockstep_parameter_count(model, &parameters)));
  const auto filled = [](const std::vector<std::int64_t>& shape, std::int64_t a, std::int64_t m, std::int64_t b,
                         int c) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= extent;
    }
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<double>(i * a % m - b) / c);
    }
    return values;
  };
  for (std::int32_t i = 0; i < parameters; ++i) {
    lockstep_parameter info{};
    info.struct_size = sizeof info;
    EXPECT_TRUE(ok(lockstep_parameter_info(model, i, &info)));
    const std::vector<std::int64_t> shape(info.shape, info.shape + info.ndim);
    const std::vector<double> values = info.ndim == 1 ? filled(shape, 3, 7, 3, 2) : filled(shape, 5, 13, 6, 8);
    EXPECT_TRUE(ok(write(model, info.name, View(values.data(), shape))));
  }
  const char* const axes = sample.size() == 4 ? "cdhw" : sample.size() == 3 ? "chw" : "ct";
  std::vector<std::int64_t> turned{sample.back()};
  turned.insert(turned.end(), sample.begin(), sample.end() - 1);
  const std::vector<double> x = filled(turned, 7, 11, 5, 4);
  std::vector<double> y = filled(result, 0, 1, 77, 1);
  EXPECT_TRUE(ok(infer(model, View(x.data(), turned, axes), View(y.data(), result, axes))));
  return y;
}

std::vector<double> times(std::vector<double> values, double factor) {
  for (double& value : values) {
    value *= factor;
  }
  return values;
}

// Options that differ between the axes. The expected numbers are those of PyTorch 2.15, as in
// tests/nn/model/fields_test.cpp, where the C++ interface computes the same layers:
//   conv3d(x(1, 2, 3, 4, 5), w(2, 2, 1, 3, 3), b(2), stride=(1, 2, 2), padding=(0, 1, 1)) * 32
//   conv_transpose3d(x(1, 2, 2, 2, 3), w(2, 1, 1, 2, 3), b(1), stride=(1, 2, 2), padding=(0, 0, 1),
//                    output_padding=(0, 1, 0)) * 32
//   max_pool3d(x(1, 2, 3, 4, 5), (1, 2, 3), (1, 2, 1), (0, 1, 1)) * 4
TEST(Convolution, ANumberForEachAxis) {
  const HostContext context;
  const auto put = [](std::int32_t(&to)[3], std::int32_t a, std::int32_t b, std::int32_t c) {
    to[0] = a, to[1] = b, to[2] = c;
  };
  const lockstep_layer_options conv = layer_options([&](auto& o) {
    o.bias = LOCKSTEP_BIAS_WITH;
    put(o.kernel, 1, 3, 3);
    put(o.stride, 0, 2, 2);  // 0: the default, 1
    put(o.pad, 0, 1, 1);
  });
  EXPECT_EQ(
      times(one_layer(context, {3, 4, 5, 2}, "conv3d", 2, conv, {2, 3, 2, 3}), 32),
      (std::vector<double>{-57, -34, -104, -48, -56, 39,  -53, -41, -86, -92, -82, -36, -82, -37, -24, -15, -64, -100,
                           -41, 14,  -24,  26,  108, -14, 47,  -29, -43, -76, -8,  122, -8,  71,  -7,  -35, -80, -39}));
  lockstep_layer_options transpose = layer_options([&](auto& o) {
    o.bias = LOCKSTEP_BIAS_WITH;
    put(o.kernel, 1, 2, 3);
    put(o.stride, 1, 2, 2);
    put(o.pad, 0, 0, 1);
    put(o.output_pad, 0, 1, 0);
  });
  EXPECT_EQ(times(one_layer(context, {2, 2, 3, 2}, "conv_transpose3d", 1, transpose, {1, 2, 5, 5}), 32),
            (std::vector<double>{-37, -86, -56, -28, -31, -43, -92, -56, -22, -25, -50, -33, -58, -19, -33, -38, -25,
                                 -62, -21, -31, -48, -48, -48, -48, -48, -52, -24, -60, -10, -35, -44, -24, -68, -20,
                                 -37, -54, -15, -62, -1,  -37, -50, -23, -74, -19, -43, -48, -48, -48, -48, -48}));
  // A program with an older header has a struct without output_pad. The bytes after this struct must not be read.
  transpose.struct_size = offsetof(lockstep_layer_options, output_pad);
  const std::vector<double> without = one_layer(context, {2, 2, 3, 2}, "conv_transpose3d", 1, transpose, {1, 2, 4, 5});
  EXPECT_EQ(without[0] * 32, -37);
  const lockstep_layer_options pool = layer_options([&](auto& o) {
    put(o.kernel, 1, 2, 3);
    put(o.stride, 1, 2, 1);
    put(o.pad, 0, 1, 1);
  });
  const std::vector<double> pooled = times(one_layer(context, {3, 4, 5, 2}, "max_pool3d", 0, pool, {2, 3, 3, 5}), 4);
  EXPECT_EQ(std::vector<double>(pooled.begin(), pooled.begin() + 10),
            (std::vector<double>{2, 2, 5, 5, 5, 4, 4, 4, 5, 5}));
  // In options, 0 stands for a default. The default stride of pools and conv_transpose is the kernel. After the first
  // axis, 0 means the same value as for the first axis, and -1 in pad means a true 0. infer fails if the output does
  // not have the shape `result`, so each call below checks the effect of its options.
  const auto shape = [&](const char* kind, const std::vector<std::int64_t>& sample,
                         const std::function<void(lockstep_layer_options&)>& set,
                         const std::vector<std::int64_t>& result) {
    one_layer(context, sample, kind, std::strncmp(kind, "conv", 4) == 0 ? result[0] : 0, layer_options(set), result);
  };
  shape("average_pool3d", {4, 6, 6, 2}, [&](auto& o) { put(o.kernel, 1, 2, 3); }, {2, 4, 3, 2});
  shape("conv_transpose3d", {2, 2, 2, 2}, [&](auto& o) { put(o.kernel, 3, 0, 1); }, {2, 6, 6, 2});
  shape("conv3d", {4, 6, 6, 2}, [&](auto& o) { put(o.pad, 1, -1, 2); }, {2, 4, 4, 8});
  shape("conv3d", {4, 6, 6, 2}, [&](auto& o) { put(o.pad, 1, 0, -1); }, {2, 4, 6, 4});
  shape("conv2d", {9, 8, 4}, [&](auto& o) { put(o.dilation, 1, 2, 0), o.groups = 2; }, {6, 7, 4});
  shape("max_pool", {6, 8, 2}, [&](auto& o) { put(o.kernel, 2, 4, 2); }, {2, 3, 2});
  shape("conv1d", {9, 2}, [&](auto& o) { put(o.kernel, 3, 3, 3), put(o.stride, 2, 0, 0); }, {5, 4});
}

// All kinds of layers in one model. This test checks only that each name adds the right kind of layer; the tests of nn
// check what a layer computes.
TEST(Layers, EachKindIsThere) {
  const HostContext context;
  const NewModel model(context, LOCKSTEP_F32, {8, 8, 3});
  int number = 0;
  const auto add = [&](const char* kind, std::vector<std::int32_t> inputs, std::int64_t size,
                       const std::function<void(lockstep_layer_options&)>& set = {}) {
    const lockstep_layer_options options = layer_options(set);
    const std::string name = "layer" + std::to_string(number++);
    std::int32_t node = -1;
    EXPECT_TRUE(ok(lockstep_model_add(model, kind, 0, name.c_str(), 0, inputs.data(),
                                      static_cast<std::int32_t>(inputs.size()), size, &options, &node)))
        << kind;
    return node;
  };
  const std::int32_t conv = add("conv2d", {0}, 8, [](auto& o) { o.pad[0] = 1; });
  const std::int32_t norm = add("batch_norm", {conv}, 0, [](auto& o) { o.activation = LOCKSTEP_ACTIVATION_RELU; });
  const std::int32_t sum = add("add", {conv, norm}, 0);
  const std::int32_t pool = add("max_pool", {sum}, 0);
  const std::int32_t mean = add("average_pool", {pool}, 0);
  const std::int32_t active = add("activation", {mean}, 0, [](auto& o) { o.activation = LOCKSTEP_ACTIVATION_GELU; });
  const std::int32_t global = add("global_average_pool", {active}, 0);
  const std::int32_t hidden = add("linear", {global}, 8);
  const std::int32_t residual = add("linear", {hidden, hidden}, 8);
  const std::int32_t layer_norm = add("layer_norm", {residual}, 0);
  add("dropout", {layer_norm}, 0, [](auto& o) { o.rate = 0.5; });
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
  std::vector<float> x(2 * 8 * 8 * 3, 0.5F), y(2 * 8, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(ok(infer(model, View(x.data(), {2, 8, 8, 3}), View(y.data(), {2, 8}))));
  float sum_of_sample = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(y[i], y[8 + i]);
    sum_of_sample += y[i];
  }
  EXPECT_NEAR(sum_of_sample, 0, 1e-4);  // layer_norm makes the sum 0, and dropout has no effect in inference
}

TEST_F(InferenceTest, BadInput) {
  std::vector<double> x(6), y(4);
  const auto infer = [&](View in, View out) { return lockstep_infer(model, &in, &out, nullptr); };
  const View good_in(x.data(), {2, 3});
  const View good_out(y.data(), {2, 2});
  EXPECT_TRUE(ok(infer(good_in, good_out)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {3, 2}), good_out), {"2 features", "model mlp takes 3"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(good_in, View(y.data(), {1, 2})), {"output", "1 samples", "expected 2"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {2, 3}, "nq"), good_out), {"'q'", "model mlp"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {3, 3}, "cc"), good_out), {"two axes 'c'"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {2, 2}, "cc"), good_out), {"two axes 'c'"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {-2, 3}), good_out), {"in: shape is (-2, 3)"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {INT64_MAX, 3}), good_out), {"2^63"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(View(x.data(), {2, 3}, "nc", {INT64_MIN, 1}), good_out), {"address"}));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_SHAPE, infer(View(static_cast<double*>(nullptr), {2, 3}), good_out), {"data is NULL"}));
  const View odd(reinterpret_cast<double*>(reinterpret_cast<char*>(x.data()) + 4), {2, 3});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(odd, good_out), {"in: data is at", "multiple of 8"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(good_in, View(y.data(), {2, 2}, "nc", {0, 1})), {"out", "twice"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, infer(good_in, View(y.data(), {2, 2}, "nc", {1, 1})), {"out", "twice"}));
  View typed(x.data(), {2, 3});
  typed.get()->dtype = 99;
  View out(good_out);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_DTYPE, lockstep_infer(model, typed.get(), &out, nullptr), {"in: dtype is 99"}));
  lockstep_view deep = *View(x.data(), {2, 3}).get();
  deep.ndim = 9;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_infer(model, &deep, &out, nullptr), {"in: ndim is 9"}));
  deep.ndim = 2;
  deep.shape = nullptr;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_infer(model, &deep, &out, nullptr), {"in: shape is NULL"}));
  View device(x.data(), {2, 3});
  lockstep_view there = *device.get();
  there.device_type = LOCKSTEP_CUDA;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_DEVICE, lockstep_infer(model, &there, &out, nullptr), {"in is on cuda:0", "cpu"}));
  there.device_type = 10;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_DEVICE, lockstep_infer(model, &there, &out, nullptr), {"device_type is 10"}));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, lockstep_infer(model, nullptr, &out, nullptr), {"lockstep_infer: in is NULL"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_infer_many(model, &deep, &deep, -1, nullptr), {"views is -1"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_prepare(model, 0), {"max_batch is 0"}));
  View scalar(x.data(), {3});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_parameter_read(model, "1.weight", 0, &scalar), {"1.weight", "(3)"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_read(model, "none", 0, &scalar), {"'none'"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_read(model, nullptr, 0, &scalar), {"name is NULL"}));
  View lettered(x.data(), {2}, "n");
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_parameter_read(model, "2.bias", 0, &lettered), {"axes are 'n'"}));
  lockstep_parameter info{};
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_info(model, 0, &info), {"size is 0"}));
  info.struct_size = sizeof info;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_info(model, 4, &info), {"index is 4", "0 to 3"}));
}

TEST(Layers, BadInput) {
  const HostContext context;
  const std::int64_t shape[] = {8, 8, 3};
  Model model;
  const std::int64_t wide[] = {2, 2, 2, 2, 2};
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_model_create(context, LOCKSTEP_F32, wide, 5, &model), {"5 axes"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_DTYPE, lockstep_model_create(context, LOCKSTEP_I32, shape, 3, &model), {"i32"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_mlp(context, LOCKSTEP_F32, shape, 1, 0, &model), {"n is 1"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_mlp(context, LOCKSTEP_F32, shape, 3, 77, &model),
                    {"activation is 77"}));
  EXPECT_EQ(static_cast<lockstep_model>(model), nullptr);
  ASSERT_TRUE(ok(lockstep_model_create(context, LOCKSTEP_F32, shape, 3, &model)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_model_initialise(model, 1), {"no layers"}));
  const std::int32_t zero = 0;
  const std::int32_t far = 5;
  lockstep_layer_options options = layer_options();
  const auto add = [&](const char* kind, const std::int32_t* input, std::int64_t size) {
    return lockstep_model_add(model, kind, 0, "a", 0, input, 1, size, &options, nullptr);
  };
  EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, add("lstm", &zero, 3), {"'lstm'", "conv2d"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("linear", &far, 3), {"inputs[0] is 5", "0 to 0"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("linear", &zero, 0), {"size is 0"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("add", &zero, 0), {"1 inputs", "2 to 2"}));
  options.kernel[0] = 3;
  options.kernel[1] = 5;
  options.kernel[2] = 5;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 3), {"kernel[2] is 5", "conv2d has 2 axes"}));
  options.kernel[1] = -1;
  options.kernel[2] = 0;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 3), {"layer a: kernel[1] is -1", "at least 0"}));
  options.kernel[1] = 0;
  options.pad[0] = -1;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 3), {"pad[0] is -1", "at least 0"}));
  options.pad[0] = 1;
  options.pad[1] = -2;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("max_pool", &zero, 0), {"pad[1] is -2", "-1 for none"}));
  options.pad[0] = options.pad[1] = 0;
  options.groups = 2;
  // Refused, because 3 input channels cannot be divided into 2 groups.
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, add("conv2d", &zero, 4), {"layer a", "padding"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, add("max_pool", &zero, 0), {"groups is 2"}));
  options.groups = -1;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 4), {"groups is -1, expected at least 0"}));
  options.groups = 0;
  options.dilation[1] = 2;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, add("max_pool", &zero, 0), {"dilation is 2"}));
  options.dilation[1] = 0;
  options.output_pad[0] = 1;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, add("conv2d", &zero, 3), {"output_pad is 1"}));
  options.stride[0] = 1;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, add("conv_transpose2d", &zero, 3), {"output_pad is 1", "the stride 1"}));
  options.stride[0] = options.output_pad[0] = 0;
  options.share = 2;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 3), {"share is 2, expected 0 or 1"}));
  options.share = 1;
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 3), {"layer a: share is 1", "a layer of this name before"}));
  options.share = 0;
  options.kernel[0] = 20;
  EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, add("conv2d", &zero, 3)));
  options.kernel[0] = 3;
  EXPECT_TRUE(ok(add("conv2d", &zero, 3)));  // the refused layers left nothing in the model
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, add("conv2d", &zero, 3), {"layer a: another layer has this name", "share"}));
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, add("linear", &zero, 3), {"no more layers"}));
}

// Two layers of one name share parameters only if option `share` is set. A struct of an older version ends before
// `share`; lockstep must then take 0 for `share`.
TEST(Model, LayersShareParametersWhereTheySaySo) {
  const HostContext context;
  const BareMlp model(context, {2, 2}, LOCKSTEP_F64, LOCKSTEP_ACTIVATION_NONE);
  const std::int32_t node = 1;
  lockstep_layer_options options{};
  const auto add = [&](std::uint32_t size) {
    options.struct_size = size;
    return lockstep_model_add(model, "linear", 0, "1", 0, &node, 1, 2, &options, nullptr);
  };
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_add(model, "linear", 0, "1", 0, &node, 1, 2, nullptr, nullptr),
                    {"layer 1: another layer has this name"}));
  options.share = 1;
  EXPECT_TRUE(is(LOCKSTEP_ERR_INVALID, add(offsetof(lockstep_layer_options, output_pad))));
  ASSERT_TRUE(ok(add(sizeof options)));
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
  std::int32_t count = 0;
  ASSERT_TRUE(ok(lockstep_parameter_count(model, &count)));
  EXPECT_EQ(count, 2);
  double twice[] = {2, 0, 0, 2}, one[] = {1, 1}, x[] = {1, 5}, y[] = {0, 0};  // the model computes 2 (2 x + 1) + 1
  ASSERT_TRUE(ok(write(model, "1.weight", View(twice, {2, 2}))));
  ASSERT_TRUE(ok(write(model, "1.bias", View(one, {2}))));
  ASSERT_TRUE(ok(infer(model, View(x, {1, 2}), View(y, {1, 2}))));
  EXPECT_EQ(y[0], 7);
  EXPECT_EQ(y[1], 23);
}

/// Without padding, a net's output at a point depends only on the neighbourhood of the point. So the model for a large
/// grid, and the same model reshaped for a small part of this grid, must have equal outputs in this part. Both models
/// share their parameters.
TEST(Reshape, ComputesWithTheSameParametersAtOtherExtents) {
  const HostContext context, own;
  const SelfComm comm(context);
  const NewModel model(context, LOCKSTEP_F64, {9, 8, 2});
  std::int32_t node = 0;
  const lockstep_layer_options tanh = layer_options([](auto& o) { o.activation = LOCKSTEP_ACTIVATION_TANH; });
  add_layer(model, "conv2d", "1", node, 4);
  add_layer(model, "activation", "tanh", node, 0, &tanh);
  add_layer(model, "batch_norm", "norm", node);
  add_layer(model, "conv2d", "2", node, 1);
  Model early;
  const std::int64_t extents[] = {5, 6, 2}, flat[] = {7}, negative[] = {5, -6, 2};
  EXPECT_TRUE(is(LOCKSTEP_ERR_STATE, lockstep_model_reshape(model, extents, 3, own, &early)));
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 3)));
  Model small;
  ASSERT_TRUE(ok(lockstep_model_reshape(model, extents, 3, own, &small)));
  std::vector<double> x = drawn(9 * 8 * 2), y(5 * 4), part(1 * 2);
  const auto compare = [&] {
    ASSERT_TRUE(ok(infer(model, View(x.data(), {9, 8, 2}, "hwc"), View(y.data(), {5, 4, 1}, "hwc"))));
    // Infers rows 3 to 7 and columns 1 to 6 of the large grid, in place.
    ASSERT_TRUE(ok(
        infer(small, View(x.data() + 3 * 16 + 2, {5, 6, 2}, "hwc", {16, 2, 1}), View(part.data(), {1, 2, 1}, "hwc"))));
    EXPECT_NEAR(part[0], y[3 * 4 + 1], 1e-14);
    EXPECT_NEAR(part[1], y[3 * 4 + 2], 1e-14);
  };
  compare();
  const NewTrainer trainer(model, comm, descent(1));
  std::vector<double> target = drawn(20, 77);
  ASSERT_TRUE(ok(add(trainer, View(x.data(), {1, 9, 8, 2}), View(target.data(), {1, 5, 4, 1}))));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
  const double before = part[0];
  compare();  // the reshaped model uses the new parameters and statistics
  EXPECT_NE(part[0], before);
  Model third, none;
  ASSERT_TRUE(ok(lockstep_model_reshape(small, extents, 3, context, &third))) << "of a reshaped model";
  Trainer refused;
  const lockstep_trainer_options options = descent(1);
  EXPECT_TRUE(is(LOCKSTEP_ERR_UNSUPPORTED, lockstep_trainer_create(third, comm, &options, &refused)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_model_reshape(model, negative, 3, own, &none), {"(5, -6, 2)"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_model_reshape(model, flat, 0, own, &none), {"0 axes"}));
  EXPECT_TRUE(is(LOCKSTEP_ERR_SHAPE, lockstep_model_reshape(model, flat, 1, own, &none)));
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, lockstep_model_reshape(model, nullptr, 3, own, &none), {"sample_shape is NULL"}));
  const Mlp mlp(context, {4, 3});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_SHAPE, lockstep_model_reshape(mlp, flat, 1, own, &none),
                    {"parameter '1.weight' would be (3, 7)", "expected (3, 4)"}));
}

}  // namespace
}  // namespace host
