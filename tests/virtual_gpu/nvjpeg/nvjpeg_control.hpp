#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nvjpeg.h>

/// A stand-in for libnvjpeg: the real header, and a library of that name, which kernels/nvjpeg loads. It decodes with
/// libjpeg when it is called and writes the pixels later, in the order of the stream. It allocates memory at once, by
/// the functions that it is given, for batches and with or without a stream, as the real library does. Uses that nvJPEG
/// leaves undefined (a batch of another size than prepared for, a state whose last batch is not done, memory that is
/// not the device's) are violations of the stand-in for CUDA.
namespace lockstep::nvjpeg_standin {

/// Forgets all calls and injected failures. No handle may exist.
void reset();

/// Makes the n-th call of a function from now, and the `times` - 1 calls after it, answer with this status.
void fail(const std::string& function, nvjpegStatus_t status, int n = 1, int times = 1);

/// Returns the calls: "nvjpegDecodeBatched 3" with the number of files; for other functions the name alone.
[[nodiscard]] std::vector<std::string> calls();
[[nodiscard]] std::vector<cudaStream_t> streams();          ///< streams of all calls that decode
[[nodiscard]] std::vector<nvjpegBackend_t> backends();      ///< backends of all handles
[[nodiscard]] std::vector<int> threads();                   ///< threads of all nvjpegDecodeBatchedInitialize()
[[nodiscard]] std::vector<nvjpegOutputFormat_t> formats();  ///< formats of all nvjpegDecodeBatchedInitialize()
/// Returns the handles, states and memory that were taken and not given back.
[[nodiscard]] std::vector<std::string> leaks();
[[nodiscard]] int allocations();  ///< number of allocations since reset()

}  // namespace lockstep::nvjpeg_standin
