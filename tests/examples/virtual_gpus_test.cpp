// Tests own_model and train_text, unchanged, on virtual GPUs (tests/virtual_gpu/programs). Results must equal those on
// the CPU. A rank on the CPU must be able to resume checkpoints of ranks on GPUs.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::run_command;

/// true: the build can run several ranks, each a process with a GPU
constexpr bool kRanks = RANKS_OF_GPUS != 0;

/// Runs a command in folder `folder`, on a machine with `gpus` virtual GPUs. Ranks communicate through the folder
/// `meeting`.
Ended in_folder(const std::string& folder, int gpus, const std::string& meeting, const std::string& command) {
  return run_command("sh -c 'cd " + folder + " && OMP_NUM_THREADS=1 LOCKSTEP_VIRTUAL_GPUS=" + std::to_string(gpus) +
                     " LOCKSTEP_VIRTUAL_SEED=1 LOCKSTEP_VIRTUAL_FOLDER=" + meeting + " " + command + "'");
}

/// Each rank's virtual GPU prints a line at the end. Expects `ranks` such lines, each with launched kernels and CUDA
/// graphs, and with NCCL all-reduces if there are several ranks. After undefined behaviour, a rank ends with code 99.
void expect_machines(const Ended& ended, int ranks) {
  int machines = 0;
  for (const std::string& line : ended.lines()) {
    long kernels = 0;
    long graphs = 0;
    long sums = 0;
    const char* format = "virtual GPU: %ld kernels launched, %ld graphs, %ld all-reduces";
    if (std::sscanf(line.c_str(), format, &kernels, &graphs, &sums) == 3) {
      ++machines;
      EXPECT_GT(kernels, 0) << line;
      EXPECT_GT(graphs, 0) << line;
      EXPECT_EQ(sums > 0, ranks > 1) << line;
    }
  }
  EXPECT_EQ(machines, ranks) << ended.output;
}

/// Returns all parameters of a checkpoint.
std::vector<float> parameters_of(const std::string& checkpoint) {
  const SafetensorsFile file(checkpoint + "/model.safetensors");
  std::vector<float> all;
  for (const TensorEntry& entry : file.entries()) {
    EXPECT_EQ(entry.dtype, "F32") << entry.name;
    std::vector<float> values(entry.bytes / sizeof(float));
    file.read(entry, std::as_writable_bytes(std::span(values)));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// Returns |a - b| / |b|, or infinity if the sizes differ or a number is not finite.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = i < a.size() ? double{a[i]} - double{b[i]} : HUGE_VAL;
    difference += d * d;
    size += double{b[i]} * double{b[i]};
  }
  const double result = std::sqrt(difference / size);
  return a.size() == b.size() && std::isfinite(result) ? result : HUGE_VAL;
}

/// Returns the value `name` of all events `event` in a metrics file, by step.
std::map<std::int64_t, double> logged(const std::string& file, const std::string& event, const std::string& name) {
  std::map<std::int64_t, double> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json json = parse_json(line, file);
    if (json.get<std::string>("event", line) == event) {
      found[json.get<std::int64_t>("step", line)] = json.get<double>(name, line);
    }
  }
  return found;
}

/// Writes a text of at least `bytes` bytes.
void put_text(const std::string& file, std::size_t bytes) {
  std::string words;
  for (int i = 0; words.size() < bytes; ++i) {
    words += "line " + std::to_string(i * i) + " of the text\n";
  }
  testing::put_file(file, words);
}

class VirtualGpus : public ::testing::Test {
 protected:
  [[nodiscard]] std::string folder(const std::string& name) const {
    std::filesystem::create_directories(folder_ / name);
    return folder_ / name;
  }

