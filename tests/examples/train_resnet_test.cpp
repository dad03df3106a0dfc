// Tests train_resnet as users call it: under mpirun and alone, with valid and invalid input. Checks exit codes and
// written files.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/app/wait_report.hpp>
#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#if LOCKSTEP_HAS_IMAGES
#include "tests/support/image_files.hpp"
#endif
#include "tests/support/mpi_here.hpp"
#include "tests/support/program_test.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"
#include "tests/support/torch_files.hpp"

int train_resnet_main(int argc, char** argv);

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::Ended;
using testing::error_of;
using testing::expect_holds;
using testing::expect_members;
using testing::run_as_ranks;
using testing::run_command;

/// Runs train_resnet with `ranks` ranks under mpirun. With 0 ranks, calls its main() in this process.
Ended train_resnet(int ranks, const std::string& options) {
  if (ranks == 0) {
    return testing::run_here(train_resnet_main, "train_resnet " + options);
  }
  return run_command(std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + TRAIN_RESNET + " " + options);
}

/// Runs train_resnet as a process of its own, without mpirun. `before` is the beginning of the command line.
Ended train_resnet_alone(const std::string& options, const std::string& before = "") {
  return run_command(before + TRAIN_RESNET + " " + options);
}

/// Runs one rank per folder. Each rank has its own working folder, as on nodes without a shared file system.
Ended train_resnet_in(const std::vector<std::string>& folders, const std::string& options) {
  std::vector<std::string> commands;
  for (const std::string& folder : folders) {
    commands.push_back("cd " + folder + " && exec " + TRAIN_RESNET + " " + options);
  }
  return run_as_ranks(MPIRUN, commands);
}

/// Options of a very small run: two epochs of 4 steps.
const std::string kTiny =
    " --train-images 64 --test-images 30 --image-size 12 --batch-size 16 --epochs 2 --log-every 2 --threads 1 ";

constexpr bool kMpi = LOCKSTEP_HAS_MPI != 0;
constexpr int kRanks = kMpi ? 2 : 0;

class TrainResNet : public testing::ProgramTest {
 protected:
  /// Expects that the program refuses its input within a short time.
  static void expect_refused(const Ended& ended, const std::vector<std::string>& words,
                             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    testing::expect_refused(ended, words, file, line);
    EXPECT_LT(ended.seconds, 60) << "the limit on a quiet machine is 10 s";
  }
  static void expect_refusals(const std::vector<testing::Refusal>& refusals, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    testing::expect_refusals([](const std::string& options) { return train_resnet(0, options); }, refusals, file, line);
  }
  [[nodiscard]] std::int64_t step_of(const std::string& checkpoint) const {
    return nn::read_checkpoint_state(path(checkpoint)).progress.position.step;
  }
  /// Expects that the last checkpoints of two runs have the same parameters and optimizer state.
  void expect_same_state(const std::string& a, const std::string& b) const {
    for (const std::string file : {"/last/model.safetensors", "/last/optimizer.safetensors"}) {
      EXPECT_TRUE(get(a + file) == get(b + file)) << a << ", " << b << file;
    }
  }
  /// Sends SIGTERM as soon as the output, in file `log`, reports the first step. Expects that the run stops with a
  /// checkpoint.
  void stop_after_a_report(const std::string& options) const {
    const std::string log = path("log");
    const Ended ended = run_command("sh -c '" + std::string(TRAIN_RESNET) + kTiny + options + "> " + log +
                                    " & pid=$!; while kill -0 $pid && ! grep -q images/s " + log +
                                    " 2> /dev/null; do sleep 0.1; done; kill -TERM $pid; wait $pid'");
    ASSERT_EQ(ended.code, 75) << ended.output << get("log");
  }
};

/// Tests that need several ranks.
class TrainResNetRanks : public TrainResNet {
 protected:
  void SetUp() override {
    if (!kMpi) {
      GTEST_SKIP() << "needs MPI, this build has none";
    }
  }
};

/// Input that the program must refuse before it trains, with one line on standard error and exit code 2. The program
/// runs in this process. Later tests repeat some of this input with several ranks and processes.
TEST_F(TrainResNet, BadOptions) {
  const std::string tiny = kTiny + "--devices cpu ";
  expect_refusals({
      {"--nonsense 7 more", {"unknown on the command line: --nonsense 7 more ("}},
      // Control characters must be escaped, because a terminal would execute them.
      {"--nonsense\033[2J", {"unknown on the command line: --nonsense\\x1b[2J"}},
      {"--devices cpu:1\302\2332J", {"cpu:1\\xc2\\x9b2J"}},
      {"--workers 300", {"--workers", "300", "at most 256"}},
      {kTiny + "--keep-last --epochs 2000000000000000000", {"--epochs", "2000000000000000000", "at most"}},
      {"--bucket-mb much", {"--bucket-mb", "much", "expected 0 or MB", "--cost"}},
      {"--bucket-mb auto", {"--bucket-mb", "auto", "expected 0 or MB", "--cost"}},
      {"--cuda-graph on", {"cuda graph is on", "the device is cpu"}},
      {"--dtype fp16" + kTiny, {"dtype is f16 on cpu", "bf16"}},
      {"--show-batch /nowhere/there/x.png", {LOCKSTEP_HAS_IMAGES ? "/nowhere/there/x.png" : "libpng"}},
      {"--model vgg" + kTiny, {"vgg", "resnet18"}},
      {"--model torchvision/resnet50" + kTiny, {"--model resnet50 --init FILE"}},
      {"--freeze layer9" + kTiny, {"'layer9'", "conv1, bn1, layer1, layer2, layer3, fc"}},
      {"--data " + path(""), {"a folder", "folder:" + path("")}},
      {"--optimizer rmsprop", {"rmsprop", "adamw"}},
      {"--data tape:/dev/null", {"tape:/dev/null", "cifar10:DIR"}},
      {"--epochs -3", {"--epochs", "-3", "at least 1"}},
      {"--devices 0,", {"devices '0,'", "cpu"}},
      {"--devices 0", {"devices '0'", "0, (with a comma)", "; GPUs here: "}},
      {"--data synthetic --classes 1", {"1"}},
      {"--help rank", {"--help is 'rank'", "ranks"}},
      {"--nesterov=maybe", {"--nesterov is 'maybe'", "true, false"}},
      {tiny + "--std 0.2,0.2,0.2", {"--mean has 0", "--std has 3"}},
      {tiny + "--std 0.2,0.2,0.2 --mean 1,2", {"--mean has 2", "--std has 3"}},
      {tiny + "--batch-size 16 --batch-per-rank 7", {"given twice", "16", "7"}},
      {tiny + "--model mlp --batch-size 128" + out("large"),
       {"--batch-size is 128", "training set of 64 samples", "at most 64"}},
      {tiny + "--keep-best 0", {"--keep-best is 0", "at least 1"}},
      {tiny + "--keep-best -2", {"--keep-best is -2", "at least 1"}},
      {tiny + "--copy-every 1", {"--copy-every is 1", "--max-restarts above 0"}},
      {tiny + "--resume ''", {"--resume", "is empty"}},
      {tiny + "--resume auto --overwrite", {"--overwrite with --resume"}},
      {"--strategy zero1 --optimizer muon", {"muon", "zero1", "whole matrices"}},
      {"--strategy fsdp", {"--strategy", "'fsdp'", "ddp, zero1 or single"}},
      {"--reproducible always", {"--reproducible", "always", "layout"}},
      {"--compress zip", {"--compress", "'zip'", "none, bf16, fp16, or powersgd:RANK"}},
      {"--compress bf16 --dtype f64", {"--compress is bf16 with --dtype f64"}},
  });
  for (const char* rank : {"powersgd:0", "powersgd:65", "powersgd:", "powersgd:2x", "powersgd:-1"}) {
    expect_refusals({{concat("--compress ", rank), {"--compress", rank, "1 to 64"}}});
  }
  for (const auto& [beside, expected] :
       std::vector<std::pair<std::string, std::string>>{{"--reduce-dtype bf16", "one of the two"},
                                                        {"--strategy zero1", "expected ddp"},
                                                        {"--reproducible layout", "expected run"},
                                                        {"--reproducible world --virtual-ranks 2", "expected none"},
                                                        {"--loss-scale 128", "--loss-scale off"}}) {
    expect_refusals({{"--compress powersgd:2 " + beside, {"--compress is powersgd:2 with ", expected}}});
  }
}

TEST_F(TrainResNet, BadData) {
  put("cut/data_batch_1.bin", std::string(3073 + 100, '\1'));
  put("cut/test_batch.bin", std::string(3073, '\1'));
  put("class/data_batch_1.bin", std::string(3073, '\x0c'));
  put("class/test_batch.bin", std::string(3073, '\1'));
  expect_refusals({{"--data cifar10:" + path("none"), {path("none")}},
                   {"--data cifar10:" + path("cut"), {"data_batch_1.bin", "3073"}},
                   {"--data cifar10:" + path("class"), {"data_batch_1.bin", "12"}},
                   {"--skip-damaged", {"--skip-damaged", "synthetic", "folder:DIR"}},
                   {"--resize 20 --data idx:x", {"--resize", "idx:x", "folder:DIR"}},
                   {"--val-fraction 0.5", {"--val-fraction", "synthetic", "folder:DIR"}}});
}

TEST_F(TrainResNet, BadRandomPictures) {
  expect_refusals({
      {"--auto-augment wide", {"--auto-augment is 'wide'", "none, trivial or rand"}},
      {"--pictures gpu", {"--pictures is 'gpu'", "host, device or nvjpeg"}},
      {"--pictures nvjpeg", {"--pictures is nvjpeg", "synthetic holds no files", "folder:DIR"}},
      {"--color-jitter 0.4", {"--color-jitter", "1 number,", "expected 4"}},
      {"--color-jitter 0.4,0.4,nan,0", {"saturation", "nan", "0 to 100"}},
      {"--color-jitter 0,0,0,0.6", {"hue", "0.6", "0 to 0.5"}},
      {"--random-erase 2", {"erasing", "2", "0 to 1"}},
      {"--mixup -1", {"mixup", "-1", "0.01 to 100"}},
      {"--cutmix inf", {"cutmix", "inf", "0.01 to 100"}},
      {"--crop-scale 0.5,0.2", {"0.5 to 0.2", "least <= most"}},
      {"--crop-scale 0.5,1 --pad 2", {"--crop-scale", "--pad 2"}},
      {"--crop-ratio 1,2", {"--crop-ratio", "--crop-scale", "folder:DIR"}},
      {"--show-batch x.png --evaluate out", {"--show-batch", "x.png", "--evaluate"}},
  });
}

