// The program as people call it: under mpirun, good and bad input, exit codes, files.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/app/wait_report.hpp>
#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#if LOCKSTEP_HAS_IMAGES
#include "tests/support/image_files.hpp"
#endif
#include "tests/support/run_command.hpp"
#include "tests/support/torch_files.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::Ended;
using testing::error_of;
using testing::run_as_ranks;
using testing::run_command;

/// train_resnet with `ranks` ranks; 0: without mpirun.
Ended train_resnet(int ranks, const std::string& options) {
  const std::string program = TRAIN_RESNET;
  if (ranks == 0) {
    return run_command(program + " " + options);
  }
  return run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + program + " " + options);
}

/// Ranks with working folders of their own, as on nodes that share no file system.
Ended train_resnet_in(const std::vector<std::string>& folders, const std::string& options) {
  std::vector<std::string> commands;
  for (const std::string& folder : folders) {
    commands.push_back("cd " + folder + " && exec " + TRAIN_RESNET + " " + options);
  }
  return run_as_ranks(MPIRUN, commands);
}

/// The smallest job that goes through everything: 4 steps an epoch.
const std::string kTiny =
    " --train-images 64 --test-images 30 --image-size 12 --batch-size 16 --epochs 2 --log-every 2 --threads 1 ";

constexpr bool kMpi = LOCKSTEP_HAS_MPI != 0;

class TrainResNet : public ::testing::Test {
 protected:
  /// The ranks are many and compute on the CPU, also on a machine with a GPU.
  static void SetUpTestSuite() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string out(const std::string& name) const { return " --out " + path(name) + " "; }

  /// Soon.
  static void expect_refused(const Ended& ended, const std::vector<std::string>& words) {
    testing::expect_refused(ended, words);
    EXPECT_LT(ended.seconds, 60) << "the limit on a quiet machine is 10 s";
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(TrainResNet, GradientsThatAreNotFiniteEndTheJobOrAreTold) {
  const std::string options = kTiny + "--epochs 1 --lr 1e25 --warmup-epochs 0 --check-gradients ";
  const int ranks = kMpi ? 2 : 0;
  const std::string named = "step 2: gradients are not finite: rank 0: fc.weight and ";
  const Ended ends = train_resnet(ranks, options + out("ends"));
  EXPECT_EQ(ends.code, exit_code::kFailure) << ends.output;
  EXPECT_EQ(ends.error_lines().size(), 1U) << ends.output;
  EXPECT_EQ(ends.count("lockstep: error: " + named), 1) << ends.output;
  EXPECT_FALSE(fs::exists(path("ends/last")));
  const Ended goes_on = train_resnet(ranks, options + "--skip-non-finite" + out("goes_on"));
  EXPECT_EQ(goes_on.code, 0) << goes_on.output;
  EXPECT_EQ(goes_on.count("step 2 skipped: gradients are not finite: rank 0: fc.weight and "), 1) << goes_on.output;
  std::ifstream in(path("goes_on/metrics.jsonl"));
  int events = 0;
  for (std::string line; std::getline(in, line);) {
    const Json json = parse_json(line, "metrics.jsonl");
    if (json.get<std::string>("event", "line") == "non_finite") {
      EXPECT_EQ(json.get<std::int64_t>("step", "line"), 2 + events++);
      EXPECT_EQ(json.get<std::string>("gradients", "line").substr(0, 26), "rank 0: fc.weight and 40 w");
    }
  }
  EXPECT_EQ(events, 3) << "steps 2, 3 and 4";
}

TEST_F(TrainResNet, TrainsAndWritesItsFiles) {
  const int ranks = kMpi ? 2 : 0;
  const std::string overlap = kMpi ? " --overlap on " : "";  // where the host waits for gradients
  const Ended ended = train_resnet(ranks, kTiny + overlap + "--report-waits 3" + out("run"));
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_TRUE(ended.error_lines().empty()) << ended.output;
  EXPECT_NE(ended.output.find(kMpi ? "  waits      first 3 steps: " : "  waits      first 3 steps: none"),
            std::string::npos)
      << ended.output;
  EXPECT_EQ(ended.count(" cpu: "), 2) << "memory, in the header and at the end\n" << ended.output;
  EXPECT_EQ(ended.count("; others "), 2) << ended.output;
  EXPECT_NE(ended.output.find("devices 'auto': the CPU, because "), std::string::npos) << ended.output;
  const Json config = read_json(path("run/config.json"));
  EXPECT_EQ(config.get<std::int64_t>("ranks", "config"), std::max(ranks, 1));
  EXPECT_EQ(config.get<std::string>("model", "config"), "resnet20");

  std::ifstream in(path("run/metrics.jsonl"));
  std::vector<std::string> events;
  for (std::string line; std::getline(in, line);) {
    const Json json = parse_json(line, "metrics.jsonl");
    events.push_back(json.get<std::string>("event", "line"));
    if (events.back() == "step") {
      for (const char* key : {"loss", "learning_rate", "images_per_second", "comm_exposed_s"}) {
        EXPECT_GE(json.get<double>(key, line), 0) << line;
      }
    } else if (events.back() == "epoch") {
      const auto accuracy = json.get<double>("test_accuracy", line);
      EXPECT_TRUE(accuracy >= 0 && accuracy <= 1) << line;
    } else if (events.back() == "waits") {
      EXPECT_EQ(json.get<std::int64_t>("first_steps", line), 3);
      EXPECT_GT(json.member("memory", line).get<std::int64_t>("in_use", line), 0);
      const auto calls = json.get<Json::Array>("calls", line);
      EXPECT_EQ(calls.empty(), !kMpi) << line;
      std::int64_t waits = 0;
      for (const Json& call : calls) {
        EXPECT_EQ(call.get<std::string>("call", line), "wait");
        EXPECT_EQ(call.get<std::string>("reason", line), "event");
        waits += call.get<std::int64_t>("count", line);
      }
      EXPECT_LE(waits, 2 * 8) << "of two buckets and eight steps: " << line;
    } else {
      EXPECT_EQ(json.get<std::int64_t>("exit_code", line), 0);
    }
  }
  const std::vector<std::string> expected{"step", "step", "epoch", "step", "step", "epoch", "waits", "end"};
  EXPECT_EQ(events, expected);
  EXPECT_EQ(nn::read_checkpoint_state(path("run/last")).progress.position.step, 8);
  EXPECT_TRUE(fs::exists(path("run/best/model.safetensors")));

  const Ended evaluated = train_resnet(0, kTiny + "--devices cpu --top-k 2 --evaluate " + path("run/last"));
  EXPECT_EQ(evaluated.code, 0) << evaluated.output;
  EXPECT_EQ(evaluated.output.find("devices 'auto'"), std::string::npos) << evaluated.output;
  EXPECT_NE(evaluated.output.find(" %, top 2 "), std::string::npos) << evaluated.output;
  EXPECT_NE(evaluated.output.find(" of 30)"), std::string::npos) << evaluated.output;
}

TEST_F(TrainResNet, ABareModelFileIsEvaluatedAndBegunFrom) {
  const std::string mlp = kTiny + "--model mlp --hidden 8 --devices cpu ";
  ASSERT_EQ(train_resnet(0, mlp + "--steps 2" + out("run")).code, 0);
  fs::copy_file(path("run/last/model.safetensors"), path("bare"));
  const auto line = [](const Ended& ended, const std::string& word) {
    const std::size_t at = ended.output.find(word);
    return at == std::string::npos ? ended.output : ended.output.substr(at, ended.output.find('\n', at) - at);
  };
  const Ended folder = train_resnet(0, mlp + "--evaluate " + path("run/last"));
  const Ended file = train_resnet(0, mlp + "--evaluate " + path("bare"));
  EXPECT_EQ(file.code, 0) << file.output;
  EXPECT_EQ(line(file, "test loss"), line(folder, "test loss"));
  expect_refused(train_resnet(0, kTiny + "--model mlp --hidden 9 --evaluate " + path("bare")),
                 {path("bare"), "has shape (10, 8)", "expected (10, 9)", "another model"});

  // Of parameters that are all NaN nothing is right, also what is of the first class.
  std::string diverged = testing::get_file(path("bare"));
  std::uint64_t header = 0;
  std::memcpy(&header, diverged.data(), sizeof header);
  std::fill(diverged.begin() + static_cast<std::ptrdiff_t>(sizeof header + header), diverged.end(), '\xff');
  testing::put_file(path("diverged"), diverged);
  const Ended wrong = train_resnet(0, mlp + "--top-k 2 --evaluate " + path("diverged"));
  EXPECT_EQ(wrong.code, 0) << wrong.output;
  EXPECT_EQ(line(wrong, "test loss").find("test loss -  accuracy 0.00 %, top 2 0.00 %  (0 of "), 0U) << wrong.output;
  EXPECT_NE(wrong.output.find("they count as wrong"), std::string::npos) << wrong.output;
  EXPECT_EQ(wrong.output.find("nan"), std::string::npos) << wrong.output;

  // The same as torch.save writes it, from a run of several GPUs.
  testing::put_file(path("bare.pth"), testing::torch::copy_of(path("bare"), "module."));
  EXPECT_EQ(line(train_resnet(0, mlp + "--evaluate " + path("bare.pth")), "test loss"), line(folder, "test loss"));
  ASSERT_EQ(train_resnet(0, mlp + "--steps 1 --init " + path("bare") + out("one")).code, 0);
  ASSERT_EQ(train_resnet(0, mlp + "--steps 1 --init " + path("bare.pth") + out("two")).code, 0);
  EXPECT_EQ(testing::get_file(path("two/last/model.safetensors")),
            testing::get_file(path("one/last/model.safetensors")));
  testing::put_file(path("code.pth"),
                    testing::torch::zip(testing::torch::records(
                        testing::torch::program(testing::torch::call(testing::torch::global("os", "system"),
                                                                     testing::torch::text("true") + "\x85")),
                        {})));
  expect_refused(train_resnet(0, mlp + "--steps 1 --init " + path("code.pth") + out("code")),
                 {path("code.pth"), "'os.system'", "nothing in the file is executed"});

  const Ended same = train_resnet(0, mlp + "--steps 1 --init " + path("bare") + out("same"));
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_EQ(same.output.find("  head "), std::string::npos) << same.output;
  const int ranks = kMpi ? 2 : 0;
  const Ended other = train_resnet(ranks, mlp + "--classes 4 --steps 1 --init " + path("bare") + out("other"));
  EXPECT_EQ(other.code, 0) << other.output;
  EXPECT_EQ(line(other, "  head "), "  head       " + path("bare") +
                                        " has another number of classes; these tensors are not taken from it: "
                                        "layers.1.weight layers.1.bias");
  expect_refused(train_resnet(0, mlp + "--classes 4 --evaluate " + path("bare")), {"expected (4, 8)", path("bare")});
}

/// An mlp that learns nothing is best at first.
TEST_F(TrainResNet, AnEvaluationTakesTheBestSaysSoAndNeedsNoTrainingBatch) {
  const std::string mlp = kTiny + "--model mlp --hidden 8 --lr 1e-30 --devices cpu ";
  ASSERT_EQ(train_resnet(0, mlp + out("run")).code, 0);
  const std::string large = mlp + "--batch-size 128 --evaluate ";  // of 64 training images
  for (const auto& [given, read] :
       std::map<std::string, std::string>{{"run", "run/best, step 4"},
                                          {"run/", "run/best, step 4"},
                                          {"run/best", "run/best, step 4"},
                                          {"run/last", "run/last, step 8"},
                                          {"run/last/model.safetensors", "run/last/model.safetensors, step 8"}}) {
    const Ended ended = train_resnet(kMpi && given == "run" ? 2 : 0, large + path(given));
    EXPECT_EQ(ended.code, 0) << ended.output;
    const std::vector<std::string> lines = ended.lines();
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "  evaluating " + path(read)), 1) << given << '\n' << ended.output;
    EXPECT_EQ(ended.count(" of 30)"), 1) << ended.output;
  }
  expect_refused(train_resnet(0, mlp + "--batch-size 128" + out("large")),
                 {"--batch-size is 128", "training set of 64 samples", "at most 64"});
  fs::remove_all(path("run/best"));
  EXPECT_EQ(train_resnet(0, large + path("run")).count("  evaluating " + path("run/last, step 8")), 1);
}

/// Fine-tuning as docs/weights.md shows it: other classes, the first stages as they were.
TEST_F(TrainResNet, FrozenStagesKeepTheirWeights) {
  const int ranks = kMpi ? 2 : 0;
  ASSERT_EQ(train_resnet(0, kTiny + "--devices cpu --steps 2" + out("first")).code, 0);
  const std::string tune = kTiny + "--classes 4 --init " + path("first/last") + " --freeze conv1,bn1,layer1 ";
  const Ended ended = train_resnet(ranks, tune + "--freeze layer2.0 --steps 4" + out("tuned"));
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.count("  frozen     "), 1) << ended.output;
  const SafetensorsFile before(path("first/last/model.safetensors"));
  const SafetensorsFile after(path("tuned/last/model.safetensors"));
  std::int64_t frozen = 0;
  std::int64_t trained = 0;
  for (const TensorEntry& entry : before.entries()) {
    if (entry.name.starts_with("fc.") || entry.name.find("running_") != std::string::npos) {
      continue;
    }
    const TensorEntry* now = after.find(entry.name);
    ASSERT_NE(now, nullptr) << entry.name;
    const auto bytes = [&](const SafetensorsFile& file, const TensorEntry& of) {
      std::vector<std::byte> read(of.bytes);
      file.read(of, read);
      return read;
    };
    bool keeps = entry.name.starts_with("layer2.0.");
    for (const char* stage : {"conv1.", "bn1.", "layer1."}) {
      keeps = keeps || entry.name.starts_with(stage);
    }
    EXPECT_EQ(bytes(before, entry) == bytes(after, *now), keeps) << entry.name;
    (keeps ? frozen : trained) += static_cast<std::int64_t>(entry.bytes / sizeof(float));
  }
  EXPECT_GT(trained, 0);
  EXPECT_NE(ended.output.find(concat("  frozen     ", frozen, " of these parameters, in 18 layers")), std::string::npos)
      << ended.output;

  const std::string again = kTiny + "--classes 4 --steps 4 --resume auto --freeze layer1,conv1,bn1" + out("tuned");
  EXPECT_EQ(train_resnet(ranks, again + "--freeze layer2.0").code, 0);
  expect_refused(train_resnet(ranks, again), {"optimizer.safetensors", "layer2.0"});
  expect_refused(train_resnet(ranks, tune + "--freeze layer9 --steps 1" + out("other")), {"layer9", "to freeze"});
  expect_refused(train_resnet(0, tune + "--devices cpu --freeze layer2,layer3,fc --steps 1" + out("other")),
                 {"all parameters are frozen"});
  EXPECT_FALSE(fs::exists(path("other")));
}

