// Compares layers on sequences with their definitions, and tests small runs that must learn.
#include <array>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/step/train_step.hpp>

#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

using Net = testing::CheckedNet;

/// Computes softmax(q k^T / sqrt(D)) v, one query at a time. qkv has shape (B, T, 3 C), the result (B, T, C).
std::vector<double> attention_by_definition(const std::vector<double>& qkv, std::size_t batch, std::size_t length,
                                            std::size_t width, std::size_t heads, bool causal) {
  const std::size_t head = width / heads;
  std::vector<double> y(batch * length * width, 0.0);
  const auto at = [&](std::size_t n, std::size_t t, std::size_t part, std::size_t h, std::size_t d) {
    return qkv[(n * length + t) * 3 * width + part * width + h * head + d];
  };
  for (std::size_t n = 0; n < batch; ++n) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t t = 0; t < length; ++t) {
        const std::size_t seen = causal ? t + 1 : length;
        std::vector<double> weight(seen);
        double total = 0;
        for (std::size_t s = 0; s < seen; ++s) {
          double score = 0;
          for (std::size_t d = 0; d < head; ++d) {
            score += at(n, t, 0, h, d) * at(n, s, 1, h, d);
          }
          weight[s] = std::exp(score / std::sqrt(static_cast<double>(head)));
          total += weight[s];
        }
        for (std::size_t s = 0; s < seen; ++s) {
          for (std::size_t d = 0; d < head; ++d) {
            y[(n * length + t) * width + h * head + d] += weight[s] / total * at(n, s, 2, h, d);
          }
        }
      }
    }
  }
  return y;
}

TEST(Attention, MatchesItsDefinition) {
  constexpr std::size_t kBatch = 3;
  constexpr std::size_t kLength = 5;
  constexpr std::size_t kWidth = 6;
  for (const std::size_t heads : {1, 2, 3, 6}) {
    for (const bool causal : {false, true}) {
      ModelBuilder b("attention", {kLength, 3 * kWidth});
      b.attention("attn", b.input(), {.heads = static_cast<std::int64_t>(heads), .causal = causal});
      const Model model = b.build();
      for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-6}, std::pair{DType::f64, 1e-14}}) {
        Net net(model, Mode::infer, kBatch, dtype);
        net.run();
        const std::vector<double> qkv = testing::to_doubles(net.state().view(StateField::values));
        std::vector<double> expected = attention_by_definition(qkv, kBatch, kLength, kWidth, heads, causal);
        const TensorView reference(std::span<double>(expected), {kBatch, kLength, kWidth});
        testing::expect_close(net.plan().output(), reference, tolerance, causal ? "causal" : "all");
        std::vector<double> other = attention_by_definition(qkv, kBatch, kLength, kWidth, heads, !causal);
        EXPECT_FALSE(
            testing::is_close(net.plan().output(), TensorView(std::span<double>(other), reference.shape), tolerance))
            << "the mask must show";
      }
    }
  }
}

// cuBLASLt refuses operands that are not aligned to 16 bytes. Queries, keys and values of 15 elements of 2 bytes are
// not, so the layer must pad them.
TEST(Attention, QueriesKeysAndValuesOf16BitTensorsAreAligned) {
  ModelBuilder b("attention", {3, 3 * 5});
  b.attention("attn", b.input(), {.heads = 1});
  const Model model = b.build();
  int seen = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Net net(model, Mode::train, 1, dtype);
    for (const SlotInfo& slot : net.plan().slots()) {
      if (slot.name.find("attn.heads") != std::string::npos) {
        EXPECT_EQ(static_cast<std::size_t>(slot.shape[1]) * size_of(slot.dtype) % 16, 0U) << slot.name;
        ++seen;
      }
    }
  }
  EXPECT_EQ(seen, 4) << "forward and backward";
}

TEST(Attention, RefusesWidthsThatAreNoMultipleOfTheHeads) {
  ModelBuilder b("attention", {4, 12});
  EXPECT_THROW(b.attention("attn", b.input(), {.heads = 3}), ShapeError);
  EXPECT_THROW(b.attention("attn", b.input(), {.heads = 0}), ShapeError);
  EXPECT_NO_THROW(b.attention("attn", b.input(), {.heads = 2}));
}

