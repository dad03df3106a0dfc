#include "sampling.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <sstream>
#include <system_error>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace train_text {

namespace nn = lockstep::nn;

namespace {

/// Returns the first token at which the cumulative softmax of logits / temperature exceeds `point`, a number in [0, 1).
std::size_t token_at(std::span<const float> logits, double temperature, double point) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  weights.reserve(logits.size());
  double all = 0;
  for (const float logit : logits) {
    weights.push_back(std::exp((static_cast<double>(logit) - largest) / temperature));
    all += weights.back();
  }
  lockstep::require<lockstep::Error>(std::isfinite(all),
                                     "samples: outputs of the model are not finite: no token follows");
  double before = point * all;
  for (std::size_t token = 0; token < weights.size(); ++token) {
    before -= weights[token];
    if (before < 0) {
      return token;
    }
  }
  // The loop above finds no token if, because of rounding, the sum of all weights does not exceed `point`. In this
  // case, returns the likeliest token.
  return static_cast<std::size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
}

}  // namespace

std::vector<std::int32_t> sample_tokens(lockstep::Context& context, const nn::Model& model,
                                        const nn::ParameterSet& parameters, const SamplingOptions& options) {
  const std::int64_t length = model.input_shape()[0];
  const std::int64_t vocabulary = model.classes();
  nn::Inference predict(context, model, parameters, {.max_batch = 1, .plan = options.plan});
  lockstep::Random random(options.seed, lockstep::RandomUse::sample);
  std::vector<std::int32_t> window(static_cast<std::size_t>(length));
  std::vector<float> logits(static_cast<std::size_t>(length * vocabulary));
  std::vector<std::int32_t> said = options.prompt;
  const std::size_t begin = said.size();
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    // The window gets the last tokens, then zeros if there are fewer tokens than places. The zeros do not matter,
    // because the outputs at a position do not depend on later positions.
    const std::size_t known = std::min(said.size(), window.size());
    std::fill(window.begin(), window.end(), 0);
    std::copy(said.end() - static_cast<std::ptrdiff_t>(known), said.end(), window.begin());
    predict.run(lockstep::TensorView(std::span(window), {1, length}),
                lockstep::TensorView(std::span(logits), {1, length, vocabulary}));
    context.synchronize();
    const std::span<const float> row(logits.data() + (known - 1) * static_cast<std::size_t>(vocabulary),
                                     static_cast<std::size_t>(vocabulary));
    said.push_back(static_cast<std::int32_t>(token_at(row, options.temperature, random.uniform())));
  }
  said.erase(said.begin(), said.begin() + static_cast<std::ptrdiff_t>(begin));
  return said;
}

std::vector<std::int32_t> tokens_of(const std::string& bytes) {
  std::vector<std::int32_t> tokens(bytes.size());
  std::transform(bytes.begin(), bytes.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

std::string bytes_of(const std::vector<std::int32_t>& tokens) {
  std::string bytes(tokens.size(), '\0');
  std::transform(tokens.begin(), tokens.end(), bytes.begin(), [](std::int32_t id) { return static_cast<char>(id); });
  return bytes;
}

std::string ids_text(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t id : tokens) {
    text += (text.empty() ? "" : " ") + std::to_string(id);
  }
  return text;
}

std::vector<std::int32_t> parse_ids(const std::string& text, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    lockstep::require<lockstep::UsageError>(
        error == std::errc() && end == word.data() + word.size() && id >= 0 && id < vocabulary, "--prompt: '",
        lockstep::printable(word), "' is no token, expected 0 to ", vocabulary - 1);
    ids.push_back(id);
  }
  lockstep::require<lockstep::UsageError>(!ids.empty(), "--prompt holds no token, expected ids as \"464 3290\"");
  return ids;
}

std::string printable(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    if ((c >= ' ' && c <= '~') || c == '\n' || c == '\t') {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return text;
}

}  // namespace train_text
