// Tests test-time augmentation. Compares views with images padded by hand, metrics with those of the ops, and an
// evaluation with outputs of nn::Inference that the test averages.
#include <lockstep/nn/run/test_time_augmentation.hpp>

#include <algorithm>
#include <array>

#include <lockstep/kernels/softmax_cross_entropy.hpp>
#include <lockstep/kernels/top_k.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::GuardedTensor;

constexpr std::array kAll{TestTimeAugmentation::none, TestTimeAugmentation::mirror,
                          TestTimeAugmentation::mirror_translate};

TEST(TestTimeAugmentationOf, WeightsAreThoseOfThePaper) {
  EXPECT_EQ(test_time_views(TestTimeAugmentation::none).size(), 1U);
  EXPECT_EQ(test_time_views(TestTimeAugmentation::mirror).size(), 2U);
  EXPECT_EQ(test_time_views(TestTimeAugmentation::mirror_translate).size(), 6U);
  for (const TestTimeAugmentation views : kAll) {
    double sum = 0;
    double mirrored = 0;
    double moved = 0;
    for (const TestTimeView& view : test_time_views(views)) {
      sum += view.weight;
      mirrored += view.mirror ? view.weight : 0;
      moved += view.shift != 0 ? view.weight : 0;
    }
    EXPECT_EQ(sum, 1);
    EXPECT_EQ(mirrored, views == TestTimeAugmentation::none ? 0 : 0.5);
    EXPECT_EQ(moved, views == TestTimeAugmentation::mirror_translate ? 0.5 : 0);
    const TestTimeView& first = test_time_views(views).front();
    EXPECT_TRUE(!first.mirror && first.shift == 0);
  }
}

/// Returns an image (H, W, C) padded by one reflected pixel, cut out at (1 + shift) and mirrored.
std::vector<std::uint8_t> seen_by_hand(const TestTimeView& view, const std::uint8_t* image, std::int64_t height,
                                       std::int64_t width, std::int64_t channels) {
  const auto pixel = [&](std::int64_t y, std::int64_t x) {  // a pixel of the padded image
    y = y == 0 ? 1 : y == height + 1 ? height - 2 : y - 1;
    x = x == 0 ? 1 : x == width + 1 ? width - 2 : x - 1;
    return image + (y * width + x) * channels;
  };
  std::vector<std::uint8_t> out;
  for (std::int64_t h = 0; h < height; ++h) {
    for (std::int64_t w = 0; w < width; ++w) {
      const std::int64_t x = 1 + view.shift + (view.mirror ? width - 1 - w : w);
      const std::uint8_t* from = pixel(h + 1 + view.shift, x);
      out.insert(out.end(), from, from + channels);
    }
  }
  return out;
}

TEST(ShowView, IsThePaddedImageCutOutAndMirrored) {
  for (const Shape& shape : {Shape{3, 2, 2, 3}, Shape{2, 5, 7, 3}, Shape{1, 9, 4, 1}, Shape{0, 4, 4, 3}}) {
    GuardedTensor images(shape, DType::u8);
    images.integers(1, 0, 255);
    for (const TestTimeView& view : test_time_views(TestTimeAugmentation::mirror_translate)) {
      GuardedTensor out(shape, DType::u8);
      show_view(view, images, out);
      const std::int64_t bytes = shape.numel() / std::max<std::int64_t>(shape[0], 1);
      for (std::int64_t n = 0; n < shape[0]; ++n) {
        const auto* got = out.view().as<std::uint8_t>() + n * bytes;
        EXPECT_EQ(std::vector<std::uint8_t>(got, got + bytes),
                  seen_by_hand(view, images.view().as<std::uint8_t>() + n * bytes, shape[1], shape[2], shape[3]))
            << shape << ' ' << view.mirror << ' ' << view.shift;
      }
    }
  }
}