/// Every process must end with code 2, but only one of several ranks may print the reason. Each input is refused at a
/// different point of the program at which the ranks agree on errors.
TEST_F(TrainResNet, RanksRefuseTogether) {
  if (kMpi) {  // a rank that only prints its help must not leave the other rank waiting
    const std::string one = std::string("exec ") + TRAIN_RESNET;
    expect_refused(run_as_ranks(MPIRUN, {one + " --help", one + kTiny}), {"do not agree", "argument 1: --help"});
    expect_refused(run_as_ranks(MPIRUN, {one + kTiny + "--lr 0.1", one + kTiny + "--lr 0.2"}),
                   {"do not agree", "after --lr: 0.1", "after --lr: 0.2"});
  }
  put("cost.json", R"({"epoch": 3})");
  for (const auto& [options, words] :
       std::vector<testing::Refusal>{{"--nonsense 7 more", {"unknown on the command line: --nonsense 7 more ("}},
                                     {"--data cifar10:" + path("none"), {path("none")}},
                                     {kTiny + "--batch-size 1000000", {"1000000", "64"}},
                                     {kTiny + "--cost " + path("cost.json"), {"cost.json", "is no cost file"}},
                                     {kTiny + "--top-k 200", {"top_k is 200"}}}) {
    expect_refused(train_resnet(kRanks, options), words);
  }
  expect_refused(train_resnet_alone("--nonsense 7 more"), {"unknown on the command line: --nonsense 7 more ("});
  expect_refused(train_resnet_alone("--devices cpu --dry-run", "env OMP_NUM_THREADS=100000 "),
                 {"OMP_NUM_THREADS", "100000", "at most 1024"});
  expect_refused(train_resnet_alone(kTiny, "env LOCKSTEP_VERIFY=yes "),
                 {"LOCKSTEP_VERIFY is 'yes'", "expected 0 or 1"});
}

TEST_F(TrainResNet, GradientsThatAreNotFiniteEndTheJobOrAreTold) {
  const std::string options = kTiny + "--epochs 1 --lr 1e25 --warmup-epochs 0 --check-gradients ";
  const std::string named = "step 2: gradients are not finite: rank 0: fc.weight and ";
  expect_error(train_resnet(kRanks, options + out("ends")), exit_code::kFailure, {"lockstep: error: " + named});
  EXPECT_FALSE(fs::exists(path("ends/last")));
  train_resnet(kRanks, options + "--skip-non-finite" + out("goes_on"))
      .finished({}, {{"step 2 skipped: gradients are not finite: rank 0: fc.weight and ", 1}});
  const std::vector<Json> skipped = events("goes_on", "non_finite");
  ASSERT_EQ(skipped.size(), 3U) << "steps 2, 3 and 4";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(skipped[static_cast<std::size_t>(i)].get<std::int64_t>("step", "line"), 2 + i);
    EXPECT_EQ(skipped[static_cast<std::size_t>(i)].get<std::string>("gradients", "line").substr(0, 26),
              "rank 0: fc.weight and 40 w");
  }
}

TEST_F(TrainResNet, TrainsAndWritesItsFiles) {
  const std::string overlap = kMpi ? " --overlap on " : "";  // the host then waits for gradients
  const Ended ended = train_resnet(kRanks, kTiny + overlap + "--report-waits 3" + out("run")).finished();
  ended.says({kMpi ? "  waits      first 3 steps: " : "  waits      first 3 steps: none",
              "devices 'auto': the CPU, because "});
  // The header and the end of the output must each show the memory in use.
  ended.has({{"lockstep: error:", 0}, {" cpu: ", 2}, {"; others ", 2}});
  expect_members(config("run"), {{"ranks", std::max(kRanks, 1)}, {"model", "resnet20"}});

  std::vector<std::string> kinds;
  for (const Json& json : events("run")) {
    const std::string line = json.text();
    kinds.push_back(json.get<std::string>("event", "line"));
    if (kinds.back() == "step") {
      for (const char* key : {"loss", "learning_rate", "images_per_second", "comm_exposed_s"}) {
        EXPECT_GE(json.get<double>(key, line), 0) << line;
      }
    } else if (kinds.back() == "epoch") {
      const auto accuracy = json.get<double>("test_accuracy", line);
      EXPECT_TRUE(accuracy >= 0 && accuracy <= 1) << line;
    } else if (kinds.back() == "waits") {
      EXPECT_EQ(json.get<std::int64_t>("first_steps", line), 3);
      EXPECT_GT(json.member("memory", line).get<std::int64_t>("in_use", line), 0);
      const auto calls = json.get<Json::Array>("calls", line);
      EXPECT_EQ(calls.empty(), !kMpi) << line;
      std::int64_t waits = 0;
      for (const Json& call : calls) {
        expect_members(call, {{"call", "wait"}, {"reason", "event"}});
        waits += call.get<std::int64_t>("count", line);
      }
      EXPECT_LE(waits, 2 * 8) << "of two buckets and eight steps: " << line;
    } else {
      EXPECT_EQ(json.get<std::int64_t>("exit_code", line), 0);
    }
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"step", "step", "epoch", "step", "step", "epoch", "waits", "end"}));
  EXPECT_EQ(step_of("run/last"), 8);
  EXPECT_TRUE(fs::exists(path("run/best/model.safetensors")));

  const std::string evaluate = kTiny + "--devices cpu --top-k 2 --evaluate " + path("run/last");
  for (const Ended& evaluated : {train_resnet(kRanks, evaluate), train_resnet_alone(evaluate)}) {
    evaluated.finished({" %, top 2 ", " of 30)"}, {{"devices 'auto'", 0}});
  }
}

TEST_F(TrainResNet, ABareModelFileIsEvaluatedAndBegunFrom) {
  const std::string mlp = kTiny + "--model mlp --hidden 8 --devices cpu ";
  train_resnet(0, mlp + "--steps 2" + out("run")).finished();
  fs::copy_file(path("run/last/model.safetensors"), path("bare"));
  const std::string expected = train_resnet(0, mlp + "--evaluate " + path("run/last")).finished().from("test loss");
  EXPECT_EQ(train_resnet(0, mlp + "--evaluate " + path("bare")).finished().from("test loss"), expected);

  // If all parameters are NaN, no prediction may count as correct, not even class 0.
  std::string diverged = get("bare");
  std::uint64_t header = 0;
  std::memcpy(&header, diverged.data(), sizeof header);
  std::fill(diverged.begin() + static_cast<std::ptrdiff_t>(sizeof header + header), diverged.end(), '\xff');
  const Ended wrong = train_resnet(0, mlp + "--top-k 2 --evaluate " + put("diverged", diverged)).finished();
  expect_holds(wrong.from("test loss"), "test loss -  accuracy 0.00 %, top 2 0.00 %  (0 of ");
  wrong.says({"they count as wrong"}).lacks({"nan"});

  // Writes the same weights to a file of torch.save, with the name prefix "module." that DistributedDataParallel adds.
  put("bare.pth", testing::torch::copy_of(path("bare"), "module."));
  EXPECT_EQ(train_resnet(0, mlp + "--evaluate " + path("bare.pth")).from("test loss"), expected);
  train_resnet(0, mlp + "--steps 1 --init " + path("bare") + out("one")).finished({}, {{"  head ", 0}});
  train_resnet(0, mlp + "--steps 1 --init " + path("bare.pth") + out("two")).finished();
  EXPECT_EQ(model("two"), model("one"));
  put("code.pth", testing::torch::zip(testing::torch::records(
                      testing::torch::program(testing::torch::call(testing::torch::global("os", "system"),
                                                                   testing::torch::text("true") + "\x85")),
                      {})));
  const Ended other =
      train_resnet(kRanks, mlp + "--classes 4 --steps 1 --init " + path("bare") + out("other")).finished();
  EXPECT_EQ(other.from("  head "), "  head       " + path("bare") +
                                       " has another number of classes; these tensors are not taken from it: "
                                       "layers.1.weight layers.1.bias");
  expect_refusals({{kTiny + "--model mlp --hidden 9 --evaluate " + path("bare"),
                    {path("bare"), "has shape (10, 8)", "expected (10, 9)", "another model"}},
                   {mlp + "--steps 1 --init " + path("code.pth") + out("code"),
                    {path("code.pth"), "'os.system'", "nothing in the file is executed"}},
                   {mlp + "--classes 4 --evaluate " + path("bare"), {"expected (4, 8)", path("bare")}}});
}

/// The mlp learns nothing, so its first epoch is the best. --evaluate of a run's folder must evaluate best/ and print
/// which checkpoint is evaluated. It must also accept a batch that is larger than the training set.
TEST_F(TrainResNet, AnEvaluationTakesTheBestSaysSoAndNeedsNoTrainingBatch) {
  const std::string mlp = kTiny + "--model mlp --hidden 8 --lr 1e-30 --devices cpu ";
  train_resnet(0, mlp + out("run")).finished();
  const std::string large = mlp + "--batch-size 128 --evaluate ";  // training images are 64
  for (const auto& [given, read] :
       std::map<std::string, std::string>{{"run", "run/best, step 4"},
                                          {"run/", "run/best, step 4"},
                                          {"run/best", "run/best, step 4"},
                                          {"run/last", "run/last, step 8"},
                                          {"run/last/model.safetensors", "run/last/model.safetensors, step 8"}}) {
    SCOPED_TRACE(given);
    train_resnet(0, large + path(given))
        .finished({"  evaluating " + path(read) + '\n'}, {{"  evaluating ", 1}, {" of 30)", 1}});
  }
  fs::remove_all(path("run/best"));
  train_resnet(0, large + path("run")).has({{"  evaluating " + path("run/last, step 8"), 1}});
}

/// Fine-tuning as in docs/weights.md: the new task has other classes, and --freeze keeps the first stages unchanged.
TEST_F(TrainResNet, FrozenStagesKeepTheirWeights) {
  train_resnet(0, kTiny + "--devices cpu --steps 2" + out("first")).finished();
  const std::string tune = kTiny + "--classes 4 --init " + path("first/last") + " --freeze conv1,bn1,layer1 ";
  const Ended ended = train_resnet(kRanks, tune + "--freeze layer2.0 --steps 4" + out("tuned")).finished();
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
  ended.has({{"  frozen     ", 1}, {concat("  frozen     ", frozen, " of these parameters, in 18 layers"), 1}});

  const std::string again = kTiny + "--classes 4 --steps 4 --resume auto --freeze layer1,conv1,bn1" + out("tuned");
  train_resnet(kRanks, again + "--freeze layer2.0").finished();
  expect_refusals(
      {{again, {"optimizer.safetensors", "layer2.0"}},
       {tune + "--freeze layer9 --steps 1" + out("other"), {"layer9", "to freeze"}},
       {tune + "--devices cpu --freeze layer2,layer3,fc --steps 1" + out("other"), {"all parameters are frozen"}}});
  EXPECT_FALSE(fs::exists(path("other")));
}

