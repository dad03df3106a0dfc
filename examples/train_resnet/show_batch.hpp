#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/augment.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace train_resnet {

/// Writes the first images of the first batch of all ranks to a PNG file, in the order of the batch: as the network
/// sees them, augmented and normalised, and then turned back into colours. Up to 8 rows of 8; small images are
/// enlarged by a whole number. Prints their labels, "0.7*3+0.3*5" of a mixture, by the
/// names of classes where there are any. The same for any number of ranks. run:
/// what the trainer would get.
/// Errors: those of reading the images; FileError; UnsupportedError in a build without libpng.
void show_batch(const lockstep::nn::Dataset& train, const lockstep::ops::AugmentDesc& augment,
                const lockstep::nn::TrainerOptions& run, int ranks, const std::vector<std::string>& class_names,
                const std::string& file);

}  // namespace train_resnet
