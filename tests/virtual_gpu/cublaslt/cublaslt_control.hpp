#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <cublasLt.h>

/// A stand-in for libcublasLt: the real header, and a library of that name, which kernels/cublaslt loads. It plans as a
/// test says and computes nothing. An algorithm is eight words: its settings (id, tile, ..), and one word that no
/// setting reaches.
namespace lockstep::cublaslt_standin {

struct Guess {
  std::int32_t id = 0;
  cublasStatus_t described = CUBLAS_STATUS_SUCCESS;  ///< answer of cublasLtMatmulAlgoConfigGetAttribute()
  cublasStatus_t checked = CUBLAS_STATUS_SUCCESS;    ///< answer of cublasLtMatmulAlgoCheck()
  std::uint64_t hidden = 0;                          ///< last word of the algorithm
  std::uint32_t stages = 0;
};

/// Sets the answer of the heuristics from now on, best guess first.
void script(const std::vector<Guess>& guesses, cublasStatus_t heuristics = CUBLAS_STATUS_SUCCESS);
/// Returns the algorithm that was checked last.
[[nodiscard]] std::array<std::uint64_t, 8> checked();

}  // namespace lockstep::cublaslt_standin