// state.json is changed to hidden layers that do not fit model.safetensors. The program must refuse this within
// seconds, without allocating such layers.
TEST_F(TrainResNet, HiddenLayersThatACheckpointCannotHaveAreRefusedWithItsName) {
  const std::string mlp = kTiny + "--devices cpu ";
  train_resnet(0, mlp + "--model mlp --hidden 8 --steps 2" + out("run")).finished();
  const std::string text = get("run/last/state.json");
  const std::string given = "\"hidden\": \"8\"";
  const std::size_t at = text.find(given);
  ASSERT_NE(at, std::string::npos) << text;
  fs::remove(path("run/last/checksums.json"));
  std::string ones = "1";
  for (int i = 1; i < 2500; ++i) {
    ones += ",1";
  }
  for (const auto& [hidden, words] :
       std::map<std::string, std::string>{{ones, "model.safetensors: there is no tensor 'layers.2500.weight'"},
                                          {"16000000", "parameters, expected at most"},
                                          {"4611686018427387904", "hidden size is 4611686018427387904"},
                                          {"8,x", "hidden layers are '8,x'"}}) {
    put("run/last/state.json", std::string(text).replace(at, given.size(), "\"hidden\": \"" + hidden + "\""));
    expect_refused(train_resnet(0, mlp + "--evaluate " + path("run/last")), {path("run/last/"), words});
  }
  put("run/last/state.json", text);
  train_resnet(0, mlp + "--evaluate " + path("run/last")).finished();
}

TEST(WaitCounts, CountsByTimeCallAndReason) {
  using nn::WaitTime;
  // The run resumes at step 100, in the middle of an epoch. Its first two steps count as WaitTime::first_steps.
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
  all_reduce.model = {{{0, 0.1, 1e-9}}};  // only latency costs time, so one bucket is the best
  file.paths = {all_reduce};
  const auto planned = [&] {
    return train_resnet(kRanks, kTiny + "--dry-run --cost " + put("cost.json", comm::cost_text(file))).finished();
  };
  planned().says({" 1 bucket(s): ", ", by " + path("cost.json")}).has({{"not reliable", 0}});
  file.paths[0].model = {{{0, 0, 1e-6}}};  // control: without latency, many buckets are better
  file.paths[0].held_out = {.count = 12, .median = 0.21, .p90 = 1, .worst = 289};
  planned()
      .lacks({" 1 bucket(s): "})
      .has({{"  warning    --cost " + path("cost.json") + ": not reliable, its all-reduces miss by 21 %", 1}});
}

TEST_F(TrainResNet, LibrariesAreTimedOnceAndKeptInAFile) {
  const std::string options = kTiny + "--steps 1 --choices " + path("choices.json") + " ";
  const Ended timed = train_resnet(kRanks, options + out("run")).finished();
  timed.says({"  libraries  "}).lacks({" 0 timed "});
  const Json found = config("run").member("library_choices", "config.json");
  EXPECT_GT(found.get<int>("timed", "config.json"), 0);
  EXPECT_EQ(found.get<Json::Array>("refused", "config.json").empty(), timed.count(" refused (config.json)") == 0)
      << timed.output;
  EXPECT_EQ(nn::read_checkpoint_state(path("run/last")).identity.choices.count("conv1 forward evaluate"), 1U);
  const std::string kept = get("choices.json");
  train_resnet(kRanks, kTiny + "--verify-choices" + out("verified"))
      .finished({"calls of libraries in", "ms, 0 refused\n"});
  const Json compared = config("verified").member("library_verification", "config.json");
  EXPECT_TRUE(compared.get<Json::Array>("refused", "config.json").empty());
  train_resnet(kRanks, options + "--dry-run").finished({" 0 timed "});
  EXPECT_EQ(get("choices.json"), kept);
  // A resumed run takes its choices from the checkpoint. It neither times calls nor reads the file.
  put("choices.json", "broken");
  train_resnet(kRanks, options + "--dry-run --resume " + path("run/last")).finished({}, {{"  libraries  ", 0}});
  // With another batch size, the checkpoint's choices are for other shapes, so the file is read.
  expect_refused(train_resnet(kRanks, options + "--batch-size 8 --dry-run --resume " + path("run/last")),
                 {"choices.json"});
  expect_refused(train_resnet(0, options + "--dry-run"), {"choices.json"});
}

TEST_F(TrainResNet, LeavesATimeline) {
  const std::string file = path("t.json");
  const std::string trace = "--trace " + file + " ";
  train_resnet(kRanks, kTiny + out("plain")).finished();
  train_resnet(kRanks, kTiny + trace + "--trace-steps 2:4" + out("run"))
      .finished({}, {{"lockstep: error:", 0},
                     {"  trace      " + file + (kMpi ? ": steps 2 to 4, 2 ranks, " : ": steps 2 to 4, 1 rank, "), 1},
                     {" exposed", 1},
                     {"waited most for rank ", kMpi ? 1 : 0}});
  EXPECT_EQ(model("run"), model("plain"));
  EXPECT_EQ(get("run/last/state.json"), get("plain/last/state.json"));

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
  for (int rank = 0; rank < std::max(kRanks, 1); ++rank) {
    EXPECT_EQ(counts[concat("update", rank)], 3);
    EXPECT_EQ(counts[concat("batch", rank)], 3);
    EXPECT_EQ(counts[concat("evaluation", rank)], 1) << "after step 4";
    EXPECT_EQ(counts[concat("checkpoint", rank)], 2) << "best and last";
    EXPECT_EQ(counts[concat("reduce", rank)], counts[concat("ready", rank)]);
    EXPECT_GT(counts[concat("backward", rank)], 100);
  }
  const std::vector<Json> traces = events("run", "trace");
  ASSERT_EQ(traces.size(), 1U);
  expect_members(traces[0], {{"file", file}, {"first_step", 2}, {"last_step", 4}});
  EXPECT_NEAR(traces[0].get<double>("hidden_s", "trace") + traces[0].get<double>("exposed_s", "trace"),
              traces[0].get<double>("communication_s", "trace"), 1e-12);

  // A resumed run replaces the timeline. Traced steps count from the first step of this process. A run with few steps
  // traces its last ones.
  train_resnet(0, kTiny + trace + "--epochs 3 --resume auto" + out("run")).finished({}, {{": steps 9 to 12, ", 1}});
  count_events();
  EXPECT_EQ(counts["update0"], 4);
  train_resnet(0, kTiny + trace + "--trace-steps 30:40 --overwrite" + out("run"))
      .finished({}, {{"no step was recorded", 1}});
}

TEST_F(TrainResNet, RefusesATimelineThatItCannotWrite) {
  put("notes.txt", "mine");
  expect_refusals({{kTiny + "--trace " + path("notes.txt") + out("b"),
                    {path("notes.txt"), "is another file than a timeline", "or nothing"}},
                   {kTiny + "--trace " + path("none/t.json") + out("a"), {path("none/t.json")}},
                   {"--trace ''", {"--trace", "is empty"}},
                   {"--trace t.json --trace-steps 5", {"--trace-steps", "'5'", "A:B"}},
                   {"--trace t.json --trace-steps 1:1001", {"--trace-steps", "at most 1000"}},
                   {"--trace-steps 1:2", {"--trace-steps", "without --trace"}},
                   {"--trace t.json --dry-run", {"--trace", "--dry-run"}},
                   {"--trace t.json --evaluate x", {"--trace", "--evaluate"}}});
  EXPECT_EQ(get("notes.txt"), "mine");
}

TEST_F(TrainResNet, StoppedByASignalItCanBeResumed) {
  // stop_after_a_report() sends SIGTERM as soon as the first step is reported. The run cannot end its 100000 epochs
  // before.
  stop_after_a_report(" --epochs 100000 --log-every 1 --trace " + path("t.json") + " --trace-steps 1:1000" +
                      out("run"));
  const std::int64_t step = step_of("run/last");
  EXPECT_GE(step, 1);
  EXPECT_GT(read_json(path("t.json")).get<Json::Array>("traceEvents", "t.json").size(), 100U);
  train_resnet(0, kTiny + " --epochs 100000 --steps " + std::to_string(step + 3) + " --resume auto" + out("run"))
      .finished();
  EXPECT_EQ(step_of("run/last"), step + 3);
}

TEST_F(TrainResNet, RanksThatItStartedItselfStopWithACheckpoint) {
  if (!kMpi) {
    expect_refused(train_resnet(0, kTiny + "--devices cpu:2"), {"'cpu:2'", "no MPI"});
    return;
  }
  put("run.toml", "devices = \"cpu:2\"\n");
  // SIGTERM must go to the program itself, which waits for mpirun. mpirun would kill the ranks without a checkpoint.
  stop_after_a_report(" --config " + path("run.toml") + " --epochs 100000 --log-every 1" + out("run"));
  EXPECT_GE(step_of("run/last"), 1);
  expect_members(config("run"), {{"ranks", 2}});
  expect_holds(get("log"), "started by itself: mpirun ");

  expect_refusals({{kTiny + "--devices cpu:2 --nodes 2", {"--nodes is 2", "--hostfile"}},
                   {kTiny + "--devices cpu:2 --hostfile " + path("none"),
                    {"--hostfile", path("none"), "No such file", "a node and its slots on each line"}},
                   {kTiny + "--devices cpu:99999", {"'cpu:99999'", "at most 64", "core"}},
                   {kTiny + "--devices 2", {"devices", "'2'"}}});  // the test hides all GPUs
  expect_refused(train_resnet(2, kTiny + "--devices cpu:2 --nodes 2"), {"--nodes is 2", "on 1 node"});
  expect_refused(train_resnet(2, kTiny + "--hostfile hosts"), {"--hostfile is 'hosts'", "by mpirun"});
  const std::string rank = std::string("exec ") + TRAIN_RESNET + kTiny + "--steps ";
  expect_refused(run_as_ranks(MPIRUN, {rank + "2", rank + "3"}), {"rank 0 has 'argument", ": 2'", "rank 1", ": 3'"});
}

TEST_F(TrainResNetRanks, RankZeroDecidesWhetherToResume) {
  const std::vector<std::string> nodes{path("a"), path("b")};
  for (const std::string& node : nodes) {
    fs::create_directories(node);
  }
  const std::string job = kTiny + "--out run --resume auto --steps ";
  train_resnet_in(nodes, job + "2").finished();
  EXPECT_FALSE(fs::exists(path("b/run"))) << "rank 0 writes";

  // Rank 0 has a checkpoint and rank 1 has none: refused.
  expect_refused(train_resnet_in(nodes, job + "4"), {"rank 1: ", "run/last", "no checkpoint"});
  // The ranks' folders are swapped, so rank 0 has no checkpoint: the run begins anew.
  train_resnet_in({path("b"), path("a")}, job + "3").finished();
  EXPECT_EQ(step_of("b/run/last"), 3);
  // Both ranks have a checkpoint, of different steps: refused.
  expect_refused(train_resnet_in(nodes, job + "4"), {"the ranks do not agree", "step 2", "step 3"});
  fs::remove_all(path("b/run"));
  fs::copy(path("a/run"), path("b/run"), fs::copy_options::recursive);
  train_resnet(0, kTiny + "--steps 2 --seed 8" + out("c")).finished();
  fs::copy(path("c/last/model.safetensors"), path("b/run/last"), fs::copy_options::overwrite_existing);
  expect_refused(train_resnet_in(nodes, job + "4"), {"rank 1: ", "model.safetensors", "that of another checkpoint"});
  fs::remove(path("b/run/last/checksums.json"));
  expect_refused(train_resnet_in(nodes, job + "4"), {"the ranks do not agree", "parameters with hash"});
  // Both ranks have the same checkpoint: the run resumes.
  fs::copy(path("a/run/last/model.safetensors"), path("b/run/last"), fs::copy_options::overwrite_existing);
  train_resnet_in(nodes, job + "4").finished();
  EXPECT_EQ(step_of("a/run/last"), 4);
}

