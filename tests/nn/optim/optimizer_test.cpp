// Tests optimizers over a ParameterSet: their states, the parameters after several steps, and clipping.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/nn/optim/orthogonalizer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

/// Sets each gradient to f(parameter, element).
template <class F>
void set_gradients(const ParameterSet& set, F f) {
  for (std::size_t i = 0; i < set.parameters().size(); ++i) {
    const TensorView view = set.gradient(static_cast<int>(i));
    std::vector<double> values(static_cast<std::size_t>(view.numel()));
    for (std::size_t j = 0; j < values.size(); ++j) {
      values[j] = f(i, j);
    }
    testing::from_doubles(values, view);
  }
}

/// A small parameter set in f64. Its weights decay, and its biases do not.
struct Small {
  explicit Small(const OptimizerOptions& options, DType dtype = DType::f64)
      : set(context, mlp({4, 4, 3}, {5}, 3), dtype, {.weight_decay = 0.1, .decay_all = false}),
        optimizer(context, set, options) {
    set.initialise(context, 3);
  }
  /// Fills in the gradients of step `number`, which are the same in every run. Padding stays zero.
  void fill_gradients(int number, double scale = 1) {
    set_gradients(set, [&](std::size_t i, std::size_t j) {
      return scale * std::sin(static_cast<double>(1 + 7 * i + 3 * j) * (number + 1));
    });
  }
  void step(double learning_rate) { optimizer.update(context, TensorView(std::span(&learning_rate, 1), Shape{})); }
  /// Makes an update with the gradients of step `number`. If `bad` is given, it replaces one gradient, which must be
  /// f32.
  void train(int number, double scale = 1, std::optional<float> bad = {}) {
    fill_gradients(number, scale);
    if (bad) {
      set.gradients().span<float>()[1] = *bad;
    }
    step(0.1);
  }
  [[nodiscard]] double gradient_norm() const {
    double sum = 0;
    for (const double g : testing::to_doubles(set.gradients())) {
      sum += g * g;
    }
    return std::sqrt(sum);
  }
  [[nodiscard]] std::int64_t updates() const { return set.state("step").span<std::int64_t>()[0]; }

  CpuContext context;
  ParameterSet set;
  Optimizer optimizer;
};

TEST(Optimizer, ItsStatesHaveTheNamesOfPyTorch) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(Small({}).set.state_names(), Names{"momentum_buffer"});
  EXPECT_EQ(Small({.momentum = 0}).set.state_names(), Names{});
  EXPECT_EQ(Small({}).set.states().find("step"), nullptr);
  EXPECT_EQ(Small({.kind = OptimizerKind::lars}).set.state_names(), Names{"momentum_buffer"});
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::muon}) {
    const Small small({.kind = kind});
    EXPECT_EQ(small.set.state_names(), (Names{"exp_avg", "exp_avg_sq"}));
    EXPECT_NE(small.set.states().find("step"), nullptr);
    EXPECT_EQ(small.updates(), 0);
  }
}

TEST(Optimizer, NamesCanBeParsed) {
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    EXPECT_EQ(parse_optimizer(name_of(kind)), kind);
  }
  EXPECT_EQ(name_of(OptimizerKind::sgd), "sgd");
  EXPECT_EQ(name_of(OptimizerKind::muon), "muon");
  EXPECT_EQ(testing::optimizer_kinds().size(), 5U);
  EXPECT_THROW((void)parse_optimizer("Adam"), UsageError);
}

/// Returns the parameters after five steps of Adam or AdamW, parameter by parameter as in the papers. The gradients of
/// step 3 are multiplied by `factor_of_step_3`.
std::vector<double> adam_by_hand(const OptimizerOptions& o, double factor_of_step_3 = 1) {
  Small small(o);
  std::vector<double> p = testing::to_doubles(small.set.values());
  std::vector<double> m(p.size());
  std::vector<double> v(p.size());
  std::vector<double> decay(p.size());
  for (const ops::ArenaSegment& s : small.set.segments()) {
    for (std::int64_t i = s.offset; i < s.offset + s.count; ++i) {
      decay[static_cast<std::size_t>(i)] = s.weight_decay;
    }
  }
  for (int t = 1; t <= 5; ++t) {
    small.fill_gradients(t);
    const std::vector<double> gradients = testing::to_doubles(small.set.gradients());
    for (std::size_t i = 0; i < p.size(); ++i) {
      double g = gradients[i] * (t == 3 ? factor_of_step_3 : 1);
      if (o.kind == OptimizerKind::adamw) {
        p[i] -= 0.01 * decay[i] * p[i];
      } else {
        g += decay[i] * p[i];
      }
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      p[i] -= 0.01 * (m[i] / (1 - std::pow(o.beta1, t))) / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.epsilon);
    }
  }
  return p;
}

