// Compares an evaluation's counts for each class with counts that the test makes from the outputs of the same
// evaluation. Also tests a calibration error computed by hand, several ranks, and outputs that are not finite.
#include <algorithm>
#include <array>
#include <cfenv>
#include <limits>
#include <span>
#include <utility>

#include <lockstep/nn/run/evaluation/class_statistics.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns logits of two classes whose prediction has this confidence.
std::array<double, 2> logits_of(int predicted, double confidence) {
  std::array<double, 2> logits{};
  logits[static_cast<std::size_t>(predicted)] = std::log(confidence / (1 - confidence));
  return logits;
}

// Ten samples have confidence 0.9, and 6 of them are right; five have 0.7, and 4 of them are right. Guo et al. 2017,
// equation 3: 10/15 * |0.6 - 0.9| + 5/15 * |0.8 - 0.7| = 0.2 + 1/30.
TEST(ClassReport, CalibrationErrorByHand) {
  ClassReport report(2, 0);
  for (int i = 0; i < 10; ++i) {
    report.add(i, i < 6 ? 1 : 0, logits_of(1, 0.9));
  }
  for (int i = 0; i < 5; ++i) {
    report.add(10 + i, i < 4 ? 0 : 1, logits_of(0, 0.7));
  }
  EXPECT_NEAR(report.calibration_error(), 0.2 + 1.0 / 30, 1e-8);
  EXPECT_EQ(report.bins[13].samples, 10);  // 0.9 * 15 = 13.5
  EXPECT_EQ(report.bins[10].correct, 4);   // 0.7 * 15 = 10.5
  EXPECT_EQ(report.confusion, (std::vector<std::int64_t>{4, 4, 1, 6}));
  EXPECT_NEAR(report.worst_class_accuracy(), 0.5, 1e-15);
  EXPECT_TRUE(report.worst.empty());
  // After a wrong prediction of high confidence, the calibration error must grow.
  report.add(15, 0, logits_of(1, 0.999));
  EXPECT_GT(report.calibration_error(), 0.27);
}

TEST(ClassReport, NothingIsDividedByNoSample) {
  std::feclearexcept(FE_ALL_EXCEPT);
  ClassReport report(3, 0);
  const bool none = std::isnan(report.worst_class_accuracy()) && std::isnan(report.calibration_error());
  report.add(0, 1, std::array<double, 3>{0, 1, 2});
  const double worst = report.worst_class_accuracy();
  const double of_none = report.accuracy_of(0);
  const std::string text = Json(json_of(report, {})).text();
  EXPECT_EQ(std::fetestexcept(FE_INVALID | FE_DIVBYZERO), 0);
  EXPECT_TRUE(none);
  EXPECT_EQ(worst, 0);
  EXPECT_TRUE(std::isnan(of_none));
  testing::expect_holds(text, "\"accuracy\":null");
}

TEST(ClassReport, BoundsOfBinsBelongToTheLowerOne) {
  ClassReport report(4, 0);
  report.add(0, 0, std::array<double, 4>{0, 0, 0, 0});  // confidence 1/4: 3.75 bins
  EXPECT_EQ(report.bins[3].samples, 1);
  EXPECT_EQ(report.count(0, 0), 1) << "the first of equals";
  report.add(1, 0, std::array<double, 4>{1000, 0, 0, 0});  // confidence 1
  EXPECT_EQ(report.bins[14].samples, 1);
  ClassReport thirds(3, 0);
  thirds.add(0, 0, std::array<double, 3>{0, 0, 0});  // confidence 1/3 = 5/15: the fifth bin
  EXPECT_EQ(thirds.bins[4].samples, 1);
}

