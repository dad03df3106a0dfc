#pragma once

#include <vector_types.h>

// CUDA's built-in index variables for the running thread. They are in the global namespace, as in CUDA.
inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;