TEST(Optimizer, FiveStepsOfAdamAreThoseOfThePapers) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adamw}) {
    const OptimizerOptions options{.kind = kind, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6};
    Small small(options);
    const std::vector<double> before = testing::to_doubles(small.set.values());
    for (int t = 1; t <= 5; ++t) {
      small.fill_gradients(t);
      small.step(0.01);
      EXPECT_EQ(small.updates(), t);
    }
    const std::vector<double> expected = adam_by_hand(options);
    const Shape shape{small.set.numel()};
    testing::expect_close(small.set.values(), TensorView(std::span(expected), shape), 1e-14);
    EXPECT_FALSE(testing::is_close(TensorView(std::span(before), shape), TensorView(std::span(expected), shape), 1e-3));
    const std::vector<double> other = adam_by_hand(options, 1.0001);
    EXPECT_FALSE(testing::is_close(TensorView(std::span(other), shape), TensorView(std::span(expected), shape), 1e-14));
  }
}

/// Returns an approximation of U V^T for a matrix M = U S V^T (rows, columns). Scales M to the Frobenius norm 1. Then
/// sets five times M = 3.4445 M - 4.775 M M^T M + 2.0315 M M^T M M^T M. Uses plain loops, in double.
std::vector<double> orthogonalised(std::vector<double> x, std::size_t rows, std::size_t columns) {
  double squares = 0;
  for (const double value : x) {
    squares += value * value;
  }
  for (double& value : x) {
    value /= std::max(std::sqrt(squares), 1e-7);
  }
  for (int iteration = 0; iteration < 5; ++iteration) {
    const auto with_gram = [&](const std::vector<double>& m) {  // returns (x x^T) m
      std::vector<double> result(m.size());
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < rows; ++j) {
          double gram = 0;
          for (std::size_t c = 0; c < columns; ++c) {
            gram += x[i * columns + c] * x[j * columns + c];
          }
          for (std::size_t c = 0; c < columns; ++c) {
            result[i * columns + c] += gram * m[j * columns + c];
          }
        }
      }
      return result;
    };
    const std::vector<double> third = with_gram(x);
    const std::vector<double> fifth = with_gram(third);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 3.4445 * x[i] - 4.775 * third[i] + 2.0315 * fifth[i];
    }
  }
  return x;
}

/// Returns a model of three matrices: a convolution (6, 3 x 3, 3), which is wide and stored with padding; a linear
/// layer (40, 6), which is tall; and a last layer. Muon updates the last layer and all biases with adamw.
Model with_matrices() {
  ModelBuilder builder("matrices", {4, 4, 3});
  NodeId x = builder.conv2d("conv", builder.input(), 6, {.kernel = 3, .pad = 1, .bias = true});
  x = builder.linear("fc1", builder.global_average_pool("pool", x), 40);
  builder.linear("fc2", x, 3);
  return builder.build();
}

TEST(Optimizer, FiveStepsOfMuonOrthogonaliseHiddenMatrices) {
  CpuContext context;
  const OptimizerOptions options{.kind = OptimizerKind::muon, .momentum = 0.8, .nesterov = true, .epsilon = 1e-6};
  const ParameterSetOptions how{.weight_decay = 0.1, .groups = {.rates = {{"fc1.*", 0.5}}}};
  ParameterSet set(context, with_matrices(), DType::f64, how);
  Optimizer optimizer(context, set, options);
  ParameterSet adamw_set(context, with_matrices(), DType::f64, how);
  Optimizer adamw(context, adamw_set, {.kind = OptimizerKind::adamw, .epsilon = 1e-6});
  set.initialise(context, 3);
  adamw_set.initialise(context, 3);
  std::vector<std::vector<double>> values;
  std::vector<std::vector<double>> velocity;
  for (std::size_t i = 0; i < set.parameters().size(); ++i) {
    values.push_back(testing::to_doubles(set.value(static_cast<int>(i))));
    velocity.emplace_back(values.back().size());
  }
  double rate = 0.01;
  const TensorView learning_rate(std::span(&rate, 1), Shape{});
  for (int t = 1; t <= 5; ++t) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::vector<double> g(values[i].size());
      const ParameterSpec& spec = set.parameters()[i].spec;
      const auto stored = static_cast<std::size_t>(spec.stored_shape().back());
      const auto used = static_cast<std::size_t>(spec.dims[spec.axes.back()]);
      for (std::size_t j = 0; j < g.size(); ++j) {
        g[j] = j % stored < used ? std::sin(static_cast<double>(1 + 7 * i + 3 * j * j) * t) : 0;
      }
      testing::from_doubles(g, set.gradient(static_cast<int>(i)));
      testing::from_doubles(g, adamw_set.gradient(static_cast<int>(i)));
      const auto rows = static_cast<std::size_t>(spec.shape[0]);
      std::vector<double> direction(g.size());
      for (std::size_t j = 0; j < g.size(); ++j) {
        velocity[i][j] = 0.8 * velocity[i][j] + 0.2 * g[j];
        direction[j] = 0.2 * g[j] + 0.8 * velocity[i][j];
      }
      const std::size_t columns = g.size() / rows;
      direction = orthogonalised(direction, rows, columns);
      const double longer = static_cast<double>(std::max(spec.shape[0], spec.shape.numel() / spec.shape[0]));
      const double own_rate = rate * (spec.name.starts_with("fc1.") ? 0.5 : 1);
      for (std::size_t j = 0; j < g.size(); ++j) {
        values[i][j] -= own_rate * (0.2 * std::sqrt(longer) * direction[j] + 0.1 * values[i][j]);
      }
    }
    optimizer.update(context, learning_rate);
    adamw.update(context, learning_rate);
  }
  int matrices = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& name = set.parameters()[i].spec.name;
    const TensorView now = set.value(static_cast<int>(i));
    const TensorView by_hand(std::span(values[i]), now.shape);
    if (name == "conv.weight" || name == "fc1.weight") {
      ++matrices;
      testing::expect_close(now, by_hand, 1e-12);
    } else {
      testing::expect_same_bits(now, adamw_set.value(static_cast<int>(i)), name);
      EXPECT_FALSE(testing::is_close(now, by_hand, 1e-3)) << name;
    }
  }
  EXPECT_EQ(matrices, 2);
  EXPECT_THROW(optimizer.update(context, learning_rate, 0, 64), ShapeError);
}

