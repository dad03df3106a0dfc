// Tests lockstep-info on files with known contents.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/half.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"
#include "tests/support/torch_files.hpp"
#include "tools/lockstep_info/tensors.hpp"

int lockstep_info_main(int argc, char** argv);

namespace lockstep::tools {
namespace {

namespace torch = testing::torch;
using testing::expect_holds;

class Info : public ::testing::Test {
 protected:
  void SetUp() override {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinite = std::numeric_limits<float>::infinity();
    const std::vector<float> weight{-2, 0.5F, nan, 4, -infinite, 1.5F};
    const std::vector<float> nothing{nan, infinite};
    const std::vector<std::int64_t> count{7, -9};
    const std::vector<BFloat16> brain{BFloat16(1.5F), BFloat16(-3.0F)};
    write_safetensors(
        file_,
        std::vector<SafetensorsTensor>{{"layer.10.weight", DType::f32, {2, 3}, std::as_bytes(std::span(weight)), {}},
                                       {"layer.9.weight", DType::f32, {2}, std::as_bytes(std::span(nothing)), {}},
                                       {"count", DType::i64, {2}, std::as_bytes(std::span(count)), {}},
                                       {"brain", DType::bf16, {2, 1}, std::as_bytes(std::span(brain)), {}},
                                       {"none", DType::f32, {0, 5}, {}, {}}},
        {{"format", "pt"}, {"note", "a\x1b[31m"}});
  }
  static testing::Ended run(const std::string& options) {
    return testing::run_here(lockstep_info_main, "lockstep-info " + options);
  }
  testing::TemporaryFolder folder_;
  std::string file_ = folder_ / "model.safetensors";
};

TEST_F(Info, NumbersOfEveryTensor) {
  const std::vector<FileFacts> files = read_tensors(file_);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].path, file_);
  EXPECT_EQ(files[0].format, "safetensors");
  std::vector<std::string> names;
  for (const TensorFacts& tensor : files[0].tensors) {
    names.push_back(tensor.name);
  }
  ASSERT_EQ(names, (std::vector<std::string>{"brain", "count", "layer.9.weight", "layer.10.weight", "none"}));
  const auto expect = [&](std::size_t i, std::optional<double> least, std::optional<double> most,
                          std::optional<double> mean, std::int64_t non_finite) {
    const TensorFacts& tensor = files[0].tensors[i];
    EXPECT_EQ(tensor.least, least) << tensor.name;
    EXPECT_EQ(tensor.most, most) << tensor.name;
    EXPECT_EQ(tensor.mean, mean) << tensor.name;
    EXPECT_EQ(tensor.non_finite, non_finite) << tensor.name;
  };
  expect(0, -3, 1.5, -0.75, 0);
  expect(1, -9, 7, -1, 0);
  expect(2, {}, {}, {}, 2);
  expect(3, -2, 4, 1, 2);
  expect(4, {}, {}, {}, 0);
  EXPECT_EQ(files[0].tensors[3].values, 6);
  EXPECT_EQ(files[0].tensors[3].bytes, 24U);
}

TEST_F(Info, TypesThatNothingHereKnows) {
  const std::string header =
      R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[2,4]}})";
  testing::put_file(file_, torch::little(header.size(), 8) + header + std::string("\x7f\x7f\x01\x00", 4));
  const std::vector<FileFacts> files = read_tensors(file_);
  EXPECT_FALSE(files[0].tensors[0].mean);
  EXPECT_FALSE(files[0].tensors[0].non_finite);
  EXPECT_EQ(files[0].tensors[1].mean, 0.5);
  testing::expect_holds(tensor_report(files), "F8_E4M3  (2)      -");
}

TEST_F(Info, TheTable) {
  run(file_).finished({file_ + ": safetensors, 5 tensors, 12 values, 52 B, 4 not finite\n", "  'note' = 'a\\x1b[31m'\n",
                       "  name             type  shape   min  max   mean  not finite\n"
                       "  brain            BF16  (2, 1)   -3  1.5  -0.75           0\n"
                       "  count            I64   (2)      -9    7     -1           0\n"
                       "  layer.9.weight   F32   (2)       -    -      -           2\n"
                       "  layer.10.weight  F32   (2, 3)   -2    4      1           2\n"
                       "  none             F32   (0, 5)    -    -      -           0\n"});
}