// In seconds, and without their memory.
TEST_F(TrainResNet, HiddenLayersThatACheckpointCannotHaveAreRefusedWithItsName) {
  const std::string mlp = kTiny + "--devices cpu ";
  ASSERT_EQ(train_resnet(0, mlp + "--model mlp --hidden 8 --steps 2" + out("run")).code, 0);
  const std::string file = path("run/last/state.json");
  const std::string text = testing::get_file(file);
  const std::string given = "\"hidden\": \"8\"";
  const std::size_t at = text.find(given);
  ASSERT_NE(at, std::string::npos) << text;
  fs::remove(path("run/last/checksums.json"));
  std::string ones = "1";
  for (int i = 1; i < 2500; ++i) {
    ones += ",1";
  }
  const struct {
    std::string hidden;
    std::string says;
  } cases[] = {{ones, "model.safetensors: there is no tensor 'layers.2500.weight'"},
               {"16000000", "parameters, and model.safetensors beside it only"},
               {"4611686018427387904", "hidden size is 4611686018427387904"},
               {"8,x", "hidden layers are '8,x'"}};
  for (const auto& item : cases) {
    std::string changed = text;
    testing::put_file(file, changed.replace(at, given.size(), "\"hidden\": \"" + item.hidden + "\""));
    const int ranks = kMpi && item.hidden == "8,x" ? 2 : 0;
    expect_refused(train_resnet(ranks, mlp + "--evaluate " + path("run/last")), {path("run/last/"), item.says});
  }
  testing::put_file(file, text);
  EXPECT_EQ(train_resnet(0, mlp + "--evaluate " + path("run/last")).code, 0);
}

TEST(WaitCounts, CountsByTimeCallAndReason) {
  using nn::WaitTime;
  // Resumed at step 100, in the middle of an epoch; two steps count as the first ones.
  EXPECT_EQ(nn::wait_time({.epoch = 1, .batch = 4, .step = 100}, 100, 2), WaitTime::first_steps);
  EXPECT_EQ(nn::wait_time({.epoch = 2, .batch = 0, .step = 101}, 100, 2), WaitTime::first_steps);
  EXPECT_EQ(nn::wait_time({.epoch = 1, .batch = 6, .step = 102}, 100, 2), WaitTime::later_steps);
  EXPECT_EQ(nn::wait_time({.epoch = 2, .batch = 0, .step = 105}, 100, 2), WaitTime::between_epochs);

  nn::WaitCounts counts;
  EXPECT_EQ(counts.text(1),
            "  waits      first 1 step: none\n             later steps: none\n             between epochs: none\n");
  EXPECT_EQ(counts.json().text(), "[]");
  const Device gpu = Device::cuda(0);
  counts.add(WaitTime::later_steps, {gpu, "synchronize", SyncReason::requested, 0, 0.001});
  counts.add(WaitTime::later_steps, {gpu, "copy", SyncReason::host_copy, 1024, 0.002});
  counts.add(WaitTime::later_steps, {gpu, "copy", SyncReason::host_copy, 3072, 0.002});
  counts.add(WaitTime::first_steps, {gpu, "copy", SyncReason::host_copy, 8, 0.5});
  EXPECT_EQ(counts.text(20),
            "  waits      first 20 steps: 1 call, 500 ms\n"
            "               copy: host copy, 1 time, 500 ms, 8 B\n"
            "             later steps: 3 calls, 5.00 ms\n"
            "               copy: host copy, 2 times, 4.00 ms, 4 KiB\n"
            "               synchronize: requested, 1 time, 1.00 ms\n"
            "             between epochs: none\n");
  const Json json = counts.json();
  ASSERT_EQ(json.if_array()->size(), 3U);
  EXPECT_EQ(json.if_array()->at(1).text(),
            R"({"bytes":4096,"call":"copy","count":2,"reason":"host copy","seconds":0.004,"when":"later steps"})");
}

TEST_F(TrainResNet, BucketsFollowTheCostsOfAFile) {
  comm::CostFile file;
  file.ranks = kMpi ? 2 : 1;
  comm::CostPath all_reduce{.name = "all_reduce"};
  all_reduce.model = {{{0, 0.1, 1e-9}}};  // only latency counts: one bucket
  file.paths = {all_reduce};
  testing::put_file(path("cost.json"), comm::cost_text(file));
  const std::string options = kTiny + "--dry-run --cost " + path("cost.json");
  const Ended ended = train_resnet(kMpi ? 2 : 0, options);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find(" 1 bucket(s): "), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find(", by " + path("cost.json")), std::string::npos) << ended.output;

  EXPECT_EQ(ended.count("not reliable"), 0) << ended.output;

  file.paths[0].model = {{{0, 0, 1e-6}}};  // the control: no latency, many buckets
  file.paths[0].held_out = {.count = 12, .median = 0.21, .p90 = 1, .worst = 289};
  testing::put_file(path("cost.json"), comm::cost_text(file));
  const Ended many = train_resnet(kMpi ? 2 : 0, options);
  EXPECT_EQ(many.code, 0) << many.output;
  EXPECT_EQ(many.output.find(" 1 bucket(s): "), std::string::npos) << many.output;
  EXPECT_EQ(many.count("  warning    --cost " + path("cost.json") + ": not reliable, its all-reduces miss by 21 %"), 1)
      << many.output;
}

TEST_F(TrainResNet, LibrariesAreTimedOnceAndKeptInAFile) {
  const int ranks = kMpi ? 2 : 0;
  const std::string options = kTiny + "--steps 1 --choices " + path("choices.json") + " ";
  const Ended timed = train_resnet(ranks, options + out("run"));
  EXPECT_EQ(timed.code, 0) << timed.output;
  EXPECT_NE(timed.output.find("  libraries  "), std::string::npos) << timed.output;
  EXPECT_EQ(timed.output.find(" 0 timed "), std::string::npos) << timed.output;
  const Json found = read_json(path("run/config.json")).member("library_choices", "config.json");
  EXPECT_GT(found.get<int>("timed", "config.json"), 0);
  EXPECT_EQ(found.get<Json::Array>("refused", "config.json").empty(),
            timed.output.find(" refused (config.json)") == std::string::npos)
      << timed.output;
  EXPECT_EQ(nn::read_checkpoint_state(path("run/last")).identity.choices.count("conv1 forward evaluate"), 1U);
  const std::string kept = testing::get_file(path("choices.json"));
  const Ended verified = train_resnet(ranks, kTiny + "--verify-choices" + out("verified"));
  ASSERT_EQ(verified.code, 0) << verified.output;
  EXPECT_NE(verified.output.find("calls of libraries in"), std::string::npos) << verified.output;
  EXPECT_NE(verified.output.find("ms, 0 refused\n"), std::string::npos) << verified.output;
  const Json compared = read_json(path("verified/config.json")).member("library_verification", "config.json");
  EXPECT_TRUE(compared.get<Json::Array>("refused", "config.json").empty());
  const Ended known = train_resnet(ranks, options + "--dry-run");
  EXPECT_EQ(known.code, 0) << known.output;
  EXPECT_NE(known.output.find(" 0 timed "), std::string::npos) << known.output;
  EXPECT_EQ(testing::get_file(path("choices.json")), kept);
  // A resumed run has its choices: it neither times nor reads.
  testing::put_file(path("choices.json"), "broken");
  const Ended resumed = train_resnet(ranks, options + "--dry-run --resume " + path("run/last"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.output.find("  libraries  "), std::string::npos) << resumed.output;
  // Its choices were made for other shapes than those of this batch.
  expect_refused(train_resnet(ranks, options + "--batch-size 8 --dry-run --resume " + path("run/last")),
                 {"choices.json"});
  expect_refused(train_resnet(ranks, options + "--dry-run"), {"choices.json"});
}

TEST_F(TrainResNet, LeavesATimeline) {
  const int ranks = kMpi ? 2 : 0;
  const std::string file = path("t.json");
  const std::string trace = "--trace " + file + " ";
  ASSERT_EQ(train_resnet(ranks, kTiny + out("plain")).code, 0);
  const Ended ended = train_resnet(ranks, kTiny + trace + "--trace-steps 2:4" + out("run"));
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_TRUE(ended.error_lines().empty()) << ended.output;
  EXPECT_EQ(ended.count("  trace      " + file + (kMpi ? ": steps 2 to 4, 2 ranks, " : ": steps 2 to 4, 1 rank, ")), 1)
      << ended.output;
  EXPECT_EQ(ended.count(" exposed"), 1) << ended.output;
  EXPECT_EQ(ended.count("waited most for rank "), kMpi ? 1 : 0) << ended.output;
  EXPECT_EQ(read_file(path("run/last/model.safetensors"), 1 << 24),
            read_file(path("plain/last/model.safetensors"), 1 << 24));
  EXPECT_EQ(read_file(path("run/last/state.json"), 1 << 24), read_file(path("plain/last/state.json"), 1 << 24));

  std::map<std::string, int> counts;
  const auto count_events = [&] {
    counts.clear();
    for (const Json& event : read_json(file).get<Json::Array>("traceEvents", file)) {
      if (event.get<std::string>("ph", file) != "M") {
        ++counts[event.get<std::string>("cat", file) + concat(event.get<int>("pid", file))];
      }
    }
  };
  count_events();
  for (int rank = 0; rank < std::max(ranks, 1); ++rank) {
    EXPECT_EQ(counts[concat("update", rank)], 3);
    EXPECT_EQ(counts[concat("batch", rank)], 3);
    EXPECT_EQ(counts[concat("evaluation", rank)], 1) << "behind step 4";
    EXPECT_EQ(counts[concat("checkpoint", rank)], 2) << "best and last";
    EXPECT_EQ(counts[concat("reduce", rank)], counts[concat("ready", rank)]);
    EXPECT_GT(counts[concat("backward", rank)], 100);
  }
  std::ifstream in(path("run/metrics.jsonl"));
  int found = 0;
  for (std::string line; std::getline(in, line);) {
    const Json json = parse_json(line, "metrics.jsonl");
    if (json.get<std::string>("event", line) == "trace") {
      ++found;
      EXPECT_EQ(json.get<std::string>("file", line), file);
      EXPECT_EQ(json.get<std::int64_t>("first_step", line), 2);
      EXPECT_EQ(json.get<std::int64_t>("last_step", line), 4);
      EXPECT_NEAR(json.get<double>("hidden_s", line) + json.get<double>("exposed_s", line),
                  json.get<double>("communication_s", line), 1e-12);
    }
  }
  EXPECT_EQ(found, 1);

  // A resumed run replaces it; its steps count from where it begins, and are the last where there are few.
  const Ended resumed = train_resnet(ranks, kTiny + trace + "--epochs 3 --resume auto" + out("run"));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.count(": steps 9 to 12, "), 1) << resumed.output;
  count_events();
  EXPECT_EQ(counts["update0"], 4);
  const Ended beyond = train_resnet(ranks, kTiny + trace + "--trace-steps 30:40 --overwrite" + out("run"));
  ASSERT_EQ(beyond.code, 0) << beyond.output;
  EXPECT_EQ(beyond.count("no step was recorded"), 1) << beyond.output;
}

TEST_F(TrainResNet, RefusesATimelineThatItCannotWrite) {
  const int ranks = kMpi ? 2 : 0;
  expect_refused(train_resnet(0, kTiny + "--trace " + path("none/t.json") + out("a")), {path("none/t.json")});
  replace_file(path("notes.txt"), "mine");
  expect_refused(train_resnet(ranks, kTiny + "--trace " + path("notes.txt") + out("b")),
                 {path("notes.txt"), "no timeline", "or nothing"});
  EXPECT_EQ(read_file(path("notes.txt"), 100), "mine");
  expect_refused(train_resnet(0, "--trace ''"), {"--trace", "is empty"});
  expect_refused(train_resnet(0, "--trace t.json --trace-steps 5"), {"--trace-steps", "'5'", "A:B"});
  expect_refused(train_resnet(0, "--trace t.json --trace-steps 1:1001"), {"--trace-steps", "at most 1000"});
  expect_refused(train_resnet(0, "--trace-steps 1:2"), {"--trace-steps", "without --trace"});
  expect_refused(train_resnet(0, "--trace t.json --dry-run"), {"--trace", "--dry-run"});
  expect_refused(train_resnet(0, "--trace t.json --evaluate x"), {"--trace", "--evaluate"});
}

