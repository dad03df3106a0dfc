#pragma once

#include <lockstep/nn/run/console.hpp>
#include <lockstep/nn/run/trainer.hpp>

#include "corpus.hpp"
#include "options.hpp"
#include "sampling.hpp"

/// What follows from the options once text and ranks are known.
namespace train_text {

/// UsageError when the batch has less than a window for each rank; DataError when the text has fewer than a batch.
[[nodiscard]] lockstep::nn::TrainerOptions trainer_options(const Options& options, const TextWindows& train, int ranks);
[[nodiscard]] lockstep::nn::Console::Options console_options(const Options& options,
                                                             const lockstep::nn::Trainer& trainer);
[[nodiscard]] SamplingOptions sampling_options(const Options& options, const lockstep::nn::Trainer& trainer);

}  // namespace train_text
