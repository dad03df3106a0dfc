// Tests the learning rate as a function of the step, groups of parameters, and the share of a moving average, against
// closed formulas.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/optim/moving_average.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/nn/optim/schedule.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;

TEST(Schedule, EveryKindIsItsFormula) {
  for (std::int64_t step = 10; step <= 120; ++step) {
    const double d = std::min(static_cast<double>(step - 10) / 90, 1.0);
    Schedule s{.kind = Schedule::Kind::polynomial, .base = 10, .warmup_steps = 10, .total_steps = 100, .end = 0.5};
    EXPECT_NEAR(s.at(step), 0.5 + 9.5 * (1 - d) * (1 - d), 1e-12);
    s.power = 1;
    EXPECT_NEAR(s.at(step), 0.5 + 9.5 * (1 - d), 1e-12);
    s.kind = Schedule::Kind::cosine;
    EXPECT_NEAR(s.at(step), 0.5 + 9.5 * (1 + std::cos(std::numbers::pi * d)) / 2, 1e-12);
    s.kind = Schedule::Kind::constant;
    EXPECT_EQ(s.at(step), 10);
    s.kind = Schedule::Kind::step;
    s.milestones = {30, 60, 90};
    s.gamma = 0.2;
    const int passed = step < 30 ? 0 : step < 60 ? 1 : step < 90 ? 2 : 3;
    EXPECT_NEAR(s.at(step), 10 * std::pow(0.2, passed), 1e-12) << step;
  }
  const Schedule whole{.kind = Schedule::Kind::polynomial, .base = 2, .total_steps = 4};
  EXPECT_EQ(whole.at(0), 2);
  EXPECT_EQ(whole.at(4), 0) << "zero at the end";
  EXPECT_EQ(whole.at(400), 0);
}

TEST(Schedule, WarmUpHasThreeForms) {
  Schedule s{.base = 0.5, .warmup_steps = 8};
  for (std::int64_t step = 0; step < 8; ++step) {
    const auto t = static_cast<double>(step);
    s.warmup_factor.reset();
    s.warmup = Schedule::WarmUp::linear;
    EXPECT_EQ(s.at(step), 0.5 * (t + 1) / 8);
    s.warmup_factor = 0.01;  // torch.optim.lr_scheduler.LinearLR(start_factor=0.01, total_iters=8)
    EXPECT_NEAR(s.at(step), 0.5 * (0.01 + 0.99 * t / 8), 1e-15);
    s.warmup = Schedule::WarmUp::constant;
    EXPECT_EQ(s.at(step), 0.5 * 0.01);
    s.warmup = Schedule::WarmUp::exponential;
    EXPECT_NEAR(s.at(step), 0.5 * std::exp(std::log(0.01) * (8 - t) / 8), 1e-15);
  }
  EXPECT_EQ(s.at(8), 0.5);
  for (const char* name : {"linear", "constant", "exponential"}) {
    EXPECT_EQ(name_of(parse_warmup(name)), name);
  }
  for (const char* name : {"constant", "step", "cosine", "polynomial"}) {
    EXPECT_EQ(name_of(parse_schedule(name)), name);
  }
}

TEST(Schedule, RefusesWhatIsOutOfRange) {
  const auto refused = [](const Schedule& s) { return error_of<UsageError>([&] { require_schedule(s); }); };
  EXPECT_EQ(refused({.gamma = std::nan("")}), "schedule: gamma is nan, expected above 0");
  EXPECT_EQ(refused({.power = 0}), "schedule: power is 0, expected above 0");
  EXPECT_EQ(refused({.end = -1}), "schedule: the rate at the end is -1, expected at least 0");
  EXPECT_EQ(refused({.warmup_factor = 1.5}), "schedule: the factor of the warm-up is 1.5, expected 0 to 1");
  EXPECT_EQ(refused({.warmup = Schedule::WarmUp::constant}),
            "schedule: a constant warm-up has no warmup_factor, expected one above 0");
  EXPECT_EQ(refused({.warmup = Schedule::WarmUp::exponential, .warmup_factor = 0.0}),
            "schedule: the factor of the warm-up is 0, expected above 0 to 1");
  EXPECT_EQ(error_of<UsageError>([] { (void)parse_schedule("poly"); }),
            "unknown schedule 'poly', expected constant, step, cosine or polynomial");
  EXPECT_EQ(error_of<UsageError>([] { (void)parse_warmup("none"); }),
            "unknown warm-up 'none', expected linear, constant or exponential");
}