/// Returns how far the convolution's matrix moves in two updates whose gradients are multiplied by `scale`.
double movement_of_muon(double scale, DType dtype) {
  CpuContext context;
  ParameterSet set(context, with_matrices(), dtype);
  Optimizer optimizer(context, set, {.kind = OptimizerKind::muon, .momentum = 0.9, .nesterov = true});
  set.initialise(context, 3);
  const auto& all = set.parameters();
  const auto conv = std::find_if(all.begin(), all.end(), [](const auto& p) { return p.spec.name == "conv.weight"; });
  const TensorView matrix = set.value(static_cast<int>(conv - all.begin()));
  const std::vector<double> before = testing::to_doubles(matrix);
  double rate = 0.1;
  for (int t = 1; t <= 2; ++t) {
    set_gradients(set, [&](std::size_t i, std::size_t j) {
      return scale * std::sin(static_cast<double>(1 + 7 * i + 3 * j * j) * t);
    });
    optimizer.update(context, TensorView(std::span(&rate, 1), Shape{}));
  }
  const std::vector<double> after = testing::to_doubles(matrix);
  double squares = 0;
  for (std::size_t j = 0; j < after.size(); ++j) {
    squares += (after[j] - before[j]) * (after[j] - before[j]);
  }
  return std::sqrt(squares);
}

TEST(Optimizer, MuonMovesAsFarWhateverTheScaleOfTheGradients) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double wanted = movement_of_muon(1, dtype);
    EXPECT_GT(wanted, 0.1);
    for (const double scale : {1e10, 1e-6, 1e-9, 1e-12, 1e-20, 1e-30}) {
      EXPECT_NEAR(movement_of_muon(scale, dtype), wanted, 1e-4 * wanted) << scale;
    }
    EXPECT_EQ(movement_of_muon(0, dtype), 0);
  }
}