TEST_F(TrainResNet, StoppedByASignalItCanBeResumed) {
  // The signal arrives as soon as the first step is reported; --epochs is out of reach.
  const std::string command = "sh -c '" + std::string(TRAIN_RESNET) + kTiny +
                              " --epochs 100000 --log-every 1 --trace " + path("t.json") + " --trace-steps 1:1000" +
                              out("run") + "> " + path("log") + " & pid=$!; while kill -0 $pid && ! grep -q images/s " +
                              path("log") + " 2> /dev/null; do sleep 0.1; done; kill -TERM $pid; wait $pid'";
  const Ended ended = run_command(command);
  ASSERT_EQ(ended.code, 75) << ended.output << read_file(path("log"), 1 << 20);
  const std::int64_t step = nn::read_checkpoint_state(path("run/last")).progress.position.step;
  EXPECT_GE(step, 1);
  EXPECT_GT(read_json(path("t.json")).get<Json::Array>("traceEvents", "t.json").size(), 100U);
  const Ended resumed =
      train_resnet(0, kTiny + " --epochs 100000 --steps " + std::to_string(step + 3) + " --resume auto" + out("run"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(nn::read_checkpoint_state(path("run/last")).progress.position.step, step + 3);
}

TEST_F(TrainResNet, RanksThatItStartedItselfStopWithACheckpoint) {
  if (!kMpi) {
    expect_refused(train_resnet(0, kTiny + "--devices cpu:2"), {"'cpu:2'", "no MPI"});
    return;
  }
  replace_file(path("run.toml"), "devices = \"cpu:2\"\n");
  // SIGTERM goes to the program, which waits for mpirun, which would kill the ranks.
  const std::string command = "sh -c '" + std::string(TRAIN_RESNET) + kTiny + " --config " + path("run.toml") +
                              " --epochs 100000 --log-every 1" + out("run") + "> " + path("log") +
                              " & pid=$!; while kill -0 $pid && ! grep -q images/s " + path("log") +
                              " 2> /dev/null; do sleep 0.1; done; kill -TERM $pid; wait $pid'";
  const Ended ended = run_command(command);
  ASSERT_EQ(ended.code, 75) << ended.output << read_file(path("log"), 1 << 20);
  EXPECT_GE(nn::read_checkpoint_state(path("run/last")).progress.position.step, 1);
  EXPECT_EQ(read_json(path("run/config.json")).get<std::int64_t>("ranks", "config"), 2);
  EXPECT_NE(read_file(path("log"), 1 << 20).find("started by itself: mpirun "), std::string::npos);

  expect_refused(train_resnet(0, kTiny + "--devices cpu:2 --nodes 2"), {"--nodes is 2", "--hostfile"});
  expect_refused(train_resnet(2, kTiny + "--devices cpu:2 --nodes 2"), {"--nodes is 2", "on 1 node"});
  expect_refused(train_resnet(0, kTiny + "--devices cpu:2 --hostfile " + path("none")),
                 {"--hostfile", path("none"), "No such file", "a node and its slots on each line"});
  expect_refused(train_resnet(0, kTiny + "--devices cpu:99999"), {"'cpu:99999'", "at most 64", "core"});
  expect_refused(train_resnet(2, kTiny + "--hostfile hosts"), {"--hostfile is 'hosts'", "by mpirun"});
  expect_refused(train_resnet(0, kTiny + "--devices 2"), {"devices", "'2'"});  // no GPUs
  const std::string rank = std::string("exec ") + TRAIN_RESNET + kTiny + "--steps ";
  expect_refused(run_as_ranks(MPIRUN, {rank + "2", rank + "3"}), {"rank 0 has 'argument", ": 2'", "rank 1", ": 3'"});
}

TEST_F(TrainResNet, RankZeroDecidesWhetherToResume) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const std::vector<std::string> nodes{path("a"), path("b")};
  for (const std::string& node : nodes) {
    fs::create_directories(node);
  }
  const std::string job = kTiny + "--out run --resume auto --steps ";
  ASSERT_EQ(train_resnet_in(nodes, job + "2").code, 0);
  EXPECT_FALSE(fs::exists(path("b/run"))) << "rank 0 writes";

  // Rank 1 has nothing to read.
  expect_refused(train_resnet_in(nodes, job + "4"), {"rank 1: ", "run/last", "no checkpoint"});
  // Only rank 1 has something: a new run.
  const Ended fresh = train_resnet_in({path("b"), path("a")}, job + "3");
  EXPECT_EQ(fresh.code, 0) << fresh.output;
  EXPECT_EQ(nn::read_checkpoint_state(path("b/run/last")).progress.position.step, 3);
  // Both have something, but not the same.
  expect_refused(train_resnet_in(nodes, job + "4"), {"the ranks do not agree", "step 2", "step 3"});
  fs::remove_all(path("b/run"));
  fs::copy(path("a/run"), path("b/run"), fs::copy_options::recursive);
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 2 --seed 8" + out("c")).code, 0);
  fs::copy(path("c/last/model.safetensors"), path("b/run/last"), fs::copy_options::overwrite_existing);
  expect_refused(train_resnet_in(nodes, job + "4"), {"rank 1: ", "model.safetensors", "that of another checkpoint"});
  fs::remove(path("b/run/last/checksums.json"));
  expect_refused(train_resnet_in(nodes, job + "4"), {"the ranks do not agree", "parameters with hash"});
  // The same on both.
  fs::copy(path("a/run/last/model.safetensors"), path("b/run/last"), fs::copy_options::overwrite_existing);
  const Ended resumed = train_resnet_in(nodes, job + "4");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(nn::read_checkpoint_state(path("a/run/last")).progress.position.step, 4);
}

// Ranks with folders of their own read data of their own, and options that are in rank 0's folder alone.
TEST_F(TrainResNet, RanksOnNodesThatShareNoFiles) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const auto images = [](std::size_t count) { return std::string(count * 3073, '\1'); };  // of CIFAR-10, all of class 1
  const std::vector<std::string> nodes{path("a"), path("b")};
  for (const std::string& node : nodes) {
    fs::create_directories(node + "/data");
    testing::put_file(node + "/data/data_batch_1.bin", images(6));
    testing::put_file(node + "/data/test_batch.bin", images(2));
  }
  testing::put_file(path("a/run.toml"), "data = \"cifar10:data\"\nmodel = \"mlp\"\nbatch-size = 3\nseed = 77\n");
  const std::string job = "--config run.toml --threads 1 --workers 0 --out run --steps 1";
  const Ended ended = train_resnet_in(nodes, job);
  EXPECT_EQ(ended.code, 0) << ended.output;
  const Json config = read_json(path("a/run/config.json"));
  EXPECT_EQ(config.get<std::int64_t>("ranks", "config"), 2);
  EXPECT_EQ(config.get<std::int64_t>("seed", "config"), 77);
  EXPECT_EQ(config.get<std::int64_t>("global_batch", "config"), 3);
  EXPECT_NE(ended.output.find(": 6 training and 2 test images 32 x 32"), std::string::npos) << ended.output;
  expect_refused(train_resnet_in({path("b"), path("a")}, job), {"rank 0: ", "run.toml"});  // the control

  testing::put_file(path("b/data/data_batch_1.bin"), images(7));
  expect_refused(train_resnet_in(nodes, job + " --overwrite"),
                 {"the ranks do not agree", "rank 0 has 'training images 6'", "rank 1 has 'training images 7'"});
}

