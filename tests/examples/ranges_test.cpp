// Tests the ranges that train_resnet sends to a profiling tool (NVTX). tests/support/nvtx has the tool of this test.
// NVTX loads it in the same way as Nsight Systems, and it writes one file per rank.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::filesystem::path& file) {
  Lines lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(Ranges, OfTrainResnet) {
  const testing::TemporaryFolder folder;
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ::setenv("NVTX_INJECTION64_PATH", TOOL, 1);
  ::setenv("LOCKSTEP_RANGES", (folder / "ranges").c_str(), 1);
  const std::string ranks = LOCKSTEP_HAS_MPI ? std::string(MPIRUN) + " -np 2 " : "";
  testing::run_command(ranks + TRAIN_RESNET +
                       " --model resnet20 --train-images 24 --test-images 8 --image-size 8 --batch-size 8 --epochs 1"
                       " --threads 1 --out " +
                       (folder / "out"))
      .finished();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder / "out").parent_path())) {
    if (entry.path().filename().string().rfind("ranges.", 0) != 0) {
      continue;
    }
    ++files;
    const Lines lines = lines_of(entry.path());
    const auto count = [&](const std::string& line) { return std::count(lines.begin(), lines.end(), line); };
    Lines outer;  // ranges that are not inside another range; the last line counts invalid calls
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(outer),
                 [](const std::string& line) { return line.front() != ' '; });
    EXPECT_EQ(outer, (Lines{"step", "step", "step", "evaluation", "checkpoint", "checkpoint", "faults 0"}));
    EXPECT_EQ(count("  waiting for the loader"), 3);
    EXPECT_EQ(count("  update"), 3);
    EXPECT_EQ(count("  bucket 0 ready !"), 3);
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [](const std::string& line) { return line.rfind("  conv1 ", 0) == 0; }) %
                  3,
              0);
    EXPECT_GT(lines.size(), 100U);
  }
  EXPECT_EQ(files, LOCKSTEP_HAS_MPI ? 2 : 1);
}

}  // namespace
}  // namespace lockstep