TEST(MovingAverage, ShareOfEachUpdate) {
  const MovingAverageOptions off{};
  EXPECT_EQ(off.weight(1), 0);
  const MovingAverageOptions plain{.decay = 0.99};
  EXPECT_EQ(plain.weight(1), 1) << "the first is a copy, as torch.optim.swa_utils.AveragedModel's";
  EXPECT_EQ(plain.weight(2), 1 - 0.99);
  const MovingAverageOptions sparse{.decay = 0.9, .every = 4, .copied_updates = 6};
  // Updates 1, 5, 9 and 13 change the average. Updates up to 6 copy the weights. Update 9, the first one after the
  // copies, is a copy, too, because torchvision resets n_averaged to 0 during the warm-up.
  const std::vector<double> expected{0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1 - 0.9};
  for (std::size_t update = 0; update < expected.size(); ++update) {
    EXPECT_EQ(sparse.weight(static_cast<std::int64_t>(update)), expected[update]) << update;
  }
  // The formula of timm.utils.ModelEmaV3(use_warmup=True, decay=0.9): 1 - (1 + n)^(-2/3), at most the decay.
  const MovingAverageOptions ramp{.decay = 0.9, .ramp = true};
  EXPECT_NEAR(ramp.weight(2), std::pow(2.0, -2.0 / 3), 1e-15);
  EXPECT_NEAR(ramp.weight(8), 0.25, 1e-15);
  EXPECT_NEAR(ramp.weight(31), std::pow(31.0, -2.0 / 3), 1e-15);
  EXPECT_EQ(ramp.weight(33), 1 - 0.9);
  // timm's train.py calls update(model, step=UPDATE), which uses the decay get_decay(UPDATE).
  const auto decay_of_timm = [](std::int64_t step, std::int64_t update_after_step, double decay, bool use_warmup) {
    step = std::max<std::int64_t>(0, step - update_after_step - 1);
    if (step <= 0) {
      return 0.0;
    }
    return use_warmup ? std::min(1 - std::pow(1 + static_cast<double>(step), -2.0 / 3), decay) : decay;
  };
  for (const std::int64_t after : {0, 1, 5}) {
    for (const bool warms_up : {false, true}) {
      const MovingAverageOptions ours{.decay = 0.9, .copied_updates = after, .ramp = warms_up};
      for (std::int64_t update = 1; update < 50; ++update) {
        EXPECT_NEAR(ours.weight(update), 1 - decay_of_timm(update, after, 0.9, warms_up), 1e-15)
            << update << " after " << after;
      }
    }
  }
  // The arguments of weight() are the number of the update in the run and its number in the schedule. They differ if a
  // run has continued with another batch size.
  EXPECT_EQ(sparse.weight(9, 20), 1 - 0.9);
  EXPECT_EQ(sparse.weight(20, 9), 0) << "updates decide when";
  EXPECT_EQ(text_of(sparse), "0.9 every 4, copied for 6");
  EXPECT_EQ(text_of(ramp), "0.9, ramp");
  const auto refused = [](const MovingAverageOptions& o) {
    return error_of<UsageError>([&] { require_moving_average(o); });
  };
  EXPECT_EQ(refused({.decay = 1}), "moving average: the decay is 1, expected 0 <= value < 1");
  EXPECT_EQ(refused({.decay = std::nan("")}), "moving average: the decay is nan, expected 0 <= value < 1");
  EXPECT_EQ(refused({.every = 0}), "moving average: every is 0, expected at least 1");
}