/// Returns the names of the parameters whose update by muon differs from the update by adamw.
std::vector<std::string> orthogonal_of(const Model& model) {
  CpuContext context;
  ParameterSet sets[] = {{context, model, DType::f64}, {context, model, DType::f64}};
  Optimizer optimizers[] = {{context, sets[0], {.kind = OptimizerKind::muon}},
                            {context, sets[1], {.kind = OptimizerKind::adamw}}};
  double rate = 0.01;
  for (std::size_t k = 0; k < 2; ++k) {
    sets[k].initialise(context, 3);
    std::vector<double> g(static_cast<std::size_t>(sets[k].trainable_numel()));
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = std::sin(static_cast<double>(i));
    }
    testing::from_doubles(g, sets[k].gradients());
    optimizers[k].update(context, TensorView(std::span(&rate, 1), Shape{}));
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < sets[0].parameters().size(); ++i) {
    if (!testing::has_same_bits(sets[0].value(static_cast<int>(i)), sets[1].value(static_cast<int>(i)))) {
      names.push_back(sets[0].parameters()[i].spec.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Optimizer, MuonTakesHiddenMatricesAlone) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(orthogonal_of(with_matrices()), (Names{"conv.weight", "fc1.weight"}));
  EXPECT_EQ(orthogonal_of(with_matrices().freezing("fc2")), (Names{"conv.weight", "fc1.weight"}))
      << "the last is frozen";
  EXPECT_EQ(orthogonal_of(with_matrices().freezing("fc1")), (Names{"conv.weight"}));
  EXPECT_EQ(orthogonal_of(mlp({4, 4, 3}, {}, 3)), Names{}) << "no layer is hidden";
  const Names gpt = orthogonal_of(transformer({.vocabulary = 11, .length = 4, .width = 8, .heads = 1, .layers = 1}));
  EXPECT_EQ(gpt.size(), 4U) << "queries, keys and values in one; their projection; two of the MLP";
  for (const std::string& name : gpt) {
    EXPECT_EQ(name.find("wte"), std::string::npos) << name;
    EXPECT_EQ(name.find("wpe"), std::string::npos) << name;
  }
}

/// The test makes M = H D H' from reflections H and H', so its singular values D and its singular vectors are known.
/// Orthogonalisation must apply the polynomial to each singular value and keep the vectors.
TEST(Optimizer, OrthogonalisedMatricesKeepTheirSingularVectors) {
  CpuContext context;
  struct Size {
    std::int64_t rows, columns;
  };
  const Size sizes[] = {{1, 1}, {3, 3}, {2, 7}, {9, 4}, {2, 7}, {1, 5}, {20, 33}, {2, 7}};
  const auto reflection = [](std::int64_t n, double seed) {
    std::vector<double> h(static_cast<std::size_t>(n * n));
    std::vector<double> v(static_cast<std::size_t>(n));
    double length = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      v[static_cast<std::size_t>(i)] = std::sin(seed + static_cast<double>(i));
      length += v[static_cast<std::size_t>(i)] * v[static_cast<std::size_t>(i)];
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        h[static_cast<std::size_t>(i * n + j)] =
            (i == j ? 1 : 0) - 2 * v[static_cast<std::size_t>(i)] * v[static_cast<std::size_t>(j)] / length;
      }
    }
    return h;
  };
  const auto made_of = [&](const Size& size, double seed, const std::vector<double>& singular) {
    const std::vector<double> left = reflection(size.rows, seed);
    const std::vector<double> right = reflection(size.columns, seed + 0.5);
    std::vector<double> m(static_cast<std::size_t>(size.rows * size.columns));
    for (std::int64_t i = 0; i < size.rows; ++i) {
      for (std::int64_t j = 0; j < size.columns; ++j) {
        for (std::size_t s = 0; s < singular.size(); ++s) {
          m[static_cast<std::size_t>(i * size.columns + j)] +=
              left[static_cast<std::size_t>(i * size.rows) + s] * singular[s] *
              right[s * static_cast<std::size_t>(size.columns) + static_cast<std::size_t>(j)];
        }
      }
    }
    return m;
  };
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const DType compute : {dtype, DType::bf16}) {
      if (dtype == DType::f64 && compute == DType::bf16) {
        continue;  // the Orthogonalizer computes in 16 bits only for f32 parameters
      }
      std::vector<Orthogonalizer::Matrix> matrices;
      std::vector<double> arena;
      std::vector<double> expected;
      double seed = 1;
      for (const Size& size : sizes) {
        std::vector<double> singular;
        double squares = 0;
        for (std::int64_t s = 0; s < std::min(size.rows, size.columns); ++s) {
          singular.push_back(3 + static_cast<double>(s % 3));
          squares += singular.back() * singular.back();
        }
        matrices.push_back({static_cast<std::int64_t>(arena.size()), size.rows, size.columns});
        const std::vector<double> before = made_of(size, seed, singular);
        for (double& s : singular) {
          s /= std::sqrt(squares);
          for (int iteration = 0; iteration < 5; ++iteration) {
            s = 3.4445 * s - 4.775 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
          }
          EXPECT_GT(s, 0.65);
          EXPECT_LT(s, 1.25);
        }
        const std::vector<double> after = made_of(size, seed, singular);
        arena.insert(arena.end(), before.begin(), before.end());
        expected.insert(expected.end(), after.begin(), after.end());
        arena.insert(arena.end(), {7, 7, 7});  // lies between two matrices and must not be touched
        expected.insert(expected.end(), {7, 7, 7});
        seed += 1;
      }
      Orthogonalizer orthogonalizer(context, matrices, dtype, compute);
      testing::GuardedTensor memory(Shape{static_cast<std::int64_t>(arena.size())}, dtype);
      memory.assign(arena);
      orthogonalizer.run(context, memory);
      const std::vector<double> found = memory.values();
      const double tolerance = compute == DType::f64 ? 1e-12 : compute == DType::f32 ? 2e-5 : 0.1;
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], tolerance) << compute << ", element " << i;
      }
    }
  }
}