// Ranks with folders of their own read their own data. Only rank 0 reads the file of options.
TEST_F(TrainResNetRanks, RanksOnNodesThatShareNoFiles) {
  // Returns `count` images in CIFAR-10's format, all of class 1.
  const auto images = [](std::size_t count) { return std::string(count * 3073, '\1'); };
  const std::vector<std::string> nodes{path("a"), path("b")};
  for (const std::string node : {"a", "b"}) {
    put(node + "/data/data_batch_1.bin", images(6));
    put(node + "/data/test_batch.bin", images(2));
  }
  put("a/run.toml", "data = \"cifar10:data\"\nmodel = \"mlp\"\nbatch-size = 3\nseed = 77\n");
  const std::string job = "--config run.toml --threads 1 --workers 0 --out run --steps 1";
  train_resnet_in(nodes, job).finished({": 6 training and 2 test images 32 x 32"});
  expect_members(config("a/run"), {{"ranks", 2}, {"seed", 77}, {"global_batch", 3}});
  expect_refused(train_resnet_in({path("b"), path("a")}, job), {"rank 0: ", "run.toml"});  // the control

  put("b/data/data_batch_1.bin", images(7));
  expect_refused(train_resnet_in(nodes, job + " --overwrite"),
                 {"the ranks do not agree", "rank 0 has 'training images 6'", "rank 1 has 'training images 7'"});
}

TEST_F(TrainResNet, ChoicesOfAnotherBuildAreReplacedAndReported) {
  train_resnet(0, kTiny + "--steps 2" + out("run")).finished();
  std::string state = get("run/last/state.json");
  const auto choices = nn::read_checkpoint_state(path("run/last")).identity.choices;
  ASSERT_FALSE(choices.empty());
  for (const auto& [call, choice] : choices) {
    const std::string from = "\"" + call + "\": \"" + choice + "\"";
    const std::size_t at = state.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    state.replace(at, from.size(), "\"" + call + "\": \"another library:fast\"");
  }
  put("run/last/state.json", state);
  fs::remove(path("run/last/checksums.json"));
  train_resnet(0, kTiny + "--evaluate " + path("run/last")).finished();
  train_resnet(0, kTiny + "--steps 3 --resume auto" + out("run"))
      .finished({"differs    " + std::to_string(choices.size()) +
                     " choices, first 'conv1 backward_weights': checkpoint \"another library:fast\", now ",
                 "(the run continues, not bit for bit)"},
                {{"choices", 1}});  // all differences have one cause, so one line is printed
}

TEST_F(TrainResNet, OptimizersAreChosenByName) {
  for (const std::string name : {"adam", "adamw"}) {
    const std::string job = kTiny + "--clip-norm 1 --beta2 0.99 --optimizer " + name + out(name);
    train_resnet(kRanks, job + "--steps 2")
        .finished({"optimizer  " + name + ", learning rate 0.001 ", "betas 0.9 0.99, epsilon 1e-08, clip norm 1"});
    train_resnet(kRanks, job + "--steps 3 --resume auto").finished();
    EXPECT_EQ(step_of(name + "/last"), 3);
  }
  train_resnet(0, kTiny + "--steps 2 --optimizer lars --skip-non-finite" + out("lars"))
      .finished({"optimizer  lars, ", "trust coefficient 0.001, steps that are not finite skipped"});
  const std::string muon = kTiny + "--optimizer muon --momentum 0.95 --nesterov" + out("muon");
  train_resnet(0, muon + "--steps 2")
      .finished({"optimizer  muon, learning rate 0.001 ",
                 "momentum 0.95 (Nesterov) of hidden matrices, adamw's betas 0.9 0.999"});
  train_resnet(0, kTiny + "--model mlp --hidden 8 --freeze layers.0 --optimizer muon --steps 1" + out("none"))
      .finished({"no hidden matrix, adamw's betas 0.9 0.999"}, {{"of hidden matrices", 0}});
  train_resnet(kRanks, muon + "--steps 3 --resume auto").finished();
  expect_refusals({{kTiny + "--steps 3 --resume " + path("adam/last") + out("other"),
                    {"adam/last", "the state of optimizer adam", "expected sgd"}}});
}

