// Tests the predicted time of a step on a GPU that is not present. Compares it with times computed by hand and with a
// separate model of the same step.
#include <algorithm>
#include <tuple>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

Model one_convolution() {
  ModelBuilder builder("one convolution", {56, 56, 64});
  NodeId x = builder.conv2d("conv", builder.input(), 256, {.kernel = 1});
  builder.linear("fc", builder.global_average_pool("pool", x), 10);
  return testing::on_values(builder.build());
}

constexpr double kCopy = 0.896;  // share of the data sheet's bandwidth that a copy reaches

Plan planned(const Model& model, std::int64_t batch, PlanOptions options = {}) {
  CpuContext context;
  options.fusions = Fusions::on;
  return Plan(context, model, Mode::train, batch, options);
}

const PredictedTime& time_of(const Plan& plan, const GpuPrediction& prediction, const std::string& op) {
  for (std::size_t i = 0; i < plan.calls().size(); ++i) {
    if (plan.calls()[i].op.starts_with(op)) {
      return prediction.calls()[i];
    }
  }
  ADD_FAILURE() << "no " << op;
  return prediction.update();
}

/// The convolution reads x (256, 56, 56, 64) and writes y (256, 56, 56, 256): 26.3 GFLOP, and 514 MB in 16 bits.
TEST(GpuPrediction, OfAConvolution) {
  const Model model = one_convolution();
  const GpuDescription& gpu = known_gpu("h200");
  const double pixels = 256.0 * 56 * 56;
  const double flops = 2 * pixels * 64 * 256;
  const double values = pixels * (64 + 256) + 64 * 256;
  const Plan half = planned(model, 256, {.dtype = DType::bf16});
  const PredictedTime in_half = time_of(half, GpuPrediction(half, gpu), "conv2d forward");
  EXPECT_NEAR(in_half.limit_s, 2 * values / 4.8e12, 1e-9) << "by its bytes: 107 us, and its operations take 27";
  EXPECT_NEAR(in_half.expected_s, 2 * values / (0.78 * kCopy * 4.8e12) + 1.2e-6, 1e-9);
  EXPECT_NEAR(in_half.low_s, 2 * values / (0.68 * kCopy * 4.8e12) + 1.5e-6, 1e-9);
  const Plan single = planned(model, 256);
  EXPECT_NEAR(time_of(single, GpuPrediction(single, gpu), "conv2d forward").limit_s, flops / 66.9e12, 1e-9)
      << "by its operations: 393 us, and its bytes take 214";
  EXPECT_NEAR(time_of(single, GpuPrediction(single, gpu, {.tf32 = true}), "conv2d forward").limit_s,
              4 * values / 4.8e12, 1e-9);
  const Plan exact = planned(model, 1, {.dtype = DType::f64});
  EXPECT_NEAR(time_of(exact, GpuPrediction(exact, known_gpu("b200")), "conv2d forward").limit_s, flops / 256 / 37e12,
              1e-9);
}

/// The time of a convolution in f32 depends on its operations. Tests a convolution of stride 2 with 128 input channels,
/// then with 127.
TEST(GpuPrediction, OfASlowConvolution) {
  const auto check = [](std::int64_t channels, double forward, double data) {
    ModelBuilder builder("one convolution", {56, 56, 8});
    NodeId x = builder.conv2d("first", builder.input(), channels, {.kernel = 1});
    x = builder.conv2d("second", x, 512, {.kernel = 3, .stride = 2, .pad = 1});
    builder.linear("fc", builder.global_average_pool("pool", x), 10);
    const Model model = testing::on_values(builder.build());
    const Plan plan = planned(model, 32);
    const GpuPrediction prediction(plan, known_gpu("h100"));
    const double rate = 2 * 32.0 * 28 * 28 * 9 * static_cast<double>(channels) * 512 / 66.9e12;
    int found = 0;
    for (std::size_t i = 0; i < plan.calls().size(); ++i) {
      const Call& call = plan.calls()[i];
      if (call.layer != "second") {
        continue;
      }
      ++found;
      const double share = call.op.starts_with("conv2d backward_data") ? data : forward;
      EXPECT_NEAR(prediction.calls()[i].limit_s, rate, 1e-9) << call.op;
      EXPECT_NEAR(prediction.calls()[i].expected_s, rate / share + 1.2e-6, 1e-9) << call.op;
      EXPECT_NEAR(prediction.calls()[i].low_s, rate / (share < 0.5 ? 0.31 : 0.55) + 1.5e-6, 1e-9) << call.op;
    }
    EXPECT_EQ(found, 3);
  };
  check(128, 0.62, 0.35);
  check(127, 0.35, 0.35);
}

