#pragma once

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <cublasLt.h>

#include <lockstep/kernels/cublaslt/description.hpp>
#include <lockstep/runtime/context/context.hpp>

/// cuBLASLt: its functions, its handle, owners of its descriptors. Errors are thrown: UnsupportedError for what it does
/// not implement or take, OutOfMemory, else Error. The text has the call and the status in words.
namespace lockstep::ops::cublaslt {

/// The functions of libcublasLt that are used. The library (540 MB) is loaded when a product is first planned on a GPU,
/// so that programs start on machines without it.
struct Api {
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&::cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic = nullptr;
  decltype(&::cublasLtMatmulAlgoInit) algo_init = nullptr;
  decltype(&::cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) algo_get = nullptr;
  decltype(&::cublasLtMatmulAlgoConfigSetAttribute) algo_set = nullptr;
};

/// Throws unless status is CUBLAS_STATUS_SUCCESS; `call` is the name of the function.
void check(const Api& api, cublasStatus_t status, const char* call);

/// cuBLASLt's handle on a context's device. One per Context, made on first use.
class Library {
 public:
  explicit Library(Device device);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Why cuBLASLt cannot be used: it cannot be loaded, has another major version, or finds no driver (as on the tests'
  /// stand-in for a GPU). Empty when it can be used.
  [[nodiscard]] const std::string& unusable() const { return unusable_; }
  /// UnsupportedError with that text when it cannot be used.
  void require_usable() const;
  [[nodiscard]] const Api& api() const { return *api_; }
  [[nodiscard]] cublasLtHandle_t handle() const { return handle_; }
  /// What the heuristics recommended, by product: equal layers, evaluation and the tuner ask once.
  [[nodiscard]] std::map<MatmulDesc, std::vector<Algorithm>>& recommended() { return recommended_; }

 private:
  std::map<MatmulDesc, std::vector<Algorithm>> recommended_;
  const Api* api_ = nullptr;
  Device device_;
  cublasLtHandle_t handle_ = nullptr;
  std::string unusable_;
};
[[nodiscard]] Library& library(Context& context);
[[nodiscard]] std::string library_version();  ///< "13.0.2", the loaded version; "missing" when it cannot be loaded

/// Owns a descriptor, a layout or a preference.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

}  // namespace lockstep::ops::cublaslt