TEST_F(TrainResNet, ChoicesOfAnotherBuildAreReplacedAndReported) {
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 2" + out("run")).code, 0);
  std::string state = read_file(path("run/last/state.json"), 1 << 20);
  const auto choices = nn::read_checkpoint_state(path("run/last")).identity.choices;
  ASSERT_FALSE(choices.empty());
  for (const auto& [call, choice] : choices) {
    const std::string from = "\"" + call + "\": \"" + choice + "\"";
    const std::size_t at = state.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    state.replace(at, from.size(), "\"" + call + "\": \"another library:fast\"");
  }
  testing::put_file(path("run/last/state.json"), state);
  fs::remove(path("run/last/checksums.json"));
  const Ended evaluated = train_resnet(0, kTiny + "--evaluate " + path("run/last"));
  EXPECT_EQ(evaluated.code, 0) << evaluated.output;
  const Ended resumed = train_resnet(0, kTiny + "--steps 3 --resume auto" + out("run"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("differs    " + std::to_string(choices.size()) +
                                " choices, first 'conv1 backward_weights': checkpoint \"another library:fast\", now "),
            std::string::npos)
      << resumed.output;
  EXPECT_NE(resumed.output.find("(the run continues, not bit for bit)"), std::string::npos) << resumed.output;
  EXPECT_EQ(resumed.count("choices"), 1) << "one cause, one line\n" << resumed.output;
}

TEST_F(TrainResNet, OptimizersAreChosenByName) {
  for (const std::string name : {"adam", "adamw"}) {
    const std::string job = kTiny + "--clip-norm 1 --beta2 0.99 --optimizer " + name + out(name);
    const Ended ended = train_resnet(kMpi ? 2 : 0, job + "--steps 2");
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_NE(ended.output.find("optimizer  " + name + ", learning rate 0.001 "), std::string::npos) << ended.output;
    EXPECT_NE(ended.output.find("betas 0.9 0.99, epsilon 1e-08, clip norm 1"), std::string::npos) << ended.output;
    const Ended resumed = train_resnet(kMpi ? 2 : 0, job + "--steps 3 --resume auto");
    EXPECT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_EQ(nn::read_checkpoint_state(path(name + "/last")).progress.position.step, 3);
  }
  const Ended lars = train_resnet(0, kTiny + "--steps 2 --optimizer lars --skip-non-finite" + out("lars"));
  EXPECT_EQ(lars.code, 0) << lars.output;
  EXPECT_NE(lars.output.find("optimizer  lars, "), std::string::npos) << lars.output;
  EXPECT_NE(lars.output.find("trust coefficient 0.001, steps that are not finite skipped"), std::string::npos)
      << lars.output;
  const std::string muon = kTiny + "--optimizer muon --momentum 0.95 --nesterov" + out("muon");
  const Ended two_steps = train_resnet(0, muon + "--steps 2");
  EXPECT_EQ(two_steps.code, 0) << two_steps.output;
  EXPECT_NE(two_steps.output.find("optimizer  muon, learning rate 0.001 "), std::string::npos) << two_steps.output;
  EXPECT_NE(two_steps.output.find("momentum 0.95 (Nesterov) of hidden matrices, adamw's betas 0.9 0.999"),
            std::string::npos)
      << two_steps.output;
  const Ended none =
      train_resnet(0, kTiny + "--model mlp --hidden 8 --freeze layers.0 --optimizer muon --steps 1" + out("none"));
  EXPECT_EQ(none.code, 0) << none.output;
  EXPECT_NE(none.output.find("no hidden matrix, adamw's betas 0.9 0.999"), std::string::npos) << none.output;
  EXPECT_EQ(none.output.find("of hidden matrices"), std::string::npos) << none.output;
  const Ended third = train_resnet(kMpi ? 2 : 0, muon + "--steps 3 --resume auto");
  EXPECT_EQ(third.code, 0) << third.output;
  expect_refused(train_resnet(0, "--strategy zero1 --optimizer muon"), {"muon", "zero1", "whole matrices"});
  expect_refused(train_resnet(kMpi ? 2 : 0, kTiny + "--steps 3 --resume " + path("adam/last") + out("other")),
                 {"adam/last", "the state of optimizer adam", "expected sgd"});
}

TEST_F(TrainResNet, OptimizerStatesAreDividedUnderEachOfItsNames) {
  // What docs/coming_from.md says of a name.
  for (const auto& [name, words] :
       std::map<std::string, std::string>{{"ddp_notebook", "one process a device"},
                                          {"ddp_find_unused_parameters_false", "a plan knows which gradients"},
                                          {"ddp_find_unused_parameters_true", "a plan knows which gradients"}}) {
    EXPECT_EQ(nn::strategy_named(name).strategy, nn::Strategy::ddp);
    EXPECT_NE(nn::strategy_named(name).note.find(words), std::string::npos) << name;
  }
  for (const char* name : {"fsdp", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_2", "deepspeed_stage_3_offload"}) {
    EXPECT_NE(error_of<UsageError>([&] { (void)nn::strategy_named(name); }).find("holds all parameters and gradients"),
              std::string::npos)
        << name;
  }
  const Ended horovod = train_resnet(0, kTiny + "--strategy horovod --dry-run");
  EXPECT_EQ(horovod.code, 0) << horovod.output;
  EXPECT_NE(horovod.output.find("  strategy   'horovod' is ddp here: "), std::string::npos) << horovod.output;
  expect_refused(train_resnet(0, "--strategy fsdp"), {"--strategy", "'fsdp'", "ddp, zero1 or single"});
  expect_refused(train_resnet(0, "--strategy zero1 --optimizer lars --reproducible world --virtual-ranks 2"),
                 {"--strategy", "lars", "adds the norms by rank"});
  expect_refused(train_resnet(0, "--reproducible always"), {"--reproducible", "always", "layout"});
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  expect_refused(train_resnet(2, kTiny + "--strategy single"), {"--strategy is single", "2 ranks", "ddp"});
  const std::string adam = kTiny + "--optimizer adam --reproducible layout ";
  ASSERT_EQ(train_resnet(3, adam + out("ddp")).code, 0);
  const Ended divided =
      train_resnet(3, adam + "--strategy deepspeed_stage_1 --overlap on --bucket-mb 0.3" + out("zero1"));
  ASSERT_EQ(divided.code, 0) << divided.output;
  EXPECT_NE(divided.output.find("  strategy   zero1: each rank keeps 0.73 MB of the 2.19 MB of optimizer states"),
            std::string::npos)
      << divided.output;
  EXPECT_NE(divided.output.find("added in rank order"), std::string::npos) << divided.output;
  for (const char* file : {"last/model.safetensors", "last/optimizer.safetensors"}) {
    EXPECT_TRUE(read_file(path("ddp/") + file, 1 << 24) == read_file(path("zero1/") + file, 1 << 24)) << file;
  }
}

/// Gradients that are compressed: the run continues exactly, and its metrics count the bytes.
TEST_F(TrainResNet, CompressedGradientsAreAPartOfTheRun) {
  expect_refused(train_resnet(0, "--compress zip"), {"--compress", "'zip'", "none, bf16, fp16, or powersgd:RANK"});
  for (const char* rank : {"powersgd:0", "powersgd:65", "powersgd:", "powersgd:2x", "powersgd:-1"}) {
    expect_refused(train_resnet(0, concat("--compress ", rank)), {"--compress", rank, "1 to 64"});
  }
  for (const auto& [beside, expected] :
       std::vector<std::pair<std::string, std::string>>{{"--reduce-dtype bf16", "one of the two"},
                                                        {"--strategy zero1", "expected ddp"},
                                                        {"--reproducible layout", "expected run"},
                                                        {"--reproducible world --virtual-ranks 2", "expected none"},
                                                        {"--loss-scale 128", "--loss-scale off"}}) {
    expect_refused(train_resnet(0, "--compress powersgd:2 " + beside), {"--compress is powersgd:2 beside ", expected});
  }
  expect_refused(train_resnet(0, "--compress bf16 --dtype f64"), {"--compress is bf16 beside --dtype f64"});
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  for (const std::string compress : {"powersgd:2", "fp16"}) {
    const std::string options =
        kTiny + "--overlap on --bucket-mb 0.3 --checkpoint-every 3 --keep 3 --compress " + compress + " ";
    const Ended whole = train_resnet(2, options + out("whole"));
    ASSERT_EQ(whole.code, 0) << whole.output;
    EXPECT_NE(whole.output.find(", sent as " + compress + ": "), std::string::npos) << whole.output;
    int epochs = 0;
    std::ifstream in(path("whole/metrics.jsonl"));
    for (std::string line; std::getline(in, line);) {
      if (const Json json = parse_json(line, "metrics.jsonl"); json.get<std::string>("event", line) == "epoch") {
        const auto sent = json.get<std::int64_t>("sent_bytes", line);
        EXPECT_GT(sent, 0) << line;
        EXPECT_LE(2 * sent, json.get<std::int64_t>("gradient_bytes", line)) << line;
        ++epochs;
      }
    }
    EXPECT_EQ(epochs, 2);
    const Ended rest = train_resnet(2, options + "--resume " + path("whole/last.2") + out("rest"));
    ASSERT_EQ(rest.code, 0) << rest.output;
    EXPECT_EQ(rest.output.find("differs"), std::string::npos) << rest.output;
    for (const char* file : {"last/model.safetensors", "last/optimizer.safetensors"}) {
      EXPECT_TRUE(read_file(path("whole/") + file, 1 << 24) == read_file(path("rest/") + file, 1 << 24)) << file;
    }
    fs::remove_all(path("whole"));
    fs::remove_all(path("rest"));
  }
}

/// A checkpoint of a run with other buckets, and with an option that is no longer known, says what differs and goes on.
TEST_F(TrainResNet, ACheckpointOfOtherBucketsSaysSo) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  for (const std::string strategy : {"ddp", "zero1"}) {
    const std::string options = kTiny + "--overlap on --strategy " + strategy + " ";
    const Ended whole = train_resnet(2, options + "--steps 3" + out(strategy));
    ASSERT_EQ(whole.code, 0) << whole.output;
    const std::int64_t last = nn::read_checkpoint_state(path(strategy + "/last")).identity.buckets.back();
    const std::string file = path(strategy + "/last/state.json");
    std::string state = read_file(file, 1 << 24);
    const std::string list = "\"buckets\": [";
    const std::size_t at = state.find(list);
    ASSERT_NE(at, std::string::npos);
    state.replace(at, state.find(']', at) - at, list + "3, 5, " + std::to_string(last));
    const std::string named = "\"options\": {";
    ASSERT_NE(state.find(named), std::string::npos);
    state.insert(state.find(named) + named.size(), "\"bucket_plan\": \"measured\", ");
    testing::put_file(file, state);
    fs::remove(path(strategy + "/last/checksums.json"));
    const Ended rest =
        train_resnet(2, options + "--steps 6 --resume " + path(strategy + "/last") + out(strategy + "_rest"));
    EXPECT_EQ(rest.code, 0) << rest.output;
    EXPECT_NE(rest.output.find("'bucket_plan': checkpoint \"measured\", now nothing"), std::string::npos)
        << rest.output;
    EXPECT_NE(rest.output.find(concat("buckets: checkpoint [3,5,", last, "], now [")), std::string::npos)
        << rest.output;
  }
}

TEST_F(TrainResNet, WhatAWorldIsNotCombinedWith) {
  const auto refusal = [](const std::function<void(nn::TrainingOptions&)>& change) {
    nn::TrainingOptions options;
    options.reproducible = "world";
    options.trainer.step.virtual_ranks = 4;
    nn::require_training_options(options);
    change(options);
    return error_of<UsageError>([&] { nn::require_training_options(options); });
  };
  using Options = nn::TrainingOptions;
  for (const auto& [change, text] : std::vector<std::pair<std::function<void(Options&)>, std::string>>{
           {[](Options& o) { o.trainer.step.virtual_ranks = 0; },
            "--virtual-ranks is 0, expected a power of two up to 65536"},
           {[](Options& o) { o.trainer.step.virtual_ranks = 6; },
            "--virtual-ranks is 6, expected a power of two up to 65536"},
           {[](Options& o) { o.reproducible = "run"; }, "--virtual-ranks is 4 beside --reproducible run, expected"},
           {[](Options& o) { o.trainer.accumulate = 2; }, "--accumulate is 2 beside --reproducible world, expected 1"},
           {[](Options& o) { o.threads = 2; }, "--threads is 2 beside --reproducible world, expected 1"},
           {[](Options& o) { o.overlap = comm::RankContextOptions::Overlap::on; },
            "--overlap is on beside --reproducible world"},
           {[](Options& o) { o.trainer.step.sync_batch_norm = true; },
            "--sync-batch-norm is on beside --reproducible world"},
           {[](Options& o) { o.reduce_dtype = "bf16"; }, "--reduce-dtype is bf16 beside --reproducible world"},
           {[](Options& o) { o.trainer.step.cuda_graph = nn::CudaGraph::on; },
            "--cuda-graph is on beside --reproducible world"},
           {[](Options& o) { o.tune = nn::Tune::on; }, "--tune is on beside --reproducible world"},
           {[](Options& o) {
              o.strategy = "zero1";
              o.trainer.step.optimizer.clip_norm = 1;
            },
            "--clip-norm is 1 beside --reproducible world with --strategy zero1, expected 0 or ddp"}}) {
    EXPECT_TRUE(refusal(change).starts_with(text)) << refusal(change);
  }
  nn::TrainingOptions kept;
  kept.reproducible = "world";
  kept.trainer.step.virtual_ranks = 4;
  kept.strategy = "zero1";
  kept.tune = nn::Tune::on;
  kept.choices = "choices.json";
  nn::require_training_options(kept);
  expect_refused(train_resnet(0, kTiny + "--reproducible world"), {"--virtual-ranks is 0", "power of two"});
  expect_refused(train_resnet(0, kTiny + "--reproducible world --virtual-ranks 32 --devices cpu"),
                 {"the batch size is 16", "32 virtual ranks"});
}

TEST_F(TrainResNet, InAWorldTheModelIsTheSameOnAnyNumberOfRanks) {
  const std::string world = "--reproducible world ";
  const std::string job = kTiny + "--batch-size 13 --checkpoint-every 3 --keep 9 ";
  const std::string eight = job + world + "--virtual-ranks 8 ";
  const Ended alone = train_resnet(0, eight + "--devices cpu " + out("1"));
  ASSERT_EQ(alone.code, 0) << alone.output;
  EXPECT_NE(alone.output.find("  world      8 virtual ranks, 8 a rank; one compute thread, no overlap; gradients are "
                              "added in one tree, which takes 3 arenas of gradients, "),
            std::string::npos)
      << alone.output;
  EXPECT_NE(alone.output.find("  batch      13 over 8 virtual ranks: 5 of 2, 3 of 1"), std::string::npos);
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const auto model = [&](const std::string& run) { return testing::get_file(path(run + "/last/model.safetensors")); };
  for (const int ranks : {2, 4}) {
    const Ended ended = train_resnet(ranks, eight + out(std::to_string(ranks)));
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_TRUE(model(std::to_string(ranks)) == model("1")) << ranks << " ranks";
  }
  // One rank, then four, then two: each goes on in the middle of the run before.
  ASSERT_EQ(train_resnet(4, eight + "--resume " + path("1/last.3") + out("moved")).code, 0);
  const Ended moved = train_resnet(2, eight + "--resume " + path("moved/last.1") + out("again"));
  ASSERT_EQ(moved.code, 0) << moved.output;
  EXPECT_EQ(moved.count("  resuming   "), 1) << moved.output;
  EXPECT_EQ(moved.count("  differs    "), 0) << moved.output;
  EXPECT_TRUE(model("again") == model("1"));
  expect_refused(train_resnet(2, job + world + "--virtual-ranks 4 --resume " + path("1/last") + out("other")),
                 {path("1/last"), "8 virtual ranks, expected 4"});
  expect_refused(train_resnet(3, eight), {"--virtual-ranks is 8 and the job has 3 ranks", "divides it"});
  // The control: without virtual ranks the model depends on them.
  ASSERT_EQ(train_resnet(0, job + "--devices cpu --reproducible run " + out("run1")).code, 0);
  ASSERT_EQ(train_resnet(2, job + "--reproducible run " + out("run2")).code, 0);
  EXPECT_FALSE(model("run1") == model("run2"));
}

TEST_F(TrainResNet, WhatAllRanksFindIsSaidOnce) {
  const int ranks = kMpi ? 3 : 0;
  // Found in the run: a checkpoint that cannot be written.
  fs::create_directories(path("run"));
  testing::put_file(path("run/best"), "not a folder");
  const Ended failed = train_resnet(ranks, kTiny + out("run"));
  EXPECT_EQ(failed.code, 3) << "what the user gave was right, the run failed\n" << failed.output;
  ASSERT_EQ(failed.error_lines().size(), 1U) << failed.output;
  EXPECT_NE(failed.error_lines()[0].find(path("run/best")), std::string::npos) << failed.output;
  // Found on resume: a position that is none of this run.
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 2" + out("other")).code, 0);
  expect_refused(train_resnet(ranks, kTiny + "--train-images 16 --resume auto" + out("other")),
                 {path("other/last"), "state.json", "epoch 0, batch 2", "1 batches an epoch"});
}

TEST_F(TrainResNet, ResultsOfAnEarlierRunAreNotWrittenOver) {
  const int ranks = kMpi ? 2 : 0;
  const std::string job = kTiny + "--steps 2" + out("run");
  ASSERT_EQ(train_resnet(ranks, job + "--seed 5").code, 0);
  const std::string model = testing::get_file(path("run/last/model.safetensors"));
  expect_refused(train_resnet(ranks, job), {"--out " + path("run"), "last/", "--resume auto", "--overwrite"});
  expect_refused(train_resnet(ranks, job + "--resume ''"), {"--resume", "is empty"});
  expect_refused(train_resnet(ranks, job + "--resume auto --overwrite"), {"--overwrite beside --resume"});
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 1" + out("other")).code, 0);
  expect_refused(train_resnet(ranks, job + "--resume " + path("other/last")), {"--out " + path("run"), "last/"});
  EXPECT_TRUE(testing::get_file(path("run/last/model.safetensors")) == model) << "refused, and yet changed";
  EXPECT_EQ(train_resnet(ranks, job + "--dry-run").code, 0) << "it writes nothing";
  EXPECT_EQ(train_resnet(ranks, kTiny + "--steps 3 --seed 5 --resume auto" + out("run")).code, 0);
  // A copy that a user has made is left alone.
  fs::copy(path("run/last"), path("run/last.old-mine"), fs::copy_options::recursive);
  const std::vector<std::string> copies{"run/last.20261126", "run/best-20261126", "run/best.old-run-3-1"};
  for (const std::string& copy : copies) {
    fs::copy(path("run/last"), path(copy), fs::copy_options::recursive);
  }
  fs::create_directories(path("run/best-5"));
  testing::put_file(path("run/best-5/notes"), "mine");
  for (const char* option :
       {"", "--overwrite", "--resume auto"}) {  // which would train anew in a folder that goes away
    expect_refused(train_resnet(ranks, kTiny + option + out("run/last")), {"run/last is a checkpoint"});
  }
  EXPECT_EQ(train_resnet(ranks, job + "--overwrite").code, 0);
  EXPECT_TRUE(fs::exists(path("run/best-5/notes"))) << "no checkpoint";
  for (const std::string& copy : copies) {
    EXPECT_TRUE(fs::exists(path(copy + "/state.json"))) << copy;
    fs::remove_all(path(copy));
  }
  EXPECT_FALSE(testing::get_file(path("run/last/model.safetensors")) == model);
  EXPECT_TRUE(fs::exists(path("run/last.old-mine/state.json")));
  // A readable checkpoint is the newest, whatever lies beside it; where there is none, nothing is written over.
  fs::remove_all(path("run/last"));
  expect_refused(train_resnet(ranks, job), {"--out " + path("run"), "best/", "--resume auto", "--overwrite"});
  fs::create_directories(path("run/last.1"));
  const Ended ended = train_resnet(ranks, job + "--steps 3 --resume auto");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.count("  resuming   " + path("run/best")), 1) << ended.output;
  fs::remove_all(path("run/last"));
  fs::remove_all(path("run/best"));
  fs::create_directories(path("run/last.1"));
  testing::put_file(path("run/last.1/state.json"), "{");
  expect_refused(train_resnet(ranks, job + "--resume auto"), {path("run/last.1/state.json")});
}

TEST_F(TrainResNet, TheBestOfARunAreKept) {
  const int ranks = kMpi ? 2 : 0;
  const std::string job = kTiny + "--ema 0.5 --ema-warmup 0 --epochs 5 ";
  ASSERT_EQ(train_resnet(ranks, job + "--keep-best 2" + out("run")).code, 0);
  // The two highest accuracies of the moving average in the metrics; of equal ones the earlier.
  std::ifstream in(path("run/metrics.jsonl"));
  std::vector<std::pair<double, std::int64_t>> found;
  for (std::string line; std::getline(in, line);) {
    const Json event = parse_json(line, "metrics.jsonl");
    if (event.get<std::string>("event", "line") == "epoch") {
      found.emplace_back(-event.get<double>("ema_test_accuracy", line), event.get<std::int64_t>("step", line));
    }
  }
  ASSERT_EQ(found.size(), 5U);
  std::sort(found.begin(), found.end());
  const auto name = [&](std::size_t rank) { return concat("best-", found.at(rank).second); };
  std::vector<std::string> kept;
  for (const fs::directory_entry& entry : fs::directory_iterator(path("run"))) {
    if (entry.path().filename().string().starts_with("best-")) {
      kept.push_back(entry.path().filename().string());
    }
  }
  std::sort(kept.begin(), kept.end());
  std::vector<std::string> expected{name(0), name(1)};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(kept, expected);
  for (const std::string& file : std::vector<std::string>{"model.safetensors", "ema.safetensors", "state.json"}) {
    EXPECT_EQ(testing::get_file(path("run/best/" + file)), testing::get_file(path("run/" + name(0) + "/" + file)));
  }
  // Each is a checkpoint as others are.
  EXPECT_EQ(train_resnet(0, kTiny + "--evaluate " + path("run/" + name(1))).code, 0);
  EXPECT_EQ(train_resnet(ranks, job + "--steps 21 --resume " + path("run/" + name(1)) + out("on")).code, 0);
  const std::string model = path("run/last/model.safetensors");
  const std::string bytes = testing::get_file(model);
  testing::put_file(model, bytes.substr(0, bytes.size() - 1));
  expect_refused(train_resnet(0, kTiny + "--evaluate " + path("run/last")),
                 {concat(path("run/" + name(1)), " (step ", found[1].second, ") can be read")});
  for (const char* other : {"last", "last.1", "best"}) {
    fs::remove_all(path(concat("run/", other)));
  }
  fs::create_directories(path("run/best-8.tmp-host-1-r0123456789abcdef"));
  expect_refused(train_resnet(ranks, job + out("run")), {kept[0] + "/", kept[1] + "/", "--resume auto", "--overwrite"});
  EXPECT_EQ(train_resnet(ranks, kTiny + "--epochs 1 --overwrite" + out("run")).code, 0);
  for (const fs::directory_entry& entry : fs::directory_iterator(path("run"))) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("best-")) << entry.path();
  }
  for (const char* number : {"0", "-2"}) {
    expect_refused(train_resnet(ranks, job + "--keep-best " + number + out("run")),
                   {concat("--keep-best is ", number), "at least 1"});
  }
}

