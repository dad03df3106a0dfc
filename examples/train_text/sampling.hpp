#pragma once

#include <cstdint>
#include <string>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/runtime/stream/context.hpp>

namespace train_text {

struct SamplingOptions {
  std::int64_t bytes = 200;  ///< how many
  std::string prompt{};      ///< what they follow; empty: a line end
  double temperature = 0.8;  ///< logits are divided by it: towards 0 the likeliest byte, 1 as the model has it
  std::uint64_t seed = 1;    ///< equal seeds, parameters and prompts give equal text
  lockstep::nn::PlanOptions plan{};
};

/// Bytes that the model says after the prompt, which is not among them: one at a time, each drawn by the model's
/// softmax after the last bytes, as many as the model reads. The model maps tokens (T) to logits (T, 256) and is
/// causal.
[[nodiscard]] std::string sample_text(lockstep::Context& context, const lockstep::nn::Model& model,
                                      const lockstep::nn::ParameterSet& parameters, const SamplingOptions& options);

/// For a terminal: printable ASCII, line ends and tabs as they are, other bytes as \x1b.
[[nodiscard]] std::string printable(const std::string& bytes);

}  // namespace train_text
