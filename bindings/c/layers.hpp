#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>

namespace lockstep::c {

/// The arguments of lockstep_model_add() that describe a layer.
struct LayerRequest {
  std::string kind;
  std::string name;
  std::vector<nn::NodeId> inputs;
  std::int64_t size = 0;
  lockstep_layer_options options{};
};

/// Adds a layer and returns the layer's output. Throws UnsupportedError for an unknown kind or an option that the kind
/// does not have. Throws UsageError for a number of inputs or a size that the kind does not take. Also throws the
/// errors of `builder`.
nn::NodeId add_layer(nn::ModelBuilder& builder, const LayerRequest& request);

/// Returns the activation that `number`, a LOCKSTEP_ACTIVATION_*, means. Throws UsageError for other numbers.
[[nodiscard]] ops::Activation activation_from(std::int32_t number);

}  // namespace lockstep::c
