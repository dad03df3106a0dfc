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
  std::int64_t tokens = 200;               ///< number of tokens to draw
  std::vector<std::int32_t> prompt{'\n'};  ///< tokens before the drawn tokens; at least one
  double temperature = 0.8;  ///< divisor of the logits; near 0: draws the likeliest token; 1: the model's own softmax
  std::uint64_t seed = 1;    ///< equal seeds, parameters and prompts give equal tokens
  lockstep::nn::PlanOptions plan{};
};

/// Draws tokens that follow options.prompt, and returns the drawn tokens without the prompt. Each token is drawn from
/// the softmax of the model's outputs for the last T tokens, where T is the number of tokens that the model reads. The
/// model must be causal and map T tokens to logits of shape (T, V).
[[nodiscard]] std::vector<std::int32_t> sample_tokens(lockstep::Context& context, const lockstep::nn::Model& model,
                                                      const lockstep::nn::ParameterSet& parameters,
                                                      const SamplingOptions& options);

/// Converts the bytes of a text to tokens; bytes_of() converts them back.
[[nodiscard]] std::vector<std::int32_t> tokens_of(const std::string& bytes);
[[nodiscard]] std::string bytes_of(const std::vector<std::int32_t>& tokens);
/// Converts `tokens` to decimal numbers separated by spaces; parse_ids() converts such a text back. parse_ids() throws
/// UsageError for a word that is not a number from 0 to vocabulary - 1, and for a text without numbers.
[[nodiscard]] std::string ids_text(const std::vector<std::int32_t>& tokens);
[[nodiscard]] std::vector<std::int32_t> parse_ids(const std::string& text, std::int64_t vocabulary);

/// Returns `bytes` as a text for a terminal: printable ASCII, line ends and tabs are unchanged, and every other byte is
/// written as \xNN.
[[nodiscard]] std::string printable(const std::string& bytes);

}  // namespace train_text
