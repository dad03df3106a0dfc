#pragma once

#include <vector_types.h>

// Of the CUDA thread that runs now. In the global namespace, as in CUDA.
inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;