TEST(ClassReport, WhatIsNotFiniteIsWrongAndSaid) {
  ClassReport report(3, 2);
  // Outputs with NaN must count as wrong. An argmax by comparisons would choose class 0, which is the label.
  report.add(7, 0, std::array<double, 3>{kNan, 0, 0});
  report.add(5, 1, std::array<double, 3>{0, 0, kNan});
  report.add(3, 2, std::array<double, 3>{0, 0, kInfinity});
  report.add(1, 2, std::array<double, 3>{-kInfinity, -kInfinity, -kInfinity});
  report.add(0, 2, std::array<double, 3>{0, -kInfinity, 2});  // finite: a softmax with a 0
  EXPECT_EQ(report.samples(), 5);
  EXPECT_EQ(report.not_finite, (std::vector<std::int64_t>{1, 1, 2}));
  EXPECT_EQ(report.accuracy_of(0), 0);
  EXPECT_NEAR(report.accuracy_of(2), 1.0 / 3, 1e-15);
  ASSERT_EQ(report.worst.size(), 2U);
  EXPECT_EQ(report.worst[0].id, 1) << "of equal losses the smaller id";
  EXPECT_EQ(report.worst[0].predicted, -1);
  EXPECT_EQ(report.worst[1].id, 3);
  testing::expect_holds(text_of(report, {}), "4 of 5 samples have outputs that are not finite");
  ClassReport none(3, 2);
  none.add(0, 0, std::array<double, 3>{kNan, 0, 0});
  EXPECT_TRUE(std::isnan(none.calibration_error()));
  testing::expect_holds(Json(json_of(none, {})).text(), "\"calibration_error\":null");
}

TEST(ClassReport, DividedCountsAddUpToTheSameBits) {
  Random random(3, RandomUse::test);
  ClassReport all(5, 4);
  std::array<ClassReport, 3> parts{ClassReport(5, 4), ClassReport(5, 4), ClassReport(5, 4)};
  for (std::int64_t id = 0; id < 1000; ++id) {
    std::array<double, 5> logits{};
    for (double& logit : logits) {
      logit = random.normal();
    }
    const auto label = static_cast<std::int32_t>(random.below(5));
    all.add(id, label, logits);
    parts[random.below(3)].add(id, label, logits);
  }
  ClassReport sum(5, 4);
  for (const std::size_t i : {2, 0, 1}) {
    sum.add(parts[i]);
  }
  EXPECT_EQ(Json(json_of(sum, {})).text(), Json(json_of(all, {})).text());
  sum.add(0, 0, std::array<double, 5>{1, 0, 0, 0, 0});
  EXPECT_NE(Json(json_of(sum, {})).text(), Json(json_of(all, {})).text()) << "control";
}

TEST(ClassReport, TextOfFewAndOfManyClasses) {
  ClassReport few(2, 0);
  few.add(0, 0, logits_of(1, 0.9));
  const std::string text = text_of(few, {"cat", "d\x1b[2Jog"});
  testing::expect_holds(text, "cat");
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  testing::expect_holds(text, "0.0 %");
  ClassReport many(40, 0);
  std::vector<double> logits(40);
  logits[7] = 9;
  many.add(0, 7, logits);
  many.add(1, 3, logits);
  const std::string lines = text_of(many, {});
  testing::expect_holds(lines,
                        "the 2 classes of least accuracy, of 40\n  3                   0.0 % of 1, 1 taken for 7\n");
  EXPECT_EQ(base64(std::as_bytes(std::span("Man", 3))) + base64(std::as_bytes(std::span("Ma", 2))) +
                base64(std::as_bytes(std::span("M", 1))),
            "TWFuTWE=TQ==");  // examples of RFC 4648
  EXPECT_EQ(testing::error_of<UsageError>([] { ClassReport(5000, 0); }),
            "class report: 5000 classes, expected 1 to 4096");
}

/// Keeps the outputs, labels and ids of an evaluation; waits for each batch.
class Outputs final : public RunObserver {
 public:
  explicit Outputs(Context& context) : context_(context) {}
  void on_evaluation_batch(const EvaluationBatch& event) override {
    const std::int64_t rows = event.batch.valid;
    const std::int64_t classes = event.output.shape[1];
    std::vector<float> values(static_cast<std::size_t>(rows * classes));
    copy_now(context_, event.output.slice(0, 0, rows), TensorView(std::span(values), {rows, classes}));
    logits.insert(logits.end(), values.begin(), values.end());
    for (std::int64_t i = 0; i < rows; ++i) {
      labels.push_back(event.batch.view(StateField::labels).as<std::int32_t>()[i]);
      ids.push_back(event.batch.view(StateField::sample_ids).as<std::int64_t>()[i]);
    }
  }
  std::vector<float> logits;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> ids;