/// Updates must have the same bits for any number of threads, because ranks may have different numbers.
TEST(Optimizer, OrthogonalisedMatricesHaveTheSameBitsForAnyNumberOfThreads) {
  const auto bits = [](int threads) {
    CpuContext context({.threads = threads});
    Orthogonalizer orthogonalizer(context, {{0, 300, 500}, {150000, 500, 300}}, DType::f32, DType::f32);
    testing::GuardedTensor memory(Shape{300000}, DType::f32);
    memory.normal(5);
    orthogonalizer.run(context, memory);
    return memory.values();
  };
  const std::vector<double> one = bits(1);
  EXPECT_EQ(bits(2), one);
  EXPECT_EQ(bits(3), one);
}

TEST(Optimizer, AMatrixOfZerosStays) {
  CpuContext context;
  Orthogonalizer orthogonalizer(context, {{0, 2, 3}}, DType::f32, DType::f32);
  testing::GuardedTensor zeros(Shape{6}, DType::f32);
  zeros.constant(0);
  orthogonalizer.run(context, zeros);
  EXPECT_EQ(zeros.values(), std::vector<double>(6));
}

TEST(Optimizer, RangesOneAfterAnotherAreOneUpdate) {
  for (const OptimizerOptions& options :
       {OptimizerOptions{}, OptimizerOptions{.kind = OptimizerKind::adam, .clip_norm = 1}}) {
    Small whole(options, DType::f32);
    Small parts(options, DType::f32);
    const Small before(options, DType::f32);
    const double rate = 0.1;
    const TensorView learning_rate(std::span(&rate, 1), Shape{});
    for (int t = 0; t < 3; ++t) {
      whole.fill_gradients(t);
      parts.fill_gradients(t);
      whole.optimizer.update(whole.context, learning_rate);
      parts.optimizer.begin(parts.context);
      const std::int64_t middle = parts.set.numel() / 3;
      parts.optimizer.update(parts.context, learning_rate, middle, parts.set.numel());
      parts.optimizer.update(parts.context, learning_rate, 0, middle);
    }
    testing::expect_same_bits(whole.set.values(), parts.set.values());
    EXPECT_FALSE(testing::has_same_bits(whole.set.values(), before.set.values()));
  }
}

TEST(Optimizer, ClippedGradientsHaveTheLargestNormAllowed) {
  // Without momentum and decay an update is the gradient itself.
  for (const double clip_norm : {0.5, 1e9}) {
    Small small({.momentum = 0, .clip_norm = clip_norm});
    ParameterSet& set = small.set;
    Small plain({.momentum = 0});
    small.fill_gradients(1, 3);
    plain.fill_gradients(1, clip_norm < 1 ? 3 * clip_norm / (small.gradient_norm() + 1e-6) : 3);
    small.step(0.1);
    plain.step(0.1);
    EXPECT_NEAR(small.optimizer.gradient_norm().span<double>()[0], small.gradient_norm(), 1e-12);
    testing::expect_close(set.values(), plain.set.values(), 1e-14);
  }
}

TEST(Optimizer, ClipsGradientsByValue) {
  for (const double clip_norm : {0.0, 0.5}) {
    Small small({.momentum = 0, .clip_norm = clip_norm, .clip_value = 0.01});
    small.fill_gradients(1, 3);
    const double factor = clip_norm > 0 ? clip_norm / (small.gradient_norm() + 1e-6) : 1;
    const std::vector<double> before = testing::to_doubles(small.set.values());
    const std::vector<double> gradients = testing::to_doubles(small.set.gradients());
    small.step(0.1);
    const std::vector<double> after = testing::to_doubles(small.set.values());
    int clipped = 0;
    for (const ParameterInfo& info : small.set.parameters()) {
      const double decay = info.spec.role == ParameterRole::weight ? 0.1 : 0;
      for (std::int64_t i = info.offset; i < info.offset + info.numel; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double g = std::max(-0.01, std::min(0.01, factor * gradients[at]));
        clipped += g == factor * gradients[at] ? 0 : 1;
        ASSERT_NEAR(after[at], before[at] - 0.1 * (g + decay * before[at]), 1e-15) << info.spec.name;
      }
    }
    EXPECT_GT(clipped, 10);
  }
}

