#include <lockstep/kernels/cublaslt/cublaslt.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>

namespace lockstep::ops::cublaslt {
namespace {

using Loaded = detail::LoadedApi<Api>;

Loaded load() {
  return detail::load_api<Api>("cuBLASLt", {concat("libcublasLt.so.", CUBLAS_VER_MAJOR), LOCKSTEP_CUBLASLT_LIBRARY},
                               [](const Api& api) -> std::string {
                                 if (api.get_version() / 10000 != CUBLAS_VER_MAJOR) {
                                   return concat("cuBLASLt is version ", api.get_version(),
                                                 ", this program was built with ", CUBLAS_VERSION);
                                 }
                                 return {};
                               });
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
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH ||
      status == CUBLAS_STATUS_INVALID_VALUE) {  // INVALID_VALUE: cuBLASLt may refuse what its own heuristics proposed
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