TEST(ParameterGroups, DecayByRoleAndRatesByName) {
  CpuContext context;
  const Model model = cifar_resnet(8, 4, 8, 8);
  ParameterSetOptions options{.weight_decay = 0.1};
  options.groups = {.norm_weight_decay = 0.0,
                    .bias_weight_decay = 0.2,
                    .rates = {parse_rate("layer3.*=0.5"), parse_rate("*.bn2.*=2"), parse_rate("fc.?ias=1e1")}};
  const ParameterSet set(context, model, DType::f64, options);
  const auto segment_of = [&](const std::string& name) {
    const std::int64_t offset = set.parameters()[static_cast<std::size_t>(set.find(name))].offset;
    for (const ops::ArenaSegment& segment : set.segments()) {
      if (offset >= segment.offset && offset < segment.offset + segment.count) {
        return segment;
      }
    }
    return ops::ArenaSegment{};
  };
  const auto expect = [&](const std::string& name, double decay, double rate) {
    EXPECT_EQ(segment_of(name).weight_decay, decay) << name;
    EXPECT_EQ(segment_of(name).learning_rate_scale, rate) << name;
    EXPECT_EQ(set.tensor_segments()[static_cast<std::size_t>(set.find(name))].learning_rate_scale, rate) << name;
  };
  expect("conv1.weight", 0.1, 1);
  expect("bn1.weight", 0, 1);
  expect("layer3.0.conv1.weight", 0.1, 0.5);
  expect("layer3.0.bn1.bias", 0, 0.5);
  expect("layer3.0.bn2.bias", 0, 2);
  expect("fc.weight", 0.1, 1);
  expect("fc.bias", 0.2, 10);
  EXPECT_EQ(text_of(options.groups), "norm decay 0, bias decay 0.2, rates layer3.*=0.5 *.bn2.*=2 fc.?ias=10");
  options.groups.rates = {{"layer9.*", 1}};
  EXPECT_EQ(error_of<UsageError>([&] { ParameterSet(context, model, DType::f32, options); }).substr(0, 70),
            "no parameter has a name like 'layer9.*', expected one for a rate of 1,");
  for (const char* text : {"fc.*", "=1", "fc.*=-1", "fc.*=x", "fc.*=nan", "fc.*=1 "}) {
    EXPECT_EQ(error_of<UsageError>([&] { (void)parse_rate(text); }),
              concat("a rate of parameters is '", text,
                     "', expected PATTERN=FACTOR with a number of at least 0, as layer4.*=0.1"));
  }
}

// Compares an update with p -= rate * factor * (g + decay * p), which the test computes for every parameter.
TEST(ParameterGroups, AnUpdateFollowsThem) {
  CpuContext context;
  const Model model = cifar_resnet(8, 4, 8, 8);
  ParameterSetOptions options{.weight_decay = 0.1};
  options.groups = {.norm_weight_decay = 0.3, .bias_weight_decay = 0.0, .rates = {{"layer2.*", 0.25}, {"fc.*", 0}}};
  ParameterSet set(context, model, DType::f64, options);
  set.initialise(context, 3);
  Optimizer optimizer(context, set, {.momentum = 0});
  std::vector<double> before(static_cast<std::size_t>(set.numel()));
  std::copy_n(set.values().as<double>(), before.size(), before.begin());
  for (const ParameterInfo& info : set.parameters()) {
    std::fill_n(set.gradients().as<double>() + info.offset, info.numel, 0.5);
  }
  double rate = 0.2;
  optimizer.update(context, TensorView(std::span(&rate, 1), Shape{}));
  context.synchronize();
  for (const ParameterInfo& info : set.parameters()) {
    const std::string& name = info.spec.name;
    const double factor = name.starts_with("layer2.") ? 0.25 : name.starts_with("fc.") ? 0 : 1;
    const double decay = name.find("bn") != std::string::npos ? 0.3 : name == "fc.bias" ? 0 : 0.1;
    for (std::int64_t i = info.offset; i < info.offset + info.numel; ++i) {
      const double p = before[static_cast<std::size_t>(i)];
      ASSERT_NEAR(set.values().as<double>()[i], p - 0.2 * factor * (0.5 + decay * p), 1e-14) << name;
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
