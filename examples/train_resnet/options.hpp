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

/// Ways to mirror images. `on`: each image at random in each epoch. `alternate`: each image at random in the first
/// epoch, then in each epoch the opposite of the epoch before. `automatic`: `on` unless the data are idx:.
enum class Flip : unsigned char { on, off, automatic, alternate };

/// The options of the command line.
struct Options {
  std::string model = "resnet20";
  std::vector<std::int64_t> hidden;
  bool zero_init_residual = false;
  lockstep::nn::DataOptions data;
  std::optional<std::int64_t> image_size;  ///< height and width of synthetic and decoded images, in pixels
  bool skip_damaged = false;
  std::int64_t pad = -1;  ///< padding in pixels; -1: the default of the data set
  bool reflect = false;   ///< true: padding is the image reflected; false: padding is black
  Flip flip = Flip::automatic;
  AugmentationFlags augmentation;
  lockstep::nn::TestTimeAugmentation test_time_augmentation = lockstep::nn::TestTimeAugmentation::none;
  std::vector<float> mean;  ///< mean of value / 255 per channel; empty: the training images' or checkpoint's mean
  std::vector<float> std;
  lockstep::cli::LaunchOptions launch;
  lockstep::nn::TrainingOptions training;
};

/// Returns true if the data are encoded images of any size: folder:DIR, list:FILE, or either of them in packed:FILE.
[[nodiscard]] bool of_folder(const lockstep::nn::DataOptions& data);

/// Returns true if the model is for CIFAR images, which have 32 x 32 pixels.
[[nodiscard]] bool for_small_images(const std::string& model);

/// Parses the command line; `config` is the file of --config. A UsageError names the option and the expected value.
[[nodiscard]] lockstep::cli::Parsed<Options> parse(int argc, const char* const* argv,
                                                   const lockstep::cli::ConfigFile& config);

/// Returns the model's learning rate for "auto", and the batch size for which the rate holds: 0.1 at 128 for small
/// images (He et al. 2015), 0.1 at 256 for large ones (Goyal et al. 2017), 0.02 at 128 for mlp, 1.5 at 1024 for
/// airbench94 (Jordan 2024). LARS, whose trust ratios are small, takes 100 times these rates. Adam, AdamW and Muon take
/// 0.001 at any batch size.
[[nodiscard]] lockstep::nn::BaseRate base_rate(const std::string& model, lockstep::nn::OptimizerKind optimizer);

}  // namespace train_resnet