TEST(GpuPrediction, AStepIsItsCallsAndTheUpdate) {
  const Plan plan = planned(one_convolution(), 8);
  const GpuPrediction apart(plan, known_gpu("h100"));
  double sum = 0;
  for (const PredictedTime& call : apart.calls()) {
    sum += call.expected_s;
  }
  EXPECT_EQ(apart.update().expected_s, 0);
  EXPECT_DOUBLE_EQ(apart.step().expected_s, sum);
  const GpuPrediction whole(plan, known_gpu("h100"), {.update_bytes = 1e9, .micro_batches = 3});
  EXPECT_NEAR(whole.update().limit_s, 1e9 / 3.35e12, 1e-12);
  EXPECT_NEAR(whole.step().expected_s, 3 * sum + 1e9 / (0.85 * kCopy * 3.35e12) + 1.2e-6, 1e-12);
  const std::string text = whole.text(plan);
  for (const char* word :
       {"NVIDIA H100 (SXM)", "predicted and not measured", "one of 3 micro-batches", "\nconv2d forward ",
        "\nconv2d backward_weights ", "\nupdate ", "\nstep ", "\nsamples a second, of one GPU "}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " is not in\n" << text;
  }
}

/// The expected images per second were computed by hand: a sum over the 53 convolutions of ResNet-50, 331 MB an image
/// in all, and 370 launches.
TEST(GpuPrediction, OfResNet50IsTheOneWorkedOutByHand) {
  const Plan plan = planned(resnet(50), 256, {.dtype = DType::bf16});
  for (const auto& [gpu, expected, low] : {std::tuple{"h200", 8697, 7604}, {"h100", 6629, 5787}}) {
    const PredictedTime step = GpuPrediction(plan, known_gpu(gpu), {.update_bytes = 20 * 25.6e6}).step();
    EXPECT_NEAR(256 / step.expected_s, expected, 0.01 * expected) << gpu;
    EXPECT_NEAR(256 / step.low_s, low, 0.01 * low) << gpu;
    EXPECT_LT(step.limit_s, 0.75 * step.expected_s) << gpu;
  }
}

/// The images per second were computed by hand for convolutions that also compute the sums of batch norms wherever
/// possible. An image then moves 279.5 MB in all, and these convolutions run at 0.65 of the rate of other convolutions.
TEST(GpuPrediction, OfResNet50WithNormsInConvolutions) {
  const auto images = [](bool in_convolutions, double& low) {
    const Plan plan = planned(resnet(50), 256, {.dtype = DType::bf16, .norms_in_convolutions = in_convolutions});
    const PredictedTime step = GpuPrediction(plan, known_gpu("h200"), {.update_bytes = 20 * 25.6e6}).step();
    low = 256 / step.low_s;
    return 256 / step.expected_s;
  };
  double low = 0;
  double low_apart = 0;
  const double apart = images(false, low_apart);
  EXPECT_NEAR(images(true, low), 9405, 94);
  EXPECT_NEAR(low, 8236, 82);
  EXPECT_GT(images(true, low), 1.05 * apart);
  EXPECT_GT(low, low_apart);
}

/// Calls that backward repeats must cost as much as the first time. GpuPrediction::text() must list the repeated calls
/// on lines of their own.
TEST(GpuPrediction, OfCallsThatAreMadeAgain) {
  const Plan plan = planned(resnet(50), 8, {.dtype = DType::bf16, .recompute = Recompute::blocks});
  const GpuPrediction prediction(plan, known_gpu("h200"));
  int again = 0;
  for (std::size_t i = 0; i < plan.calls().size(); ++i) {
    if (!plan.calls()[i].op.starts_with("again conv2d forward")) {
      continue;
    }
    ++again;
    for (std::size_t j = 0; j < i; ++j) {
      if (plan.calls()[j].layer == plan.calls()[i].layer && plan.calls()[j].op.starts_with("conv2d forward")) {
        EXPECT_DOUBLE_EQ(prediction.calls()[i].limit_s, prediction.calls()[j].limit_s) << plan.calls()[i].layer;
        EXPECT_DOUBLE_EQ(prediction.calls()[i].low_s, prediction.calls()[j].low_s) << plan.calls()[i].layer;
      }
    }
  }
  EXPECT_GT(again, 3);
  EXPECT_NE(prediction.text(plan).find("\nagain conv2d forward "), std::string::npos);
}

/// The shared memory of the described GPU must decide which passes of batch norm are planned as one launch.
TEST(GpuPrediction, PlansForTheGpuItDescribes) {
  const Model model = cifar_resnet(20, 10, 32, 32);
  const auto in_one_launch = [&](const char* gpu) {
    const Plan plan = planned(model, 512, {.dtype = DType::bf16, .chip = known_gpu(gpu).chip});
    return std::count_if(plan.calls().begin(), plan.calls().end(),
                         [](const Call& call) { return call.op.starts_with("batch_norm fused_"); });
  };
  EXPECT_EQ(in_one_launch("h100"), 31);
  EXPECT_LT(in_one_launch("a100"), 31);
  EXPECT_GT(in_one_launch("a100"), 0);
}

TEST(GpuPrediction, AGpuThatNobodyHasDescribed) {
  EXPECT_EQ(testing::error_of<UsageError>([] { static_cast<void>(known_gpu("h300")); }),
            "GPU 'h300' is not described, expected one of " + known_gpu_names());
}

}  // namespace
}  // namespace lockstep::nn
