// Defines the cuBLASLt functions that kernels/cublaslt loads.
#include <algorithm>
#include <cstring>

#include "cublaslt_control.hpp"

namespace {

using lockstep::cublaslt_standin::Guess;

struct World {
  std::vector<Guess> guesses;
  cublasStatus_t heuristics = CUBLAS_STATUS_SUCCESS;
  std::array<std::uint64_t, 8> checked{};
};

World& world() {
  static World instance;
  return instance;
}

/// Returns the index of the word in which an algorithm stores this setting. Every setting has a word of its own.
int place_of(cublasLtMatmulAlgoConfigAttributes_t name) {
  switch (name) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return 0;
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return 1;
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return 2;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return 3;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return 4;
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
      return 5;
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return 6;
    default:
      return -1;  // unknown settings read as 0 and ignore writes
  }
}

const Guess* guess_of(const cublasLtMatmulAlgo_t& algo) {
  const auto found = std::find_if(world().guesses.begin(), world().guesses.end(), [&](const Guess& guess) {
    return static_cast<std::uint64_t>(guess.id) == algo.data[0];
  });
  return found == world().guesses.end() ? nullptr : &*found;
}

template <class T>
cublasStatus_t make(T** made) {
  *made = new T{};
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t destroy(T* made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace lockstep::cublaslt_standin {

void script(const std::vector<Guess>& guesses, cublasStatus_t heuristics) {
  world().guesses = guesses;
  world().heuristics = heuristics;
}

std::array<std::uint64_t, 8> checked() {
  return world().checked;
}

}  // namespace lockstep::cublaslt_standin

extern "C" {

size_t cublasLtGetVersion() {
  return CUBLAS_VER_MAJOR * 10000;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "another status";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&world());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t /*compute*/,
                                        cudaDataType_t /*scale*/) {
  return make(made);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  return destroy(made);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t /*desc*/, cublasLtMatmulDescAttributes_t /*name*/,
                                              const void* /*value*/, size_t /*bytes*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType /*type*/, uint64_t /*rows*/,
                                          uint64_t /*columns*/, int64_t /*leading*/) {
  return make(made);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t made) {
  return destroy(made);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t /*layout*/,
                                                cublasLtMatrixLayoutAttribute_t /*name*/, const void* /*value*/,
                                                size_t /*bytes*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return make(made);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  return destroy(made);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t /*preference*/,
                                                    cublasLtMatmulPreferenceAttributes_t /*name*/,
                                                    const void* /*value*/, size_t /*bytes*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*operation*/,
                                              cublasLtMatrixLayout_t /*a*/, cublasLtMatrixLayout_t /*b*/,
                                              cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
                                              cublasLtMatmulPreference_t /*preference*/, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  for (const Guess& guess : world().guesses) {
    if (*count < most && world().heuristics == CUBLAS_STATUS_SUCCESS) {
      cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
      result = {};
      result.algo.data[0] = static_cast<std::uint64_t>(guess.id);
      result.algo.data[2] = guess.stages;
      result.algo.data[7] = guess.hidden;
      result.state = CUBLAS_STATUS_SUCCESS;
    }
  }
  return world().heuristics;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t /*handle*/, cublasComputeType_t /*compute*/,
                                      cudaDataType_t /*scale*/, cudaDataType_t /*a*/, cudaDataType_t /*b*/,
                                      cudaDataType_t /*c*/, cudaDataType_t /*d*/, int id, cublasLtMatmulAlgo_t* algo) {
  *algo = {};
  algo->data[0] = static_cast<std::uint64_t>(id);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*operation*/,
                                       cublasLtMatrixLayout_t /*a*/, cublasLtMatrixLayout_t /*b*/,
                                       cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  std::copy_n(algo->data, world().checked.size(), world().checked.begin());
  *result = {};
  const Guess* guess = guess_of(*algo);
  return guess == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED : guess->checked;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name, void* value,
                                                    size_t bytes, size_t* written) {
  const Guess* guess = guess_of(*algo);
  if (guess != nullptr && guess->described != CUBLAS_STATUS_SUCCESS) {
    return guess->described;
  }
  const int place = place_of(name);
  const std::uint64_t word = place < 0 ? 0 : algo->data[place];
  std::memcpy(value, &word, bytes);  // little-endian: the low bytes come first
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name, const void* value,
                                                    size_t bytes) {
  if (const int place = place_of(name); place >= 0) {
    algo->data[place] = 0;
    std::memcpy(&algo->data[place], value, bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*operation*/, const void* /*alpha*/,
                              const void* /*a*/, cublasLtMatrixLayout_t /*a_layout*/, const void* /*b*/,
                              cublasLtMatrixLayout_t /*b_layout*/, const void* /*beta*/, const void* /*c*/,
                              cublasLtMatrixLayout_t /*c_layout*/, void* /*d*/, cublasLtMatrixLayout_t /*d_layout*/,
                              const cublasLtMatmulAlgo_t* /*algo*/, void* /*workspace*/, size_t /*bytes*/,
                              cudaStream_t /*stream*/) {
  return CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