TEST_F(TrainResNet, OptimizerStatesAreDividedUnderEachOfItsNames) {
  // For each name of docs/coming_from.md, the program must print a hint.
  for (const auto& [name, words] :
       std::map<std::string, std::string>{{"ddp_notebook", "one process a device"},
                                          {"ddp_find_unused_parameters_false", "a plan knows which gradients"},
                                          {"ddp_find_unused_parameters_true", "a plan knows which gradients"}}) {
    EXPECT_EQ(nn::strategy_named(name).strategy, nn::Strategy::ddp);
    expect_holds(nn::strategy_named(name).note, words);
  }
  for (const char* name : {"fsdp", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_2", "deepspeed_stage_3_offload"}) {
    expect_holds(error_of<UsageError>([&] { (void)nn::strategy_named(name); }), "holds all parameters and gradients");
  }
  train_resnet(0, kTiny + "--strategy horovod --dry-run").finished({"  strategy   'horovod' is ddp here: "});
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  expect_refused(train_resnet(2, kTiny + "--strategy single"), {"--strategy is single", "2 ranks", "ddp"});
  const std::string adam = kTiny + "--optimizer adam --reproducible layout ";
  train_resnet(3, adam + out("ddp")).finished();
  train_resnet(3, adam + "--strategy deepspeed_stage_1 --overlap on --bucket-mb 0.3" + out("zero1"))
      .finished(
          {"  strategy   zero1: each rank keeps 0.73 MB of the 2.19 MB of optimizer states", "added in rank order"});
  expect_same_state("ddp", "zero1");
}

/// With compressed gradients, a resumed run must continue exactly, and metrics.jsonl must show the reduced number of
/// bytes.
TEST_F(TrainResNetRanks, CompressedGradientsAreAPartOfTheRun) {
  for (const std::string compress : {"powersgd:2", "fp16"}) {
    const std::string options =
        kTiny + "--overlap on --bucket-mb 0.3 --checkpoint-every 3 --keep 3 --compress " + compress + " ";
    train_resnet(2, options + out("whole")).finished({", sent as " + compress + ": "});
    const std::vector<Json> epochs = events("whole", "epoch");
    EXPECT_EQ(epochs.size(), 2U);
    for (const Json& epoch : epochs) {
      const auto sent = epoch.get<std::int64_t>("sent_bytes", "epoch");
      EXPECT_GT(sent, 0);
      EXPECT_LE(2 * sent, epoch.get<std::int64_t>("gradient_bytes", "epoch"));
    }
    train_resnet(2, options + "--resume " + path("whole/last.2") + out("rest")).finished({}, {{"differs", 0}});
    expect_same_state("whole", "rest");
    fs::remove_all(path("whole"));
    fs::remove_all(path("rest"));
  }
}

/// A checkpoint may come from a run with other buckets, or with an option that no longer exists. A resumed run must
/// print these differences and continue.
TEST_F(TrainResNetRanks, ACheckpointOfOtherBucketsSaysSo) {
  for (const std::string strategy : {"ddp", "zero1"}) {
    const std::string options = kTiny + "--overlap on --strategy " + strategy + " ";
    train_resnet(2, options + "--steps 3" + out(strategy)).finished();
    const std::int64_t last = nn::read_checkpoint_state(path(strategy + "/last")).identity.buckets.back();
    std::string state = get(strategy + "/last/state.json");
    const std::string list = "\"buckets\": [";
    const std::size_t at = state.find(list);
    ASSERT_NE(at, std::string::npos);
    state.replace(at, state.find(']', at) - at, list + "3, 5, " + std::to_string(last));
    const std::string named = "\"options\": {";
    ASSERT_NE(state.find(named), std::string::npos);
    state.insert(state.find(named) + named.size(), "\"bucket_plan\": \"measured\", ");
    put(strategy + "/last/state.json", state);
    fs::remove(path(strategy + "/last/checksums.json"));
    train_resnet(2, options + "--steps 6 --resume " + path(strategy + "/last") + out(strategy + "_rest"))
        .finished({"'bucket_plan': checkpoint \"measured\", now nothing",
                   concat("buckets: checkpoint [3,5,", last, "], now [")});
  }
}

TEST_F(TrainResNet, WhatAWorldIsNotCombinedWith) {
  const std::string world = kTiny + "--devices cpu --reproducible world ";
  const std::string four = world + "--virtual-ranks 4 ";
  const std::string power = "expected a power of two up to 65536";
  expect_refusals({{world + "--virtual-ranks 0", {": --virtual-ranks is 0, " + power}},
                   {world + "--virtual-ranks 6", {": --virtual-ranks is 6, " + power}},
                   {world + "--virtual-ranks 32", {"the batch size is 16", "32 virtual ranks"}},
                   {four + "--reproducible run", {": --virtual-ranks is 4 with --reproducible run, expected"}},
                   {four + "--accumulate 2", {": --accumulate is 2 with --reproducible world, expected 1"}},
                   {four + "--threads 2", {": --threads is 2 with --reproducible world, expected 1"}},
                   {four + "--overlap on", {": --overlap is on with --reproducible world"}},
                   {four + "--sync-batch-norm", {": --sync-batch-norm is on with --reproducible world"}},
                   {four + "--reduce-dtype bf16", {": --reduce-dtype is bf16 with --reproducible world"}},
                   {four + "--cuda-graph on", {": --cuda-graph is on with --reproducible world"}},
                   {four + "--tune on", {": --tune is on with --reproducible world"}},
                   {four + "--strategy zero1 --clip-norm 1",
                    {": --clip-norm is 1 with --reproducible world and --strategy zero1, expected 0 or ddp"}},
                   {four + "--strategy zero1 --optimizer lars", {"--strategy", "lars", "adds the norms by rank"}}});
  train_resnet(0, four + "--model mlp --strategy zero1 --tune on --dry-run --choices " + path("choices.json"))
      .finished();
}

TEST_F(TrainResNet, InAWorldTheModelIsTheSameOnAnyNumberOfRanks) {
  const std::string world = "--reproducible world ";
  const std::string job = kTiny + "--batch-size 13 --checkpoint-every 3 --keep 9 ";
  const std::string eight = job + world + "--virtual-ranks 8 ";
  train_resnet(0, eight + "--devices cpu " + out("1"))
      .finished({"  world      8 virtual ranks, 8 a rank; one compute thread, no overlap; gradients are "
                 "added in one tree, which takes 3 arenas of gradients, ",
                 "  batch      13 over 8 virtual ranks: 5 of 2, 3 of 1"});
  if (!kMpi) {
    GTEST_SKIP() << "needs MPI, this build has none";
  }
  for (const int ranks : {2, 4}) {
    train_resnet(ranks, eight + out(std::to_string(ranks))).finished();
    EXPECT_TRUE(model(std::to_string(ranks)) == model("1")) << ranks << " ranks";
  }
  // Four ranks continue a run of one rank, and two ranks continue the run of four. Each resumes in the middle of the
  // previous run.
  train_resnet(4, eight + "--resume " + path("1/last.3") + out("moved")).finished();
  train_resnet(2, eight + "--resume " + path("moved/last.1") + out("again"))
      .finished({}, {{"  resuming   ", 1}, {"  differs    ", 0}});
  EXPECT_TRUE(model("again") == model("1"));
  expect_refused(train_resnet(2, job + world + "--virtual-ranks 4 --resume " + path("1/last") + out("other")),
                 {path("1/last"), "8 virtual ranks, expected 4"});
  expect_refused(train_resnet(3, eight), {"--virtual-ranks is 8 and the job has 3 ranks", "divides it"});
  // Control: without virtual ranks, the model depends on the number of ranks.
  train_resnet(0, job + "--devices cpu --reproducible run " + out("run1")).finished();
  train_resnet(2, job + "--reproducible run " + out("run2")).finished();
  EXPECT_FALSE(model("run1") == model("run2"));
}

TEST_F(TrainResNet, WhatAllRanksFindIsSaidOnce) {
  const int ranks = kMpi ? 3 : 0;
  // A checkpoint cannot be written, so the run ends with an error.
  put("run/best", "not a folder");
  // The exit code is 3 and not 2, because the options of the user are valid.
  expect_error(train_resnet(ranks, kTiny + out("run")), 3, {path("run/best")});
  // An error on resume, because the checkpoint's position does not exist in this run.
  train_resnet(0, kTiny + "--steps 2" + out("other")).finished();
  expect_refused(train_resnet(ranks, kTiny + "--train-images 16 --resume auto" + out("other")),
                 {path("other/last"), "state.json", "epoch 0, batch 2", "1 batches an epoch"});
}

TEST_F(TrainResNet, ResultsOfAnEarlierRunAreNotWrittenOver) {
  const std::string job = kTiny + "--steps 2" + out("run");
  train_resnet(kRanks, job + "--seed 5").finished();
  const std::string before = model("run");
  expect_refused(train_resnet(kRanks, job), {"--out " + path("run"), "last/", "--resume auto", "--overwrite"});
  train_resnet(0, kTiny + "--steps 1" + out("other")).finished();
  expect_refusals({{job + "--resume " + path("other/last"), {"--out " + path("run"), "last/"}}});
  EXPECT_TRUE(model("run") == before) << "refused, and yet changed";
  train_resnet(0, job + "--dry-run").finished();  // a dry run may be started in this folder
  train_resnet(kRanks, kTiny + "--steps 3 --seed 5 --resume auto" + out("run")).finished();
  // --overwrite must not delete copies that a user has made.
  fs::copy(path("run/last"), path("run/last.old-mine"), fs::copy_options::recursive);
  const std::vector<std::string> copies{"run/last.20261126", "run/best-20261126", "run/best.old-run-3-1"};
  for (const std::string& copy : copies) {
    fs::copy(path("run/last"), path(copy), fs::copy_options::recursive);
  }
  put("run/best-5/notes", "mine");
  // Refused, because a later checkpoint would replace the folder in which the run trains.
  for (const char* option : {"", "--overwrite", "--resume auto"}) {
    expect_refusals({{kTiny + option + out("run/last"), {"run/last is a checkpoint"}}});
  }
  train_resnet(0, job + "--overwrite").finished();
  EXPECT_TRUE(fs::exists(path("run/best-5/notes"))) << "no checkpoint";
  for (const std::string& copy : copies) {
    EXPECT_TRUE(fs::exists(path(copy + "/state.json"))) << copy;
    fs::remove_all(path(copy));
  }
  EXPECT_FALSE(model("run") == before);
  EXPECT_TRUE(fs::exists(path("run/last.old-mine/state.json")));
  // Without last/, --resume auto uses the newest readable checkpoint. If none is readable, the run is refused and
  // deletes nothing.
  fs::remove_all(path("run/last"));
  expect_refusals({{job, {"--out " + path("run"), "best/", "--resume auto", "--overwrite"}}});
  fs::create_directories(path("run/last.1"));
  train_resnet(0, job + "--steps 3 --resume auto").finished({}, {{"  resuming   " + path("run/best"), 1}});
  fs::remove_all(path("run/last"));
  fs::remove_all(path("run/best"));
  put("run/last.1/state.json", "{");
  expect_refusals({{job + "--resume auto", {path("run/last.1/state.json")}}});
}

TEST_F(TrainResNet, TheBestOfARunAreKept) {
  const std::string job = kTiny + "--ema 0.5 --ema-warmup 0 --epochs 5 ";
  train_resnet(kRanks, job + "--keep-best 2" + out("run")).finished();
  // Finds the two epochs with the highest accuracy of the moving average. Of equal accuracies, the earlier epoch comes
  // first.
  std::vector<std::pair<double, std::int64_t>> found;
  for (const Json& event : events("run", "epoch")) {
    found.emplace_back(-event.get<double>("ema_test_accuracy", "epoch"), event.get<std::int64_t>("step", "epoch"));
  }
  ASSERT_EQ(found.size(), 5U);
  std::sort(found.begin(), found.end());
  const auto name = [&](std::size_t rank) { return concat("best-", found.at(rank).second); };
  const auto numbered = [&] {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(path("run"))) {
      if (const std::string file = entry.path().filename().string(); file.starts_with("best-")) {
        names.insert(file);
      }
    }
    return names;
  };
  EXPECT_EQ(numbered(), (std::set<std::string>{name(0), name(1)}));
  for (const std::string file : {"/model.safetensors", "/ema.safetensors", "/state.json"}) {
    EXPECT_EQ(get("run/best" + file), get("run/" + name(0) + file));
  }
  // A best-STEP can be evaluated and resumed like any other checkpoint.
  train_resnet(0, kTiny + "--evaluate " + path("run/" + name(1))).finished();
  train_resnet(kRanks, job + "--steps 21 --resume " + path("run/" + name(1)) + out("on")).finished();
  const std::string bytes = model("run");
  put("run/last/model.safetensors", bytes.substr(0, bytes.size() - 1));
  expect_refusals({{kTiny + "--evaluate " + path("run/last"),
                    {concat(path("run/" + name(1)), " (step ", found[1].second, ") can be read")}}});
  for (const char* other : {"last", "last.1", "best"}) {
    fs::remove_all(path(concat("run/", other)));
  }
  fs::create_directories(path("run/best-8.tmp-host-1-r0123456789abcdef"));
  expect_refusals({{job + out("run"), {name(0) + "/", name(1) + "/", "--resume auto", "--overwrite"}}});
  train_resnet(0, kTiny + "--epochs 1 --overwrite" + out("run")).finished();
  EXPECT_EQ(numbered(), std::set<std::string>());
}

TEST_F(TrainResNet, ARestartGoesOnFromItsOwnCheckpointsOnly) {
  const std::string job = kTiny + "--epochs 1 --seed 5 --checkpoint-every 1 ";
  const auto start = [&](const std::string& attempt, const std::string& options) {
    return train_resnet_alone(options, "env LOCKSTEP_ATTEMPT='" + attempt + "' ");
  };
  start("7-1 0 -", job + "--keep 2" + out("run")).finished();
  fs::remove_all(path("run/last"));  // simulates a kill before the checkpoints after last.2 existed
  fs::rename(path("run/last.2"), path("run/last"));
  expect_refused(start("7-2 1 -", job + out("run")), {"--out " + path("run"), "last/", "--resume auto"});
  start("7-1 1 -", job + "--overwrite" + out("run"))
      .finished({"  resuming   " + path("run/last") + " at epoch 0, batch 2", "restart 1"});
  train_resnet(0, job + out("alone")).finished();
  EXPECT_TRUE(model("run") == model("alone"));
  // If a start was killed before its first checkpoint, the folder has only other files. The next start must then begin
  // anew.
  fs::remove_all(path("run/last"));
  start("7-1 2 -", job + out("run")).finished();
  EXPECT_TRUE(model("run") == model("alone"));
  expect_refused(start("7-1 x -", job + out("run")), {"LOCKSTEP_ATTEMPT", "'7-1 x -'"});
}

/// After the last start, no later start can use copies in memory. So the last start must write the state that it
/// resumes from to --out.
TEST_F(TrainResNet, TheLastStartWritesWhatItResumedFromMemory) {
  // An epoch takes minutes, so no checkpoint is written before the start is killed.
  const std::string job =
      " --model mlp --train-images 4000000 --test-images 32 --image-size 8 --batch-size 16 --epochs 1 "
      "--seed 5 --copy-every 1 --max-restarts 1 --resume auto" +
      out("run");
  const auto start = [&](int attempt) {
    return train_resnet_alone(job,
                              concat("env LOCKSTEP_ATTEMPT='9-", ::getpid(), ' ', attempt, " -' timeout -s KILL 10 "));
  };
  const bool there = fs::exists("/last");
  const auto written = there ? fs::last_write_time("/last") : fs::file_time_type();
  static_cast<void>(start(0));
  EXPECT_FALSE(fs::exists(path("run/last"))) << "the test needs an epoch that takes longer";
  fs::rename(path("run"), path("moved"));  // so only the copies in memory remain to resume from
  const Ended last = start(1);
  last.says({"  resuming   /dev/shm/lockstep-copies-"});
  EXPECT_TRUE(fs::exists(path("run/last/state.json"))) << last.output;
  EXPECT_EQ(fs::exists("/last"), there);
  EXPECT_TRUE(!there || fs::last_write_time("/last") == written);
}

TEST_F(TrainResNet, MetricsTellWhereAResumedRunGoesOn) {
  train_resnet(0, kTiny + "--steps 3 --log-every 1" + out("run")).finished();
  // Appends an incomplete line, as a full disk leaves it. The events that the resumed run writes must still be
  // readable.
  put("run/metrics.jsonl", get("run/metrics.jsonl") + "{\"accuracy\":0.0");
  train_resnet(0, kTiny + "--steps 5 --log-every 1 --resume auto" + out("run")).finished();
  const std::vector<Json> all = events("run");
  const auto resume = std::find_if(all.begin(), all.end(), [](const Json& event) {
    return event.get<std::string>("event", "metrics.jsonl") == "resume";
  });
  ASSERT_NE(resume, all.end());
  expect_members(*resume, {{"step", 3}, {"from", path("run/last")}});
  EXPECT_EQ((resume + 1)->get<std::int64_t>("step", "step"), 4);
}