/// Makes some steps, of which the third has one bad gradient. The results must equal those without the third step.
void expect_left_out(float bad, double clip_norm) {
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    const OptimizerOptions options{.kind = kind, .clip_norm = clip_norm, .skip_non_finite = clip_norm == 0};
    Small small(options, DType::f32);
    Small without(options, DType::f32);
    const Small before(options, DType::f32);
    for (int t = 0; t < 4; ++t) {
      small.train(t, 1, t == 2 ? std::optional(bad) : std::nullopt);
      if (t != 2) {
        without.train(t);
      }
    }
    EXPECT_EQ(small.optimizer.skipped().span<std::int64_t>()[0], 1);
    EXPECT_EQ(without.optimizer.skipped().span<std::int64_t>()[0], 0);
    testing::expect_same_bits(small.set.values(), without.set.values());
    EXPECT_FALSE(testing::has_same_bits(small.set.values(), before.set.values()));
    for (const std::string& name : small.set.state_names()) {
      testing::expect_same_bits(small.set.state(name), without.set.state(name), name);
      EXPECT_FALSE(testing::has_same_bits(small.set.state(name), before.set.state(name))) << name;
    }
    if (kind == OptimizerKind::adam || kind == OptimizerKind::adamw || kind == OptimizerKind::muon) {
      EXPECT_EQ(small.updates(), 3);
    }
  }
}

TEST(Optimizer, AnUpdateWithoutAFiniteNormIsLeftOutAsAWhole) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_left_out(bad, 1);
    expect_left_out(bad, 0);
  }
}

TEST(Optimizer, LookingForWhatIsNotFiniteChangesNoBitOfOtherUpdates) {
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw, OptimizerKind::lars}) {
    Small plain({.kind = kind}, DType::f32);
    Small guarded({.kind = kind, .skip_non_finite = true}, DType::f32);
    for (int t = 0; t < 3; ++t) {
      plain.train(t, 1e4);
      guarded.train(t, 1e4);
    }
    testing::expect_same_bits(guarded.set.values(), plain.set.values());
    const double norm = guarded.optimizer.gradient_norm().span<double>()[0];
    EXPECT_NEAR(norm, guarded.gradient_norm(), 1e-6 * norm);
    EXPECT_FALSE(plain.optimizer.gradient_norm().given());
    EXPECT_FALSE(plain.optimizer.skipped().given());
  }
}

TEST(Optimizer, In16BitsTheMasterMovesAsInF32AndTheWeightsFollow) {
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw, OptimizerKind::lars}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Small small({.kind = kind, .skip_non_finite = true}, dtype);
      Small f32({.kind = kind, .skip_non_finite = true}, DType::f32);
      const auto expect_rounded = [&] {
        const Tensor rounded = Tensor::empty(small.context, small.set.values().shape, dtype);
        copy_now(small.context, small.set.values(), rounded.view());
        testing::expect_same_bits(small.set.weights(), rounded.view());
      };
      for (int t = 0; t < 4; ++t) {
        const Tensor before = Tensor::empty(small.context, small.set.weights().shape, dtype);
        copy_now(small.context, small.set.weights(), before.view());
        const auto bad = t == 2 ? std::optional(std::nanf("")) : std::nullopt;
        small.train(t, 1, bad);
        f32.train(t, 1, bad);
        expect_rounded();
        EXPECT_EQ(static_cast<bool>(testing::has_same_bits(small.set.weights(), before.view())), t == 2);
      }
      testing::expect_same_bits(small.set.values(), f32.set.values());
    }
  }
}

TEST(Optimizer, ALossScaleIsDividedOut) {
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw, OptimizerKind::lars}) {
    for (const double clip_norm : {0.0, 0.1}) {
      Small plain({.kind = kind, .clip_norm = clip_norm, .skip_non_finite = true}, DType::f32);
      Small scaled(
          {.kind = kind, .clip_norm = clip_norm, .loss_scale = {.kind = LossScale::Kind::fixed, .initial = 256}},
          DType::f32);
      for (int t = 0; t < 3; ++t) {
        plain.train(t);
        scaled.train(t, 256);
        EXPECT_EQ(scaled.optimizer.gradient_norm().span<double>()[0],
                  plain.optimizer.gradient_norm().span<double>()[0]);
      }
      testing::expect_same_bits(scaled.set.values(), plain.set.values());
      EXPECT_EQ(scaled.set.loss_scale().span<float>()[0], 256) << "fixed";
      plain.step(0.1);  // the control: without the factor the values differ
      EXPECT_FALSE(testing::has_same_bits(scaled.set.values(), plain.set.values()));
    }
  }
}

TEST(Optimizer, ADynamicLossScaleGrowsAndHalves) {
  const LossScale scale{.kind = LossScale::Kind::dynamic, .initial = 64, .rule = {.interval = 3}};
  Small small({.loss_scale = scale}, DType::f32);
  Small plain({.skip_non_finite = true}, DType::f32);
  std::vector<double> scales;
  for (int t = 0; t < 8; ++t) {
    const double now = small.set.loss_scale().span<float>()[0];
    scales.push_back(now);
    const auto bad = t == 4 || t == 5 ? std::optional(std::numeric_limits<float>::infinity()) : std::nullopt;
    small.train(t, now, bad);
    plain.train(t, 1, bad);
  }
  EXPECT_EQ(scales, (std::vector<double>{64, 64, 64, 128, 128, 64, 32, 32}));
  EXPECT_EQ(small.set.loss_scale_good().span<std::int64_t>()[0], 2);
  EXPECT_EQ(small.optimizer.skipped().span<std::int64_t>()[0], 2);
  testing::expect_same_bits(small.set.values(), plain.set.values());
  small.set.initialise(small.context, 3);
  EXPECT_EQ(small.set.loss_scale().span<float>()[0], 64);
  EXPECT_EQ(small.set.loss_scale_good().span<std::int64_t>()[0], 0);
}