TEST_F(TrainResNet, ARestartGoesOnFromItsOwnCheckpointsOnly) {
  const std::string job = kTiny + "--epochs 1 --seed 5 --checkpoint-every 1 ";
  const auto start = [&](const char* attempt, const std::string& options) {
    return run_command(concat("env LOCKSTEP_ATTEMPT='", attempt, "' ", TRAIN_RESNET, options));
  };
  ASSERT_EQ(start("7-1 0 -", job + "--keep 2" + out("run")).code, 0);
  fs::remove_all(path("run/last"));  // as if it had been killed before that was there
  fs::rename(path("run/last.2"), path("run/last"));
  expect_refused(start("7-2 1 -", job + out("run")), {"--out " + path("run"), "last/", "--resume auto"});
  const Ended restarted = start("7-1 1 -", job + "--overwrite" + out("run"));
  EXPECT_EQ(restarted.code, 0) << restarted.output;
  EXPECT_NE(restarted.output.find("  resuming   " + path("run/last") + " at epoch 0, batch 2"), std::string::npos)
      << restarted.output;
  EXPECT_NE(restarted.output.find("restart 1"), std::string::npos) << restarted.output;
  ASSERT_EQ(train_resnet(0, job + out("alone")).code, 0);
  EXPECT_TRUE(testing::get_file(path("run/last/model.safetensors")) ==
              testing::get_file(path("alone/last/model.safetensors")));
  // A start that was killed before its first checkpoint leaves other files.
  fs::remove_all(path("run/last"));
  const Ended anew = start("7-1 2 -", job + out("run"));
  EXPECT_EQ(anew.code, 0) << anew.output;
  EXPECT_TRUE(testing::get_file(path("run/last/model.safetensors")) ==
              testing::get_file(path("alone/last/model.safetensors")));
  expect_refused(train_resnet(0, job + "--copy-every 1" + out("other")),
                 {"--copy-every is 1", "--max-restarts above 0"});
  expect_refused(start("7-1 x -", job + out("run")), {"LOCKSTEP_ATTEMPT", "'7-1 x -'"});
}

/// The last start has no next one that could need copies in memory: it writes what it resumed to --out.
TEST_F(TrainResNet, TheLastStartWritesWhatItResumedFromMemory) {
  // An epoch takes minutes, so that no other checkpoint is written.
  const std::string job =
      " --model mlp --train-images 4000000 --test-images 32 --image-size 8 --batch-size 16 --epochs 1 "
      "--seed 5 --copy-every 1 --max-restarts 1 --resume auto" +
      out("run");
  const auto start = [&](int attempt) {
    return run_command(
        concat("env LOCKSTEP_ATTEMPT='9-", ::getpid(), ' ', attempt, " -' timeout -s KILL 10 ", TRAIN_RESNET, job));
  };
  const bool there = fs::exists("/last");
  const auto written = there ? fs::last_write_time("/last") : fs::file_time_type();
  static_cast<void>(start(0));
  EXPECT_FALSE(fs::exists(path("run/last"))) << "the test needs an epoch that takes longer";
  fs::rename(path("run"), path("moved"));  // the next start does not find it, and yet goes on
  const Ended last = start(1);
  EXPECT_NE(last.output.find("  resuming   /dev/shm/lockstep-copies-"), std::string::npos) << last.output;
  EXPECT_TRUE(fs::exists(path("run/last/state.json"))) << last.output;
  EXPECT_EQ(fs::exists("/last"), there);
  EXPECT_TRUE(!there || fs::last_write_time("/last") == written);
}

TEST_F(TrainResNet, MetricsTellWhereAResumedRunGoesOn) {
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 3 --log-every 1" + out("run")).code, 0);
  const std::string file = path("run/metrics.jsonl");
  const std::string before = testing::get_file(file);
  testing::put_file(file, before + "{\"accuracy\":0.0");  // as a full disk leaves it
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 5 --log-every 1 --resume auto" + out("run")).code, 0);
  std::istringstream lines(testing::get_file(file));
  std::vector<Json> events;
  for (std::string line; std::getline(lines, line);) {
    events.push_back(parse_json(line, "metrics.jsonl"));
  }
  const auto resume = std::find_if(events.begin(), events.end(), [](const Json& event) {
    return event.get<std::string>("event", "metrics.jsonl") == "resume";
  });
  ASSERT_NE(resume, events.end());
  EXPECT_EQ(resume->get<std::int64_t>("step", "resume"), 3);
  EXPECT_EQ(resume->get<std::string>("from", "resume"), path("run/last"));
  EXPECT_EQ((resume + 1)->get<std::int64_t>("step", "step"), 4);
}

TEST_F(TrainResNet, ADamagedCheckpointIsNamedWithOneThatIsSound) {
  ASSERT_EQ(train_resnet(0, kTiny + "--epochs 1" + out("run")).code, 0);
  const std::string file = path("run/last/model.safetensors");
  std::string bytes = testing::get_file(file);
  bytes[bytes.size() - 7] ^= 4;
  testing::put_file(file, bytes);
  for (const std::string& use : {"--epochs 2 --resume auto" + out("run"), "--evaluate " + path("run/last")}) {
    expect_refused(train_resnet(kMpi ? 2 : 0, kTiny + use),
                   {file, "CRC-32", "damaged", path("run/best") + " (step 4) can be read"});
  }
  EXPECT_EQ(train_resnet(0, kTiny + "--evaluate " + path("run/best")).code, 0);
}

TEST_F(TrainResNet, AnEvaluationNormalisesImagesAsTheTrainingDid) {
  ASSERT_EQ(train_resnet(0, kTiny + "--epochs 1" + out("run")).code, 0);
  const auto test_line = [&](const std::string& options) {
    const Ended ended = train_resnet(0, kTiny + options + " --evaluate " + path("run/last"));
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(ended.count("  warning    the mean of the training images"), options.empty() ? 0 : 1) << ended.output;
    const std::size_t at = ended.output.find("test loss ");
    return ended.output.substr(at, ended.output.find('\n', at) - at);
  };
  const std::string same = test_line("");
  // Fewer training images have another mean; the test images are the same.
  EXPECT_EQ(test_line("--train-images 32"), same);
  const std::string options = kTiny + "--evaluate " + path("run/last") + " --std 0.2,0.2,0.2";
  const Ended given = train_resnet(0, options + " --mean 0.9,0.9,0.9");
  EXPECT_EQ(given.code, 0) << given.output;
  EXPECT_EQ(given.output.find(same), std::string::npos) << given.output;
  expect_refused(train_resnet(0, options), {"--mean has 0", "--std has 3"});
  expect_refused(train_resnet(0, options + " --mean 1,2"), {"--mean has 2", "--std has 3"});
}

TEST_F(TrainResNet, AStopWhileItStartsEndsItAtOnce) {
  for (const std::string ranks : {"cpu", "cpu:2"}) {
    if (ranks != "cpu" && !kMpi) {
      continue;
    }
    for (const std::string delay : {"0.02", "0.1", "0.2", "0.5"}) {
      const std::string command = "sh -c '" + std::string(TRAIN_RESNET) + kTiny + "--epochs 100000 --devices " + ranks +
                                  out(ranks + delay) + " & pid=$!; sleep " + delay + "; kill -TERM $pid; wait $pid'";
      const Ended ended = run_command(command);
      // 143: the signal was there before the program's first instruction.
      EXPECT_TRUE(ended.code == 75 || ended.code == 143) << ranks << ' ' << delay << ": " << ended.code << '\n'
                                                         << ended.output;
      EXPECT_LT(ended.seconds, 60);
    }
  }
}

TEST_F(TrainResNet, DryRunHelpAndVersionWriteNothing) {
  const Ended dry = train_resnet(kMpi ? 2 : 0, kTiny + "--dry-run" + out("run"));
  EXPECT_EQ(dry.code, 0) << dry.output;
  EXPECT_NE(dry.output.find("layer3.2.conv2"), std::string::npos);
  EXPECT_NE(dry.output.find("workspace"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("run")));
  const std::string help = train_resnet(0, "--help").output;
  EXPECT_EQ(help.find("--bucket-mb"), std::string::npos) << "few runs need it";
  EXPECT_NE(help.find("--help GROUP (model, data, augmentation, launch, training, ranks, results)"), std::string::npos);
  EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 60);
  const std::string all = train_resnet(0, "--help all").output;
  EXPECT_NE(all.find("Files in --out"), std::string::npos);
  for (const std::string& text : {help, all}) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 100U) << line;
    }
  }
  const std::string ranks = train_resnet(0, "--help ranks").output;
  EXPECT_NE(ranks.find("--bucket-mb"), std::string::npos);
  EXPECT_EQ(ranks.find("--epochs INT"), std::string::npos);
  expect_refused(train_resnet(0, "--help rank"), {"--help is 'rank'", "ranks"});
  expect_refused(train_resnet(0, "--nesterov=maybe"), {"--nesterov is 'maybe'", "true, false"});
  EXPECT_NE(train_resnet(0, "--version").output.find("lockstep "), std::string::npos);
}

/// --config OUT/config.json: the same bits, whatever gave the options.
TEST_F(TrainResNet, ARunIsRepeatedFromItsFolder) {
  std::ofstream(path("file.toml")) << "momentum = 0.8\nhidden = [6, 5]\ndecay-norm = true\nseed = 11\n";
  const std::string job = kTiny + "--model mlp --devices cpu --config " + path("file.toml") +
                          " --nesterov --lr 0.0123456789012345678 --mean 0.1,0.2,0.3 --std 0.5,0.25,0.5 --seed 9";
  ASSERT_EQ(train_resnet(0, job + out("first")).code, 0);
  const std::string again = "--config " + path("first/config.json");
  const Ended second = train_resnet(0, again + out("second"));
  ASSERT_EQ(second.code, 0) << second.output;
  EXPECT_EQ(read_file(path("second/last/model.safetensors"), 1 << 24),
            read_file(path("first/last/model.safetensors"), 1 << 24));
  EXPECT_EQ(read_file(path("second/last/state.json"), 1 << 24), read_file(path("first/last/state.json"), 1 << 24));
  // A command line has the last word; the folder of results is not repeated.
  ASSERT_EQ(train_resnet(0, again + " --seed 10" + out("third")).code, 0);
  EXPECT_NE(read_file(path("third/last/model.safetensors"), 1 << 24),
            read_file(path("first/last/model.safetensors"), 1 << 24));
  fs::create_directories(path("old"));
  std::ofstream(path("old/config.json")) << "{\"seed\": 3}";
  expect_refused(train_resnet(0, "--config " + path("old/config.json")), {"old/config.json", "chosen"});
  std::ofstream(path("old/config.json")) << "{\"chosen\": {\n\"epoch\": \"3\"}}";
  expect_refused(train_resnet(0, "--config " + path("old/config.json")),
                 {"config.json:2: epoch is no option", "--epochs"});
}

/// A run that --steps ends says how far it goes.
TEST_F(TrainResNet, EpochsAreThoseThatStepsReach) {
  const std::string job = kTiny + "--model mlp --hidden 4 --devices cpu --epochs 90 ";
  const Ended ended = train_resnet(0, job + "--steps 6" + out("run"));
  EXPECT_EQ(ended.count("4 steps an epoch, 2 epochs, 6 steps in all"), 1) << ended.output;
  EXPECT_GE(ended.count("epoch 1/2 "), 1) << ended.output;
  EXPECT_EQ(ended.count("/90"), 0) << ended.output;
  const Ended resumed = train_resnet(0, job + "--steps 9 --resume auto" + out("run"));
  EXPECT_GE(resumed.count("epoch 2/3 "), 1) << resumed.output;
  EXPECT_EQ(resumed.count("differs    options 'milestones'"), 0) << "no number of a cosine depends on them";
  EXPECT_EQ(resumed.count("differs    options 'total_steps'"), 1) << resumed.output;
}

TEST_F(TrainResNet, TheHeaderShowsTheRules) {
  const std::string images = " --train-images 10001 --image-size 8 --model mlp --dry-run ";
  const Ended per_rank = train_resnet(kMpi ? 2 : 0, images + "--batch-per-rank 7 --accumulate 8");
  EXPECT_EQ(per_rank.code, 0) << per_rank.output;
  const std::string product = kMpi ? "7 x 8 x 2 = 112 " : "7 x 8 x 1 = 56 ";
  EXPECT_NE(per_rank.output.find("  batch      " + product), std::string::npos) << per_rank.output;
  EXPECT_NE(per_rank.output.find(kMpi ? "learning rate 0.0175 " : "learning rate 0.00875 "), std::string::npos)
      << per_rank.output;
  EXPECT_EQ(per_rank.output.find("  warning"), std::string::npos) << per_rank.output;
  const Ended large = train_resnet(0, images + "--batch-size 10000 --warmup-steps 0 --workers 200");
  EXPECT_EQ(large.code, 0) << large.output;
  EXPECT_NE(large.output.find("  warning    the global batch is 10000"), std::string::npos) << large.output;
  EXPECT_NE(large.output.find("  warning    200 reading threads"), std::string::npos) << large.output;
  expect_refused(train_resnet(0, images + "--batch-size 16 --batch-per-rank 7"), {"given twice", "16", "7"});
}