TEST(Tokens, OnlyAnEmbeddingReadsThem) {
  ModelBuilder b = ModelBuilder::for_tokens("tokens", 4);
  EXPECT_THROW(b.linear("fc", b.input(), 3), ShapeError);
  const NodeId x = b.embedding("wte", "wpe", b.input(), 5, 6);
  EXPECT_THROW(b.embedding("again", "wpe2", x, 5, 6), ShapeError);
  EXPECT_EQ(b.shape(x), (Shape{4, 6}));
  EXPECT_THROW((void)ModelBuilder::for_tokens("empty", 0), ShapeError);
}

TEST(Tokens, OneOutOfRangeIsCountedAndReadsNothing) {
  Net net(transformer({.vocabulary = 5, .length = 4, .width = 4, .heads = 1, .layers = 1}), Mode::evaluate, 2,
          DType::f32);
  net.run();
  EXPECT_EQ(net.state().metrics(net.context()).bad_labels, 0);
  auto tokens = net.state().view(StateField::tokens).span<std::int32_t>();
  tokens[3] = 5;
  tokens[6] = -1;
  EXPECT_TRUE(std::isfinite(net.run()));
  EXPECT_EQ(net.state().metrics(net.context()).bad_labels, 2);
}

TEST(Tokens, OfPaddedSamplesAreNotCounted) {
  Net net(transformer({.vocabulary = 5, .length = 4, .width = 4, .heads = 1, .layers = 1}), Mode::evaluate, 2,
          DType::f32);
  auto tokens = net.state().view(StateField::tokens).span<std::int32_t>();
  // The second sample has an invalid token. It must not be counted, because only the first sample is valid.
  tokens[6] = -1;
  net.scalars().valid = 1;
  EXPECT_TRUE(std::isfinite(net.run()));
  EXPECT_EQ(net.state().metrics(net.context()).bad_labels, 0);
  tokens[3] = 5;
  EXPECT_TRUE(std::isfinite(net.run()));
  EXPECT_EQ(net.state().metrics(net.context()).bad_labels, 1);
  net.scalars().valid = 2;
  EXPECT_TRUE(std::isfinite(net.run()));
  EXPECT_EQ(net.state().metrics(net.context()).bad_labels, 2);
}

TEST(Transformer, HasTheParametersOfGpt2) {
  const Model model = transformer();
  EXPECT_EQ(model.parameter_count(), 124439808);
  EXPECT_EQ(model.output_shape(), (Shape{1024, 50257}));
  EXPECT_THROW((void)transformer({.width = 10, .heads = 3}), UsageError);
}

TEST(Transformer, ALaterTokenChangesNothingBefore) {
  Net net(transformer({.vocabulary = 9, .length = 6, .width = 8, .heads = 2, .layers = 2}), Mode::infer, 1, DType::f64);
  net.run();
  const std::vector<double> before = testing::to_doubles(net.plan().output());
  std::int32_t& token = net.state().view(StateField::tokens).span<std::int32_t>()[4];
  token = (token + 1) % 9;
  net.run();
  const std::vector<double> after = testing::to_doubles(net.plan().output());
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i < 4 * 9) {
      EXPECT_EQ(before[i], after[i]) << i;
    }
  }
  EXPECT_NE(std::vector<double>(before.begin() + 36, before.end()),
            std::vector<double>(after.begin() + 36, after.end()));
}

TEST(Dropout, IsNotThereInInference) {
  const auto logits = [](bool dropout) {
    ModelBuilder b("last", {5});
    const NodeId x = b.linear("l1", b.linear("l0", b.input(), 7), 3);
    if (dropout) {
      b.dropout("drop", x, 0.5);
    }
    Net net(b.build(), Mode::infer, 4, DType::f32);
    net.run();
    return testing::to_doubles(net.plan().output());
  };
  EXPECT_EQ(logits(true), logits(false));
  ModelBuilder b("refused", {5});
  EXPECT_THROW(b.dropout("drop", b.input(), 1), UsageError);
}

