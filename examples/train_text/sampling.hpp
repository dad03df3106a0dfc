#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace train_text {

struct SamplingOptions {
  std::int64_t tokens = 200;               ///< how many
  std::vector<std::int32_t> prompt{'\n'};  ///< what they follow; at least one
  double temperature = 0.8;  ///< logits are divided by it: towards 0 the likeliest token, 1 as the model has it
  std::uint64_t seed = 1;    ///< equal seeds, parameters and prompts give equal tokens
  lockstep::nn::PlanOptions plan{};
};

/// Tokens that the model says after the prompt, which is not among them: one at a time, each drawn by the model's
/// softmax after the last tokens, as many as the model reads. The model maps tokens (T) to logits (T, V) and is causal.
[[nodiscard]] std::vector<std::int32_t> sample_tokens(lockstep::Context& context, const lockstep::nn::Model& model,
                                                      const lockstep::nn::ParameterSet& parameters,
                                                      const SamplingOptions& options);

/// The bytes of a text as tokens, and back.
[[nodiscard]] std::vector<std::int32_t> tokens_of(const std::string& bytes);
[[nodiscard]] std::string bytes_of(const std::vector<std::int32_t>& tokens);
/// Ids in digits, separated by spaces, and back. UsageError for other characters, ids outside 0 to vocabulary - 1, and
/// none at all.
[[nodiscard]] std::string ids_text(const std::vector<std::int32_t>& tokens);
[[nodiscard]] std::vector<std::int32_t> parse_ids(const std::string& text, std::int64_t vocabulary);

/// For a terminal: printable ASCII, line ends and tabs as they are, other bytes as \x1b.
[[nodiscard]] std::string printable(const std::string& bytes);

}  // namespace train_text
