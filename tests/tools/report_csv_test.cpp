// Tests lockstep-report --csv on made-up runs.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"
#include "tools/lockstep_report/csv.hpp"
#include "tools/lockstep_report/quantities.hpp"

int lockstep_report_main(int argc, char** argv);

namespace lockstep::tools {
namespace {

class ReportCsv : public ::testing::Test {
 protected:
  /// Makes a folder of results with these lines. Returns its path.
  std::string run(const std::string& name, const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) {
      text += line + "\n";
    }
    std::filesystem::create_directories(folder_ / name);
    testing::put_file(folder_ / name + "/metrics.jsonl", text);
    return folder_ / name;
  }
  std::string csv(const std::string& name, const std::vector<std::string>& lines) {
    return csv_of({read_run(run(name, lines))});
  }
  static testing::Ended program(const std::string& options) {
    return testing::run_here(lockstep_report_main, "lockstep-report " + options);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ReportCsv, ARowForEachReportAndEpoch) {
  EXPECT_EQ(csv("a", {R"({"event":"begin","note":"x"})",
                      R"({"event":"step","epoch":0,"step":5,"loss":2.5,"learning_rate":0.1,"images_per_second":null})",
                      R"({"event":"step","epoch":0,"step":10,"loss":null,"accuracy":0.25})",
                      R"({"event":"epoch","epoch":1,"step":10,"loss":2,"test_loss":1.5,"gradient_bytes":1000000})",
                      R"({"event":"end","exit_code":0,"step":10,"test_loss":1.5})"}),
            "run,event,epoch,step,loss,test_loss,accuracy,learning_rate,images_per_second,gradient_bytes\n"
            "a,step,0,5,2.5,,,0.1,,\n"
            "a,step,0,10,,,0.25,,,\n"
            "a,epoch,1,10,2,1.5,,,,1000000\n");
}

TEST_F(ReportCsv, StepsThatAResumeTrainsAgainStandOnce) {
  EXPECT_EQ(
      csv("a", {R"({"event":"step","epoch":0,"step":10,"loss":3})", R"({"event":"step","epoch":0,"step":20,"loss":9})",
                R"({"event":"epoch","epoch":1,"step":20,"loss":6,"test_loss":7})",
                R"({"event":"step","epoch":1,"step":30,"loss":8})", R"({"event":"resume","epoch":0,"step":10})",
                R"({"event":"step","epoch":0,"step":20,"loss":2})",
                R"({"event":"epoch","epoch":1,"step":20,"loss":2.5,"test_loss":1})",
                R"({"event":"resume","epoch":1,"step":20})", R"({"event":"step","epoch":1,"step":30,"loss":1})"}),
      "run,event,epoch,step,loss,test_loss\n"
      "a,step,0,10,3,\n"
      "a,step,0,20,2,\n"
      "a,epoch,1,20,2.5,1\n"
      "a,step,1,30,1,\n");
}

TEST_F(ReportCsv, RunsOfDifferentMetricsShareColumns) {
  const std::string first =
      run("first", {R"({"event":"step","epoch":0,"step":1,"zeta":1,"loss":2,"test_bits":3,"images_per_second":4})"});
  const std::string second =
      run("second", {R"({"event":"step","epoch":0,"step":1,"alpha":5,"bits":6,"loss":7,"comm_exposed_s":8})",
                     R"({"event":"epoch","epoch":1,"step":1,"test_alpha":9,"test_loss":10,"test_accuracy":11})"});
  const std::string names =
      "run,event,epoch,step,loss,test_loss,test_accuracy,images_per_second,comm_exposed_s,alpha,"
      "test_alpha,bits,test_bits,zeta\n";
  const std::string one = "first,step,0,1,2,,,4,,,,,3,1\n";
  const std::string two = "second,step,0,1,7,,,,8,5,,6,,\nsecond,epoch,1,1,,10,11,,,,9,,,\n";
  EXPECT_EQ(csv_of(read_runs({first, second})), names + one + two);
  EXPECT_EQ(csv_of(read_runs({second, first})), names + two + one) << "the columns do not depend on the order of runs";
}

TEST_F(ReportCsv, FieldsOfRowsThatAResumeTookBackKeepTheirColumn) {
  EXPECT_EQ(csv("a", {R"({"event":"step","epoch":0,"step":1,"loss":3})",
                      R"({"event":"step","epoch":0,"step":2,"own":9})", R"({"event":"resume","epoch":0,"step":1})"}),
            "run,event,epoch,step,loss,own\na,step,0,1,3,\n");
}

TEST_F(ReportCsv, NumbersReadBackAsTheSame) {
  const std::vector<std::pair<std::string, std::string>> cases{{"0.1", "0.1"},
                                                               {"1e6", "1000000"},
                                                               {"123456789012", "123456789012"},
                                                               {"9007199254740991", "9007199254740991"},
                                                               {"0.30000000000000004", "0.30000000000000004"},
                                                               {"5e-324", "5e-324"},
                                                               {"1.7976931348623157e308", "1.7976931348623157e+308"},
                                                               {"-2", "-2"},
                                                               {"-0.0", "-0"},
                                                               {"1e300", "1e+300"}};
  for (const auto& [json, text] : cases) {
    EXPECT_EQ(csv("a", {R"({"event":"step","epoch":0,"step":1,"x":)" + json + "}"}),
              "run,event,epoch,step,x\na,step,0,1," + text + "\n");
    EXPECT_EQ(std::strtod(json.c_str(), nullptr), std::strtod(text.c_str(), nullptr));
  }
}

TEST_F(ReportCsv, OddNamesAreQuoted) {
  const std::vector<std::pair<std::string, std::string>> cases{{"plain name", "plain name"},
                                                               {"a,b", "\"a,b\""},
                                                               {"a\"b", "\"a\"\"b\""},
                                                               {"a\nb\r", "\"a\nb\r\""},
                                                               {" a", "\" a\""},
                                                               {"a ", "\"a \""},
                                                               {"\xc3\xa9", "\xc3\xa9"},
                                                               {"a\xff\xc3", "a\\xff\\xc3"},
                                                               {"\x1b[2J", "\x1b[2J"}};
  RunLog log = read_run(run("a", {R"({"event":"step","epoch":0,"step":1,"x,\"y\"":1})"}));
  for (const auto& [name, text] : cases) {
    log.name = name;
    EXPECT_EQ(csv_of({log}), "run,event,epoch,step,\"x,\"\"y\"\"\"\n" + text + ",step,0,1,1\n");
  }
}

TEST_F(ReportCsv, NoTwoColumnsShareAName) {
  EXPECT_EQ(csv("a", {R"({"event":"step","epoch":0,"step":1,"run":7})"}), "run,event,epoch,step,run.1\na,step,0,1,7\n");
}

TEST_F(ReportCsv, AnEpochThatIsNotToldIsEmptyAndOneThatIsNoNumberAnError) {
  EXPECT_EQ(csv("a", {R"({"event":"step","step":1,"loss":7})", R"({"event":"step","epoch":null,"step":2,"loss":8})"}),
            "run,event,epoch,step,loss\na,step,,1,7\na,step,,2,8\n");
  testing::expect_holds(
      testing::error_of<DataError>([&] { static_cast<void>(csv("b", {R"({"event":"step","epoch":"x","step":1})"})); }),
      "line 1: 'epoch' is a string, expected an integer");
}

TEST_F(ReportCsv, TheProgramWritesATable) {
  const std::string a = run("a", {R"({"event":"step","epoch":0,"step":1,"loss":2})"});
  const std::string b = run("b", {R"({"event":"step","epoch":0,"step":1,"loss":3})"});
  const std::string table = "run,event,epoch,step,loss\na,step,0,1,2\n";
  const std::string file = folder_ / "a table.csv";
  testing::put_file(file, "older");
  EXPECT_EQ(program(a + " --csv '" + file + "'").finished().output, file + "\n");
  EXPECT_EQ(testing::get_file(file), table);
  EXPECT_EQ(testing::count_entries(a), 1U) << "no page next to the log";

  for (const char* standard : {"-", "/dev/stdout"}) {
    EXPECT_EQ(program(a + " " + b + " --csv " + standard).finished().output, table + "b,step,0,1,3\n");
  }
  EXPECT_EQ(testing::count_entries(a), 1U);

  const std::string page = folder_ / "page.html";
  const testing::Ended both = program(a + " --csv - --html " + page).finished();
  EXPECT_EQ(both.printed, table);
  EXPECT_EQ(both.output, table + page + "\n") << "the name is told with the table";
  testing::expect_holds(testing::get_file(page), "<title>a</title>");
}

TEST_F(ReportCsv, ThePageGoesToStandardOutputToo) {
  const std::string a = run("a", {R"({"event":"step","epoch":0,"step":1,"loss":2})"});
  for (const char* standard : {"-", "/dev/stdout", "/dev/fd/1"}) {
    const testing::Ended page = program(a + " --html " + standard).finished();
    EXPECT_TRUE(page.output.starts_with("<!doctype html>") || page.output.starts_with("<!DOCTYPE html>"));
    EXPECT_TRUE(page.output.ends_with("</html>\n")) << "and nothing else";
    testing::expect_refused(program(a + " --csv - --html " + standard),
                            {"--csv and --html both go to standard output"});
  }
  const std::string file = folder_ / "a.csv";
  const testing::Ended both = program(a + " --html - --csv " + file).finished();
  EXPECT_TRUE(both.printed.ends_with("</html>\n"));
  EXPECT_EQ(both.output, both.printed + file + "\n");
  EXPECT_EQ(testing::get_file(file), "run,event,epoch,step,loss\na,step,0,1,2\n");
  EXPECT_EQ(testing::count_entries(a), 1U);
}

// If the report replaced a device or a FIFO, the system would lose the device or the FIFO.
TEST_F(ReportCsv, DevicesFifosAndFoldersAreNotReplaced) {
  const std::string a = run("a", {R"({"event":"step","epoch":0,"step":1,"loss":2})"});
  ASSERT_EQ(::mkfifo((a + "/report.html").c_str(), 0600), 0);
  testing::expect_refused(testing::run_command(std::string("timeout 20 ") + LOCKSTEP_TEST_PROGRAM + " " + a),
                          {a + "/report.html: is a FIFO"});
  const std::string full = folder_ / "full";
  std::filesystem::create_symlink("/dev/full", full);
  for (const std::string option : {" --csv ", " --html "}) {
    testing::expect_refused(program(a + option + full), {full + ": is a device"});
    EXPECT_TRUE(std::filesystem::is_symlink(full));
  }
  std::filesystem::create_directory(folder_ / "folder");
  const std::string table = folder_ / "a.csv";
  testing::expect_refused(program(a + " --csv " + table + " --html " + (folder_ / "folder")),
                          {"folder: is a folder, expected a regular file"});
  EXPECT_FALSE(std::filesystem::exists(table)) << "before anything is written";
  EXPECT_EQ(testing::count_entries(folder_.path()), 3U) << "a, full, folder";
}

TEST_F(ReportCsv, AFullDiskIsNoMistakeOfTheUser) {
  std::vector<std::string> lines;
  for (int step = 1; step <= 1000; ++step) {
    lines.push_back(concat(R"({"event":"step","epoch":0,"step":)", step, R"(,"loss":2})"));
  }
  const std::string a = run("a", lines);
  const testing::Ended ended = testing::run_command("sh -c 'ulimit -f 8; trap \"\" XFSZ; " LOCKSTEP_TEST_PROGRAM " " +
                                                    a + " --csv " + (folder_ / "a.csv") + "'");
  EXPECT_EQ(ended.code, 3) << ended.output;
  ended.says({"cannot be written: File too large"});
  EXPECT_EQ(testing::count_entries(folder_.path()), 1U);
}

TEST_F(ReportCsv, WhatWasReadAndTheOtherOutputAreNotOverwritten) {
  namespace fs = std::filesystem;
  const std::string line = R"({"event":"step","epoch":0,"step":1,"loss":2})";
  const std::string a = run("a", {line});
  const std::string b = run("b", {line});
  testing::put_file(b + "/config.json", "{}\n");
  fs::create_symlink(a, folder_ / "link");
  fs::create_hard_link(a + "/metrics.jsonl", folder_ / "hard");
  for (const std::string& file : {a + "/metrics.jsonl", a + "/../b/./metrics.jsonl", b + "/config.json",
                                  (folder_ / "link") + "/metrics.jsonl", folder_ / "hard"}) {
    for (const std::string option : {" --csv ", " --html "}) {
      testing::expect_refused(program(a + " " + b + option + file),
                              {file, "is what was read", "expected another file"});
    }
  }
  testing::expect_refused(program(a + "/metrics.jsonl --csv " + a + "/metrics.jsonl"), {"is what was read"});
  testing::put_file(folder_ / "report.html", line + "\n");
  testing::expect_refused(program(folder_ / "report.html"), {"report.html", "is what was read"});
  for (const std::string standard : {"/dev/stdout", "-"}) {
    testing::expect_refused(testing::run_command("sh -c '" LOCKSTEP_TEST_PROGRAM " " + a + " --csv " + standard +
                                                 " >> " + a + "/metrics.jsonl'"),
                            {standard, "is what was read"});
  }
  EXPECT_EQ(testing::get_file(a + "/metrics.jsonl"), line + "\n");
  EXPECT_EQ(testing::get_file(b + "/config.json"), "{}\n");

  const std::string both = folder_ / "both";
  for (const bool there : {false, true}) {
    if (there) {
      testing::put_file(both, "older");
    }
    testing::expect_refused(program(a + " --csv " + both + " --html " + both), {"--csv and --html are both", both});
    testing::expect_refused(program(a + " --csv " + both + " --html " + (folder_ / "./a/../both")),
                            {"--csv and --html are both", both});
    EXPECT_EQ(fs::exists(both), there);
  }
  EXPECT_EQ(testing::get_file(both), "older");
  EXPECT_EQ(testing::count_entries(a), 1U);
}

TEST_F(ReportCsv, ARunIsGivenOnce) {
  const std::string a = run("a", {R"({"event":"step","epoch":0,"step":1,"loss":2})"});
  for (const std::string& again : {a, a + "/", (folder_ / "./a")}) {
    testing::expect_refused(program(a + " " + again + " --csv -"), {again, "is given twice, expected each run once"});
  }
  EXPECT_EQ(program(a + " " + a + "/metrics.jsonl --csv -").output,
            "run,event,epoch,step,loss\na,step,0,1,2\nmetrics,step,0,1,2\n");
  testing::expect_refused(program("''"), {"a path is empty, expected a folder of results"});
}

TEST_F(ReportCsv, TheProgramRefusesWhatThePageRefuses) {
  const std::string good = run("good", {R"({"event":"step","epoch":0,"step":1,"loss":2})"});
  const std::string file = folder_ / "x.csv";
  testing::expect_refusals(
      program, {{(folder_ / "none") + " --csv " + file, {folder_ / "none", "No such file"}},
                {good + " " + run("cut", {"{\"event\":\"step\""}) + " --csv " + file, {"cut/metrics.jsonl, line 1"}},
                {run("empty", {}) + " --csv -", {"tells of no step of training yet"}},
                {good + " --csv ''", {"--csv is empty, expected a file"}},
                {good + " --html ''", {"--html is empty, expected a file"}},
                {good + " --csv", {"--csv"}},
                {good + " --csv " + (folder_ / "no/x.csv"), {"no/x.csv", "cannot be created"}}});
  EXPECT_FALSE(std::filesystem::exists(file));
  testing::expect_refused(testing::run_command(LOCKSTEP_TEST_PROGRAM " " + good + " --csv ''"), {"--csv is empty"});
  testing::run_command(LOCKSTEP_TEST_PROGRAM " " + good + " --csv - > /dev/full").exits(3);
}

}  // namespace
}  // namespace lockstep::tools
