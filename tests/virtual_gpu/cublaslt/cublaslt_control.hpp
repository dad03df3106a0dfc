#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <cublasLt.h>

/// A stand-in for libcublasLt: a library of that name, which kernels/cublaslt loads. It implements the functions of the
/// real header. Its heuristics return the algorithms that a test specifies, and it computes nothing. Its algorithms
/// consist of eight words: seven settings (id, tile, ..), and one word that belongs to no setting.
namespace lockstep::cublaslt_standin {

struct Guess {
  std::int32_t id = 0;
  cublasStatus_t described = CUBLAS_STATUS_SUCCESS;  ///< answer of cublasLtMatmulAlgoConfigGetAttribute()
  cublasStatus_t checked = CUBLAS_STATUS_SUCCESS;    ///< answer of cublasLtMatmulAlgoCheck()
  std::uint64_t hidden = 0;                          ///< last word of the algorithm, which no setting changes
  std::uint32_t stages = 0;
};

/// Sets the guesses that the heuristics return from now on, best guess first, and the status of the heuristics.
void script(const std::vector<Guess>& guesses, cublasStatus_t heuristics = CUBLAS_STATUS_SUCCESS);
/// Returns the words of the algorithm that was last passed to cublasLtMatmulAlgoCheck().
[[nodiscard]] std::array<std::uint64_t, 8> checked();

}  // namespace lockstep::cublaslt_standin
