#pragma once

#include <vector_types.h>

// The indices of the CUDA thread that runs now, in the global namespace as in CUDA.
inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;