TEST(ShowView, RefusesWhatTheContractExcludes) {
  const GuardedTensor images(Shape{2, 1, 4, 3}, DType::u8);
  const GuardedTensor out(Shape{2, 1, 4, 3}, DType::u8);
  expect_holds(error_of<UsageError>([&] { show_view({.shift = 1}, images, out); }), "images are 1 x 4 and move by 1");
  EXPECT_NO_THROW(show_view({.mirror = true}, images, out));
  TensorView other = out;
  other.shape = Shape{2, 4, 3};
  EXPECT_THROW(show_view({}, images, other), ShapeError);
  other = out;
  other.dtype = DType::i32;
  EXPECT_THROW(show_view({}, images, other), DTypeError);
  other = out;
  other.device = Device::cuda(0);
  EXPECT_THROW(show_view({}, images, other), DeviceError);
  other = out;
  other.strides = Strides{12, 12, 1, 4};
  EXPECT_THROW(show_view({}, images, other), ShapeError);
  EXPECT_THROW(show_view({}, images, images), ShapeError) << "overlap";
  EXPECT_NO_THROW(require_views_fit(TestTimeAugmentation::mirror, Shape{1, 1, 3}));
  expect_holds(
      error_of<UsageError>([] {
        require_views_fit(TestTimeAugmentation::mirror_translate, Shape{8, 1, 3});
      }),
      "test views are mirror-translate for images (8, 1, 3), expected images (H, W, C) of more than 1 pixel a side");
}

TEST(ViewedBatch, MetricsOfTheMeanAreThoseOfTheOps) {
  CpuContext context({.threads = 1});
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kClasses = 7;
  constexpr std::int64_t kValid = 33;
  GuardedTensor mean(Shape{kRows, kClasses}, DType::f64);
  GuardedTensor labels(Shape{kRows}, DType::i32);
  mean.integers(3, -4, 4);  // some logits are equal
  labels.integers(4, 0, kClasses - 1);
  labels.span<std::int32_t>()[5] = kClasses;  // an invalid label, which both computations ignore
  labels.span<std::int32_t>()[6] = -1;
  for (const int k : {0, 1, 3}) {
    ViewedBatch viewed(k);
    viewed.begin(kRows, kValid);
    GuardedTensor part(Shape{kRows, kClasses}, DType::f64);
    for (const double share : {0.5, 1.5}) {  // the views 0.5 mean and 1.5 mean, with weight 0.5 each
      std::vector<double> values = mean.values();
      for (double& value : values) {
        value *= share;
      }
      part.assign(values);
      viewed.add(context, 0.5, part);
    }
    const Metrics got = viewed.metrics(labels);
    GuardedTensor valid(Shape{}, DType::i64);
    valid.constant(kValid);
    GuardedTensor sums(Shape{3}, DType::f64);
    sums.constant(0);
    ops::softmax_cross_entropy(context, mean, labels, {}, valid, {}, 0, {}, sums, {});
    EXPECT_NEAR(got.loss_sum, sums.values()[0], 1e-11);
    EXPECT_EQ(got.correct, sums.values()[1]);
    EXPECT_EQ(got.samples, kValid);
    EXPECT_EQ(got.weight, kValid);
    GuardedTensor count(Shape{}, DType::f64);
    count.constant(0);
    if (k > 0) {
      ops::top_k_correct(context, mean, labels, {}, valid, k, count, {});
    }
    EXPECT_EQ(got.top_k_correct, count.values()[0]);
    // write() gives the mean, rounded to the type.
    GuardedTensor written(Shape{kRows, kClasses}, DType::bf16);
    viewed.write(context, written);
    EXPECT_EQ(written.values(), mean.values());
  }
}

TEST(ViewedBatch, OutputsWithNaNAreWrongWhateverTheLabel) {
  CpuContext context({.threads = 1});
  ViewedBatch viewed(2);
  viewed.begin(2, 2);
  GuardedTensor logits(Shape{2, 3}, DType::f32);
  logits.assign({NAN, 1, 0, NAN, 1, 0});
  viewed.add(context, 1, logits);
  GuardedTensor labels(Shape{2}, DType::i32);
  labels.assign({0, 1});
  const Metrics got = viewed.metrics(labels);
  EXPECT_EQ(got.correct, 0);
  EXPECT_EQ(got.top_k_correct, 0);
  EXPECT_TRUE(std::isnan(got.loss_sum));
}

/// Returns the metrics of the test set, from outputs of single views that are averaged here.
Metrics by_hand(Trainer& trainer, const Model& model, TestTimeAugmentation views, int top_k) {
  const Dataset& test = trainer.data().test;
  InferenceOptions options{.max_batch = 64, .plan = trainer.options().step.plan};
  Inference predict(trainer.context(), model, trainer.parameters(), options);
  Metrics sums;
  for (std::int64_t n = 0; n < test.size(); ++n) {
    std::vector<std::uint8_t> image(12 * 12 * 3);
    std::int32_t label = 0;
    const std::array<std::span<std::byte>, 2> out{std::as_writable_bytes(std::span(image)),
                                                  std::as_writable_bytes(std::span(&label, 1))};
    test.read_sample(n, out);
    std::array<double, 4> mean{};
    for (const TestTimeView& view : test_time_views(views)) {
      std::vector<std::uint8_t> seen = seen_by_hand(view, image.data(), 12, 12, 3);
      std::array<double, 4> logits{};
      predict.run(TensorView(std::span(seen), {1, 12, 12, 3}), TensorView(std::span(logits), {1, 4}));
      for (std::size_t k = 0; k < 4; ++k) {
        mean[k] += view.weight * logits[k];
      }
    }
    const double own = mean[static_cast<std::size_t>(label)];
    double sum = 0;
    for (const double logit : mean) {
      sum += std::exp(logit - own);
    }
    const auto larger = std::count_if(mean.begin(), mean.end(), [&](double logit) { return logit > own; });
    sums += {std::log(sum), larger < 1 ? 1.0 : 0.0, larger < top_k ? 1.0 : 0.0, 1, 1};
  }
  return sums;
}

