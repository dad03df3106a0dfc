#pragma once

#include <lockstep/nn/model/model.hpp>

namespace lockstep::fuzz {

/// Two numbers to two classes.
inline nn::Model tiny_model() {
  nn::ModelBuilder builder("tiny", {2});
  builder.linear("1", builder.input(), 2);
  return builder.build();
}

}  // namespace lockstep::fuzz