TEST_F(TrainResNet, ADamagedCheckpointIsNamedWithOneThatIsSound) {
  train_resnet(0, kTiny + "--epochs 1" + out("run")).finished();
  std::string bytes = model("run");
  bytes[bytes.size() - 7] ^= 4;
  const std::vector<std::string> words{put("run/last/model.safetensors", bytes), "CRC-32", "damaged",
                                       path("run/best") + " (step 4) can be read"};
  expect_refused(train_resnet(kRanks, kTiny + "--epochs 2 --resume auto" + out("run")), words);
  expect_refusals({{kTiny + "--evaluate " + path("run/last"), words}});
  train_resnet(0, kTiny + "--evaluate " + path("run/best")).finished();
}

TEST_F(TrainResNet, AnEvaluationNormalisesImagesAsTheTrainingDid) {
  train_resnet(0, kTiny + "--epochs 1" + out("run")).finished();
  const auto test_line = [&](const std::string& options) {
    return train_resnet(0, kTiny + options + " --evaluate " + path("run/last"))
        .finished({"test loss "}, {{"  warning    the mean of the training images", options.empty() ? 0 : 1}})
        .from("test loss ");
  };
  const std::string same = test_line("");
  // With fewer training images, the mean of the images is different. The evaluation must use the mean of the training
  // run.
  EXPECT_EQ(test_line("--train-images 32"), same);
  train_resnet(0, kTiny + "--evaluate " + path("run/last") + " --std 0.2,0.2,0.2 --mean 0.9,0.9,0.9")
      .finished()
      .lacks({same});
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
      // Code 143 means that the signal came before the program had installed its handler.
      EXPECT_TRUE(ended.code == 75 || ended.code == 143) << ranks << ' ' << delay << ": " << ended.code << '\n'
                                                         << ended.output;
      EXPECT_LT(ended.seconds, 60);
    }
  }
}

TEST_F(TrainResNet, DryRunHelpAndVersionWriteNothing) {
  train_resnet(0, kTiny + "--dry-run" + out("run")).finished({"layer3.2.conv2", "workspace"});
  EXPECT_FALSE(fs::exists(path("run")));
  const Ended help = train_resnet(0, "--help");
  help.lacks({"--bucket-mb"});  // few runs need this option, so the short help lacks it
  help.says({"--help GROUP (model, data, augmentation, launch, training, ranks, results)"});
  EXPECT_LE(help.lines().size(), 60U);
  const Ended all = train_resnet(0, "--help all").says({"Files in --out"});
  for (const Ended& text : {help, all}) {
    for (const std::string& line : text.lines()) {
      EXPECT_LE(line.size(), 100U) << line;
    }
  }
  train_resnet(0, "--help ranks").says({"--bucket-mb"}).lacks({"--epochs INT"});
  train_resnet_alone("--version").finished({"lockstep "});
}

/// --config OUT/config.json must repeat a run bit for bit, whether its options came from the command line or a file.
TEST_F(TrainResNet, ARunIsRepeatedFromItsFolder) {
  put("file.toml", "momentum = 0.8\nhidden = [6, 5]\ndecay-norm = true\nseed = 11\n");
  const std::string job = kTiny + "--model mlp --devices cpu --config " + path("file.toml") +
                          " --nesterov --lr 0.0123456789012345678 --mean 0.1,0.2,0.3 --std 0.5,0.25,0.5 --seed 9";
  train_resnet(0, job + out("first")).finished();
  const std::string again = "--config " + path("first/config.json");
  train_resnet(0, again + out("second")).finished();
  EXPECT_EQ(model("second"), model("first"));
  EXPECT_EQ(get("second/last/state.json"), get("first/last/state.json"));
  // Options on the command line override the file. The new run does not take --out from the file.
  train_resnet(0, again + " --seed 10" + out("third")).finished();
  EXPECT_NE(model("third"), model("first"));
  expect_refusals({{"--config " + put("old/config.json", "{\"seed\": 3}"), {"old/config.json", "chosen"}},
                   {"--config " + put("new/config.json", "{\"chosen\": {\n\"epoch\": \"3\"}}"),
                    {"config.json:2: epoch is no option", "--epochs"}}});
}

/// If --steps ends a run early, the output must show the number of epochs that the run reaches.
TEST_F(TrainResNet, EpochsAreThoseThatStepsReach) {
  const std::string job = kTiny + "--model mlp --hidden 4 --devices cpu --epochs 90 ";
  const Ended ended = train_resnet(0, job + "--steps 6" + out("run"));
  ended.says({"epoch 1/2 "}).has({{"4 steps an epoch, 2 epochs, 6 steps in all", 1}, {"/90", 0}});
  const Ended resumed = train_resnet(0, job + "--steps 9 --resume auto" + out("run")).says({"epoch 2/3 "});
  resumed.has({{"differs    options 'total_steps'", 1}});
  resumed.has({{"differs    options 'milestones'", 0}});  // a cosine schedule does not depend on milestones
}

TEST_F(TrainResNet, TheHeaderShowsTheRules) {
  const std::string images = " --train-images 10001 --image-size 8 --model mlp --dry-run ";
  train_resnet(kRanks, images + "--batch-per-rank 7 --accumulate 8")
      .finished({kMpi ? "  batch      7 x 8 x 2 = 112 " : "  batch      7 x 8 x 1 = 56 ",
                 kMpi ? "learning rate 0.0175 " : "learning rate 0.00875 "},
                {{"  warning", 0}});
  train_resnet(0, images + "--batch-size 10000 --warmup-steps 0 --workers 200")
      .finished({"  warning    the global batch is 10000", "  warning    200 reading threads"});
}

TEST_F(TrainResNet, BatchNormOverAllRanksIsAPartOfTheRun) {
  train_resnet(kRanks, kTiny + "--steps 3 --sync-batch-norm" + out("run"))
      .finished({"  batch norm statistics over the micro-batches of all ranks\n"});
  train_resnet(kRanks, kTiny + "--steps 4 --resume auto" + out("run"))
      .finished({"differs    options 'sync_batch_norm': checkpoint \"1\", now nothing"}, {{"  batch norm ", 0}});
  train_resnet(0, "--model mlp --sync-batch-norm --image-size 8 --dry-run")
      .finished({"  warning    --sync-batch-norm: the model has no batch norm, so nothing is synchronised\n"});
}

TEST_F(TrainResNetRanks, TheWayOfSumsOnAHostIsAPartOfTheRun) {
  const auto run = [](const std::string& path, const std::string& options) {
    return run_command(
        concat("env LOCKSTEP_HOST_ALL_REDUCE=", path, ' ', MPIRUN, " -np 3 ", TRAIN_RESNET, ' ', options));
  };
  run("auto", kTiny + "--steps 2" + out("run")).finished({}, {{"  sums ", 0}});
  run("mpi", kTiny + "--steps 3 --resume auto" + out("run"))
      .finished({"  sums       by MPI\n", "differs    options 'sums': checkpoint nothing, now \"by MPI\""});
  run("mpi", kTiny + "--reproducible layout --steps 2 --overwrite" + out("run")).finished();
  run("auto", kTiny + "--reproducible layout --steps 3 --resume auto" + out("run")).finished({}, {{"'sums'", 0}});
}

TEST_F(TrainResNet, TheHeaderShowsTheBytesThatAreSent) {
  for (const auto& [options, bucket] : std::vector<std::pair<std::string, std::string>>{
           {"", "1.07 MB;"},
           {" --reduce-dtype bf16", "0.53 MB, sent as bf16;"},
           {" --dtype f64", "2.14 MB;"},
           {" --compress bf16", "0.53 MB, sent as bf16: 0.53 MB instead of 1.07 MB a step, added in rank order;"},
           {" --compress powersgd:1", "1.07 MB, sent as powersgd:1: 13.8 kB instead of 1.07 MB a step;"}}) {
    train_resnet(0, "--model mlp --hidden 1000 --image-size 8 --bucket-mb 1000 --dry-run" + options)
        .finished({"  gradients  1 bucket(s): " + bucket});
  }
}

const std::string kRandomPictures =
    " --auto-augment rand --color-jitter 0.4,0.4,0.4,0.1 --random-erase 0.5 --mixup 0.2 --cutmix 1 ";

TEST_F(TrainResNet, RandomPicturesAreAPartOfTheRun) {
  const std::string tiny = kTiny + kRandomPictures;
  train_resnet(0, tiny + "--workers 1" + out("one"))
      .finished({"training images: padded by 4 and cropped, mirrored, RandAugment of 2 operations, magnitude 9, colour "
                 "jitter 0.4 0.4 0.4 0.1, erased with probability 0.5, mixup 0.2, cutmix 1\n"});
  train_resnet(0, tiny + "--workers 3" + out("three")).finished();
  EXPECT_EQ(model("three"), model("one"));
  if (kMpi) {
    const std::string world = tiny + "--reproducible world --virtual-ranks 2 --devices cpu ";
    train_resnet(1, world + out("world1")).finished();
    train_resnet(2, world + "--pictures device" + out("world2")).finished();
    EXPECT_EQ(model("world2"), model("world1"));
  }
  // Controls: each of these options must change the results, and a resumed run must report a changed option.
  const std::vector<std::string> fewer{"",
                                       "--random-erase 0.5",
                                       "--color-jitter 0.4,0.4,0.4,0.1",
                                       "--mixup 0.2",
                                       "--crop-scale 0.5,1",
                                       "--auto-augment trivial",
                                       "--auto-augment rand"};
  std::vector<std::string> models{model("one")};
  for (std::size_t i = 0; i < fewer.size(); ++i) {
    const std::string name = concat("fewer", i);
    SCOPED_TRACE(fewer[i]);
    train_resnet(0, kTiny + fewer[i] + out(name)).finished();
    EXPECT_EQ(std::count(models.begin(), models.end(), model(name)), 0);
    models.push_back(model(name));
  }
  train_resnet(0, kTiny + "--epochs 3 --mixup 0.3 --resume " + path("fewer3") + out("resumed"))
      .finished({"options 'pictures': checkpoint \"padded by 4 and cropped, mirrored, mixup 0.2\", now "
                 "\"padded by 4 and cropped, mirrored, mixup 0.3\""});
}

TEST_F(TrainResNet, ErasedRectanglesAreTheMeanThatTheRunSubtracts) {
  const std::string tiny = kTiny + "--model mlp --hidden 4 --steps 1 ";
  const std::string other = " --mean 0.1,0.2,0.3 --std 0.2,0.2,0.2 ";
  train_resnet(0, tiny + other + out("other")).finished();
  const std::string begun = tiny + "--random-erase 1 --init " + path("other/last");
  const auto option_of = [&](const std::string& run, const std::string& name) {
    return config(run).member("options", run).get<std::string>(name, run);
  };
  train_resnet(0, tiny + "--random-erase 1" + out("plain")).finished();
  train_resnet(0, begun + out("begun")).finished({"which --mean and --std can give"});
  // The fill of erased rectangles is part of the fingerprint training_data. --init must not change mean or fingerprint.
  for (const char* name : {"mean", "training_data"}) {
    EXPECT_EQ(option_of("begun", name), option_of("plain", name)) << name;
  }
  train_resnet(0, begun + other + out("given")).finished();
  for (const char* name : {"mean", "training_data"}) {
    EXPECT_NE(option_of("given", name), option_of("plain", name)) << name;
  }
}

