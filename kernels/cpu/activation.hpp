#pragma once

#include <cstdint>

#include <lockstep/kernels/activation.hpp>

/// The functions of enum Activation and their derivatives on the host, for every op that uses them. The functions are
/// compiled only once, in activation.cpp. So a number gets the same bits in each op, at every position, for any number
/// of elements.
namespace lockstep::ops::activations {

inline constexpr std::int64_t kGrain = 2048;  // number of elements that justify another thread

/// Sets to[i] = kind(from[i]) for i in [0, count). `to` is `from`, or does not overlap it.
void values(Activation kind, const float* from, std::int64_t count, float* to);
void values(Activation kind, const double* from, std::int64_t count, double* to);

/// Sets to[i] = kind'(from[i]) for i in [0, count). `to` is `from`, or does not overlap it.
void slopes(Activation kind, const float* from, std::int64_t count, float* to);
void slopes(Activation kind, const double* from, std::int64_t count, double* to);

}  // namespace lockstep::ops::activations