TEST(Optimizer, LarsTakesEveryParameterForATensorAndLeavesBiasesAlone) {
  Small small({.kind = OptimizerKind::lars, .momentum = 0, .epsilon = 0, .trust_coefficient = 0.02});
  const std::vector<double> before = testing::to_doubles(small.set.values());
  small.fill_gradients(1);
  const std::vector<double> g = testing::to_doubles(small.set.gradients());
  small.step(0.1);
  const std::vector<double> after = testing::to_doubles(small.set.values());
  int weights = 0;
  for (const ParameterInfo& info : small.set.parameters()) {
    const bool weight = info.spec.role == ParameterRole::weight;
    weights += weight ? 1 : 0;
    double p_squared = 0;
    double g_squared = 0;
    for (std::int64_t j = info.offset; j < info.offset + info.numel; ++j) {
      const auto i = static_cast<std::size_t>(j);
      p_squared += before[i] * before[i];
      g_squared += g[i] * g[i];
    }
    const double decay = weight ? 0.1 : 0;
    const double ratio =
        weight ? 0.02 * std::sqrt(p_squared) / (std::sqrt(g_squared) + decay * std::sqrt(p_squared)) : 1;
    for (std::int64_t j = info.offset; j < info.offset + info.numel; ++j) {
      const auto i = static_cast<std::size_t>(j);
      EXPECT_NEAR(after[i], before[i] - 0.1 * ratio * (g[i] + decay * before[i]), 1e-15) << info.spec.name;
    }
  }
  EXPECT_EQ(weights, 2);
  // A range must consist of whole parameters.
  const double rate = 0.1;
  EXPECT_THROW(small.optimizer.update(small.context, TensorView(std::span(&rate, 1), Shape{}), 1, small.set.numel()),
               ShapeError);
}

TEST(Optimizer, InitialiseBeginsAnew) {
  Small small({.kind = OptimizerKind::adam});
  Small fresh({.kind = OptimizerKind::adam});
  small.train(0);
  EXPECT_EQ(small.updates(), 1);
  EXPECT_FALSE(testing::has_same_bits(small.set.values(), fresh.set.values()));
  for (const std::string& name : small.set.state_names()) {
    EXPECT_FALSE(testing::has_same_bits(small.set.state(name), fresh.set.state(name))) << name;
  }
  small.set.initialise(small.context, 3);
  EXPECT_EQ(small.updates(), 0);
  testing::expect_same_bits(small.set.values(), fresh.set.values());
  for (const std::string& name : small.set.state_names()) {
    testing::expect_same_bits(small.set.state(name), fresh.set.state(name), name);
  }
}

TEST(Optimizer, RefusesWhatItCannotDo) {
  const double nan = std::nan("");
  for (const OptimizerOptions& options :
       {OptimizerOptions{.momentum = 1}, OptimizerOptions{.momentum = 0, .nesterov = true},
        OptimizerOptions{.kind = OptimizerKind::adam, .beta1 = 1},
        OptimizerOptions{.kind = OptimizerKind::adamw, .beta2 = -0.5},
        OptimizerOptions{.kind = OptimizerKind::adam, .epsilon = 0},
        OptimizerOptions{.kind = OptimizerKind::lars, .clip_value = 1}, OptimizerOptions{.clip_value = -1},
        OptimizerOptions{.kind = OptimizerKind::lars, .trust_coefficient = 0}, OptimizerOptions{.clip_norm = -1},
        OptimizerOptions{.clip_norm = nan}, OptimizerOptions{.loss_scale = {.kind = LossScale::Kind::automatic}},
        OptimizerOptions{.loss_scale = {.kind = LossScale::Kind::fixed, .initial = nan}}}) {
    EXPECT_THROW(Small{options}, UsageError);
  }
}

