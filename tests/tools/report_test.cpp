// Tests lockstep-report on made-up runs.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_here.hpp"
#include "tools/lockstep_report/page.hpp"

int lockstep_report_main(int argc, char** argv);

namespace lockstep::tools {
namespace {

using testing::expect_holds;
using testing::expect_lacks;

std::string report(std::int64_t step, const std::string& fields) {
  return concat("{\"event\":\"step\",\"epoch\":0,\"step\":", step, ",", fields, "}\n");
}

class Report : public ::testing::Test {
 protected:
  /// Makes a folder of results with these lines. Returns its path.
  std::string run(const std::string& name, const std::string& lines, const std::string& settings = "") {
    std::filesystem::create_directories(folder_ / name);
    std::ofstream(folder_ / name + "/metrics.jsonl") << lines;
    if (!settings.empty()) {
      std::ofstream(folder_ / name + "/config.json") << settings;
    }
    return folder_ / name;
  }
  static testing::Ended program(const std::string& options) {
    return testing::run_here(lockstep_report_main, "lockstep-report " + options);
  }
  testing::TemporaryFolder folder_;
};

std::string refused(const std::string& path) {
  return testing::error_of<DataError>([&] { static_cast<void>(read_run(path)); });
}

std::vector<std::int64_t> steps_of(const Points& points) {
  std::vector<std::int64_t> steps;
  for (const Point& p : points) {
    steps.push_back(p.step);
  }
  return steps;
}

/// True if every element is closed, in order, as XML requires; ignores the declaration and the style.
bool well_formed(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) {
      return false;
    }
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(tag.front() == '/' ? 1 : 0, tag.find(' ') - (tag.front() == '/' ? 1 : 0));
    if (tag.front() == '!' || tag.back() == '/') {
      continue;
    }
    if (tag.front() != '/') {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST_F(Report, ValuesByFieldAndStep) {
  const RunLog log =
      read_run(run("a",
                   report(10, R"("loss":2.5,"accuracy":0.25,"images_per_second":100)") +
                       report(20, R"("loss":null,"accuracy":0.5,"images_per_second":300)") +
                       "{\"event\":\"epoch\",\"epoch\":1,\"step\":20,\"loss\":2,\"test_loss\":1.5,"
                       "\"seconds\":7}\n{\"event\":\"own\",\"note\":1}\n{\"event\":\"end\",\"exit_code\":75,"
                       "\"best\":0.5,\"best_by\":\"test_accuracy\",\"step\":20}\n",
                   R"({"seed":1,"options":{"dtype":"f32"},"none":null})"));
  EXPECT_EQ(log.name, "a");
  ASSERT_EQ(steps_of(log.reports.at("loss")), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(log.reports.at("loss")[0].value, 2.5);
  EXPECT_EQ(steps_of(log.reports.at("images_per_second")), (std::vector<std::int64_t>{10, 20}));
  EXPECT_EQ(log.gaps.at("loss"), (std::vector<std::int64_t>{20}));
  EXPECT_EQ(log.epochs.at("test_loss")[0].value, 1.5);
  EXPECT_EQ(log.steps, 20);
  EXPECT_EQ(log.seconds, 7);
  EXPECT_EQ(log.exit_code, 75);
  EXPECT_EQ(log.best_by, "test_accuracy");
  EXPECT_EQ(log.best, 0.5);
  EXPECT_EQ(log.settings, (std::map<std::string, std::string>{{"options.dtype", "f32"}, {"seed", "1"}}));
}

TEST_F(Report, StepsThatAResumeTrainsAgainCountOnce) {
  const std::string lines = report(10, "\"loss\":3") + report(20, "\"loss\":9") + report(30, "\"loss\":null") +
                            R"({"event":"resume","from":"last","epoch":0,"step":10})"
                            "\n" +
                            report(20, "\"loss\":2") + report(40, "\"loss\":1") +
                            "{\"event\":\"st";  // the run was killed while it wrote this line
  const RunLog log = read_run(run("a", lines));
  EXPECT_EQ(steps_of(log.reports.at("loss")), (std::vector<std::int64_t>{10, 20, 40}));
  EXPECT_EQ(log.reports.at("loss")[1].value, 2);
  EXPECT_EQ(log.resumed_after, (std::vector<std::int64_t>{10}));
  EXPECT_FALSE(log.gaps.contains("loss"));
  EXPECT_FALSE(log.exit_code);
  expect_holds(page_of({log}), {"not told: it runs, or was killed", "<td>once</td>", "a: resumed after step 10"});
}

/// A chart must mark a run's resume only if it has a curve of that run. Otherwise the mark would stretch the chart's
/// axis.
TEST_F(Report, AResumeIsDrawnWhereItsRunIs) {
  const RunLog one = read_run(run("a", report(10, "\"loss\":3") +
                                           "{\"event\":\"resume\",\"from\":\"last\",\"epoch\":0,\"step\":12}\n" +
                                           report(20, "\"loss\":2")));
  const RunLog two = read_run(run("b", report(3, "\"loss\":3,\"top_k_accuracy\":0.5")));
  int charts = 0;
  for (const Panel& chart : charts_of({one, two})) {
    const bool loss = chart.title.starts_with("loss");
    EXPECT_EQ(chart.marks.size(), loss ? 1U : 0U) << chart.title;
    ++charts;
  }
  EXPECT_EQ(charts, 2);
}

TEST_F(Report, BadInputIsNamed) {
  const std::string good = report(1, "\"loss\":1");
  EXPECT_EQ(refused(run("a", good + "{\"event\":\"step\",\n" + good)).find(folder_ / "a/metrics.jsonl, line 2"), 0U);
  EXPECT_EQ(refused(run("b", good + "[1]\n")), folder_ / "b/metrics.jsonl, line 2 is an array, expected an object");
  const std::string empty = run("c", "");
  EXPECT_EQ(testing::error_of<DataError>([&] {
              static_cast<void>(read_runs({empty, run("f", "")}));
            }),
            empty + " tells of no step of training yet, expected at least one");
  EXPECT_EQ(read_runs({empty, run("e", good)})[0].steps, 0) << "a run that has just begun, with another";
  expect_holds(refused(run("d", R"({"event":"step","step":"x"})"
                                "\n")),
               {"line 1: 'step' is a string"});
  expect_holds(refused(folder_ / "none"), {folder_ / "none", "No such file"});
  testing::expect_refused(program(folder_ / "none"), {folder_ / "none"});
}

TEST_F(Report, ChartsShareTrainingAndEvaluation) {
  const RunLog first = read_run(run("a", report(5, R"("loss":4,"learning_rate":0.1,"bits":3,"comm_exposed_s":0.002)") +
                                             R"({"event":"epoch","epoch":1,"step":5,"loss":4,"test_loss":5,"own":7,)"
                                             R"("test_bits":2,"gradient_bytes":100,"test_worst_class_accuracy":0.5})"
                                             "\n"));
  RunLog second = first;
  second.name = "b";
  const std::vector<Panel> charts = charts_of({first, second});
  std::vector<std::string> titles;
  for (const Panel& chart : charts) {
    titles.push_back(chart.title);
  }
  ASSERT_EQ(titles, (std::vector<std::string>{"loss", "learning rate", "exposed communication, ms a step", "bits",
                                              "own", "accuracy of the worst class, %"}));
  ASSERT_EQ(charts[0].curves.size(), 4U);  // training and evaluation of each run
  EXPECT_EQ(charts[0].curves[1].label, "a, evaluation");
  EXPECT_EQ(charts[0].curves[1].dots[0].second, 5);
  EXPECT_EQ(charts[0].curves[3].colour, 1);
  EXPECT_EQ(charts[2].curves[0].dots[0].second, 2);  // milliseconds
  EXPECT_EQ(charts[3].curves[1].dots[0].second, 2);
  EXPECT_EQ(charts[5].curves[0].dots[0].second, 50);
}

/// Each point of a curve must have the position that follows from the frame and the axis labels.
TEST_F(Report, PointsLieWhereTheAxesSay) {
  const Panel chart{.title = "t", .curves = {{.label = "s", .line = {{0, 0.5}, {50, 3}, {200, 1.25}}}}};
  const std::string picture = draw(chart);
  // The vertical axis has ticks of 0.5 from 0.5 to 3 on 220 pixels below y = 12. Steps 0 to 200 have 480 pixels right
  // of x = 62.
  expect_holds(picture, {">0.5</text>", ">1</text>", ">2.5</text>", ">3</text>", ">150</text>", ">200</text>",
                         "points=\"62.0,232.0 182.0,12.0 542.0,166.0\""});
  expect_lacks(picture, {">3.5</text>"});
}

/// Every point must be inside the frame, whatever its value is.
TEST_F(Report, ScalesOfOddValues) {
  const auto drawn = [](const PlotPoints& points) {
    const std::string picture =
        draw({.title = "", .x = {.scale = Axis::Scale::counted}, .curves = {{.label = "", .line = points}}});
    expect_lacks(picture, {"nan"});
    const std::size_t at = picture.find("points=\"");
    std::istringstream numbers(picture.substr(at == std::string::npos ? 0 : at + 8));
    for (std::size_t i = 0; i < points.size(); ++i) {
      double x = -1;
      double y = -1;
      char comma = 0;
      EXPECT_TRUE(numbers >> x >> comma >> y) << picture;
      EXPECT_TRUE(x >= 62 && x <= 542 && y >= 12 && y <= 232) << x << ' ' << y;
    }
    return picture;
  };
  drawn({{3, 7}, {4, 7}});
  // If an accuracy stays 0, its axis must have no negative numbers.
  const std::string zero = drawn({{1, 0}});
  expect_holds(zero, {">1</text>"});
  expect_lacks(zero, {">-"});
  drawn({{0, 0}});
  drawn({{1, -1e300}, {9e18, 1e300}});
  expect_holds(drawn({{1, 1e-12}, {2, 3e-12}}), {">1.5e-12</text>", ">3e-12</text>"});
  expect_holds(draw({.title = "", .curves = {{.label = ""}}}), {"nothing measured"});
}

TEST_F(Report, LongCurvesKeepTheirExtremes) {
  Points points;
  for (std::int64_t i = 1; i <= 100000; ++i) {
    points.push_back({i, i == 77777 ? 50.0 : i == 12345 ? -50.0 : static_cast<double>(i % 7)});
  }
  const Points kept = thinned(points, 1000);
  EXPECT_LE(kept.size(), 1000U);
  EXPECT_GE(kept.size(), 900U);
  bool high = false;
  bool low = false;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    high |= kept[i].step == 77777 && kept[i].value == 50;
    low |= kept[i].step == 12345 && kept[i].value == -50;
    ASSERT_TRUE(i == 0 || kept[i - 1].step < kept[i].step);
    ASSERT_EQ(points[static_cast<std::size_t>(kept[i].step - 1)].value, kept[i].value);
  }
  EXPECT_TRUE(high && low);
  EXPECT_EQ(thinned(points, points.size()).size(), points.size());
}

TEST_F(Report, APageOfHostileNamesIsWellFormed) {
  const std::string name = "<script>alert('x')</script>&\"\x1b";
  const std::string settings = R"({"a":"<b>","same":1})";
  const std::string lines = report(1, R"("loss":1,"<img>":2)") + report(2, R"("loss":2,"<img>":3)");
  std::filesystem::create_directories(folder_ / "safe");
  RunLog log = read_run(run("safe", lines, settings));
  log.name = name;
  RunLog other = log;
  other.name = "other";
  other.settings["a"] = "c";
  const std::string page = page_of({log, other});
  expect_lacks(page, {"<script", "<img", "<b>", "\x1b"});
  expect_holds(page,
               {"&lt;script&gt;", "&lt;img&gt;", "Settings that differ", "<td>a</td><td>&lt;b&gt;</td><td>c</td>"});
  EXPECT_EQ(page.find("<td>same</td>"), std::string::npos) << "the same in both runs";
  EXPECT_TRUE(well_formed(page));
  EXPECT_FALSE(well_formed(page + "<p>")) << "control";
  expect_holds(page_of({log}), {"<h2>Settings</h2>", "<td>same</td><td>1</td>"});
}

/// Returns an evaluation of `classes` classes with two samples each. One sample is right, one is predicted as the next
/// class.
std::string evaluation_of(int classes, const std::string& worst = "", const std::string& name = "n") {
  std::string text = R"({"format":1,"step":3,"calibration_error":0.125,"worst":[)" + worst +
                     R"(],"bins":[{"samples":0,"accuracy":null,"confidence":null},)"
                     R"({"samples":8,"accuracy":0.25,"confidence":0.75}],"classes":[)";
  for (int i = 0; i < classes; ++i) {
    text +=
        concat(i == 0 ? "" : ",", R"({"name":")", name, i, R"(","samples":2,"correct":1,"not_finite":0,"predicted":[[)",
               i, ",1],[", (i + 1) % classes, ",1]]}");
  }
  return text + "]}";
}

TEST_F(Report, TheLastEvaluationIsDrawn) {
  const std::string folder =
      run("a", report(1, "\"loss\":1") + "{\"event\":\"epoch\",\"step\":1,\"peak_bytes\":3145728}\n");
  const std::string worst = R"({"sample":17,"label":1,"predicted":0,"loss":2.5,"confidence":0.9,"picture":"AAA="},)"
                            R"({"sample":18,"label":0,"predicted":null,"loss":null,"confidence":0})";
  testing::put_file(folder + "/evaluation.json", evaluation_of(2, worst, "<i>"));
  const RunLog log = read_run(folder);
  ASSERT_TRUE(log.evaluation);
  EXPECT_EQ(log.evaluation->classes[1].predicted[1].second, 1);
  const std::string page = page_of({log});
  expect_holds(
      page, {"a: evaluation after step 3", "&lt;i&gt;1", "rgba(0,114,178,0.50)\">1</td>", "50.0 % of 2", "error 0.1250",
             "src=\"data:image/png;base64,AAA=\"", "sample 17: &lt;i&gt;1, taken for &lt;i&gt;0; loss 2.5",
             "taken for nothing: not finite; loss infinite", "3 MiB",
             // Bin 2 of 2 begins at x = 46 + 110. Its height is a quarter of 220 pixels.
             "x=\"156.0\" y=\"189.0\" width=\"109.0\" height=\"55.0\"", "<table class=\"confusion long-names\">"});
  expect_lacks(page, {"<i>"});
  EXPECT_TRUE(well_formed(page));
  testing::put_file(folder + "/evaluation.json", evaluation_of(31));
  expect_holds(page_of({read_run(folder)}),
               {"the most frequent confusions of 31 classes", "the classes of least accuracy"});
  testing::put_file(folder + "/evaluation.json", evaluation_of(3));
  expect_holds(page_of({read_run(folder)}),
               {"<table class=\"confusion\">", "rgba(213,94,0,0.00)\"></td>", "rgba(213,94,0,0.50)\">1</td>"});
  // A resume after step 1 has discarded the evaluation of step 3; a resume after step 3 has not.
  const std::string resumed = R"({"event":"resume","from":"best","epoch":0,"step":)";
  for (const int step : {1, 3}) {
    const std::string other = run(concat("resumed", step), report(3, "\"loss\":1") + resumed + concat(step, "}\n"));
    testing::put_file(other + "/evaluation.json", evaluation_of(2));
    EXPECT_EQ(read_run(other).evaluation.has_value(), step == 3);
  }
}

TEST_F(Report, ADamagedEvaluationIsNamed) {
  const std::string folder = run("a", report(1, "\"loss\":1"));
  const auto damaged = [&](const std::string& from, const std::string& to) {
    std::string text = evaluation_of(2, R"({"sample":1,"label":1,"predicted":0,"loss":1,"picture":"AAA="})");
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    testing::put_file(folder + "/evaluation.json", text.replace(at, from.size(), to));
    const std::string error = refused(folder);
    EXPECT_EQ(error.find(folder + "/evaluation.json"), 0U) << error;
    return error;
  };
  expect_holds(damaged("\"samples\":2", "\"samples\":3"), {"class 0: 2 predictions"});
  expect_holds(damaged("[[0,1]", "[[2,1]"), {"predicted is 2, expected 0 to 1"});
  expect_holds(damaged("[[0,1]", "[[0,-1]"), {"a count of -1"});
  expect_holds(damaged("[[0,1]", "[[0,9223372036854775807]"), {"more predictions than samples, expected 2 of them"});
  expect_holds(damaged("\"label\":1", "\"label\":-1"), {"label is -1"});
  expect_holds(damaged("AAA=", "\\\"/>"), {"expected base64"});
  expect_holds(damaged("0.25", "1.25"), {"a bin has accuracy 1.25"});
  expect_holds(damaged("\"format\":1", "\"format\":2"), {"format is 2, expected 1"});
}

TEST_F(Report, ThePageShowsFewDigits) {
  const std::string page = page_of(read_runs({run(
      "a",
      report(1, "\"loss\":1") +
          R"({"event":"end","exit_code":0,"best":0.53787878787878785,"best_by":"test_accuracy","step":1})"
          "\n",
      R"({"betas":"0.90000000000000002 0.999","seed":"12815131036568209077","data":"folder:0.10000000000000001 b  c","cost":""})")}));
  expect_holds(page, {"<td>test_accuracy 0.5379</td>", "<td>0.9 0.999</td>", "<td>12815131036568209077</td>",
                      "<td>folder:0.10000000000000001 b  c</td>", "<td>cost</td><td>-</td>"});
}

TEST_F(Report, NumbersForPeople) {
  const std::vector<std::pair<double, std::string>> cases{
      {0, "0"},       {1, "1"},       {-2.5, "-2.5"}, {0.05, "0.05"},    {0.001, "0.001"},
      {4e-4, "4e-4"}, {1234, "1234"}, {12000, "12k"}, {999999, "1000k"}, {1234000, "1.234M"},
      {2e9, "2G"},    {1e20, "1e20"}, {3e38, "3e38"}, {-1e300, "-1e300"}};
  for (const auto& [value, text] : cases) {
    EXPECT_EQ(brief(value), text);
  }
}

TEST_F(Report, TheProgramWritesAPage) {
  const std::string lines = report(1, "\"loss\":1") + report(2, "\"loss\":0.5");
  const std::string a = run("a", lines);
  const std::string b = run("b/a", lines);
  EXPECT_EQ(program(a).finished().output, a + "/report.html\n");
  expect_holds(testing::get_file(a + "/report.html"), {"<title>a</title>"});
  program(a + " " + b + " --html " + (folder_ / "both.html")).finished();
  expect_holds(testing::get_file(folder_ / "both.html"), {"<title>2 runs</title>", a + ", training", b + ", training"});
  EXPECT_EQ(program("").code, 2);
  program("--version").finished();
}

}  // namespace
}  // namespace lockstep::tools
