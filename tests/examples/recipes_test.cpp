// Tests --recipe. A dry run of every recipe must work, options on the command line must override the recipe, and
// training must use the recipe's values.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/mpi_here.hpp"
#include "tests/support/program_test.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"

int train_resnet_main(int argc, char** argv);

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::Ended;
using testing::expect_refused;

class Recipes : public testing::ProgramTest {
 protected:
  /// Runs train_resnet's main() in this process. --recipe NAME looks for recipes in ../share, relative to the folder of
  /// the test program. tests/examples/CMakeLists.txt makes a link there to the recipes.
  [[nodiscard]] static Ended run(const std::string& options) {
    return testing::run_here(train_resnet_main,
                             "train_resnet --train-images 64 --test-images 30 --threads 1 " + options);
  }
};

/// Expected values of a recipe.
struct Expected {
  std::vector<std::string> header;
  std::int64_t side = 0;                       ///< height and width of images
  std::int64_t top_k = 0;                      ///< expected `top_k` in config.json
  std::map<std::string, std::string> options;  ///< some of the expected options in config.json
  /// Additional options for a run with model mlp. Needed if the recipe's options name parameters that mlp lacks.
  std::string for_mlp{};
};

// The expected values are those of the sources that the recipes cite. With 64 images and a batch of 4, an epoch has 16
// steps.
TEST_F(Recipes, EachOneIsWhatTrains) {
  const std::string tenth = "0.10000000000000001";  // with 17 digits
  const std::map<std::string, Expected> expected{
      {"cifar-airbench94",
       {{"airbench94, 1972792 parameters", "10 epochs, 160 steps",
         "sgd, learning rate 1.5 (polynomial of power 1 to 0.105, warm-up 36 steps from 0.2), momentum 0.85",
         "weight decay 0.00133043\n             norm decay 2.0788", "rates group*.norm*=64", "first filters: whitening",
         "the mean of the outputs for 6 views (mirror-translate)"},
        32,
        0,
        {{"keep_last", "0"},
         {"label_smoothing", "0.20000000000000001"},
         {"decay_norm_and_bias", "1"},
         {"nesterov", "1"},
         {"pad", "2"},
         {"pad_mode", "reflect"},
         {"flip", "1"},
         {"flip_mode", "alternate"},
         {"test_views", "mirror-translate"}},
        " --rate-scale '*=1'"}},
      {"cifar-resnet20",
       {{"resnet20, ", "164 epochs, 2624 steps", "sgd, learning rate 0.1 (step, warm-up 0 steps), momentum 0.9",
         "weight decay 0.0001"},
        32,
        0,
        {{"milestones", "1312 1968"},
         {"gamma", tenth},
         {"keep_last", "1"},
         {"label_smoothing", "0"},
         {"decay_norm_and_bias", "1"},
         {"pad", "4"},
         {"flip", "1"}}}},
      {"resnet50-v1",
       {{"resnet50, ", "90 epochs, ", "learning rate 0.1 (step, warm-up 0 steps), momentum 0.9"},
        224,
        5,
        {{"milestones", "480 960"},
         {"gamma", tenth},
         {"keep_last", "1"},
         {"label_smoothing", "0"},
         {"decay_norm_and_bias", "1"}}}},
      {"resnet50-v2",
       {{"resnet50, ", "600 epochs, ", "learning rate 0.5 (cosine, warm-up 80 steps from 0.01), momentum 0.9",
         "weight decay 2e-05\n             norm decay 0\n",
         "average    of the weights, decay 0.99890773 every 32, copied for 80"},
        176,
        5,
        {{"keep_last", "1"},
         {"label_smoothing", tenth},
         {"decay_norm_and_bias", "1"},
         {"two_labels", "1"},
         {"pictures",
          "padded by 4 and cropped, mirrored, TrivialAugmentWide, erased with probability 0.1, mixup 0.2, cutmix 1"}}}},
      {"resnet50-lars",
       {{"resnet50, ", "42 epochs, ", "lars, learning rate 10 (polynomial of power 2 to 0.0001, warm-up 80 steps)",
         "trust coefficient 0.001, weight decay 0.0002"},
        224,
        0,
        {{"keep_last", "0"},
         {"label_smoothing", tenth},
         {"decay_norm_and_bias", "0"},
         {"epsilon", "1.0000000000000001e-30"}}}}};
  std::size_t found = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(RECIPES)) {
    const std::string name = entry.path().stem().string();
    ASSERT_EQ(expected.count(name), 1U) << name << " is not tested";
    const Expected& one = expected.at(name);
    run("--recipe " + name + " --dry-run --image-size 32 --batch-size 4")
        .finished(one.header)
        .says({"  recipe     " + name + "\n"});
    // Tests the values in config.json with model mlp, which trains fast.
    run("--recipe " + name + " --model mlp --steps 1 --batch-size 4" + out(name) + one.for_mlp).finished();
    const Json config_file = config(name);
    testing::expect_members(config_file, {{"height", one.side}, {"width", one.side}, {"top_k", one.top_k}});
    testing::expect_members(config_file.member("options", name), {one.options.begin(), one.options.end()});
    ++found;
  }
  EXPECT_EQ(found, expected.size());
}