  /// Compares two runs of own_model: one epoch on GPUs and then one on the CPU, and two epochs on the CPU.
  void expect_own_model(int ranks) const {
    const std::string mpirun = ranks > 1 ? std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " : "";
    const std::string gpu = folder("gpu");
    const std::string cpu = folder("cpu");
    const auto state = [](const std::string& at) { return nn::read_checkpoint_state(at + "/own_model.out/last"); };
    const Ended first = in_folder(gpu, ranks, folder("meeting"), mpirun + OWN_MODEL_STANDIN + " 1").finished();
    first.has({{"epoch 1: ", 1}, {"(0.33, 0) is on spiral ", 1}});
    expect_machines(first, ranks);
    in_folder(cpu, 0, "", std::string(OWN_MODEL) + " 1").finished();
    const nn::RunProgress here = state(cpu).progress;
    const nn::RunProgress there = state(gpu).progress;
    EXPECT_EQ(there.position.step, here.position.step);
    EXPECT_EQ(there.samples_seen.size(), static_cast<std::size_t>(ranks));
    ASSERT_TRUE(here.test_loss && there.test_loss);
    EXPECT_NEAR(*there.test_loss, *here.test_loss, 1e-4);
    const std::vector<float> epoch = parameters_of(cpu + "/own_model.out/last");
    EXPECT_LT(distance(parameters_of(gpu + "/own_model.out/last"), epoch), 1e-3);

    const Ended second = in_folder(gpu, 0, "", std::string(OWN_MODEL) + " 2").finished();
    second.has({{"epoch ", 1}});
    in_folder(cpu, 0, "", std::string(OWN_MODEL) + " 2").finished();
    ASSERT_TRUE(state(cpu).progress.test_loss && state(gpu).progress.test_loss);
    EXPECT_NEAR(*state(gpu).progress.test_loss, *state(cpu).progress.test_loss, 1e-3);
    // Control: an additional epoch makes a visible difference.
    EXPECT_GT(distance(parameters_of(cpu + "/own_model.out/last"), epoch), 0.05);
  }

  /// Compares some steps of a small model on GPUs and on the CPU. Afterwards the CPU evaluates the checkpoint of the
  /// GPUs.
  void expect_train_text(int ranks) const {
    const std::string text = folder_ / "text.txt";
    put_text(text, 4000);
    const std::string options = " --data " + text +
                                " --layers 1 --heads 2 --width 16 --length 16 --batch-size 16 --steps 5 --log-every 1 "
                                "--sample 4 --threads 1 --lr 1e-2 --out run";
    const std::string gpu = folder("gpu");
    const std::string cpu = folder("cpu");
    const Ended there =
        in_folder(gpu, ranks, folder("meeting"), TRAIN_TEXT_STANDIN + options + " --devices gpu").finished();
    there.has({{"lockstep: error:", 0},
               {"  compute    cuda:0 ", 1},
               {"steps as a CUDA graph on", 1},
               {"finished: bits per byte ", 1}});
    expect_machines(there, ranks);
    EXPECT_EQ(read_json(gpu + "/run/config.json").get<int>("ranks", "config"), ranks);
    const Ended here = in_folder(cpu, 0, "", TRAIN_TEXT + options + " --devices cpu").finished();

    const auto losses = logged(cpu + "/run/metrics.jsonl", "step", "loss");
    const auto others = logged(gpu + "/run/metrics.jsonl", "step", "loss");
    EXPECT_EQ(losses.size(), 5U) << here.output;
    ASSERT_EQ(others.size(), losses.size()) << there.output;
    for (const auto& [step, loss] : losses) {
      ASSERT_EQ(others.count(step), 1U) << step;
      EXPECT_NEAR(others.at(step), loss, 1e-3 * loss) << "step " << step;
    }
    EXPECT_GT(losses.begin()->second - losses.rbegin()->second, 0.1) << "the control: losses differ from each other";
    const auto bits = logged(cpu + "/run/metrics.jsonl", "epoch", "bits_per_byte");
    const auto bits_there = logged(gpu + "/run/metrics.jsonl", "epoch", "bits_per_byte");
    ASSERT_FALSE(bits.empty()) << here.output;
    ASSERT_FALSE(bits_there.empty()) << there.output;
    EXPECT_NEAR(bits_there.rbegin()->second, bits.rbegin()->second, 1e-3 * bits.rbegin()->second);
    EXPECT_LT(distance(parameters_of(gpu + "/run/last"), parameters_of(cpu + "/run/last")), 1e-2);

    const Ended evaluated =
        in_folder(gpu, 0, "", TRAIN_TEXT + options + " --devices cpu --evaluate run/last").finished();
    EXPECT_NEAR(evaluated.number_after("test loss ") / std::log(2.0), bits_there.rbegin()->second, 1e-3);
  }

