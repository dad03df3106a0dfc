#pragma once

#include <cstdint>
#include <vector>

// The loops that a host program would write for a network of linear layers with tanh between them. The loops are
// compiled with -O3 -march=native -ffast-math, so that the compiler may use vector registers in all loops and in tanh.

namespace lockstep::bench {

/// Parameters and scratch of the loops, for the networks 4-32-32-1 and 500-500-500-500-500-200.
template <class T>
class Loops {
 public:
  /// weights: weight (outputs, inputs) and bias of each layer in turn.
  Loops(std::vector<std::int64_t> widths, const std::vector<std::vector<T>>& weights);

  /// Computes one sample after the other. The inner loops run over the outputs of a layer, and the compiler knows all
  /// widths. Shapes: x (n, inputs), y (n, outputs).
  void outputs_innermost(const T* x, T* y, std::int64_t n) const;
  /// Computes 64 samples at a time. The inner loops run over samples. Shapes: x (inputs, n), y (outputs, n).
  void samples_innermost(const T* x, T* y, std::int64_t n);

 private:
  std::vector<std::int64_t> widths_;
  std::vector<std::vector<T>> weights_;     ///< (outputs, inputs), bias, ..
  std::vector<std::vector<T>> transposed_;  ///< weight of each layer, shape (inputs, outputs)
  std::vector<T> one_, two_;                ///< outputs of a layer, which are the inputs of the next layer
};

}  // namespace lockstep::bench
