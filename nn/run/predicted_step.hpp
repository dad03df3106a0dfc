#pragma once

#include <string>

#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

/// Predicts the trainer's step on a GPU that is not present, as text (GpuPrediction). The trainer's plans must have
/// been made for that GPU (PlanOptions::chip). `trace` is a file for a timeline of that step in its expected time,
/// repeated, without sums over ranks; empty: no file. The timeline says when each gradient would be ready, and
/// lockstep-scale predicts larger numbers of GPUs from it. FileError or WriteError if the file cannot be written.
[[nodiscard]] std::string predict_on_gpu(const GpuDescription& gpu, Trainer& trainer, const std::string& trace);

}  // namespace lockstep::nn
