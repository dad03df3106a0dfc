#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nvjpeg.h>

/// A stand-in for libnvjpeg: the real header, a library of that name, which kernels/nvjpeg loads. It decodes with
/// libjpeg when it is called and writes the pixels later, in the order of the stream. It takes memory by the functions
/// that it is given, at once, for batches and with or without a stream, as the real one does. What nvJPEG leaves
/// undefined (a batch of another size than prepared for, a state whose last batch is not done, memory that is none of
/// the device's) is a violation of the stand-in for CUDA.
namespace lockstep::nvjpeg_standin {

/// Forgets all calls and orders; no handle may be there.
void reset();

/// The n-th call of a function from now answers with this status, and `times` - 1 calls after it.
void fail(const std::string& function, nvjpegStatus_t status, int n = 1, int times = 1);

/// "nvjpegDecodeBatched 3", the number is that of the files; of other functions the name alone.
[[nodiscard]] std::vector<std::string> calls();
[[nodiscard]] std::vector<cudaStream_t> streams();          ///< streams of all calls that decode
[[nodiscard]] std::vector<nvjpegBackend_t> backends();      ///< backends of all handles
[[nodiscard]] std::vector<int> threads();                   ///< threads of all nvjpegDecodeBatchedInitialize()
[[nodiscard]] std::vector<nvjpegOutputFormat_t> formats();  ///< formats of all nvjpegDecodeBatchedInitialize()
/// Handles, states and memory that were taken and not given back.
[[nodiscard]] std::vector<std::string> leaks();
[[nodiscard]] int allocations();  ///< since reset()

}  // namespace lockstep::nvjpeg_standin
