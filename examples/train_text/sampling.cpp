#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <lockstep/runtime/base/random.hpp>

namespace train_text {

namespace nn = lockstep::nn;

namespace {

/// The byte at `point`, in [0, 1), of the softmax's distribution.
std::size_t byte_at(std::span<const float> logits, double temperature, double point) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  double all = 0;
  for (const float logit : logits) {
    weights.push_back(std::exp((static_cast<double>(logit) - largest) / temperature));
    all += weights.back();
  }
  double before = point * all;
  for (std::size_t byte = 0; byte < weights.size(); ++byte) {
    before -= weights[byte];
    if (before < 0) {
      return byte;
    }
  }
  return static_cast<std::size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());  // rounding
}

}  // namespace

std::string sample_text(lockstep::Context& context, const nn::Model& model, const nn::ParameterSet& parameters,
                        const SamplingOptions& options) {
  const std::int64_t length = model.input_shape()[0];
  const std::int64_t bytes = model.classes();
  nn::Inference predict(context, model, parameters, {.max_batch = 1, .plan = options.plan});
  lockstep::Random random(options.seed, lockstep::RandomUse::sample);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  std::vector<float> logits(static_cast<std::size_t>(length * bytes));
  std::string text = options.prompt.empty() ? "\n" : options.prompt;
  const std::size_t begin = text.size();
  for (std::int64_t i = 0; i < options.bytes; ++i) {
    // The last bytes of the text, and zeros behind them while it is short: no position looks at what comes after it.
    const std::size_t known = std::min(text.size(), tokens.size());
    std::fill(tokens.begin(), tokens.end(), 0);
    std::transform(text.end() - static_cast<std::ptrdiff_t>(known), text.end(), tokens.begin(),
                   [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
    predict.run(lockstep::TensorView(std::span(tokens), {1, length}),
                lockstep::TensorView(std::span(logits), {1, length, bytes}));
    context.synchronize();
    const std::span<const float> row(logits.data() + (known - 1) * static_cast<std::size_t>(bytes),
                                     static_cast<std::size_t>(bytes));
    text.push_back(static_cast<char>(byte_at(row, options.temperature, random.uniform())));
  }
  return text.substr(begin);
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