TEST_F(Info, JsonOfATorchFile) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::string path = folder_ / "model.pth";
  testing::put_file(path, torch::file_of({{"module.fc.weight", "Float", {2, 3}, torch::bytes_of(values)}}));
  const testing::Ended ended = run("--json " + path).finished();
  const Json json = parse_json(ended.output, "output");
  const Json expected = parse_json(
      R"([{"path":")" + path + R"(","format":"torch","metadata":{},"values":6,"bytes":24,"non_finite":0,"tensors":[
         {"name":"fc.weight","dtype":"F32","shape":[2,3],"values":6,"bytes":24,"min":1.0,"max":6.0,"mean":3.5,"non_finite":0}]}])",
      "expected");
  EXPECT_EQ(json.text(2), expected.text(2));
}

TEST_F(Info, ACheckpointsFolder) {
  const std::string folder = folder_ / "";
  std::filesystem::copy_file(file_, folder_ / "optimizer.safetensors");
  const std::vector<FileFacts> files = read_tensors(folder);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_TRUE(files[1].path.ends_with("/optimizer.safetensors"));
  testing::put_file(folder_ / "checksums.json", R"({"files":{"model.safetensors":{"bytes":1,"crc32":1}}})");
  testing::expect_refused(run(folder), {"model.safetensors", "CRC-32", "damaged"});
  std::filesystem::remove(file_);
  std::filesystem::remove(folder_ / "checksums.json");
  testing::expect_refused(run(folder), {"without model.safetensors"});
}

TEST_F(Info, CandidatesThatLibrariesRefusedInARun) {
  const std::string folder = folder_ / "run";
  std::filesystem::create_directory(folder);
  testing::put_file(folder + "/config.json", R"({"library_choices": {"calls": 5, "distinct": 3, "timed": 2,
    "seconds": 1.5, "refused": ["conv2d forward: cudnn:eng1: status 4000", "matmul: status 2000"]}})");
  run(folder).finished({"5 calls of 3 kinds, 2 timed in 1.5 s, 2 candidates refused",
                        "'refused 0001' = 'conv2d forward: cudnn:eng1: status 4000'",
                        "'refused 0002' = 'matmul: status 2000'"});
  const testing::Ended json = run("--json " + folder);
  EXPECT_EQ(parse_json(json.output, "output")
                .as<Json::Array>("")
                .at(0)
                .member("metadata", "")
                .get<std::string>("refused 0002", ""),
            "matmul: status 2000");
  testing::put_file(folder + "/config.json", R"({"library_choices": null})");
  testing::expect_holds(run(folder).output, "'library choices' = 'none was timed'");
  testing::put_file(folder + "/config.json", R"({"library_choices": {"calls": "many", "distinct": 1, "timed": 1,
    "seconds": 1.5, "refused": []}})");
  testing::expect_refused(run(folder), {"config.json", "'calls' is a string"});
}

TEST_F(Info, WhatCannotBeReadIsOneLine) {
  testing::put_file(folder_ / "cut", "PK\x03\x04" + std::string(40, 'x'));
  testing::put_file(folder_ / "code",
                    torch::zip(torch::records(torch::program(torch::call(torch::global("os", "system"), ")")), {})));
  testing::expect_refusals(run, {{folder_ / "gone", {"gone"}},
                                 {"", {"FILE is required", "--help"}},
                                 {"--jason " + file_, {"--jason"}},
                                 {folder_ / "cut", {folder_ / "cut", "cut off or damaged"}},
                                 {folder_ / "code", {"'os.system'", "nothing in the file is executed"}}});
  testing::expect_refused(testing::run_command(LOCKSTEP_TEST_PROGRAM " --jason " + file_), {"--jason"});
  run("--help").finished();
  run("--version").finished();
}

}  // namespace
}  // namespace lockstep::tools