 private:
  Context& context_;
};

struct Evaluated {
  ClassReport report;
  EvaluationEvent event;
  Outputs* outputs = nullptr;
};

/// Evaluates the initial weights on small_data(), on `ranks` ranks with batches of `batch` samples.
Evaluated evaluate_on(int ranks, std::int64_t batch, DType dtype, bool worker) {
  Evaluated result;
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  comm::on_ranks(ranks, [&](comm::Communicator& grad, comm::Communicator& control) {
    Stream stream = worker ? Stream::host_worker("device") : Stream::host_inline();
    CpuContext context({.threads = 1, .stream = &stream});
    TrainerOptions options{.global_batch = batch};
    options.step.plan.dtype = dtype;
    const Ranks all{grad, control, context.stream()};
    Trainer trainer(context, all, model, data, options);
    trainer.start();
    ASSERT_TRUE(ClassStatistics::can_watch(trainer));
    ClassStatistics watch(trainer, all, 5);
    const ClassReport& report = watch.report();
    EXPECT_EQ(report.confusion, std::vector<std::int64_t>(16)) << "no evaluation has begun";
    Outputs outputs(context);
    RunObservers observers;
    observers.add(watch);
    observers.add(outputs);
    const EvaluationEvent event = run_evaluation(trainer, control, watch.metrics(), observers);
    EXPECT_EQ(event.metrics.at("calibration_error"), report.calibration_error());
    EXPECT_EQ(event.correct,
              static_cast<double>(report.count(0, 0) + report.count(1, 1) + report.count(2, 2) + report.count(3, 3)));
    if (ranks == 1) {
      std::vector<std::int64_t> counts(16);
      std::vector<std::pair<double, std::int64_t>> losses;
      for (std::size_t i = 0; i < outputs.ids.size(); ++i) {
        std::size_t best = 0;
        double total = 0;
        for (std::size_t k = 0; k < 4; ++k) {
          best = outputs.logits[4 * i + k] > outputs.logits[4 * i + best] ? k : best;
          total += std::exp(static_cast<double>(outputs.logits[4 * i + k]));
        }
        const auto label = static_cast<std::size_t>(outputs.labels[i]);
        ++counts[4 * label + best];
        losses.emplace_back(-(std::log(total) - static_cast<double>(outputs.logits[4 * i + label])), outputs.ids[i]);
      }
      EXPECT_EQ(outputs.ids.size(), 31U);
      EXPECT_EQ(report.confusion, counts);
      std::sort(losses.begin(), losses.end());
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(report.worst[i].id, losses[i].second);
        EXPECT_NEAR(report.worst[i].loss, -losses[i].first, 1e-9);
      }
    }
    if (grad.rank() == 0) {
      result.report = report;
      result.event = event;
    }
  });
  return result;
}

/// Returns the report of evaluate_on() as a text.
std::string report_of(int ranks, std::int64_t batch, DType dtype, bool worker) {
  return Json(json_of(evaluate_on(ranks, batch, dtype, worker).report, {})).text();
}

TEST(ClassStatistics, CountsAreThoseOfTheOutputsOnAnyRanksAndBatches) {
  const std::string one = report_of(1, 11, DType::f32, false);
  testing::expect_holds(one, "\"classes\"");
  EXPECT_EQ(report_of(1, 3, DType::f32, true), one) << "many batches, a worker";
  EXPECT_EQ(report_of(2, 11, DType::f32, true), one);
  EXPECT_EQ(report_of(3, 31, DType::f32, false), one);
}

TEST(ClassStatistics, SixteenBitOutputs) {
  const Evaluated one = evaluate_on(1, 8, DType::bf16, true);  // evaluate_on() compares the report with the outputs
  const Evaluated two = evaluate_on(2, 16, DType::bf16, true);
  EXPECT_EQ(two.report.samples(), 31);
  EXPECT_EQ(Json(json_of(two.report, {})).text(), Json(json_of(one.report, {})).text());
}

}  // namespace
}  // namespace lockstep::nn
