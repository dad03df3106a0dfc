#include <lockstep/nn/layers/model_builder.hpp>
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
  const LinearOptions with_gelu{.deviation = kDeviation, .activation = ops::Activation::gelu_tanh};
  ModelBuilder b = ModelBuilder::for_tokens("transformer", o.length);
  // Appends the last layers of a residual branch. Without dropout, a single pass over the product adds bias and
  // residual.
  const auto branch = [&](const std::string& name, NodeId x, NodeId y) {
    LinearOptions projection{.deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(o.layers))};
    if (o.dropout == 0) {
      projection.residual = x;
      return b.linear(name + ".c_proj", y, o.width, projection);
    }
    return b.add(name + ".add", x,
                 b.dropout(name + ".drop", b.linear(name + ".c_proj", y, o.width, projection), o.dropout));
  };
  NodeId x = b.embedding("wte", "wpe", b.input(), o.vocabulary, o.width);
  if (o.dropout > 0) {
    x = b.dropout("drop", x, o.dropout);
  }
  for (std::int64_t i = 0; i < o.layers; ++i) {
    const std::string h = "h." + std::to_string(i) + ".";
    NodeId y = b.linear(h + "attn.c_attn", b.layer_norm(h + "ln_1", x), 3 * o.width, inner);
    y = b.attention(h + "attn", y, {.heads = o.heads, .causal = o.causal});
    x = branch(h + "attn", x, y);
    y = b.linear(h + "mlp.c_fc", b.layer_norm(h + "ln_2", x), 4 * o.width, with_gelu);
    x = branch(h + "mlp", x, y);
  }
  b.linear("lm_head", b.layer_norm("ln_f", x), o.vocabulary,
           {.deviation = kDeviation, .bias = false, .weight = "wte.weight"});
  return b.build();
}

}  // namespace lockstep::nn