/// An update rule on the host that steps by the sign of the velocity v (Lion without its second rate, Chen et al.
/// 2023):
///   v = beta * v + (1 - beta) * factor * g;  p -= lr * (sign(v) + decay * p)
class SignedMomentum final : public UpdateRule {
 public:
  explicit SignedMomentum(std::string name = "signed_momentum") : name_(std::move(name)) {}
  static constexpr double kBeta = 0.75;
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string settings() const override { return "beta 0.75"; }
  [[nodiscard]] std::vector<std::string> states() const override { return {"velocity"}; }
  void update(Context& context, const ops::ArenaUpdate& u, const States& states) const override {
    EXPECT_FALSE(u.copy.given());
    if (u.parameters.dtype == DType::f64) {
      run<double>(context, u, states);
    } else {
      run<float>(context, u, states);
    }
  }

 private:
  template <class T>
  static void run(Context& context, const ops::ArenaUpdate& u, const States& states) {
    const TensorView& velocity = states.arenas[0];
    context.stream().enqueue([update = u, velocity, step = states.step] {
      if (update.skip.given() && *update.skip.as<std::int32_t>() != 0) {
        return;
      }
      EXPECT_GE(*step.as<std::int64_t>(), 1);
      const T factor = update.factor.given() ? *update.factor.as<T>() : T{1};
      T* p = update.parameters.as<T>();
      const T* g = update.gradients.as<T>();
      T* v = velocity.as<T>();
      for (const ops::ArenaSegment& segment : update.segments) {
        const ops::ArenaPiece piece = ops::piece_of(segment, update.begin, update.parameters.numel());
        const T rate = static_cast<T>(*update.learning_rate.as<double>() * segment.learning_rate_scale);
        for (std::int64_t i = piece.begin; segment.trainable && i < piece.end; ++i) {
          v[i] = T{kBeta} * v[i] + (1 - T{kBeta}) * factor * g[i];
          const T sign = v[i] > 0 ? T{1} : v[i] < 0 ? T{-1} : T{0};
          p[i] -= rate * (sign + static_cast<T>(segment.weight_decay) * p[i]);
        }
      }
    });
  }
  std::string name_;
};

TEST(OwnOptimizer, IsAskedForTheUpdateAndItsStatesAreKept) {
  for (const double clip : {0.0, 0.5}) {
    const OptimizerOptions options{.clip_norm = clip, .rule = std::make_shared<SignedMomentum>()};
    Small small(options);
    EXPECT_EQ(small.set.state_names(), std::vector<std::string>{"velocity"});
    EXPECT_NE(small.set.states().find("step"), nullptr);
    std::vector<double> p = testing::to_doubles(small.set.values());
    std::vector<double> v(p.size());
    for (int step = 0; step < 5; ++step) {
      small.fill_gradients(step);
      const double norm = small.gradient_norm();
      const double factor = clip > 0 && norm > clip ? clip / norm : 1;
      const std::vector<double> g = testing::to_doubles(small.set.gradients());
      small.step(0.1);
      for (const ops::ArenaSegment& segment : small.set.segments()) {
        for (std::int64_t k = segment.offset; k < segment.offset + segment.count; ++k) {
          const auto i = static_cast<std::size_t>(k);
          v[i] = 0.75 * v[i] + 0.25 * factor * g[i];
          p[i] -= 0.1 * (static_cast<double>(v[i] > 0) - static_cast<double>(v[i] < 0) + segment.weight_decay * p[i]);
        }
      }
      testing::expect_close(small.set.values(), TensorView(std::span(p), small.set.values().shape), 1e-13);
      EXPECT_EQ(small.updates(), step + 1);
    }
  }
}

TEST(OwnOptimizer, LeavesOutWhatIsNotFiniteAndRoundsForSixteenBits) {
  Small small({.skip_non_finite = true, .rule = std::make_shared<SignedMomentum>()}, DType::bf16);
  small.fill_gradients(0, std::numeric_limits<double>::infinity());
  const std::vector<double> before = testing::to_doubles(small.set.values());
  small.step(0.1);
  EXPECT_EQ(testing::to_doubles(small.set.values()), before);
  EXPECT_EQ(small.updates(), 0);
  small.train(1);
  EXPECT_EQ(small.updates(), 1);
  EXPECT_NE(testing::to_doubles(small.set.values()), before);
  const std::vector<double> values = testing::to_doubles(small.set.values());
  const std::vector<double> weights = testing::to_doubles(small.set.weights());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(weights[i], double{static_cast<float>(BFloat16(static_cast<float>(values[i])))});
  }
}

TEST(OwnOptimizer, ItsNameIsItsOwn) {
  EXPECT_THROW(Small({.rule = std::make_shared<SignedMomentum>("adam")}), UsageError);
  EXPECT_THROW(Small({.rule = std::make_shared<SignedMomentum>("")}), UsageError);
  EXPECT_EQ(name_of(OptimizerOptions{.rule = std::make_shared<SignedMomentum>()}), "signed_momentum");
  EXPECT_EQ(name_of(OptimizerOptions{.kind = OptimizerKind::lars}), "lars");
}

}  // namespace
}  // namespace lockstep::nn