TEST_F(TrainResNet, BatchNormOverAllRanksIsAPartOfTheRun) {
  const int ranks = kMpi ? 2 : 0;
  const Ended synced = train_resnet(ranks, kTiny + "--steps 3 --sync-batch-norm" + out("run"));
  ASSERT_EQ(synced.code, 0) << synced.output;
  EXPECT_NE(synced.output.find("  batch norm statistics over the micro-batches of all ranks\n"), std::string::npos)
      << synced.output;
  const Ended resumed = train_resnet(ranks, kTiny + "--steps 4 --resume auto" + out("run"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("differs    options 'sync_batch_norm': checkpoint \"1\", now nothing"),
            std::string::npos)
      << resumed.output;
  EXPECT_EQ(resumed.output.find("  batch norm "), std::string::npos) << resumed.output;
  const Ended without = train_resnet(0, "--model mlp --sync-batch-norm --image-size 8 --dry-run");
  EXPECT_EQ(without.code, 0) << without.output;
  EXPECT_NE(without.output.find("  warning    --sync-batch-norm: the model has no batch norm, so nothing is "
                                "synchronised\n"),
            std::string::npos)
      << without.output;
}

TEST_F(TrainResNet, TheWayOfSumsOnAHostIsAPartOfTheRun) {
  if (!kMpi) {
    GTEST_SKIP() << "this build has no MPI";
  }
  const auto run = [](const std::string& path, const std::string& options) {
    return run_command(
        concat("env LOCKSTEP_HOST_ALL_REDUCE=", path, ' ', MPIRUN, " -np 3 ", TRAIN_RESNET, ' ', options));
  };
  const Ended in_memory = run("auto", kTiny + "--steps 2" + out("run"));
  ASSERT_EQ(in_memory.code, 0) << in_memory.output;
  EXPECT_EQ(in_memory.output.find("  sums "), std::string::npos) << in_memory.output;
  const Ended by_mpi = run("mpi", kTiny + "--steps 3 --resume auto" + out("run"));
  ASSERT_EQ(by_mpi.code, 0) << by_mpi.output;
  EXPECT_NE(by_mpi.output.find("  sums       by MPI\n"), std::string::npos) << by_mpi.output;
  EXPECT_NE(by_mpi.output.find("differs    options 'sums': checkpoint nothing, now \"by MPI\""), std::string::npos)
      << by_mpi.output;
  const Ended ordered = run("mpi", kTiny + "--reproducible layout --steps 2 --overwrite" + out("run"));
  ASSERT_EQ(ordered.code, 0) << ordered.output;
  const Ended still_ordered = run("auto", kTiny + "--reproducible layout --steps 3 --resume auto" + out("run"));
  ASSERT_EQ(still_ordered.code, 0) << still_ordered.output;
  EXPECT_EQ(still_ordered.output.find("'sums'"), std::string::npos) << still_ordered.output;
}

TEST_F(TrainResNet, TheHeaderShowsTheBytesThatAreSent) {
  const auto expect_bucket = [](const std::string& options,
                                const std::string& size) {  // of the only one, with 4 channels
    const Ended ended =
        train_resnet(0, "--model mlp --hidden 1000 --image-size 8 --bucket-mb 1000 --dry-run" + options);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_NE(ended.output.find("  gradients  1 bucket(s): " + size), std::string::npos) << ended.output;
  };
  expect_bucket("", "1.07 MB;");
  expect_bucket(" --reduce-dtype bf16", "0.53 MB, sent as bf16;");
  expect_bucket(" --dtype f64", "2.14 MB;");
  expect_bucket(" --compress bf16", "0.53 MB, sent as bf16: 0.53 MB instead of 1.07 MB a step, added in rank order;");
  expect_bucket(" --compress powersgd:1", "1.07 MB, sent as powersgd:1: 13.8 kB instead of 1.07 MB a step;");
}

TEST_F(TrainResNet, BadOptions) {
  const int ranks = kMpi ? 2 : 0;
  expect_refused(train_resnet(ranks, "--nonsense 7 more"), {"unknown on the command line: --nonsense 7 more ("});
  // A terminal would obey the characters.
  expect_refused(train_resnet(ranks, "--nonsense$(printf '\\033[2J')"),
                 {"unknown on the command line: --nonsense\\x1b[2J"});
  expect_refused(train_resnet(0, "--devices cpu:1$(printf '\\302\\2332J')"), {"cpu:1\\xc2\\x9b2J"});
  expect_refused(train_resnet(ranks, "--workers 300"), {"--workers", "300", "at most 256"});
  expect_refused(run_command(std::string("env OMP_NUM_THREADS=100000 ") + TRAIN_RESNET + " --devices cpu --dry-run"),
                 {"OMP_NUM_THREADS", "100000", "at most 1024"});
  expect_refused(train_resnet(ranks, kTiny + "--batch-size 1000000"), {"1000000", "64"});
  expect_refused(train_resnet(0, kTiny + "--keep-last --epochs 2000000000000000000"),
                 {"--epochs", "2000000000000000000", "at most"});
  if (kMpi) {  // the rank that only prints its help would leave the other alone
    const std::string one = std::string("exec ") + TRAIN_RESNET;
    expect_refused(run_as_ranks(MPIRUN, {one + " --help", one + kTiny}), {"do not agree", "argument 1: --help"});
    expect_refused(run_as_ranks(MPIRUN, {one + kTiny + "--lr 0.1", one + kTiny + "--lr 0.2"}),
                   {"do not agree", "after --lr: 0.1", "after --lr: 0.2"});
  }
  for (const char* size : {"much", "auto"}) {
    expect_refused(train_resnet(0, concat("--bucket-mb ", size)), {"--bucket-mb", size, "expected 0 or MB", "--cost"});
  }
  testing::put_file(path("cost.json"), R"({"epoch": 3})");
  expect_refused(train_resnet(ranks, kTiny + "--cost " + path("cost.json")), {"cost.json", "is no cost file"});
  expect_refused(run_command(std::string("env LOCKSTEP_VERIFY=yes ") + TRAIN_RESNET + kTiny),
                 {"LOCKSTEP_VERIFY is 'yes'", "expected 0 or 1"});
  expect_refused(train_resnet(0, "--cuda-graph on"), {"cuda graph is on", "the device is cpu"});
  expect_refused(train_resnet(0, "--model vgg" + kTiny), {"vgg", "resnet18"});
  expect_refused(train_resnet(0, "--model torchvision/resnet50" + kTiny), {"--model resnet50 --init FILE"});
  expect_refused(train_resnet(0, "--freeze layer9" + kTiny), {"'layer9'", "conv1, bn1, layer1, layer2, layer3, fc"});
  expect_refused(train_resnet(0, "--data " + path("")), {"a folder", "folder:" + path("")});
  expect_refused(train_resnet(ranks, "--dtype fp16" + kTiny), {"dtype is f16 on cpu", "bf16"});
  expect_refused(train_resnet(ranks, "--optimizer rmsprop"), {"rmsprop", "adamw"});
  expect_refused(train_resnet(ranks, kTiny + "--top-k 200"), {"top_k is 200"});
  expect_refused(train_resnet(0, "--data tape:/dev/null"), {"tape:/dev/null", "cifar10:DIR"});
  expect_refused(train_resnet(0, "--epochs -3"), {"--epochs", "-3", "at least 1"});
  expect_refused(train_resnet(0, "--devices 0,"), {"devices '0,'", "cpu"});
  expect_refused(train_resnet(0, "--devices 0"), {"devices '0'", "0, (with a comma)", "; GPUs here: "});
  expect_refused(train_resnet(0, "--data synthetic --classes 1"), {"1"});
}

TEST_F(TrainResNet, BadData) {
  const int ranks = kMpi ? 3 : 0;
  expect_refused(train_resnet(ranks, "--data cifar10:" + path("none")), {path("none")});
  fs::create_directories(path("cut"));
  std::ofstream(path("cut/data_batch_1.bin")) << std::string(3073 + 100, '\1');
  std::ofstream(path("cut/test_batch.bin")) << std::string(3073, '\1');
  expect_refused(train_resnet(ranks, "--data cifar10:" + path("cut")), {"data_batch_1.bin", "3073"});
  std::ofstream(path("cut/data_batch_1.bin"), std::ios::trunc) << std::string(3073, '\x0c');
  expect_refused(train_resnet(0, "--data cifar10:" + path("cut")), {"data_batch_1.bin", "12"});
}

const std::string kRandomPictures =
    " --auto-augment rand --color-jitter 0.4,0.4,0.4,0.1 --random-erase 0.5 --mixup 0.2 --cutmix 1 ";

TEST_F(TrainResNet, RandomPicturesAreAPartOfTheRun) {
  const std::string tiny = kTiny + kRandomPictures;
  const Ended one = train_resnet(0, tiny + "--workers 1" + out("one"));
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_NE(
      one.output.find("training images: padded by 4 and cropped, mirrored, RandAugment of 2 operations, magnitude "
                      "9, colour jitter 0.4 0.4 0.4 0.1, erased with probability 0.5, mixup 0.2, cutmix 1\n"),
      std::string::npos)
      << one.output;
  const auto parameters = [&](const std::string& run) {
    return testing::get_file(path(run) + "/last/" + nn::kModelFile);
  };
  ASSERT_EQ(train_resnet(0, tiny + "--workers 3" + out("three")).code, 0);
  EXPECT_EQ(parameters("three"), parameters("one"));
  if (kMpi) {
    const std::string world = tiny + "--reproducible world --virtual-ranks 2 --devices cpu ";
    ASSERT_EQ(train_resnet(1, world + out("world1")).code, 0);
    ASSERT_EQ(train_resnet(2, world + "--pictures device" + out("world2")).code, 0);
    EXPECT_EQ(parameters("world2"), parameters("world1"));
  }
  // The controls: each of them changes the numbers, and a resume tells it.
  const std::vector<std::string> fewer{"",
                                       " --random-erase 0.5",
                                       " --color-jitter 0.4,0.4,0.4,0.1",
                                       " --mixup 0.2",
                                       " --crop-scale 0.5,1",
                                       " --auto-augment trivial",
                                       " --auto-augment rand"};
  std::vector<std::string> models{parameters("one")};
  for (std::size_t i = 0; i < fewer.size(); ++i) {
    const std::string name = concat("fewer", i);
    ASSERT_EQ(train_resnet(0, kTiny + fewer[i] + out(name)).code, 0) << fewer[i];
    EXPECT_EQ(std::count(models.begin(), models.end(), parameters(name)), 0) << fewer[i];
    models.push_back(parameters(name));
  }
  const Ended resumed = train_resnet(0, kTiny + "--epochs 3 --mixup 0.3 --resume " + path("fewer3") + out("resumed"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("options 'pictures': checkpoint \"padded by 4 and cropped, mirrored, mixup 0.2\", now "
                                "\"padded by 4 and cropped, mirrored, mixup 0.3\""),
            std::string::npos)
      << resumed.output;
}

TEST_F(TrainResNet, ErasedRectanglesAreTheMeanThatTheRunSubtracts) {
  const std::string tiny = kTiny + "--model mlp --hidden 4 --steps 1 ";
  const std::string other = " --mean 0.1,0.2,0.3 --std 0.2,0.2,0.2 ";
  ASSERT_EQ(train_resnet(0, tiny + other + out("other")).code, 0);
  const std::string begun = tiny + "--random-erase 1 --init " + path("other/last");
  const auto option_of = [&](const std::string& run, const std::string& name) {
    const std::string file = path(run) + "/config.json";
    return read_json(file).member("options", file).get<std::string>(name, file);
  };
  ASSERT_EQ(train_resnet(0, tiny + "--random-erase 1" + out("plain")).code, 0);
  const Ended ended = train_resnet(0, begun + out("begun"));
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("which --mean and --std can give"), std::string::npos) << ended.output;
  for (const char* name : {"mean", "training_data"}) {  // --init leaves both; the fill is in the data's fingerprint
    EXPECT_EQ(option_of("begun", name), option_of("plain", name)) << name;
  }
  ASSERT_EQ(train_resnet(0, begun + other + out("given")).code, 0);
  for (const char* name : {"mean", "training_data"}) {
    EXPECT_NE(option_of("given", name), option_of("plain", name)) << name;
  }
}

TEST_F(TrainResNet, BadRandomPictures) {
  expect_refused(train_resnet(0, "--auto-augment wide"), {"--auto-augment is 'wide'", "none, trivial or rand"});
  expect_refused(train_resnet(0, "--pictures gpu"), {"--pictures is 'gpu'", "host, device or nvjpeg"});
  expect_refused(train_resnet(0, "--pictures nvjpeg"),
                 {"--pictures is nvjpeg", "synthetic holds no files", "folder:DIR"});
  expect_refused(train_resnet(0, "--color-jitter 0.4"), {"--color-jitter", "1 number,", "expected 4"});
  expect_refused(train_resnet(0, "--color-jitter 0.4,0.4,nan,0"), {"saturation", "nan", "0 to 100"});
  expect_refused(train_resnet(0, "--color-jitter 0,0,0,0.6"), {"hue", "0.6", "0 to 0.5"});
  expect_refused(train_resnet(0, "--random-erase 2"), {"erasing", "2", "0 to 1"});
  expect_refused(train_resnet(0, "--mixup -1"), {"mixup", "-1", "0.01 to 100"});
  expect_refused(train_resnet(0, "--cutmix inf"), {"cutmix", "inf", "0.01 to 100"});
  expect_refused(train_resnet(0, "--crop-scale 0.5,0.2"), {"0.5 to 0.2", "least <= most"});
  expect_refused(train_resnet(0, "--crop-scale 0.5,1 --pad 2"), {"--crop-scale", "--pad 2"});
  expect_refused(train_resnet(0, "--crop-ratio 1,2"), {"--crop-ratio", "--crop-scale", "folder:DIR"});
  expect_refused(train_resnet(0, "--show-batch x.png --evaluate out"), {"--show-batch", "x.png", "--evaluate"});
}

#if LOCKSTEP_HAS_IMAGES
/// Three classes of pictures of three sizes: `train` and two in `val` each.
void put_pictures(const std::string& folder, int train) {
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < train + 2; ++i) {
      const auto value = [&](std::int64_t y, std::int64_t x, int channel) {
        return static_cast<int>((80 * (c == channel ? 2 : 1) + 3 * x + 7 * y * i) % 256);
      };
      const testing::Pixels picture = testing::pixels(20 + 9 * (i % 3), 31 - 5 * (i % 3), 3, value);
      const std::string name = concat(folder, i < train ? "/train/" : "/val/", "c", c, "/", i);
      fs::create_directories(fs::path(name).parent_path());
      testing::put_file(name + (i % 2 == 0 ? ".jpg" : ".png"), i % 2 == 0 ? jpeg(picture) : png(picture));
    }
  }
}

const std::string kSmallFolder =
    " --image-size 16 --batch-size 6 --epochs 2 --log-every 1 --threads 1 --model mlp --hidden 8 ";

TEST_F(TrainResNet, PicturesInFoldersAreTrainedOn) {
  put_pictures(path("data"), 6);
  const std::string data = kSmallFolder + "--data folder:" + path("data");
  const Ended one = train_resnet(0, data + " --workers 1" + out("one"));
  ASSERT_EQ(one.code, 0) << one.output;
  for (const char* words : {"18 training and 6 test images 16 x 16, 3 classes",
                            "test images are those of val, resized to 18 and cropped; random crops to train on",
                            "normalised by ImageNet's mean and standard deviation"}) {
    EXPECT_NE(one.output.find(words), std::string::npos) << words << "\n" << one.output;
  }
  const auto parameters = [&](const std::string& run) {
    return testing::get_file(path(run) + "/last/" + nn::kModelFile);
  };
  ASSERT_EQ(train_resnet(0, data + " --workers 4" + out("four")).code, 0);
  EXPECT_EQ(parameters("four"), parameters("one"));
  // The controls: without flips, and without random parts.
  ASSERT_EQ(train_resnet(0, data + " --flip off" + out("straight")).code, 0);
  EXPECT_NE(parameters("straight"), parameters("one"));
  ASSERT_EQ(train_resnet(0, data + " --pad 2" + out("padded")).code, 0);
  EXPECT_NE(parameters("padded"), parameters("one"));
  if (kMpi) {  // a sum over ranks is rounded in another order
    const Ended two = train_resnet(2, data + out("two"));
    ASSERT_EQ(two.code, 0) << two.output;
    const auto loss = [&](const std::string& run) {
      return nn::read_checkpoint_state(path(run) + "/last").progress.test_loss.value_or(-1);
    };
    EXPECT_NEAR(loss("two"), loss("one"), 1e-4);
    EXPECT_GT(std::abs(loss("straight") - loss("one")), 1e-3) << "the control";
  }
  const Ended again = train_resnet(0, data + " --image-size 12 --evaluate " + path("one"));
  EXPECT_NE(again.code, 0) << "another size is another model";
  EXPECT_EQ(train_resnet(0, data + " --evaluate " + path("one")).code, 0);

  const Ended split =
      train_resnet(0, kSmallFolder + "--val-fraction 0.5 --data folder:" + path("data/train") + out("split"));
  ASSERT_EQ(split.code, 0) << split.output;
  EXPECT_NE(split.output.find("9 training and 9 test images"), std::string::npos) << split.output;
}