#if LOCKSTEP_HAS_IMAGES
/// Writes images of three classes and three sizes: `train` images in train/ and two in val/ for each class. Returns the
/// option that reads this folder.
std::string put_pictures(const std::string& folder, int train) {
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
  return " --data folder:" + folder + " ";
}

const std::string kSmallFolder =
    " --image-size 16 --batch-size 6 --epochs 2 --log-every 1 --threads 1 --model mlp --hidden 8 ";

TEST_F(TrainResNet, PicturesInFoldersAreTrainedOn) {
  const std::string data = kSmallFolder + put_pictures(path("data"), 6);
  train_resnet(0, data + " --workers 1" + out("one"))
      .finished({"18 training and 6 test images 16 x 16, 3 classes",
                 "test images are those of val, resized to 18 and cropped; random crops to train on",
                 "normalised by ImageNet's mean and standard deviation"});
  train_resnet(0, data + " --workers 4" + out("four")).finished();
  EXPECT_EQ(model("four"), model("one"));
  // Controls: without flips, and without random crops, the model must differ.
  train_resnet(0, data + " --flip off" + out("straight")).finished();
  EXPECT_NE(model("straight"), model("one"));
  train_resnet(0, data + " --pad 2" + out("padded")).finished();
  EXPECT_NE(model("padded"), model("one"));
  if (kMpi) {  // sums over ranks are rounded differently, so only the losses are near each other
    train_resnet(2, data + out("two")).finished();
    const auto loss = [&](const std::string& run) {
      return nn::read_checkpoint_state(path(run) + "/last").progress.test_loss.value_or(-1);
    };
    EXPECT_NEAR(loss("two"), loss("one"), 1e-4);
    EXPECT_GT(std::abs(loss("straight") - loss("one")), 1e-3) << "the control";
  }
  expect_refusals({{data + " --image-size 12 --evaluate " + path("one"), {path("one"), "another model"}}});
  train_resnet(0, data + " --evaluate " + path("one")).finished();
  train_resnet(0, kSmallFolder + "--val-fraction 0.5 --data folder:" + path("data/train") + out("split"))
      .finished({"9 training and 9 test images"});
}

/// The default image size must follow the model, because CIFAR's networks take small images. With --evaluate, the
/// checkpoint's model decides, not the default model.
TEST_F(TrainResNet, TheSizeOfPicturesFollowsTheModel) {
  const std::string data = " --batch-size 6 --threads 1 --devices cpu" + put_pictures(path("data"), 6);
  train_resnet(0, data + " --model resnet18 --image-size 32 --steps 1" + out("run")).finished();
  for (const auto& [options, words, lines] : std::vector<std::tuple<std::string, std::string, int>>{
           {" --model resnet20", "6 test images 32 x 32,", 1},
           {" --model resnet20", "; enlarged, as most have a shorter side of 21 pixels", 1},
           {" --model resnet20 --image-size 224", "6 test images 224 x 224,", 1},
           {" --model resnet18", "6 test images 224 x 224,", 1},
           {" --image-size 21", "enlarged", 0},  // control: the images are large enough
           {" --evaluate " + path("run/last"), "6 test images 224 x 224,", 1}}) {
    SCOPED_TRACE(options);
    train_resnet(0, data + options + " --dry-run").finished({}, {{words, lines}});
  }
}

// Lists of the images must give the same bits as the folder. With --shuffle-chunk, the order must differ, and must not
// depend on the number of workers.
TEST_F(TrainResNet, PicturesInListsAreTrainedOn) {
  put_pictures(path("data"), 6);
  for (const std::string part : {"train", "val"}) {
    std::set<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(path("data/" + part))) {
      if (entry.is_regular_file()) {
        const std::string name = fs::relative(entry.path(), path("data")).string();
        lines.insert(name + ' ' + name.substr(part.size() + 2, 1));  // train/c0/1.jpg
      }
    }
    put("data/" + part + ".txt", joined(lines, "\n") + '\n');
  }
  const std::string list = kSmallFolder + "--data list:" + path("data/train.txt") + ',' + path("data/val.txt");
  train_resnet(0, kSmallFolder + "--data folder:" + path("data") + out("folder")).finished();
  train_resnet(0, list + out("list")).finished({"18 training and 6 test images 16 x 16, 3 classes"});
  EXPECT_EQ(model("list"), model("folder"));
  train_resnet(0, list + " --shuffle-chunk 4 --workers 1" + out("chunks")).finished();
  train_resnet(0, list + " --shuffle-chunk 4 --workers 3" + out("chunks3")).finished();
  EXPECT_NE(model("chunks"), model("list"));
  EXPECT_EQ(model("chunks3"), model("chunks"));
  train_resnet(0, list + " --shuffle-chunk 5 --epochs 3 --resume " + path("chunks/last") + out("on"))
      .finished({"'shuffle_chunk': checkpoint \"4\", now \"5\""});
  const std::string any = get("data/train/c0/0.jpg");
  // With three images per class, a small shuffle window has images of few of the 40 classes, so training must be
  // refused.
  for (int label = 0; label < 40; ++label) {
    for (const std::string name : {"train/c$/a.jpg", "train/c$/b.jpg", "train/c$/c.jpg", "val/c$/a.jpg"}) {
      put("many/" + std::string(name).replace(name.find('$'), 1, std::to_string(label)), any);
    }
  }
  const std::string many = kSmallFolder + "--data folder:" + path("many") + " --shuffle-chunk ";
  expect_refusals({{many + "2", {"--shuffle-chunk is 2", "few of the 40 classes", "lockstep-pack --shuffle"}}});
  train_resnet(0, many + "2 --show-batch " + path("batch.png")).finished();

  const std::string picture = get("data/train/c1/2.jpg");
  put("data/train/c1/2.jpg", picture.substr(0, picture.size() / 2));
  expect_refusals({{list + out("damaged"), {"data/train/c1/2.jpg"}}});
  train_resnet(0, list + " --skip-damaged" + out("skipped")).finished({"17 training and 6 test images"});
  fs::remove(path("data/train/c1/2.jpg"));
  expect_refusals({
      {list, {"data/train.txt', line 9: 'train/c1/2.jpg' of label '1' does not exist"}},
      {kSmallFolder + "--data list:" + path("none.txt") + " --val-fraction 0.5", {"none.txt", "cannot be opened"}},
      {kSmallFolder + "--data list:" + path("data/val.txt"), {"val.txt", "--val-fraction"}},
  });
}

TEST_F(TrainResNet, ShowsWhatTheNetworkSees) {
  const auto show = [&](int ranks, const std::string& name, const std::string& options) {
    const Ended ended = train_resnet(ranks, kTiny + "--pad 0 --flip off --batch-size 12 --show-batch " + path(name) +
                                                options + out("nothing"))
                            .finished();
    ended.says({"the first 12 of 12 training images of a batch"});
    return ended.output.substr(ended.output.find("labels:"));
  };
  const std::string labels = show(0, "sheet.png", "");
  const std::string file = get("sheet.png");
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  nn::images::Picture sheet;
  nn::images::decode(bytes, "sheet", nn::images::read_header(bytes, "sheet"), 1, sheet);
  // The sheet shows the images in three rows of four. Each pixel is enlarged ten times, and two pixels separate the
  // images.
  ASSERT_EQ(sheet.width, 4 * 120 + 3 * 2);
  ASSERT_EQ(sheet.height, 3 * 120 + 2 * 2);
  // Expected images, read in the order of the sampler.
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
  // --show-batch writes nothing to --out, so a later run can use the folder.
  train_resnet(0, kTiny + "--steps 1" + out("nothing")).finished();
  const std::string mixed = show(0, "mixed.png", kRandomPictures);
  expect_holds(mixed, "*");
  EXPECT_NE(get("mixed.png"), file);
  if (kMpi) {
    EXPECT_EQ(show(2, "two.png", kRandomPictures), mixed);
    EXPECT_EQ(get("two.png"), get("mixed.png"));
  }
  // --show-batch shows the whole batch of a step, with all its micro-batches.
  train_resnet(0, kTiny + "--batch-per-rank 4 --accumulate 4 --show-batch " + path("parts.png"))
      .finished({"the first 16 of 16 training images of a batch"});
  expect_refusals({{kTiny + "--batch-per-rank 9223372036854775807 --accumulate 2 --show-batch " + path("x.png"),
                    {"9223372036854775807 x 2", "2^63"}}});
  train_resnet(0, kSmallFolder + put_pictures(path("data"), 4) + " --show-batch " + path("n.png")).finished({"  c1"});
}

TEST_F(TrainResNet, PicturesInFoldersAreMixed) {
  const std::string data = kSmallFolder + put_pictures(path("data"), 6) + " --crop-scale 0.3,0.9 " + kRandomPictures;
  train_resnet(0, data + " --workers 1" + out("one"))
      .finished({"random parts to train on, 0.3 to 0.9 of the area, ratios 0.75 to 1.3333",
                 "training images: RandAugment of 2 operations, magnitude 9, colour jitter 0.4 0.4 0.4 0.1, erased"});
  train_resnet(0, data + " --workers 3" + out("three")).finished();
  EXPECT_EQ(model("three"), model("one"));
  // The host prepares the images in the first half of the run, and the device in the second half. The results must be
  // the same.
  const std::string steady = data + " --schedule constant ";
  train_resnet(0, steady + out("whole")).finished();
  train_resnet(0, steady + "--epochs 1" + out("half")).finished();
  train_resnet(0, steady + "--pictures device --resume " + path("half") + out("device"))
      .finished({"training images: finished on the device\n"},
                {{"  differs    options '", 2}});  // only the options epochs and total_steps differ
  EXPECT_EQ(model("device"), model("whole"));
  expect_refusals({{data + " --pictures nvjpeg", {"--pictures is nvjpeg", "--auto-augment", "host or device"}},
                   {kSmallFolder + "--pictures nvjpeg --data folder:" + path("data"),
                    {"--pictures is nvjpeg", "not on cpu", "host or device"}}});
}

TEST_F(TrainResNet, DamagedPicturesEndARunOrAreLeftOut) {
  const int ranks = kMpi ? 3 : 0;
  const std::string data = kSmallFolder + put_pictures(path("data"), 6);
  for (const std::string name : {"data/train/c1/2.jpg", "data/val/c2/7.png"}) {
    const std::string whole = get(name);
    put(name, whole.substr(0, whole.size() - 20));
  }
  // One rank reads the damaged file while all other ranks wait for its gradients. All ranks must end.
  const Ended ended = train_resnet(ranks, data + out("run")).says({"train/c1/2.jpg': damaged or unknown JPEG data"});
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_LT(ended.seconds, 60) << "the others do not wait for ever";

  train_resnet(ranks, data + " --skip-damaged" + out("skipped"))
      .finished({"17 training and 5 test images",
                 "left out   2 damaged images: ", "val/c2/7.png': damaged or unknown PNG data"});
  expect_holds(config("skipped").text(), "train/c1/2.jpg");
}