TEST(TrainerViews, EvaluatesTheMeanOfTheOutputs) {
  struct Case {
    int ranks;
    std::int64_t accumulate, virtual_ranks;
    DType dtype;
  };
  const Model model = cifar_resnet(8, 4, 12, 12);
  for (const Case& c :
       {Case{1, 1, 0, DType::f32}, Case{2, 1, 0, DType::f32}, Case{1, 3, 0, DType::f64}, Case{2, 1, 4, DType::f32}}) {
    for (const TestTimeAugmentation views : kAll) {
      SCOPED_TRACE(name_of(views));
      TrainerSetup setup{.ranks = c.ranks};
      setup.options.test_time_augmentation = views;
      setup.options.accumulate = c.accumulate;
      setup.options.step.virtual_ranks = c.virtual_ranks;
      setup.options.step.plan.dtype = c.dtype;
      setup.options.step.plan.top_k = 2;
      setup.options.schedule.total_steps = 12;
      on_trainers(setup, [&](Trainer& trainer) {
        steps(trainer, 4);
        std::int64_t batches = 0;
        Metrics each;
        const Metrics got = trainer.evaluate([&](const Batch& batch, const TensorView& output) {
          // Observers must also see the mean of the views.
          ViewedBatch shown(2);
          shown.begin(output.shape[0], batch.valid);
          shown.add(trainer.context(), 1, output);
          each += shown.metrics(batch.view(StateField::labels));
          ++batches;
        });
        const Metrics expected = by_hand(trainer, model, views, 2);
        EXPECT_EQ(got.samples, 31);
        EXPECT_EQ(got.weight, 31);
        EXPECT_NEAR(got.loss(), expected.loss(), 1e-5);
        EXPECT_EQ(got.correct, expected.correct);
        EXPECT_EQ(got.top_k_correct, expected.top_k_correct);
        EXPECT_GT(batches, 0);
        if (c.ranks == 1) {
          EXPECT_NEAR(each.loss_sum, expected.loss_sum, 1e-4);
        }
        // A second evaluation gives the same numbers, and training continues.
        EXPECT_EQ(trainer.evaluate().loss_sum, got.loss_sum);
        trainer.step();
      });
    }
  }
}

TEST(TrainerViews, TheBitsInAWorldAreTheSameOnAnyNumberOfRanks) {
  std::vector<double> losses;
  for (const int ranks : {1, 2, 4}) {
    TrainerSetup setup{.ranks = ranks};
    setup.options.test_time_augmentation = TestTimeAugmentation::mirror_translate;
    setup.options.step.virtual_ranks = 4;
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      const Metrics got = trainer.evaluate();
      if (control.rank() == 0) {
        losses.push_back(got.loss_sum);
      }
    });
  }
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
}

TEST(TrainerViews, RanksAgreeOnThemAndOtherModelsAreRefused) {
  const auto differ = [](TrainerOptions& options, int rank) {
    options.test_time_augmentation = rank == 0 ? TestTimeAugmentation::mirror : TestTimeAugmentation::none;
  };
  expect_all_say(with_trainers({.ranks = 2, .change = differ}, [](Trainer&) {}), "test_views");
  for (const PlanOptions& plan : {PlanOptions{.loss = Loss::mse}, PlanOptions{.weights = LossWeights::sample}}) {
    const TrainerOptions options{
        .global_batch = 11, .step = {.plan = plan}, .test_time_augmentation = TestTimeAugmentation::mirror};
    expect_all_say(with_trainers({.options = options, .started = false}, [](Trainer&) {}),
                   "test_time_augmentation is mirror for model resnet8, expected a classifier of u8 images");
  }
}

}  // namespace
}  // namespace lockstep::nn