/// CIFAR's networks are for its images; a checkpoint's model counts, not the default one.
TEST_F(TrainResNet, TheSizeOfPicturesFollowsTheModel) {
  put_pictures(path("data"), 6);
  const std::string data = " --batch-size 6 --threads 1 --devices cpu --data folder:" + path("data");
  const auto sees = [&](const std::string& options, const std::string& words) {
    const Ended ended = train_resnet(0, data + options + " --dry-run");
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(ended.count(words), 1) << options << '\n' << ended.output;
  };
  sees(" --model resnet20", "6 test images 32 x 32,");
  sees(" --model resnet20", "; enlarged, as most have a shorter side of 21 pixels");
  sees(" --model resnet20 --image-size 224", "6 test images 224 x 224,");
  sees(" --model resnet18", "6 test images 224 x 224,");
  EXPECT_EQ(train_resnet(0, data + " --image-size 21 --dry-run").count("enlarged"), 0) << "the control";
  ASSERT_EQ(train_resnet(0, data + " --model resnet18 --image-size 32 --steps 1" + out("run")).code, 0);
  sees(" --evaluate " + path("run/last"), "6 test images 224 x 224,");
}

// The folder's bits from lists of its pictures; and chunks of them in another order, the same for any workers.
TEST_F(TrainResNet, PicturesInListsAreTrainedOn) {
  put_pictures(path("data"), 6);
  for (const std::string part : {"train", "val"}) {
    std::vector<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(path("data/" + part))) {
      if (entry.is_regular_file()) {
        const std::string name = fs::relative(entry.path(), path("data")).string();
        lines.push_back(name + ' ' + name.substr(part.size() + 2, 1) + '\n');  // train/c0/1.jpg
      }
    }
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) {
      text += line;
    }
    testing::put_file(path("data/" + part + ".txt"), text);
  }
  const std::string list = kSmallFolder + "--data list:" + path("data/train.txt") + ',' + path("data/val.txt");
  const auto parameters = [&](const std::string& run) {
    return testing::get_file(path(run) + "/last/" + nn::kModelFile);
  };
  ASSERT_EQ(train_resnet(0, kSmallFolder + "--data folder:" + path("data") + out("folder")).code, 0);
  const Ended listed = train_resnet(0, list + out("list"));
  ASSERT_EQ(listed.code, 0) << listed.output;
  EXPECT_NE(listed.output.find("18 training and 6 test images 16 x 16, 3 classes"), std::string::npos) << listed.output;
  EXPECT_EQ(parameters("list"), parameters("folder"));
  ASSERT_EQ(train_resnet(0, list + " --shuffle-chunk 4 --workers 1" + out("chunks")).code, 0);
  ASSERT_EQ(train_resnet(0, list + " --shuffle-chunk 4 --workers 3" + out("chunks3")).code, 0);
  EXPECT_NE(parameters("chunks"), parameters("list"));
  EXPECT_EQ(parameters("chunks3"), parameters("chunks"));
  const Ended other =
      train_resnet(0, list + " --shuffle-chunk 5 --epochs 3 --resume " + path("chunks/last") + out("on"));
  EXPECT_EQ(other.code, 0) << other.output;
  EXPECT_NE(other.output.find("'shuffle_chunk': checkpoint \"4\", now \"5\""), std::string::npos) << other.output;
  fs::path any;
  for (const auto& entry : fs::recursive_directory_iterator(path("data/train"))) {
    any = entry.is_regular_file() ? entry.path() : any;
  }
  for (int label = 0; label < 40; ++label) {  // three pictures each, so a window has 16 of 40 classes
    for (const auto& [part, name] :
         {std::pair("train", "a"), std::pair("train", "b"), std::pair("train", "c"), std::pair("val", "a")}) {
      const fs::path folder = path(concat("many/", part, "/c", label));
      fs::create_directories(folder);
      fs::copy_file(any, folder / (name + any.extension().string()));
    }
  }
  const std::string many = kSmallFolder + "--data folder:" + path("many") + " --shuffle-chunk ";
  expect_refused(train_resnet(0, many + "2"),
                 {"--shuffle-chunk is 2", "few of the 40 classes", "lockstep-pack --shuffle"});
  EXPECT_EQ(train_resnet(0, many + "2 --show-batch " + path("batch.png")).code, 0);

  const std::string picture = testing::get_file(path("data/train/c1/2.jpg"));
  testing::put_file(path("data/train/c1/2.jpg"), picture.substr(0, picture.size() / 2));
  expect_refused(train_resnet(0, list + out("damaged")), {"data/train/c1/2.jpg"});
  const Ended skipped = train_resnet(0, list + " --skip-damaged" + out("skipped"));
  ASSERT_EQ(skipped.code, 0) << skipped.output;
  EXPECT_NE(skipped.output.find("17 training and 6 test images"), std::string::npos) << skipped.output;
  fs::remove(path("data/train/c1/2.jpg"));
  expect_refused(train_resnet(0, list), {"data/train.txt', line 9: 'train/c1/2.jpg' of label '1' does not exist"});
  expect_refused(train_resnet(0, kSmallFolder + "--data list:" + path("none.txt") + " --val-fraction 0.5"),
                 {"none.txt", "cannot be opened"});
  expect_refused(train_resnet(0, kSmallFolder + "--data list:" + path("data/val.txt")), {"val.txt", "--val-fraction"});
  expect_refused(train_resnet(kMpi ? 2 : 0, list), {"line 9"});
}

TEST_F(TrainResNet, ShowsWhatTheNetworkSees) {
  const auto show = [&](int ranks, const std::string& name, const std::string& options) {
    const Ended ended = train_resnet(
        ranks, kTiny + "--pad 0 --flip off --batch-size 12 --show-batch " + path(name) + options + out("nothing"));
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_NE(ended.output.find("the first 12 of 12 training images of a batch"), std::string::npos) << ended.output;
    return ended.output.substr(ended.output.find("labels:"));
  };
  const std::string labels = show(0, "sheet.png", "");
  const std::string file = testing::get_file(path("sheet.png"));
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  nn::images::Picture sheet;
  nn::images::decode(bytes, "sheet", nn::images::read_header(bytes, "sheet"), 1, sheet);
  // Three rows of four, each pixel ten times ten, two between.
  ASSERT_EQ(sheet.width, 4 * 120 + 3 * 2);
  ASSERT_EQ(sheet.height, 3 * 120 + 2 * 2);
  // The images themselves, in the order of a loader of all ranks.
  nn::DataOptions options{.seed = 1};
  options.synthetic = {.train_size = 64, .test_size = 30, .height = 12, .width = 12};
  const nn::DataSplit data = nn::open_data(options);
  const nn::Sampler sampler({.size = 64, .batch_size = 12, .seed = 1});
  std::vector<std::uint8_t> image(12 * 12 * 3);
  std::string expected;
  for (std::int64_t n = 0; n < 12; ++n) {
    const std::int64_t id = sampler.order(0)(n);
    data.train->read(id, image);
    expected += concat(n % 4 == 0 ? "\n  " : "  ", data.train->label(id));
    for (std::int64_t i = 0; i < 120 * 120 * 3; ++i) {
      const std::int64_t y = i / 3 / 120;
      const std::int64_t x = i / 3 % 120;
      const std::int64_t at = ((n / 4 * 122 + y) * sheet.width + n % 4 * 122 + x) * 3 + i % 3;
      ASSERT_EQ(sheet.pixels[static_cast<std::size_t>(at)],
                image[static_cast<std::size_t>((y / 10 * 12 + x / 10) * 3 + i % 3)])
          << n << ' ' << i;
    }
  }
  EXPECT_EQ(labels.substr(7, expected.size()), expected);
  EXPECT_EQ(sheet.pixels[120 * 3], 255) << "between two images";
  EXPECT_FALSE(fs::exists(path("nothing"))) << "nothing is trained";
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 1" + out("nothing")).code, 0);  // not in the way of another sheet
  const std::string mixed = show(0, "mixed.png", kRandomPictures);
  EXPECT_NE(mixed.find('*'), std::string::npos) << mixed;
  EXPECT_NE(testing::get_file(path("mixed.png")), file);
  if (kMpi) {
    EXPECT_EQ(show(2, "two.png", kRandomPictures), mixed);
    EXPECT_EQ(testing::get_file(path("two.png")), testing::get_file(path("mixed.png")));
  }
  // The batch is the run's: of all micro-batches, by its rules.
  const Ended parts = train_resnet(0, kTiny + "--batch-per-rank 4 --accumulate 4 --show-batch " + path("parts.png"));
  EXPECT_EQ(parts.code, 0) << parts.output;
  EXPECT_NE(parts.output.find("the first 16 of 16 training images of a batch"), std::string::npos) << parts.output;
  expect_refused(
      train_resnet(0, kTiny + "--batch-per-rank 9223372036854775807 --accumulate 2 --show-batch " + path("x.png")),
      {"9223372036854775807 x 2", "2^63"});
  expect_refused(train_resnet(kMpi ? 2 : 0, "--show-batch /nowhere/there/x.png"), {"/nowhere/there/x.png"});
  put_pictures(path("data"), 4);
  const Ended named =
      train_resnet(0, kSmallFolder + "--data folder:" + path("data") + " --show-batch " + path("n.png"));
  EXPECT_EQ(named.code, 0) << named.output;
  EXPECT_GE(named.count("  c1"), 1) << named.output;
}

TEST_F(TrainResNet, PicturesInFoldersAreMixed) {
  put_pictures(path("data"), 6);
  const std::string data = kSmallFolder + "--data folder:" + path("data") + " --crop-scale 0.3,0.9 " + kRandomPictures;
  const Ended one = train_resnet(0, data + " --workers 1" + out("one"));
  ASSERT_EQ(one.code, 0) << one.output;
  for (const char* words : {"random parts to train on, 0.3 to 0.9 of the area, ratios 0.75 to 1.3333",
                            "training images: RandAugment of 2 operations, magnitude 9, colour jitter 0.4 0.4 0.4 0.1, "
                            "erased"}) {
    EXPECT_NE(one.output.find(words), std::string::npos) << words << "\n" << one.output;
  }
  ASSERT_EQ(train_resnet(0, data + " --workers 3" + out("three")).code, 0);
  const auto parameters = [&](const std::string& run) {
    return testing::get_file(path(run) + "/last/" + nn::kModelFile);
  };
  EXPECT_EQ(parameters("three"), parameters("one"));
  // Half of a run, and then the other half finished elsewhere.
  const std::string steady = data + " --schedule constant ";
  ASSERT_EQ(train_resnet(0, steady + out("whole")).code, 0);
  ASSERT_EQ(train_resnet(0, steady + "--epochs 1" + out("half")).code, 0);
  const Ended device = train_resnet(0, steady + "--pictures device --resume " + path("half") + out("device"));
  ASSERT_EQ(device.code, 0) << device.output;
  EXPECT_NE(device.output.find("training images: finished on the device\n"), std::string::npos) << device.output;
  EXPECT_EQ(device.count("  differs    options '"), 2) << "epochs, total_steps\n" << device.output;
  EXPECT_EQ(parameters("device"), parameters("whole"));
  expect_refused(train_resnet(0, data + " --pictures nvjpeg"),
                 {"--pictures is nvjpeg", "--auto-augment", "host or device"});
  expect_refused(train_resnet(0, kSmallFolder + "--pictures nvjpeg --data folder:" + path("data")),
                 {"--pictures is nvjpeg", "not on cpu", "host or device"});
}

TEST_F(TrainResNet, DamagedPicturesEndARunOrAreLeftOut) {
  const int ranks = kMpi ? 3 : 0;
  put_pictures(path("data"), 6);
  const std::string data = kSmallFolder + "--data folder:" + path("data");
  for (const char* name : {"/data/train/c1/2.jpg", "/data/val/c2/7.png"}) {
    const std::string whole = testing::get_file(path("") + name);
    testing::put_file(path("") + name, whole.substr(0, whole.size() - 20));
  }
  // One rank reads it, and the others wait for its gradients.
  const Ended ended = train_resnet(ranks, data + out("run"));
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_NE(ended.output.find("train/c1/2.jpg': damaged or unknown JPEG data"), std::string::npos) << ended.output;
  EXPECT_LT(ended.seconds, 60) << "the others do not wait for ever";

  const Ended skipped = train_resnet(ranks, data + " --skip-damaged" + out("skipped"));
  ASSERT_EQ(skipped.code, 0) << skipped.output;
  EXPECT_NE(skipped.output.find("17 training and 5 test images"), std::string::npos) << skipped.output;
  EXPECT_NE(skipped.output.find("left out   2 damaged images: "), std::string::npos) << skipped.output;
  EXPECT_NE(skipped.output.find("val/c2/7.png': damaged or unknown PNG data"), std::string::npos) << skipped.output;
  const Json config = read_json(path("skipped/config.json"));
  EXPECT_NE(config.text().find("train/c1/2.jpg"), std::string::npos) << config.text();
}

