#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nvjpeg.h>

/// A stand-in for libnvjpeg: a library of that name, which kernels/nvjpeg loads. It implements the functions of the
/// real header. It decodes with libjpeg during the call, and writes the pixels later, in stream order. During calls it
/// allocates memory with the caller's allocator functions, with or without a stream, as the real library does.
///
/// Uses that nvJPEG leaves undefined are recorded as violations of the stand-in for CUDA. Examples are a batch of
/// another size than prepared for, a state whose last batch has not completed, and memory of another device.
namespace lockstep::nvjpeg_standin {

/// Forgets all calls and injected failures. No handle may exist at this time.
void reset();

/// Makes the n-th call of this function from now, and the `times` - 1 calls after it, return this status.
void fail(const std::string& function, nvjpegStatus_t status, int n = 1, int times = 1);

/// Returns the names of all calls. For nvjpegDecodeBatched the number of files follows: "nvjpegDecodeBatched 3".
[[nodiscard]] std::vector<std::string> calls();
[[nodiscard]] std::vector<cudaStream_t> streams();      ///< streams of all decoding calls
[[nodiscard]] std::vector<nvjpegBackend_t> backends();  ///< backends of all handles
[[nodiscard]] std::vector<int> threads();  ///< numbers of threads passed to nvjpegDecodeBatchedInitialize()
[[nodiscard]] std::vector<nvjpegOutputFormat_t> formats();  ///< formats passed to nvjpegDecodeBatchedInitialize()
/// Returns the numbers of handles, states and memory blocks that were not released, as texts. Empty if there are none.
[[nodiscard]] std::vector<std::string> leaks();
[[nodiscard]] int allocations();  ///< number of allocations since reset()

}  // namespace lockstep::nvjpeg_standin
