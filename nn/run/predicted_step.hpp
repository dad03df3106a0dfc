#pragma once

#include <string>

#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

/// The trainer's step on a GPU that is not here, as text (GpuPrediction); its plans were made for that GPU
/// (PlanOptions::chip). trace: file for a timeline of that step in its expected time, repeated, without sums over
/// ranks; empty: none. It says when each gradient would be ready, from which lockstep-scale predicts more GPUs.
/// FileError or WriteError when it cannot be written.
[[nodiscard]] std::string predict_on_gpu(const GpuDescription& gpu, Trainer& trainer, const std::string& trace);

}  // namespace lockstep::nn