TEST_F(TrainResNet, FoldersThatAreNoDataAreRefused) {
  const int ranks = kMpi ? 2 : 0;
  put_pictures(path("data"), 2);
  fs::rename(path("data/val/c2"), path("data/val/c3"));
  expect_refused(train_resnet(ranks, kSmallFolder + "--data folder:" + path("data")),
                 {"class 'c2' is in train and not in val"});
  expect_refused(train_resnet(ranks, kSmallFolder + "--data folder:" + path("none")), {"none", "is no folder"});
  expect_refused(train_resnet(ranks, kSmallFolder + "--skip-damaged --data folder:" + path("none")),
                 {"none", "is no folder"});
  expect_refused(train_resnet(0, "--data folder:" + path("data/train")), {"has no folder train", "--val-fraction"});
  expect_refused(train_resnet(0, "--skip-damaged"), {"--skip-damaged", "synthetic", "folder:DIR"});
  expect_refused(train_resnet(0, "--resize 20 --data idx:x"), {"--resize", "idx:x", "folder:DIR"});
  expect_refused(train_resnet(0, "--val-fraction 0.5"), {"--val-fraction", "synthetic", "folder:DIR"});
}
#else
TEST_F(TrainResNet, FoldersNeedLibrariesWhichAreNamed) {
  expect_refused(train_resnet(0, "--data folder:" + path("data")),
                 {"reads no JPEG and PNG files", "libjpeg-dev libpng-dev", "-DLOCKSTEP_IMAGES=ON"});
  expect_refused(train_resnet(0, "--skip-damaged --data folder:" + path("data")), {"libjpeg-dev libpng-dev"});
  expect_refused(train_resnet(0, "--show-batch x.png"), {"--show-batch", "libpng"});
}
#endif

TEST_F(TrainResNet, BatchSmallerThanTheWorld) {
  if (!kMpi) {
    GTEST_SKIP() << "this build has no MPI";
  }
  expect_refused(train_resnet(3, kTiny + "--batch-size 2" + out("run")), {"2", "3"});
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(TrainResNet, BadCheckpointsAndFolders) {
  const int ranks = kMpi ? 2 : 0;
  ASSERT_EQ(train_resnet(0, kTiny + "--steps 1" + out("run")).code, 0);
  expect_refused(train_resnet(ranks, kTiny + "--model resnet32 --init " + path("run/last") + out("other")),
                 {"model.safetensors", "another model"});
  expect_refused(train_resnet(ranks, kTiny + "--model resnet32 --init " + path("run") + out("other")),
                 {path("run/best/model.safetensors"), "another model"});  // a folder of results stands for its best
  EXPECT_FALSE(fs::exists(path("other"))) << "nothing half written";
  expect_refused(train_resnet(ranks, kTiny + "--resume " + path("nowhere") + out("other")), {path("nowhere")});

  // A header that claims to be longer than the file.
  const std::string model = path("run/last/model.safetensors");
  {
    std::fstream file(model, std::ios::binary | std::ios::in | std::ios::out);
    file.write("\xff\xff\xff\x00\x00\x00\x00\x00", 8);
  }
  expect_refused(train_resnet(ranks, kTiny + "--init " + path("run/last") + out("other")), {"model.safetensors"});

  std::ofstream(path("file")) << "not a folder";
  expect_refused(train_resnet(ranks, kTiny + "--out " + path("file") + "/run"), {path("file")});
}

TEST_F(TrainResNet, ARankThatFailsInAStepEndsTheJob) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  for (const int rank : {0, 2}) {
    const Ended ended =
        run_command(std::string(MPIRUN) + " -np 3 " + std::string(FAILING_RANK) + " " + std::to_string(rank));
    EXPECT_EQ(ended.code, 3) << ended.output;
    const std::vector<std::string> lines = ended.error_lines();
    ASSERT_EQ(lines.size(), 1U) << ended.output;
    EXPECT_EQ(lines[0], "lockstep: error: rank " + std::to_string(rank) + ": the disk is gone");
    EXPECT_LT(ended.seconds, 60) << "the others do not wait for ever";
  }
}

TEST_F(TrainResNet, ARankThatHangsEndsTheJob) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const Ended ended = run_command(std::string(MPIRUN) + " -np 3 " + std::string(FAILING_RANK) + " 2 hang");
  EXPECT_EQ(ended.code, 76) << ended.output;
  EXPECT_LT(ended.seconds, 60) << "5 s of nothing, and 2 s for the lines of all ranks";
  std::vector<std::string> lines = ended.error_lines();
  std::sort(lines.begin(), lines.end());
  ASSERT_EQ(lines.size(), 3U) << ended.output;
  const std::string step = lines[2].substr(lines[2].find_last_of(' '));
  EXPECT_EQ(lines[2], "lockstep: error: rank 2: no progress for 5 s while reading the batch of step" + step);
  for (const std::size_t rank : {0U, 1U}) {
    const std::string& line = lines[rank];
    const std::string begin = "lockstep: error: rank " + std::to_string(rank) + ": no progress for 5 s while ";
    EXPECT_TRUE(line == begin + "waiting for the gradients of step" + step ||
                line == begin + "reducing gradients of step" + step)
        << line;
  }
}

TEST_F(TrainResNet, ARankThatHangsBeforeItsFirstInstructionIsNamed) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const std::string program = std::string("exec ") + TRAIN_RESNET + kTiny + "--devices cpu --watchdog 2" + out("run");
  const Ended ended = run_as_ranks(MPIRUN, {program, "kill -STOP $$; " + program});
  EXPECT_EQ(ended.code, 76) << ended.output;
  EXPECT_LT(ended.seconds, 60);
  const std::vector<std::string> lines = ended.error_lines();
  ASSERT_EQ(lines.size(), 2U) << ended.output;
  EXPECT_EQ(lines[0], "lockstep: error: rank 0: no progress for 2 s while waiting for other ranks to start MPI");
  EXPECT_EQ(lines[1].find("lockstep: error: rank 0: no word from rank 1 (host "), 0U) << lines[1];
  EXPECT_TRUE(lines[1].ends_with("): it has not begun")) << lines[1];
}

TEST_F(TrainResNet, WhatMattersIsTheLastLineOfAJobThatStartedItsRanksItself) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const Ended ended = train_resnet(0, "--devices cpu:2 --data idx:" + path("nowhere") + out("run"));
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.count("lockstep: error: "), 1) << ended.output;
  EXPECT_EQ(ended.count("------"), 0) << ended.output;
  const Ended none = train_resnet(0, "--devices 3" + out("run"));
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.count("devices '3' asks for 3 GPUs, and this machine has none"), 1) << none.output;
}

TEST_F(TrainResNet, StandardFilesThatAreClosedOrFull) {
  const std::string program = TRAIN_RESNET;
  EXPECT_EQ(run_command("sh -c '" + program + " --help > /dev/full'").code, 3);
  EXPECT_EQ(run_command("sh -c '" + program + " --help >&-'").code, 3);
  EXPECT_EQ(run_command("sh -c '" + program + " --version > /dev/full'").code, 3);
  EXPECT_EQ(run_command("sh -c '" + program + kTiny + "--devices cpu --dry-run > /dev/full'").code, 3);
  const std::string run = program + kTiny + "--steps 4 --devices cpu" + (kMpi ? ":2" : "");
  const Ended closed = run_command("sh -c '" + run + out("closed") + " <&- >&-'");
  EXPECT_EQ(closed.code, 0) << closed.output;
  const Ended full =
      run_command("sh -c '" + program + kTiny + "--steps 4 --devices cpu" + out("full") + " > /dev/full'");
  EXPECT_EQ(full.code, 0) << "its results are complete\n" << full.output;
  EXPECT_EQ(full.count("lockstep: standard output cannot be written: No space left on device; the run goes on"), 1)
      << full.output;
  for (const char* name : {"closed", "full"}) {
    EXPECT_EQ(nn::read_checkpoint_state(path(name) + "/last").progress.position.step, 4);
  }
}

// mpirun ends a job whose output nobody can take.
TEST_F(TrainResNet, ARunOfSeveralRanksGoesOnWithoutAReader) {
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  const std::string run = TRAIN_RESNET + kTiny + "--devices cpu:2 --max-restarts 1 ";
  const Ended head = run_command("bash -c '" + run + out("head") + " | head -1; exit ${PIPESTATUS[0]}'");
  EXPECT_EQ(head.code, 0) << head.output;
  EXPECT_EQ(head.count("lockstep: standard output cannot be written: Broken pipe; the run goes on"), 1) << head.output;
  EXPECT_EQ(run_command("bash -c '" + run + out("both") + " 2>&1 | head -1; exit ${PIPESTATUS[0]}'").code, 0);
  EXPECT_EQ(run_command("sh -c '" + run + out("full") + " > /dev/full'").code, 0);
  for (const char* name : {"head", "both", "full"}) {
    EXPECT_EQ(nn::read_checkpoint_state(path(name) + "/last").progress.position.step, 8) << name;
  }
  const Ended result = run_command("sh -c '" + run + " --evaluate " + path("head/last") + " > /dev/full'");
  EXPECT_EQ(result.code, 3) << "what prints a result fails\n" << result.output;
  EXPECT_EQ(result.count("restart 1 of 1"), 0) << result.output;
}

TEST_F(TrainResNet, ThereIsNothingLeftToDo) {
  ASSERT_EQ(train_resnet(0, kTiny + out("run")).code, 0);
  fs::create_directories(path("run/best.tmp-host-12-r0123456789abcdef"));
  fs::create_directories(path("run/best.tmp-mine"));
  testing::put_file(path("run/config.json.tmp-a-b-3-rfedcba9876543210"), "{");
  testing::put_file(path("run/config.json.tmp-mine"), "{");
  // The folder of the run stands for its last/.
  const Ended again = train_resnet(0, kTiny + "--resume " + path("run") + out("run"));
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(again.count("already finished, at epoch 2 (--epochs 2), step 8: test accuracy "), 1) << again.output;
  EXPECT_EQ(again.count("\nfinished"), 0) << again.output;
  EXPECT_FALSE(fs::exists(path("run/best.tmp-host-12-r0123456789abcdef"))) << "left by a writer that was killed";
  EXPECT_FALSE(fs::exists(path("run/config.json.tmp-a-b-3-rfedcba9876543210")));
  EXPECT_TRUE(fs::exists(path("run/best.tmp-mine"))) << "somebody's own";
  EXPECT_TRUE(fs::exists(path("run/config.json.tmp-mine")));
  const Ended fewer = train_resnet(0, kTiny + "--epochs 1 --resume auto" + out("run"));
  EXPECT_EQ(fewer.count("already finished, at epoch 2 (--epochs 1), step 8: "), 1) << fewer.output;
  const Ended other = train_resnet(0, kTiny + "--train-images 80 --resume auto" + out("run"));
  EXPECT_NE(other.output.find("options 'training_data': checkpoint \""), std::string::npos) << other.output;
  EXPECT_NE(other.output.find("\" (synthetic"), std::string::npos) << other.output;
}

TEST_F(TrainResNet, ALinkToNowhereIsNamed) {
  fs::create_symlink(path("nowhere"), path("link"));
  expect_refused(train_resnet(0, kTiny + out("link")), {path("link"), "is a link to " + path("nowhere")});
  expect_refused(train_resnet(0, kTiny + out(std::string(256, 'a'))), {"aaa: cannot be made: File name too long"});
}

TEST_F(TrainResNet, StepsThatAreLongerThanAStopMayTake) {
  const Ended ended = train_resnet(0, kTiny + "--stop-within 1e-9" + out("run"));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.count("longer than --stop-within 1e-09: a stop is heard after a step"), 1) << ended.output;
  EXPECT_EQ(train_resnet(0, kTiny + out("other")).count("--stop-within"), 0) << "nobody has asked";
}

TEST_F(TrainResNet, AFolderThatAnotherRunWritesToIsRefused) {
  fs::create_directories(path("run"));
  std::optional<FolderLock> other(std::in_place, path("run"));
  other->name_holder();
  const std::string options = kTiny + "--steps 1" + out("run");
  expect_refused(train_resnet(kMpi ? 2 : 0, options),
                 {"--out", path("run"), "another run writes there (pid ", "of this run's own"});
  EXPECT_FALSE(fs::exists(path("run/config.json")));
  EXPECT_EQ(train_resnet(0, options + "--dry-run").code, 0) << "it writes nothing";
  other.reset();
  EXPECT_EQ(train_resnet(kMpi ? 2 : 0, options).code, 0);
}

TEST_F(TrainResNet, NothingIsWrittenThroughALink) {
  const auto content = [&](const std::string& name) { return read_file(path(name), 1 << 20); };
  ASSERT_EQ(train_resnet(0, kTiny + "--epochs 1" + out("run")).code, 0);
  testing::put_file(path("victim"), "mine\nand a cut line");
  testing::put_file(path("run/run.lock"), "pid 1\n");
  const std::string state = content("run/last/state.json");
  expect_refused(train_resnet(0, kTiny + out("run")), {"has checkpoints of an earlier run"});
  EXPECT_EQ(content("run/run.lock"), "pid 1\n") << "a run that is refused changes nothing";
  fs::remove(path("run/run.lock"));
  fs::create_symlink(path("victim"), path("run/run.lock"));
  for (const char* options : {"", "--overwrite", "--resume auto"}) {
    expect_refused(train_resnet(0, kTiny + options + out("run")), {"run/run.lock: is a link"});
  }
  fs::remove(path("run/run.lock"));
  fs::remove(path("run/metrics.jsonl"));
  fs::create_symlink(path("victim"), path("run/metrics.jsonl"));
  const std::string config = content("run/config.json");
  expect_refused(train_resnet(0, kTiny + "--resume auto" + out("run")), {"run/metrics.jsonl: is a link"});
  EXPECT_EQ(content("run/config.json"), config);
  EXPECT_EQ(content("run/last/state.json"), state);
  fs::create_directories(path("elsewhere"));
  fs::create_symlink(path("elsewhere"), path("run/tensorboard"));
  fs::remove(path("run/metrics.jsonl"));
  expect_refused(train_resnet(0, kTiny + "--tensorboard --resume auto" + out("run")), {"run/tensorboard: is a link"});
  EXPECT_TRUE(fs::is_empty(path("elsewhere")));
  EXPECT_EQ(train_resnet(0, kTiny + "--overwrite --epochs 1" + out("run")).code, 0);
  EXPECT_EQ(content("victim"), "mine\nand a cut line");
}

TEST_F(TrainResNet, AFullDiskEndsTheJob) {
  ASSERT_EQ(train_resnet(0, kTiny + "--epochs 1" + out("run")).code, 0);
  const int kilobytes = 4096;  // behind the limit, as on a full disk
  testing::put_file(path("run/metrics.jsonl"), std::string(kilobytes * 1024, '\n'));
  const std::string ranks = kMpi ? std::string(MPIRUN) + " -np 2 " : "";
  const Ended ended = run_command("bash -c 'ulimit -f " + std::to_string(kilobytes) + "; " + ranks + TRAIN_RESNET +
                                  kTiny + "--resume auto" + out("run") + "'");
  EXPECT_EQ(ended.code, 3) << ended.output;
  const std::vector<std::string> lines = ended.error_lines();
  ASSERT_EQ(lines.size(), 1U) << ended.output;
  EXPECT_NE(lines[0].find("metrics.jsonl: cannot be written: File too large"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace lockstep
