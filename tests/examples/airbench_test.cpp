// Tests train_resnet --model airbench94 as users call it. The first values of its whitening filters must not depend on
// the number of ranks, and must survive a resume. Also tests the options.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/whitening.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/mpi_here.hpp"
#include "tests/support/program_test.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"

int train_resnet_main(int argc, char** argv);

namespace lockstep {
namespace {

using testing::Ended;

/// Options of a tiny run: one epoch of two steps with eight images each.
const std::string kTiny =
    " --model airbench94 --train-images 16 --test-images 10 --image-size 25 --batch-size 8 --epochs 1 --threads 1 ";

class Airbench : public testing::ProgramTest {
 protected:
  [[nodiscard]] static Ended run(const std::string& options) {
    return testing::run_here(train_resnet_main, "train_resnet" + kTiny + options);
  }
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
};

TEST_F(Airbench, BeginsWithWhiteningFiltersAndKeepsThem) {
  run(out("one"))
      .finished({}, {{"first filters: whitening of the patches of 16 training images", 1},
                     {"  frozen     1440 of these parameters, in 7 layers", 1}});
  // Opens the same synthetic data set as the program, to compute the expected filters.
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

  // After a resume or --init, the filters come from the checkpoint. They must not be computed again, although other
  // statistics of the images would give other filters.
  const std::string others = "--mean 0.2,0.3,0.4 --std 0.5,0.5,0.5 ";
  run("--epochs 2 --resume auto " + others + out("one")).finished({}, {{"first filters", 0}});
  EXPECT_EQ(tensor("one", "whiten.weight"), filters);
  run(others + "--init " + path("one/last") + out("init")).finished({}, {{"first filters", 0}});
  EXPECT_EQ(tensor("init", "whiten.weight"), filters);
  // Control: a new run with these statistics has no checkpoint, so it computes other filters.
  run(others + "--resume auto" + out("other")).finished({}, {{"first filters", 1}});
  EXPECT_NE(tensor("other", "whiten.weight"), filters);
  run("--evaluate " + path("one")).finished({}, {{"first filters", 0}});
  run("--evaluate " + path("one") + "/last/model.safetensors").finished({}, {{"first filters", 0}});
  if (LOCKSTEP_HAS_MPI != 0) {
    testing::run_command(MPIRUN " -np 2 " TRAIN_RESNET + kTiny + "--check-replicas 1" + out("two"))
        .finished({}, {{"first filters", 1}});
    EXPECT_EQ(tensor("two", "whiten.weight"), filters);
  }
}

TEST_F(Airbench, TheBiasOfTheWhiteningDecaysLikeWeights) {
  const auto biases = [&](const std::string& name, const std::string& options) {
    run("--lr 0.1 --weight-decay 0.5 --norm-weight-decay 0.1 " + options + out(name)).finished();
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
    run(tiny + options + out(name)).finished();
    return tensor(name, "layers.0.weight");
  };
  const std::vector<float> plain = weights("plain", "");
  EXPECT_EQ(weights("plainly", "--flip on --pad-mode black"), plain) << "the defaults";
  const std::vector<float> alternating = weights("alternating", "--flip alternate");
  const std::vector<float> reflected = weights("reflected", "--pad-mode reflect");
  EXPECT_NE(alternating, plain);
  EXPECT_NE(reflected, plain);
  EXPECT_NE(weights("both", "--flip alternate --pad-mode reflect"), reflected);
  // With random erasing, the host must do all augmentation, alternating flips included.
  run(tiny + "--flip alternate --pad-mode reflect --random-erase 1 --dry-run")
      .has({{"padded by 2 reflected pixels and cropped, mirrored in every other epoch, erased", 1}});
  run(tiny + "--epochs 3 --resume " + path("plain") + " --flip alternate --pad-mode reflect" + out("resumed"))
      .finished({}, {{"options 'flip_mode': checkpoint nothing, now \"alternate\"", 1},
                     {"options 'pad_mode': checkpoint nothing, now \"reflect\"", 1}});
}

TEST_F(Airbench, TestsTakeTheMeanOfViews) {
  const std::string tiny = "--model mlp --hidden 4 --top-k 2 ";
  run(tiny + "--tta mirror-translate" + out("viewed"))
      .finished({}, {{"test images: the mean of the outputs for 6 views (mirror-translate)", 1}});
  run(tiny + "--tta none" + out("plain")).finished();
  EXPECT_EQ(tensor("viewed", "layers.0.weight"), tensor("plain", "layers.0.weight")) << "training does not know them";
  const auto loss = [&](const std::string& options) {
    const Ended evaluated = run("--top-k 2 --evaluate " + path("viewed/last") + options).finished();
    const std::size_t at = evaluated.output.find("\ntest loss ");
    return at == std::string::npos ? std::string() : evaluated.output.substr(at, evaluated.output.find("calib") - at);
  };
  const std::string none = loss("");
  EXPECT_NE(none, "");
  EXPECT_EQ(loss(" --tta none"), none);
  EXPECT_NE(loss(" --tta mirror"), none);
  EXPECT_NE(loss(" --tta mirror-translate"), loss(" --tta mirror"));
  run(tiny + "--epochs 2 --tta mirror --resume " + path("viewed") + out("resumed"))
      .finished({}, {{"options 'test_views': checkpoint \"mirror-translate\", now \"mirror\"", 1}});
}

TEST_F(Airbench, RefusesWhatTheModelCannotBe) {
  testing::expect_refusals(
      run, {{"--image-size 24" + out("small"), {"airbench94: images are 24 x 24", "at least 25 pixels"}},
            {"--zero-init-residual" + out("zero"), {"zero_init_residual", "airbench94"}},
            {"--freeze whiten.wait" + out("freeze"), {"'whiten.wait'"}},
            {"--flip sometimes", {"--flip", "sometimes"}},
            {"--pad-mode white", {"--pad-mode", "white"}},
            {"--pad 25 --pad-mode reflect" + out("far"), {"--pad is 25", "25 x 25", "below both sides"}},
            {"--data folder:here --flip alternate", {"--flip is alternate", "folder:here", "--pad N"}},
            {"--data packed:here --pad-mode reflect", {"--pad-mode is reflect", "packed:here", "--pad N"}},
            {"--crop-scale 0.5,1 --pad-mode reflect", {"--pad-mode is reflect", "--crop-scale"}},
            {"--tta flip", {"--tta", "flip", "mirror-translate"}}});
  run("--freeze whiten.bias --dry-run").has({{"frozen     1464 of", 1}});
}

}  // namespace
}  // namespace lockstep
