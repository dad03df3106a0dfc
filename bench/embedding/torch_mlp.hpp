#pragma once

#include <cstdint>

// An MLP in libtorch with an interface of C functions. bench_embedding loads the library of these functions, if the
// library exists, with separate symbols: libtorch has its own oneDNN and OpenMP, which must not mix with lockstep's.
extern "C" {

/// Makes an MLP of three linear layers 4-32-32-1 with tanh between them, on one thread. weights: weight (out, in) and
/// bias of each layer; the call copies the parameters. f64: 1 for double, 0 for float. Returns null when libtorch
/// throws, after it has printed the error message to standard error.
void* bench_torch_make(std::int32_t f64, const void* const* weights);
/// Computes out (n, 1) = mlp(in (n, 4)), in the caller's memory. Returns 0, or 1 when libtorch throws.
std::int32_t bench_torch_run(void* mlp, const void* in, void* out, std::int64_t n);
void bench_torch_end(void* mlp);
const char* bench_torch_version();
}
