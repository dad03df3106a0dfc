#pragma once

#include <cstdint>

// An MLP in libtorch behind C functions. They are in a library of their own, which bench_embedding loads when it is
// there, with its symbols apart: libtorch holds copies of oneDNN and OpenMP that must not meet ours.
extern "C" {

/// Of three linear layers 4-32-32-1 with tanh between them, one thread. weights: weight (out, in) and bias of each
/// layer; they are copied. f64: 1 for double, 0 for float. Null when libtorch throws, whose text goes to standard
/// error.
void* bench_torch_make(std::int32_t f64, const void* const* weights);
/// out (n, 1) = mlp(in (n, 4)), in memory of the caller's. 0, or 1 when libtorch throws.
std::int32_t bench_torch_run(void* mlp, const void* in, void* out, std::int64_t n);
void bench_torch_end(void* mlp);
const char* bench_torch_version();
}
