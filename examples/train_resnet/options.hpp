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

/// Mirror images: at random in each epoch, or (alternate) in the first one and then the other way round in turn.
enum class Flip : unsigned char { on, off, automatic, alternate };

/// The command line as given.
struct Options {
  std::string model = "resnet20";
  std::vector<std::int64_t> hidden;
  bool zero_init_residual = false;
  lockstep::nn::DataOptions data;
  std::optional<std::int64_t> image_size;  ///< of synthetic images and of those of pictures
  bool skip_damaged = false;
  std::int64_t pad = -1;  ///< -1: the default of the data set
  bool reflect = false;   ///< padding shows the image reflected; false: it is black
  Flip flip = Flip::automatic;
  AugmentationFlags augmentation;
  lockstep::nn::TestTimeAugmentation test_time_augmentation = lockstep::nn::TestTimeAugmentation::none;
  std::vector<float> mean;  ///< of value / 255, three channels; none: of the training images, or of the checkpoint
  std::vector<float> std;
  lockstep::cli::LaunchOptions launch;
  lockstep::nn::TrainingOptions training;
};

/// The data is folder:DIR or list:FILE, or either in packed:FILE: pictures of any size.
[[nodiscard]] bool of_folder(const lockstep::nn::DataOptions& data);

/// The model is one of those for CIFAR's images, of 32 x 32 pixels.
[[nodiscard]] bool for_small_images(const std::string& model);

/// UsageError naming the option and what was expected. `config`: the file of --config.
[[nodiscard]] lockstep::cli::Parsed<Options> parse(int argc, const char* const* argv,
                                                   const lockstep::cli::ConfigFile& config);

/// The learning rate that "auto" begins with: 0.1 at 128 for small images (He et al. 2015), 0.1 at 256 for large ones
/// (Goyal et al. 2017), 0.02 at 128 for mlp, 1.5 at 1024 for airbench94 (Jordan 2024); 100 times that with LARS, whose
/// trust ratios are small; 0.001 at any batch with Adam, AdamW and Muon.
[[nodiscard]] lockstep::nn::BaseRate base_rate(const std::string& model, lockstep::nn::OptimizerKind optimizer);

}  // namespace train_resnet