/// Trains with Adam on two threads, on the tensors of `batch`, which `draw(step)` fills. Returns the mean loss of the
/// last `window` steps.
template <class Draw>
double train(const Model& model, const Batch& batch, const PlanOptions& plan, int steps, int window, Draw draw) {
  CpuContext context({.threads = 2});
  TrainStep step(context, model,
                 {.max_batch = batch.fields[0].view.shape[0],
                  .microbatches = 1,
                  .seed = 7,
                  .plan = plan,
                  .optimizer = {.kind = OptimizerKind::adam}});
  double sum = 0;
  for (int i = 0; i < steps; ++i) {
    draw(i);
    step.update(batch, 3e-3);
    const StepLoss loss = step.wait_loss();
    EXPECT_EQ(loss.step, i + 1);
    sum += i >= steps - window ? loss.value : 0;
  }
  return sum / window;
}

// A sequence has eight random tokens and then the same eight again. Each position predicts the next token. Only
// attention to the token eight positions before can predict the second half. The loss of the first seven predictions
// cannot be below log(8). The model must learn to predict the second half.
TEST(Transformer, LearnsToRepeatASequence) {
  constexpr std::size_t kHalf = 8;
  constexpr std::size_t kVocabulary = 8;
  constexpr std::size_t kLength = 2 * kHalf - 1;
  const TransformerOptions options{
      .vocabulary = kVocabulary, .length = kLength, .width = 32, .heads = 2, .layers = 2, .dropout = 0, .causal = true};
  std::vector<std::int32_t> tokens(32 * kLength), labels(32 * kLength);
  const Shape shape{32, kLength};
  const Batch batch{{{StateField::tokens, TensorView(std::span(tokens), shape)},
                     {StateField::labels, TensorView(std::span(labels), shape)}}};
  const auto draw = [&](int step) {
    Random random(1, RandomUse::test, static_cast<std::uint64_t>(step));
    for (std::size_t n = 0; n < 32; ++n) {
      std::array<std::int32_t, 2 * kHalf> sequence{};
      for (std::size_t t = 0; t < sequence.size(); ++t) {
        sequence[t] = t < kHalf ? static_cast<std::int32_t>(random.below(kVocabulary)) : sequence[t - kHalf];
      }
      for (std::size_t t = 0; t < kLength; ++t) {
        tokens[n * kLength + t] = sequence[t];
        labels[n * kLength + t] = sequence[t + 1];
      }
    }
  };
  const double best = std::log(8.0) * (kHalf - 1) / kLength;
  const double loss = train(transformer(options), batch, {}, 600, 20, draw);
  EXPECT_TRUE(loss <= best + 0.05) << loss << ", not below " << best << " but for what was seen before";
  EXPECT_TRUE(loss >= best - 0.1) << loss << " is better than can be: the mask leaks";
}

// An MLP must learn y = (sin(3 a) b, a^2 - b) of two numbers a and b. The mean squared error must fall to 1e-3, which
// is a three-hundredth of the variance.
TEST(Regression, AnMlpLearnsASmoothFunction) {
  ModelBuilder b("mlp", {2});
  NodeId x = b.activation("a1", b.linear("l1", b.input(), 32), ops::Activation::tanh);
  x = b.activation("a2", b.linear("l2", x, 32), ops::Activation::tanh);
  b.linear("l3", x, 2);
  const Model model = b.build();
  std::vector<float> input(256), target(256);
  const Batch batch{{{StateField::values, TensorView(std::span(input), {128, 2})},
                     {StateField::targets, TensorView(std::span(target), {128, 2})}}};
  const auto draw = [&](int step) {
    Random random(2, RandomUse::test, static_cast<std::uint64_t>(step));
    for (std::size_t n = 0; n < 128; ++n) {
      const double first = 2 * random.uniform() - 1;
      const double second = 2 * random.uniform() - 1;
      input[2 * n] = static_cast<float>(first);
      input[2 * n + 1] = static_cast<float>(second);
      target[2 * n] = static_cast<float>(std::sin(3 * first) * second);
      target[2 * n + 1] = static_cast<float>(first * first - second);
    }
  };
  const double loss = train(model, batch, {.loss = Loss::mse}, 1500, 50, draw);
  EXPECT_TRUE(loss <= 1e-3) << loss;
}

}  // namespace
}  // namespace lockstep::nn