TEST_F(Recipes, TheCommandLineWinsThenTheConfigFile) {
  const std::string config = put("run.toml", "recipe = \"cifar-resnet20\"\nepochs = 7\nlr = 0.3\n");
  run("--dry-run --batch-per-rank 8 --warmup-epochs 2 --schedule cosine --lr 0.2 --config " + config)
      .finished({"  recipe     cifar-resnet20\n", "8 steps an epoch, 7 epochs",
                 "sgd, learning rate 0.2 (cosine, warm-up 16 steps)", "weight decay 0.0001"});
  run("--dry-run --batch-size 16 --recipe " + put("my.toml", "epochs = 3\nmodel = \"resnet32\"\n"))
      .finished({"  recipe     " + path("my.toml"), "resnet32, ", "3 epochs"});
  run("--dry-run --batch-size 16").finished({}, {{"  recipe ", 0}});
}

TEST_F(Recipes, TheHeaderSaysWhatCounts) {
  const std::string small = "--dry-run --batch-size 16 --lr-end 0.01 --lr 0.1 --warmup-steps 0 --schedule ";
  for (const char* schedule : {"constant", "step"}) {
    run(small + schedule).finished({std::string("(") + schedule + ", warm-up 0 steps)"});
  }
  run(small + "cosine").finished({"(cosine to 0.01, warm-up 0 steps)"});
  // --ema 0 switches off the recipe's moving average, and with it all options that need an average.
  run("--dry-run --image-size 32 --batch-size 4 --recipe resnet50-v2 --ema 0")
      .finished({"  recipe     resnet50-v2\n"}, {{"of the weights, decay", 0}});
}

// Some pairs of options exclude each other. If a recipe sets one option of a pair and the command line sets the second
// option, the command line must win. Both options of a pair in one file are an error.
TEST_F(Recipes, WhatExcludesAnOptionTakesItsPlace) {
  const std::string small = "--dry-run --image-size 32 --batch-size 4 --recipe ";
  run(small + "resnet50-v2 --no-decay-norm")
      .finished({"  recipe     resnet50-v2\n", "weight decay 2e-05, none on biases and norms\n"},
                {{"norm decay 0", 0}});
  run(small + "resnet50-lars --norm-weight-decay 1e-4").finished({"weight decay 0.0002\n             norm decay "});
  run(small + "resnet50-lars --bias-weight-decay 0").finished({"             bias decay 0\n"});
  const std::string crops = put("crops.toml", "crop-scale = [0.5, 1.0]\ncrop-ratio = [1.0, 1.0]\n");
  run("--dry-run --batch-size 16 --recipe cifar-resnet20 --crop-scale 0.3,1")
      .finished({"  recipe     cifar-resnet20\n", "training images: "});
  run("--dry-run --batch-size 16 --pad 2 --recipe " + crops)
      .finished({"  recipe     " + crops}, {{"training images: ", 0}});
  run("--dry-run --batch-size 16 --recipe " + crops).finished({"training images: "});
}

