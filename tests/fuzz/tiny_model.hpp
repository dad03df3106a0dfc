#pragma once

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>

namespace lockstep::fuzz {

/// Returns a linear model from two numbers to two classes.
inline nn::Model tiny_model() {
  nn::ModelBuilder builder("tiny", {2});
  builder.linear("1", builder.input(), 2);
  return builder.build();
}

/// Returns a model of a linear layer from four numbers to four, a batch norm with running statistics, and a linear
/// layer to two classes. A test can compress the gradients of its matrices.
inline nn::Model tiny_norm_model() {
  nn::ModelBuilder builder("tiny", {4});
  const nn::NodeId hidden = builder.linear("1", builder.input(), 4);
  builder.linear("2", builder.batch_norm("norm", hidden), 2);
  return builder.build();
}

}  // namespace lockstep::fuzz
