#include <lockstep/kernels/cublaslt/cublaslt.hpp>

#include <dlfcn.h>

#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep::ops::cublaslt {
namespace {

struct Loaded {
  Api api;
  std::string problem;
};

Loaded load() {
  Loaded loaded;
  const std::string name = concat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  // By name, which the environment of a program decides; then where it was when this was built.
  void* handle = nullptr;
  for (const char* path : {name.c_str(), LOCKSTEP_CUBLASLT_LIBRARY}) {
    if (handle == nullptr) {
      handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr && loaded.problem.empty()) {
        const char* text = ::dlerror();
        loaded.problem = concat("cuBLASLt cannot be loaded: ", text != nullptr ? text : path);
      }
    }
  }
  if (handle == nullptr) {
    return loaded;
  }
  loaded.problem.clear();
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr && loaded.problem.empty()) {
      loaded.problem = concat(name, " has no function ", symbol);
    }
  };
  Api& api = loaded.api;
  find(api.get_version, "cublasLtGetVersion");
  find(api.get_status_string, "cublasLtGetStatusString");
  find(api.create, "cublasLtCreate");
  find(api.destroy, "cublasLtDestroy");
  find(api.matmul, "cublasLtMatmul");
  find(api.desc_create, "cublasLtMatmulDescCreate");
  find(api.desc_destroy, "cublasLtMatmulDescDestroy");
  find(api.desc_set, "cublasLtMatmulDescSetAttribute");
  find(api.layout_create, "cublasLtMatrixLayoutCreate");
  find(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(api.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(api.preference_create, "cublasLtMatmulPreferenceCreate");
  find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(api.algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(api.algo_init, "cublasLtMatmulAlgoInit");
  find(api.algo_check, "cublasLtMatmulAlgoCheck");
  find(api.algo_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(api.algo_set, "cublasLtMatmulAlgoConfigSetAttribute");
  if (loaded.problem.empty() && api.get_version() / 10000 != CUBLAS_VER_MAJOR) {
    loaded.problem =
        concat("cuBLASLt is version ", api.get_version(), ", this program was built with ", CUBLAS_VERSION);
  }
  return loaded;  // never unloaded: its CUDA modules outlive every owner that we could name
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

std::string library_version() {
  if (!loaded().problem.empty()) {
    return "missing";
  }
  const std::size_t version = loaded().api.get_version();
  return concat(version / 10000, '.', version % 10000 / 100, '.', version % 100);
}

void check(const Api& api, cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]] {
    return;
  }
  const std::string text = concat("cuBLASLt ", api.get_version(), ": ", call, ": ", api.get_status_string(status));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) {
    throw UnsupportedError(text);
  }
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    throw OutOfMemory(text);
  }
  throw Error(text);
}

Library::Library(Device device) : device_(device), unusable_(loaded().problem) {
  if (!unusable_.empty()) {
    return;
  }
  api_ = &loaded().api;
  const cuda::DeviceGuard guard(device);
  const cublasStatus_t status = api_->create(&handle_);
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_ALLOC_FAILED) {
    unusable_ = concat("cuBLASLt does not start on ", device, ": ", api_->get_status_string(status));
    return;
  }
  check(*api_, status, "cublasLtCreate");
}

Library::~Library() {
  if (handle_ != nullptr) {
    const cuda::DeviceGuard guard(device_, std::nothrow);
    api_->destroy(handle_);
  }
}

void Library::require_usable() const {
  require<UnsupportedError>(unusable_.empty(), "matmul: ", unusable_);
}

Library& library(Context& context) {
  return context.library<Library>([&] { return std::make_shared<Library>(context.device()); });
}

}  // namespace lockstep::ops::cublaslt
