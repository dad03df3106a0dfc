#include <lockstep/nn/models/transformer.hpp>

#include <cmath>
#include <string>

namespace lockstep::nn {

Model transformer(const TransformerOptions& o) {
  require<UsageError>(o.layers >= 1 && o.heads >= 1 && o.width >= 1 && o.width % o.heads == 0,
                      "transformer: ", o.layers, " layers, width ", o.width, ", ", o.heads,
                      " heads, expected at least one of each and a width that is a multiple of the heads");
  constexpr double kDeviation = 0.02;
  const LinearOptions inner{.deviation = kDeviation};
  const LinearOptions into_residual{.deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(o.layers))};
  ModelBuilder b = ModelBuilder::for_tokens("transformer", o.length);
  const auto dropout = [&](const std::string& name, NodeId x) {
    return o.dropout > 0 ? b.dropout(name, x, o.dropout) : x;
  };
  NodeId x = dropout("drop", b.embedding("wte", "wpe", b.input(), o.vocabulary, o.width));
  for (std::int64_t i = 0; i < o.layers; ++i) {
    const std::string h = "h." + std::to_string(i) + ".";
    NodeId y = b.linear(h + "attn.c_attn", b.layer_norm(h + "ln_1", x), 3 * o.width, inner);
    y = b.attention(h + "attn", y, {.heads = o.heads, .causal = o.causal});
    y = dropout(h + "attn.drop", b.linear(h + "attn.c_proj", y, o.width, into_residual));
    x = b.add(h + "attn.add", x, y);
    y = b.linear(h + "mlp.c_fc", b.layer_norm(h + "ln_2", x), 4 * o.width, inner);
    y = b.activation(h + "mlp.gelu", y, ops::Activation::gelu_tanh);
    y = dropout(h + "mlp.drop", b.linear(h + "mlp.c_proj", y, o.width, into_residual));
    x = b.add(h + "mlp.add", x, y);
  }
  b.linear("lm_head", b.layer_norm("ln_f", x), o.vocabulary,
           {.deviation = kDeviation, .bias = false, .weight = "wte.weight"});
  return b.build();
}

}  // namespace lockstep::nn