TEST_F(Recipes, MistakesAreOneLineThatNamesTheFile) {
  run("--dry-run --batch-size 16 --recipe cifar-resnet20").finished({"warning: --recipe describes a run on "});
  const std::vector<std::string> needs_ema{"--ema-every, --ema-warmup or --ema-ramp is given without --ema"};
  testing::expect_refusals(
      run,
      {{"--dry-run --recipe " + put("bad.toml", "epochs = 3\nepoch = 4\n"),
        {"bad.toml:2: epoch is no option of train_resnet: the recipe is another program's"}},
       {"--dry-run --recipe " + put("nested.toml", "recipe = \"resnet50-v1\"\n"),
        {"nested.toml:1: recipe is no option"}},
       {"--dry-run --recipe " + put("no.toml", "epochs : 3\n"), {"no.toml:1: "}},
       {"--dry-run --recipe " + put("both.toml", "no-decay-norm = true\nnorm-weight-decay = 0.1\n"),
        {"--norm-weight-decay", "--no-decay-norm"}},
       {"--dry-run --recipe ''", {"--recipe", "is empty, expected a path"}},
       {"--dry-run --recipe ./not-there.toml", {"--recipe ./not-there.toml", "cannot be read"}},
       {"--dry-run --recipe resnet51",
        {"--recipe is 'resnet51', expected cifar-airbench94, cifar-resnet20, resnet50-lars, resnet50-v1, resnet50-v2, "
         "or"}},
       {"--dry-run --batch-size 16 --rate-scale 'layer9.*=0.1'", {"no parameter has a name like 'layer9.*'"}},
       {"--dry-run --rate-scale fc", {"--rate-scale is 'fc'"}},
       {"--dry-run --ema 1", {"--ema is 1, expected 0 <= value < 1"}},
       {"--dry-run --ema-every 2", needs_ema},
       {"--dry-run --ema-warmup 0", needs_ema},
       {"--dry-run --ema-ramp", needs_ema},
       {"--dry-run --milestones 3,2", {"--milestones is 2", "ascend"}},
       {"--dry-run --warmup constant", {"--warmup is constant", "--warmup-factor"}},
       {"--dry-run --warmup-epochs 1 --warmup-steps 3", {"--warmup-epochs", "--warmup-steps"}},
       {"--dry-run --no-decay-norm --norm-weight-decay 0.1", {"--norm-weight-decay", "--no-decay-norm"}},
       {"--dry-run --batch-size 16 --schedule polynomial --lr 0.1 --lr-end 0.2", {"--lr-end is 0.2"}}});
}

// After an installation, programs are in bin/ and recipes in share/lockstep/recipes/. The program must find them there.
TEST_F(Recipes, AreFoundBesideTheProgram) {
  fs::create_directories(path("prefix/bin"));
  fs::copy_file(TRAIN_RESNET, path("prefix/bin/train_resnet"));
  put("prefix/share/lockstep/recipes/here.toml", "model = \"resnet32\"\n");
  const std::string program = path("prefix/bin/train_resnet") + " --train-images 64 --dry-run ";
  testing::run_command(program + "--batch-size 16 --recipe here").finished({"  recipe     here\n", "resnet32, "});
  expect_refused(testing::run_command(program + "--recipe resnet50-v1"), {"expected here, or a path"});
}

TEST_F(Recipes, TheAverageIsShownKeptAndEvaluated) {
  const std::string options =
      "--image-size 12 --batch-size 16 --epochs 2 --zero-init-residual --ema 0.8 --ema-warmup 1 --rate-scale "
      "'fc.*=2,conv1.*=0.5' --recipe cifar-resnet20 ";
  run(options + out("run"))
      .finished({"ema_test_accuracy", "ema_test_loss", "finished: ema test accuracy ", "rates fc.*=2 conv1.*=0.5"});
  const nn::CheckpointState saved = nn::read_checkpoint_state(path("run/last"));
  EXPECT_EQ(saved.identity.options.at("ema"), "0.8, copied for 1");
  EXPECT_EQ(saved.identity.options.at("parameter_groups"), "rates fc.*=2 conv1.*=0.5");
  EXPECT_EQ(saved.identity.options.at("zero_init_residual"), "1");
  testing::expect_members(config("run"), {{"recipe", "cifar-resnet20"}});
  const std::string loss = concat("test loss ", saved.progress.metrics.at("ema_test_loss"));
  run("--image-size 12 --batch-size 16 --evaluate " + path("run/last/ema.safetensors")).finished({loss});
  // Both the weights and their average are evaluated. The average decides which checkpoint is best/.
  const std::string weights = concat("\ntest loss ", saved.progress.test_loss.value_or(-1));
  run("--image-size 12 --batch-size 16 --evaluate " + path("run/last")).finished({weights, "ema " + loss});
  run(options + "--epochs 3 --resume auto " + out("run")).finished({"resuming", "ema_test_accuracy"}, {{"'ema'", 0}});
}

TEST_F(Recipes, AFileOfACheckpointSaysWhichModelItIs) {
  const std::string data = "--image-size 12 --batch-size 16 ";
  run(data + "--epochs 1 --model mlp --hidden 8 --ema 0.5 " + out("run")).finished({"finished: "});
  const nn::RunProgress saved = nn::read_checkpoint_state(path("run/last")).progress;
  run(data + "--evaluate " + path("run/last/ema.safetensors"))
      .finished({concat("\ntest loss ", saved.metrics.at("ema_test_loss"))}, {{"test loss", 1}});
  run(data + "--evaluate " + path("run/last/model.safetensors"))
      .finished({concat("\ntest loss ", saved.test_loss.value_or(-1))});
  fs::copy_file(path("run/last/ema.safetensors"), path("ema.safetensors"));
  expect_refused(run(data + "--evaluate " + path("ema.safetensors")), {"the file is of another model"});
}

}  // namespace
}  // namespace lockstep
