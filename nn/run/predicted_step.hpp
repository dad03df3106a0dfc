#pragma once

#include <string>

#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

/// Predicts the trainer's step on a GPU that is not present, as text (GpuPrediction). The trainer's plans must have
/// been made for that GPU (PlanOptions::chip). Unless `trace` is empty, writes a timeline to the file `trace`: several
/// such steps in expected time, without sums over ranks. The timeline says when each gradient would be ready, and
/// lockstep-scale predicts larger numbers of GPUs from it. FileError or WriteError if the file cannot be written.
[[nodiscard]] std::string predict_on_gpu(const GpuDescription& gpu, Trainer& trainer, const std::string& trace);

}  // namespace lockstep::nn
