#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/run/test_time_augmentation.hpp>

#include "app/cli/launch_options.hpp"
#include "app/cli/training_main.hpp"
#include "augmentation.hpp"

namespace train_resnet {

/// Mirroring of images. on: at random in each epoch. alternate: at random in the first epoch, then in each epoch the
/// opposite of the epoch before.
enum class Flip : unsigned char { on, off, automatic, alternate };

/// The command line as given.
struct Options {
  std::string model = "resnet20";
  std::vector<std::int64_t> hidden;
  bool zero_init_residual = false;
  lockstep::nn::DataOptions data;
  std::optional<std::int64_t> image_size;  ///< side of synthetic images, and of images decoded from files
  bool skip_damaged = false;
  std::int64_t pad = -1;  ///< -1: the default of the data set
  bool reflect = false;   ///< true: padding is the image reflected; false: padding is black
  Flip flip = Flip::automatic;
  AugmentationFlags augmentation;
  lockstep::nn::TestTimeAugmentation test_time_augmentation = lockstep::nn::TestTimeAugmentation::none;
  std::vector<float> mean;  ///< mean of value / 255 per channel; empty: of the training images or checkpoint
  std::vector<float> std;
  lockstep::cli::LaunchOptions launch;
  lockstep::nn::TrainingOptions training;
};

/// True when the data is encoded images of any size: folder:DIR or list:FILE, or either in packed:FILE.
[[nodiscard]] bool of_folder(const lockstep::nn::DataOptions& data);

/// True for the models of CIFAR images, which have 32 x 32 pixels.
[[nodiscard]] bool for_small_images(const std::string& model);

/// Parses the command line; `config` is the file of --config. A UsageError names the option and the expected value.
[[nodiscard]] lockstep::cli::Parsed<Options> parse(int argc, const char* const* argv,
                                                   const lockstep::cli::ConfigFile& config);

/// Returns the learning rate of "auto" and the batch size for which it holds: 0.1 at 128 for small images (He et al.
/// 2015), 0.1 at 256 for large ones (Goyal et al. 2017), 0.02 at 128 for mlp, 1.5 at 1024 for airbench94 (Jordan 2024).
/// LARS, whose trust ratios are small, takes 100 times that rate. Adam, AdamW and Muon take 0.001 at any batch size.
[[nodiscard]] lockstep::nn::BaseRate base_rate(const std::string& model, lockstep::nn::OptimizerKind optimizer);

}  // namespace train_resnet
