#pragma once

#include <string>

#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

/// Predicts the time of the trainer's step on a GPU that need not be present. Returns GpuPrediction::text(). The
/// trainer's plans must have been made for this GPU (PlanOptions::chip). If `trace` is not empty, also writes a
/// timeline of several steps to the file `trace`, without sums over ranks. The timeline shows when each gradient would
/// be ready. lockstep-scale uses the timeline to predict runs on many GPUs. Throws FileError or WriteError if the file
/// cannot be written.
[[nodiscard]] std::string predict_on_gpu(const GpuDescription& gpu, Trainer& trainer, const std::string& trace);

}  // namespace lockstep::nn
