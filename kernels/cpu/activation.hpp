#pragma once

#include <cstdint>

#include <lockstep/kernels/activation.hpp>

/// The functions of enum Activation and their derivatives on the host, for every op that has them: compiled once, in
/// activation.cpp, so that a number has the same bits in each of them, wherever it stands and however many there are.
namespace lockstep::ops::activations {

inline constexpr std::int64_t kGrain = 2048;  // elements that are worth a thread: each costs an exponential

/// to[i] = kind(from[i]) for i in [0, count). to may be from, or is apart from it.
void values(Activation kind, const float* from, std::int64_t count, float* to);
void values(Activation kind, const double* from, std::int64_t count, double* to);

/// to[i] = kind'(from[i]) likewise.
void slopes(Activation kind, const float* from, std::int64_t count, float* to);
void slopes(Activation kind, const double* from, std::int64_t count, double* to);

}  // namespace lockstep::ops::activations
