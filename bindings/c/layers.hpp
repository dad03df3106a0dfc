#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>

namespace lockstep::c {

/// A layer as lockstep_model_add describes it.
struct LayerRequest {
  std::string kind;
  std::string name;
  std::vector<nn::NodeId> inputs;
  std::int64_t size = 0;
  lockstep_layer_options options{};
};

/// Adds it. UnsupportedError for a kind, or an option of it, that is not there; UsageError for a number of inputs or a
/// size that the kind does not take; what the builder throws.
nn::NodeId add_layer(nn::ModelBuilder& builder, const LayerRequest& request);

/// UsageError for another number.
[[nodiscard]] ops::Activation activation_from(std::int32_t number);

}  // namespace lockstep::c
