#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/augment.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace train_resnet {

/// Writes the first images of the first batch of all ranks to a PNG file, in the order of the batch. The images are
/// augmented and normalised, as for the network, and then turned back into colours. The file has up to 8 rows of 8
/// images; small images are enlarged by a whole number. Prints the images' labels, as class names if there are any; the
/// label of a mixture is "0.70*3+0.30*5". The result does not depend on `ranks`. `run` is the trainer's options. Throws
/// the errors of reading the images, FileError, and UnsupportedError in a build without libpng.
void show_batch(const lockstep::nn::Dataset& train, const lockstep::ops::AugmentDesc& augment,
                const lockstep::nn::TrainerOptions& run, int ranks, const std::vector<std::string>& class_names,
                const std::string& file);

}  // namespace train_resnet