TEST_F(TrainResNet, FoldersThatAreNoDataAreRefused) {
  put_pictures(path("data"), 2);
  fs::rename(path("data/val/c2"), path("data/val/c3"));
  const std::string data = kSmallFolder + "--data folder:";
  expect_refusals({{kSmallFolder + "--skip-damaged --data folder:" + path("none"), {"none", "is no folder"}},
                   {data + path("data"), {"class 'c2' is in train and not in val"}},
                   {data + path("none"), {"none", "is no folder"}},
                   {data + path("data/train"), {"has no folder train", "--val-fraction"}}});
}
#else
TEST_F(TrainResNet, FoldersNeedLibrariesWhichAreNamed) {
  expect_refusals({{"--data folder:" + path("data"),
                    {"reads no JPEG and PNG files", "libjpeg-dev libpng-dev", "-DLOCKSTEP_IMAGES=ON"}},
                   {"--skip-damaged --data folder:" + path("data"), {"libjpeg-dev libpng-dev"}},
                   {"--show-batch x.png", {"--show-batch", "libpng"}}});
}
#endif

TEST_F(TrainResNetRanks, BatchSmallerThanTheWorld) {
  expect_refused(train_resnet(3, kTiny + "--batch-size 2" + out("run")), {"2", "3"});
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(TrainResNet, BadCheckpointsAndFolders) {
  train_resnet(0, kTiny + "--steps 1" + out("run")).finished();
  expect_refused(train_resnet(kRanks, kTiny + "--model resnet32 --init " + path("run/last") + out("other")),
                 {"model.safetensors", "another model"});
  expect_refusals({{kTiny + "--resume " + path("nowhere") + out("other"), {path("nowhere")}},
                   {kTiny + "--model resnet32 --init " + path("run") + out("other"),
                    {path("run/best/model.safetensors"), "another model"}}});  // --init with a run's folder reads best/
  EXPECT_FALSE(fs::exists(path("other"))) << "nothing half written";

  // The header's length exceeds the size of the file, so the file must be refused.
  put("run/last/model.safetensors", std::string("\xff\xff\xff\0\0\0\0\0", 8) + model("run").substr(8));
  put("file", "not a folder");
  expect_refusals({{kTiny + "--init " + path("run/last") + out("other"), {"model.safetensors"}}});
  expect_refused(train_resnet(kRanks, kTiny + "--out " + path("file") + "/run"), {path("file")});
}

TEST_F(TrainResNetRanks, ARankThatFailsInAStepEndsTheJob) {
  for (const int rank : {0, 2}) {
    const Ended ended =
        run_command(std::string(MPIRUN) + " -np 3 " + std::string(FAILING_RANK) + " " + std::to_string(rank));
    expect_error(ended, 3, {});
    ended.says({"lockstep: error: rank " + std::to_string(rank) + ": the disk is gone\n"});
    EXPECT_LT(ended.seconds, 60) << "the others do not wait for ever";
  }
}

TEST_F(TrainResNetRanks, ARankThatHangsEndsTheJob) {
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

TEST_F(TrainResNetRanks, ARankThatHangsBeforeItsFirstInstructionIsNamed) {
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

TEST_F(TrainResNetRanks, WhatMattersIsTheLastLineOfAJobThatStartedItsRanksItself) {
  const Ended ended = train_resnet_alone("--devices cpu:2 --data idx:" + path("nowhere") + out("run"));
  EXPECT_EQ(ended.code, 2);
  ended.has({{"lockstep: error: ", 1}, {"------", 0}});
  expect_refused(train_resnet_alone("--devices 3" + out("run")),
                 {"devices '3' asks for 3 GPUs, and this machine has none"});
}

TEST_F(TrainResNet, StandardFilesThatAreClosedOrFull) {
  const std::string program = TRAIN_RESNET;
  for (const std::string options : {" --help > /dev/full", " --help >&-", " --version > /dev/full"}) {
    EXPECT_EQ(run_command("sh -c '" + program + options + "'").code, 3) << options;
  }
  EXPECT_EQ(run_command("sh -c '" + program + kTiny + "--devices cpu --dry-run > /dev/full'").code, 3);
  const std::string run = program + kTiny + "--steps 4 --devices cpu" + (kMpi ? ":2" : "");
  run_command("sh -c '" + run + out("closed") + " <&- >&-'").finished();
  run_command("sh -c '" + program + kTiny + "--steps 4 --devices cpu" + out("full") + " > /dev/full'")
      .finished()  // the run must continue although standard output is full
      .has({{"lockstep: standard output cannot be written: No space left on device; the run goes on", 1}});
  EXPECT_EQ(step_of("closed/last"), 4);
  EXPECT_EQ(step_of("full/last"), 4);
}

// mpirun ends a job if its output cannot be written. A run that starts its own ranks must continue without a reader.
TEST_F(TrainResNetRanks, ARunOfSeveralRanksGoesOnWithoutAReader) {
  const std::string run = TRAIN_RESNET + kTiny + "--devices cpu:2 --max-restarts 1 ";
  run_command("bash -c '" + run + out("head") + " | head -1; exit ${PIPESTATUS[0]}'")
      .finished({}, {{"lockstep: standard output cannot be written: Broken pipe; the run goes on", 1}});
  run_command("bash -c '" + run + out("both") + " 2>&1 | head -1; exit ${PIPESTATUS[0]}'").finished();
  run_command("sh -c '" + run + out("full") + " > /dev/full'").finished();
  for (const char* name : {"head", "both", "full"}) {
    EXPECT_EQ(step_of(concat(name, "/last")), 8) << name;
  }
  const Ended result = run_command("sh -c '" + run + " --evaluate " + path("head/last") + " > /dev/full'");
  EXPECT_EQ(result.code, 3) << "what prints a result fails\n" << result.output;
  result.has({{"restart 1 of 1", 0}});
}

TEST_F(TrainResNet, ThereIsNothingLeftToDo) {
  train_resnet(0, kTiny + out("run")).finished();
  fs::create_directories(path("run/best.tmp-host-12-r0123456789abcdef"));
  fs::create_directories(path("run/best.tmp-mine"));
  put("run/config.json.tmp-a-b-3-rfedcba9876543210", "{");
  put("run/config.json.tmp-mine", "{");
  // With a run's folder, --resume uses last/.
  train_resnet(0, kTiny + "--resume " + path("run") + out("run"))
      .finished({}, {{"already finished, at epoch 2 (--epochs 2), step 8: test accuracy ", 1}})
      .lacks({"\nfinished"});
  EXPECT_FALSE(fs::exists(path("run/best.tmp-host-12-r0123456789abcdef"))) << "left by a writer that was killed";
  EXPECT_FALSE(fs::exists(path("run/config.json.tmp-a-b-3-rfedcba9876543210")));
  EXPECT_TRUE(fs::exists(path("run/best.tmp-mine"))) << "somebody's own";
  EXPECT_TRUE(fs::exists(path("run/config.json.tmp-mine")));
  train_resnet(0, kTiny + "--epochs 1 --resume auto" + out("run"))
      .has({{"already finished, at epoch 2 (--epochs 1), step 8: ", 1}});
  train_resnet(0, kTiny + "--train-images 80 --resume auto" + out("run"))
      .says({"options 'training_data': checkpoint \"", "\" (synthetic"});
}

TEST_F(TrainResNet, ALinkToNowhereIsNamed) {
  fs::create_symlink(path("nowhere"), path("link"));
  expect_refusals({{kTiny + out("link"), {path("link"), "is a link to " + path("nowhere")}},
                   {kTiny + out(std::string(256, 'a')), {"aaa: cannot be made: File name too long"}}});
}

TEST_F(TrainResNet, StepsThatAreLongerThanAStopMayTake) {
  train_resnet(0, kTiny + "--stop-within 1e-9" + out("run"))
      .finished({}, {{"longer than --stop-within 1e-09: a stop is heard after a step", 1}});
  // Without --stop-within, a long step causes no warning.
  train_resnet(0, kTiny + out("other")).finished({}, {{"--stop-within", 0}});
}

TEST_F(TrainResNet, AFolderThatAnotherRunWritesToIsRefused) {
  fs::create_directories(path("run"));
  std::optional<FolderLock> other(std::in_place, path("run"));
  other->name_holder();
  const std::string options = kTiny + "--steps 1" + out("run");
  expect_refused(train_resnet(kRanks, options),
                 {"--out", path("run"), "another run writes there (pid ", "of this run's own"});
  EXPECT_FALSE(fs::exists(path("run/config.json")));
  EXPECT_EQ(train_resnet(0, options + "--dry-run").code, 0) << "it writes nothing";
  other.reset();
  train_resnet(kRanks, options).finished();
}

TEST_F(TrainResNet, NothingIsWrittenThroughALink) {
  train_resnet(0, kTiny + "--epochs 1" + out("run")).finished();
  put("victim", "mine\nand a cut line");
  put("run/run.lock", "pid 1\n");
  const std::string state = get("run/last/state.json");
  expect_refusals({{kTiny + out("run"), {"has checkpoints of an earlier run"}}});
  EXPECT_EQ(get("run/run.lock"), "pid 1\n") << "a run that is refused changes nothing";
  fs::remove(path("run/run.lock"));
  fs::create_symlink(path("victim"), path("run/run.lock"));
  for (const char* options : {"", "--overwrite", "--resume auto"}) {
    expect_refusals({{kTiny + options + out("run"), {"run/run.lock: is a link"}}});
  }
  fs::remove(path("run/run.lock"));
  fs::remove(path("run/metrics.jsonl"));
  fs::create_symlink(path("victim"), path("run/metrics.jsonl"));
  const std::string before = get("run/config.json");
  expect_refusals({{kTiny + "--resume auto" + out("run"), {"run/metrics.jsonl: is a link"}}});
  EXPECT_EQ(get("run/config.json"), before);
  EXPECT_EQ(get("run/last/state.json"), state);
  fs::create_directories(path("elsewhere"));
  fs::create_symlink(path("elsewhere"), path("run/tensorboard"));
  fs::remove(path("run/metrics.jsonl"));
  expect_refusals({{kTiny + "--tensorboard --resume auto" + out("run"), {"run/tensorboard: is a link"}}});
  EXPECT_TRUE(fs::is_empty(path("elsewhere")));
  train_resnet(0, kTiny + "--overwrite --epochs 1" + out("run")).finished();
  EXPECT_EQ(get("victim"), "mine\nand a cut line");
}

TEST_F(TrainResNet, AFullDiskEndsTheJob) {
  train_resnet(0, kTiny + "--epochs 1" + out("run")).finished();
  const int kilobytes = 4096;  // larger than the limit, so that the file cannot grow, as on a full disk
  put("run/metrics.jsonl", std::string(kilobytes * 1024, '\n'));
  const std::string ranks = kMpi ? std::string(MPIRUN) + " -np 2 " : "";
  expect_error(run_command("bash -c 'ulimit -f " + std::to_string(kilobytes) + "; " + ranks + TRAIN_RESNET + kTiny +
                           "--resume auto" + out("run") + "'"),
               3, {"metrics.jsonl: cannot be written: File too large"});
}

}  // namespace
}  // namespace lockstep