 private:
  testing::TemporaryFolder folder_;
};

/// With CUDA graphs, each step is one span of the timeline. Without graphs, the timeline must show layers and buckets
/// with times from events, and gradients of weights on the side stream as a thread of their own.
TEST_F(VirtualGpus, TimelineOfTrainText) {
  const std::string gpu = folder("gpu");
  put_text(gpu + "/text.txt", 2000);
  for (const bool graph : {true, false}) {
    const int ranks = kRanks && !graph ? 2 : 1;
    const Ended ended = in_folder(gpu, ranks, folder(graph ? "first" : "second"),
                                  std::string(TRAIN_TEXT_STANDIN) +
                                      " --data text.txt --layers 1 --heads 2 --width 16 --length 16 --batch-size 16 "
                                      "--steps 5 --sample 0 --threads 1 --devices gpu --overwrite --trace t.json "
                                      "--trace-steps 4:5 --cuda-graph " +
                                      (graph ? "on" : "off --weights-beside"))
                            .finished();
    ended.has({{"steps ran as a CUDA graph, one span each", graph ? 1 : 0}, {" exposed", graph ? 0 : 1}});
    std::map<std::string, int> counts;
    std::map<std::string, double> ends;  // end of the last span of each process and thread
    for (const Json& event : read_json(gpu + "/t.json").get<Json::Array>("traceEvents", "t.json")) {
      const std::string text = event.text();
      if (event.get<std::string>("ph", text) != "X") {
        continue;
      }
      ++counts[event.get<std::string>("cat", text)];
      const double begin = event.get<double>("ts", text);
      const double length = event.get<double>("dur", text);
      EXPECT_GE(length, 0) << text;
      EXPECT_LT(length, 60e6) << "the host's clock and the device's are one: " << text;
      const int thread = event.get<int>("tid", text);
      counts["beside"] += thread == 4 ? 1 : 0;
      if (thread != 3) {
        double& end = ends[text.substr(text.find("\"pid\""), 20) + std::to_string(thread)];
        EXPECT_GE(begin, end - 1) << "spans of a stream come in turn: " << text;
        end = begin + length;
      }
    }
    ended.has({{"weight gradients on a second stream", graph ? 0 : 1}});
    EXPECT_EQ(counts["beside"], graph ? 0 : 2 * ranks * 5) << "of four products in the block, and the logits";
    EXPECT_EQ(counts["graph"], graph ? 2 * ranks : 0);
    EXPECT_EQ(counts["update"], graph ? 0 : 2 * ranks);
    EXPECT_EQ(counts["forward"] > 20 * ranks, !graph) << counts["forward"];
    EXPECT_EQ(counts["reduce"] >= 2 * ranks, !graph) << counts["reduce"];
    EXPECT_EQ(counts["input"], 2 * ranks);
  }
}

TEST_F(VirtualGpus, OwnModelOnOne) {
  expect_own_model(1);
}

TEST_F(VirtualGpus, OwnModelOnTwo) {
  if (!kRanks) {
    GTEST_SKIP() << "this build lacks MPI or NCCL";
  }
  expect_own_model(2);
}

TEST_F(VirtualGpus, TrainTextOnOne) {
  expect_train_text(1);
}

TEST_F(VirtualGpus, TrainTextOnTwo) {
  if (!kRanks) {
    GTEST_SKIP() << "this build lacks MPI or NCCL";
  }
  expect_train_text(2);
}

}  // namespace
}  // namespace lockstep
