#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/overlap_model.hpp>

namespace lockstep::comm {

/// A plan, for BucketOptions::ends, and where it is from.
struct NamedPlan {
  std::string name;
  std::vector<int> ends;
};

/// The default plans of other tools for these gradients, as their sources of 2026 make them, in a fixed order:
/// "PyTorch DDP, 1 and 25 MiB" (behind its first step: in ready order a bucket closes with the tensor that takes it to
/// its cap or beyond, 1 MiB for the first and 25 MiB for the others), "Horovod, 64 MiB, 1 ms" and "Horovod, 128 MiB, 1
/// ms" (each cycle of 1 ms takes what is ready, up to the threshold, when the sum before it has ended: by ready_s and
/// the model's costs and slowdown), "Megatron-Core, 40 M" (a bucket closes with 40 million elements). Some may be
/// equal. ready_s: one value a gradient, ascending (ShapeError). No gradients: no plans.
[[nodiscard]] std::vector<NamedPlan> peer_plans(std::span<const GradientRange> gradients,
                                                std::span<const double> ready_s, const OverlapModel& model,
                                                std::int64_t element_bytes);

}  // namespace lockstep::comm
