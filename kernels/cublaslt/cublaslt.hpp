#pragma once

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <cublasLt.h>

#include <lockstep/kernels/cublaslt/description.hpp>
#include <lockstep/kernels/detail/loaded_api.hpp>
#include <lockstep/runtime/context/context.hpp>

/// The functions and the handle of cuBLASLt, and owners of cuBLASLt's descriptors. A failed call throws
/// UnsupportedError if cuBLASLt does not implement or accept the call, OutOfMemory if memory runs out, and otherwise
/// Error. The error's text names the call and describes the status in words.
namespace lockstep::ops::cublaslt {

/// The functions of libcublasLt that the provider uses. The library (540 MB) is loaded when a product is first planned
/// on a GPU, so that programs start on machines without the library.
struct Api {
  const SharedLibrary* from = nullptr;
  LOCKSTEP_FUNCTION(get_version, cublasLtGetVersion);
  LOCKSTEP_FUNCTION(get_status_string, cublasLtGetStatusString);
  LOCKSTEP_FUNCTION(create, cublasLtCreate);
  LOCKSTEP_FUNCTION(destroy, cublasLtDestroy);
  LOCKSTEP_FUNCTION(matmul, cublasLtMatmul);
  LOCKSTEP_FUNCTION(desc_create, cublasLtMatmulDescCreate);
  LOCKSTEP_FUNCTION(desc_destroy, cublasLtMatmulDescDestroy);
  LOCKSTEP_FUNCTION(desc_set, cublasLtMatmulDescSetAttribute);
  LOCKSTEP_FUNCTION(layout_create, cublasLtMatrixLayoutCreate);
  LOCKSTEP_FUNCTION(layout_destroy, cublasLtMatrixLayoutDestroy);
  LOCKSTEP_FUNCTION(layout_set, cublasLtMatrixLayoutSetAttribute);
  LOCKSTEP_FUNCTION(preference_create, cublasLtMatmulPreferenceCreate);
  LOCKSTEP_FUNCTION(preference_destroy, cublasLtMatmulPreferenceDestroy);
  LOCKSTEP_FUNCTION(preference_set, cublasLtMatmulPreferenceSetAttribute);
  LOCKSTEP_FUNCTION(algo_get_heuristic, cublasLtMatmulAlgoGetHeuristic);
  LOCKSTEP_FUNCTION(algo_init, cublasLtMatmulAlgoInit);
  LOCKSTEP_FUNCTION(algo_check, cublasLtMatmulAlgoCheck);
  LOCKSTEP_FUNCTION(algo_get, cublasLtMatmulAlgoConfigGetAttribute);
  LOCKSTEP_FUNCTION(algo_set, cublasLtMatmulAlgoConfigSetAttribute);
};

/// Throws unless `status` is CUBLAS_STATUS_SUCCESS; `call` is the name of the function that returned `status`.
void check(const Api& api, cublasStatus_t status, const char* call);

/// cuBLASLt's handle on a context's device. Each Context has one Library, which is made on first use.
class Library {
 public:
  explicit Library(Device device);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Returns why cuBLASLt cannot be used: it cannot be loaded, has another major version, or finds no driver (as on the
  /// GPU emulation of the tests). Empty when cuBLASLt can be used.
  [[nodiscard]] const std::string& unusable() const { return unusable_; }
  /// Throws UnsupportedError with the text of unusable() when cuBLASLt cannot be used.
  void require_usable() const;
  [[nodiscard]] const Api& api() const { return *api_; }
  [[nodiscard]] cublasLtHandle_t handle() const { return handle_; }
  /// Returns the table of the algorithms that the heuristics recommended, with one list for each product. Because of
  /// the table, cuBLASLt is queried only once for a product, although equal layers, the evaluation and the tuner
  /// request the same products.
  [[nodiscard]] std::map<MatmulDesc, std::vector<Algorithm>>& recommended() { return recommended_; }

 private:
  std::map<MatmulDesc, std::vector<Algorithm>> recommended_;
  const Api* api_ = nullptr;
  Device device_;
  cublasLtHandle_t handle_ = nullptr;
  std::string unusable_;
};
[[nodiscard]] Library& library(Context& context);
[[nodiscard]] std::string library_version();  ///< returns the loaded version, such as "13.0.2"; else "missing"

/// Owns a descriptor, a layout or a preference of cuBLASLt.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

}  // namespace lockstep::ops::cublaslt
