#pragma once

#include <cstdint>

#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

struct TransformerOptions {
  std::int64_t vocabulary = 50257;
  std::int64_t length = 1024;  ///< number of tokens in a sequence
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t layers = 12;
  double dropout = 0;  ///< rate of the dropout after the embedding and at the end of each residual branch
  bool causal = true;
};

/// Returns a decoder like GPT-2 (Radford et al. 2019) that maps tokens (T) to logits (T, vocabulary). Each layer
/// computes
///   x += c_proj(attention(c_attn(ln_1(x))));  x += mlp.c_proj(gelu_tanh(c_fc(ln_2(x))))
/// After the layers come ln_f and a product with the embedding's weight wte (tied, no bias). Names are GPT-2's:
/// wte, wpe, h.{i}.ln_1, h.{i}.attn.c_attn, h.{i}.attn.c_proj, h.{i}.ln_2, h.{i}.mlp.c_fc, h.{i}.mlp.c_proj, ln_f;
/// weights of linear layers are (out, in). The initial standard deviation is 0.02, and 0.02 / sqrt(2 layers) for the
/// two projections into the residual. The defaults give GPT-2 small, with 124,439,808 parameters.
[[nodiscard]] Model transformer(const TransformerOptions& options = {});

}  // namespace lockstep::nn
