// train_resnet --model airbench94 as people call it: what it begins with, on any number of ranks and in a resume.
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/whitening.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::expect_refused;
using testing::run_command;

/// Two steps an epoch of eight images.
const std::string kTiny =
    " --model airbench94 --train-images 16 --test-images 10 --image-size 25 --batch-size 8 --epochs 1 --threads 1 ";

class Airbench : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }

  [[nodiscard]] static Ended run(int ranks, const std::string& options) {
    const std::string command = std::string(TRAIN_RESNET) + kTiny + options;
    return run_command(ranks == 0 ? command : std::string(MPIRUN) + " -np " + std::to_string(ranks) + " " + command);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string out(const std::string& name) const { return " --out " + path(name) + " "; }
  [[nodiscard]] std::vector<float> tensor(const std::string& run, const std::string& name) const {
    const SafetensorsFile file(path(run) + "/last/model.safetensors");
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr || entry->dtype != "F32") {
      ADD_FAILURE() << "no f32 tensor " << name;
      return {};
    }
    std::vector<float> values(entry->bytes / sizeof(float));
    file.read(*entry, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(Airbench, BeginsWithWhiteningFiltersAndKeepsThem) {
  const Ended ended = run(0, out("one"));
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.count("first filters: whitening of the patches of 16 training images"), 1) << ended.output;
  EXPECT_EQ(ended.count("  frozen     1440 of these parameters, in 7 layers"), 1) << ended.output;
  // The same data set, read here.
  const nn::DataSplit data = nn::open_data(
      {.spec = "synthetic", .seed = 1, .synthetic = {.train_size = 16, .test_size = 10, .height = 25, .width = 25}});
  const std::vector<double> expected = nn::whitening_filters(*data.train, data.statistics);
  const std::vector<float> filters = tensor("one", "whiten.weight");
  ASSERT_EQ(filters.size(), expected.size());
  for (std::size_t i = 0; i < filters.size(); ++i) {
    EXPECT_EQ(filters[i], static_cast<float>(expected[i])) << i;
  }
  EXPECT_EQ(tensor("one", "group2.norm1.weight"), std::vector<float>(256, 1.0F));
  EXPECT_NE(tensor("one", "group2.norm1.bias"), std::vector<float>(256, 0.0F)) << "the shifts train";
  EXPECT_NE(tensor("one", "whiten.bias"), std::vector<float>(24, 0.0F));

  // In a resume they are the checkpoint's, whatever the images are.
  const Ended resumed = run(0, "--epochs 2 --mean 0.2,0.3,0.4 --std 0.5,0.5,0.5 --resume auto" + out("one"));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(tensor("one", "whiten.weight"), filters);
  EXPECT_EQ(resumed.count("first filters"), 0) << resumed.output;
  const Ended goes_on = run(0, "--mean 0.2,0.3,0.4 --std 0.5,0.5,0.5 --init " + path("one/last") + out("init"));
  ASSERT_EQ(goes_on.code, 0) << goes_on.output;
  EXPECT_EQ(tensor("init", "whiten.weight"), filters);
  EXPECT_EQ(goes_on.count("first filters"), 0) << goes_on.output;
  // The control: a new run with these numbers has others.
  const Ended anew = run(0, "--mean 0.2,0.3,0.4 --std 0.5,0.5,0.5 --resume auto" + out("other"));
  ASSERT_EQ(anew.code, 0) << anew.output;
  EXPECT_EQ(anew.count("first filters"), 1) << anew.output << "nothing is there to go on from";
  EXPECT_NE(tensor("other", "whiten.weight"), filters);
  const Ended evaluated = run(0, "--evaluate " + path("one"));
  EXPECT_EQ(evaluated.code, 0) << evaluated.output;
  EXPECT_EQ(evaluated.count("first filters"), 0) << evaluated.output;
  const Ended file = run(0, "--evaluate " + path("one") + "/last/model.safetensors");
  EXPECT_EQ(file.code, 0) << file.output;
  EXPECT_EQ(file.count("first filters"), 0) << file.output;
  if (LOCKSTEP_HAS_MPI != 0) {
    const Ended two = run(2, "--check-replicas 1" + out("two"));
    ASSERT_EQ(two.code, 0) << two.output;
    EXPECT_EQ(two.count("first filters"), 1) << two.output;
    EXPECT_EQ(tensor("two", "whiten.weight"), filters);
  }
}

TEST_F(Airbench, TheBiasOfTheWhiteningDecaysLikeWeights) {
  const auto biases = [&](const std::string& name, const std::string& options) {
    const Ended ended = run(0, "--lr 0.1 --weight-decay 0.5 --norm-weight-decay 0.1 " + options + out(name));
    EXPECT_EQ(ended.code, 0) << ended.output;
    return tensor(name, "whiten.bias");
  };
  const std::vector<float> plain = biases("plain", "");
  EXPECT_EQ(biases("same", "--bias-weight-decay 0.5"), plain);
  EXPECT_NE(biases("none", "--bias-weight-decay 0"), plain);
  EXPECT_NE(biases("norms", "--bias-weight-decay 0.1"), plain) << "the decay of norms is another";
}

TEST_F(Airbench, FlipsAlternateAndPaddingReflects) {
  const std::string tiny = "--model mlp --hidden 4 --epochs 2 --pad 2 ";
  const auto weights = [&](const std::string& name, const std::string& options) {
    const Ended ended = run(0, tiny + options + out(name));
    EXPECT_EQ(ended.code, 0) << ended.output;
    return tensor(name, "layers.0.weight");
  };
  const std::vector<float> plain = weights("plain", "");
  EXPECT_EQ(weights("plainly", "--flip on --pad-mode black"), plain) << "the defaults";
  const std::vector<float> alternating = weights("alternating", "--flip alternate");
  const std::vector<float> reflected = weights("reflected", "--pad-mode reflect");
  EXPECT_NE(alternating, plain);
  EXPECT_NE(reflected, plain);
  EXPECT_NE(weights("both", "--flip alternate --pad-mode reflect"), reflected);
  // On the host, where something else is asked for beside them.
  const Ended host = run(0, tiny + "--flip alternate --pad-mode reflect --random-erase 1 --dry-run");
  EXPECT_EQ(host.count("padded by 2 reflected pixels and cropped, mirrored in every other epoch, erased"), 1)
      << host.output;
  const Ended resumed =
      run(0, tiny + "--epochs 3 --resume " + path("plain") + " --flip alternate --pad-mode reflect" + out("resumed"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.count("options 'flip_mode': checkpoint nothing, now \"alternate\""), 1) << resumed.output;
  EXPECT_EQ(resumed.count("options 'pad_mode': checkpoint nothing, now \"reflect\""), 1) << resumed.output;

  expect_refused(run(0, "--flip sometimes"), {"--flip", "sometimes"});
  expect_refused(run(0, "--pad-mode white"), {"--pad-mode", "white"});
  expect_refused(run(0, "--pad 25 --pad-mode reflect" + out("far")), {"--pad is 25", "25 x 25", "below both sides"});
  expect_refused(run(0, "--data folder:here --flip alternate"), {"--flip is alternate", "folder:here", "--pad N"});
  expect_refused(run(0, "--data packed:here --pad-mode reflect"), {"--pad-mode is reflect", "packed:here", "--pad N"});
  expect_refused(run(0, "--crop-scale 0.5,1 --pad-mode reflect"), {"--pad-mode is reflect", "--crop-scale"});
}

TEST_F(Airbench, TestsTakeTheMeanOfViews) {
  const std::string tiny = "--model mlp --hidden 4 --top-k 2 ";
  const Ended ended = run(0, tiny + "--tta mirror-translate" + out("viewed"));
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.count("test images: the mean of the outputs for 6 views (mirror-translate)"), 1) << ended.output;
  ASSERT_EQ(run(0, tiny + "--tta none" + out("plain")).code, 0);
  EXPECT_EQ(tensor("viewed", "layers.0.weight"), tensor("plain", "layers.0.weight")) << "training does not know them";
  const auto loss = [&](const std::string& options) {
    const Ended evaluated = run(0, "--top-k 2 --evaluate " + path("viewed/last") + options);
    EXPECT_EQ(evaluated.code, 0) << evaluated.output;
    const std::size_t at = evaluated.output.find("\ntest loss ");
    return at == std::string::npos ? std::string() : evaluated.output.substr(at, evaluated.output.find("calib") - at);
  };
  const std::string none = loss("");
  EXPECT_NE(none, "");
  EXPECT_EQ(loss(" --tta none"), none);
  EXPECT_NE(loss(" --tta mirror"), none);
  EXPECT_NE(loss(" --tta mirror-translate"), loss(" --tta mirror"));
  const Ended resumed = run(0, tiny + "--epochs 2 --tta mirror --resume " + path("viewed") + out("resumed"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.count("options 'test_views': checkpoint \"mirror-translate\", now \"mirror\""), 1)
      << resumed.output;
  expect_refused(run(0, "--tta flip"), {"--tta", "flip", "mirror-translate"});
}

TEST_F(Airbench, RefusesWhatTheModelCannotBe) {
  expect_refused(run(0, "--image-size 24" + out("small")), {"airbench94: images are 24 x 24", "at least 25 pixels"});
  expect_refused(run(0, "--zero-init-residual" + out("zero")), {"zero_init_residual", "airbench94"});
  expect_refused(run(0, "--freeze whiten.wait" + out("freeze")), {"'whiten.wait'"});
  EXPECT_EQ(run(0, "--freeze whiten.bias --dry-run").count("frozen     1464 of"), 1);
}

}  // namespace
}  // namespace lockstep
