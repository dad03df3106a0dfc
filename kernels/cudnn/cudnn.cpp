#include <lockstep/kernels/cudnn/cudnn.hpp>

#include <algorithm>
#include <array>

#include <lockstep/kernels/cudnn/plan_cache.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>

namespace lockstep::ops::cudnn {
namespace {

/// The first version of cuDNN with device properties, and with the size of the workspace as an attribute of engine
/// configurations.
constexpr std::size_t kOldest = 90800;

using Loaded = detail::LoadedApi<Api>;

Loaded load() {
  return detail::load_api<Api>("cuDNN", {"libcudnn.so.9", LOCKSTEP_CUDNN_LIBRARY},
                               [](const Api& api) { return version_problem(CUDNN_VERSION, api.get_version()); });
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

const std::string& unusable() {
  return loaded().problem;
}

const Api& api() {
  const Loaded& found = loaded();
  require<UnsupportedError>(found.problem.empty(), found.problem);
  return found.api;
}

std::string version_text(std::size_t version) {
  return concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::string version_problem(std::size_t built, std::size_t running) {
  if (running / 10000 != built / 10000 || running < kOldest) {
    return concat("cuDNN is version ", version_text(running), ", this program was built with ", version_text(built),
                  " and needs ", built / 10000, ".x, at least ", version_text(kOldest));
  }
  return {};
}

void check(cudnnStatus_t status, const char* expression) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]] {
    return;
  }
  const Api& functions = api();
  std::array<char, 2048> last{};
  functions.get_last_error_string(last.data(), last.size() - 1);
  std::string detail = last.data();
  std::replace(detail.begin(), detail.end(), '\n', ' ');
  const std::string text = concat("cuDNN ", version_text(functions.get_version()), ": ", expression, ": ",
                                  functions.get_error_string(status), detail.empty() ? "" : ": ", detail);
  switch (status / 1000) {  // status / 1000 is the category of a status
    case CUDNN_STATUS_NOT_SUPPORTED / 1000:
      throw UnsupportedError(text);
    default:
      break;
  }
  if (status == CUDNN_STATUS_ALLOC_FAILED || status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED) {
    throw OutOfMemory(text);
  }
  throw Error(text);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  LOCKSTEP_CUDNN_CHECK(api().create_descriptor(type, &raw));
  raw_.reset(raw);
}

void Descriptor::Destroy::operator()(cudnnBackendDescriptor_t raw) const noexcept {
  static_cast<void>(loaded().api.destroy_descriptor(raw));
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                     const void* values) {
  LOCKSTEP_CUDNN_CHECK(api().set_attribute(raw_.get(), name, type, count, values));
}

void Descriptor::set(cudnnBackendAttributeName_t name, std::span<const Descriptor> others) {
  std::vector<cudnnBackendDescriptor_t> raw;
  raw.reserve(others.size());
  for (const Descriptor& other : others) {
    raw.push_back(other.get());
  }
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()), raw.data());
}

void Descriptor::finalize() {
  LOCKSTEP_CUDNN_CHECK(api().finalize(raw_.get()));
}

std::int64_t Descriptor::read(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                              void* values) const {
  std::int64_t found = 0;
  LOCKSTEP_CUDNN_CHECK(api().get_attribute(raw_.get(), name, type, count, &found, values));
  return found;
}

std::vector<Descriptor> Descriptor::descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                                std::int64_t limit) const {
  std::vector<Descriptor> all;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < limit; ++i) {
    all.emplace_back(type);
    raw.push_back(all.back().get());
  }
  // The number of values is not queried first: for the settings of an engine cuDNN would return 0, and for the results
  // of heuristics a number that is too large.
  const std::int64_t found = read(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, limit, raw.data());
  all.erase(all.begin() + std::min(found, limit), all.end());
  return all;
}

Descriptor describe_device(const std::string& json) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(json.size()) + 1,
                 json.c_str());  // the size includes the terminating zero
  properties.finalize();
  return properties;
}

Library::Library(Context& context)
    : device_(context.device()), plans_(std::make_unique<PlanCache>()), problem_(unusable()) {
  if (!problem_.empty()) {
    return;
  }
  const cuda::DeviceGuard guard(device_);
  const Api& functions = api();
  const cudnnStatus_t status = functions.create(&handle_);
  // Without a driver, or with a hidden GPU, the status depends on the version of cuDNN. So any status but these two
  // means that cuDNN cannot be used.
  if (status != CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_ALLOC_FAILED) {
    problem_ = concat("cuDNN ", version_text(functions.get_version()), " does not start on ", device_, ": ",
                      functions.get_error_string(status));
    handle_ = nullptr;
    return;
  }
  LOCKSTEP_CUDNN_CHECK(status);
  try {
    LOCKSTEP_CUDNN_CHECK(functions.set_stream(handle_, context.stream().cuda_handle()));
  } catch (...) {
    static_cast<void>(functions.destroy(handle_));
    throw;
  }
}

Library::~Library() {
  if (handle_ != nullptr) {
    const cuda::DeviceGuard guard(device_, std::nothrow);
    plans_.reset();
    for (const cudnnHandle_t other : others_) {
      static_cast<void>(loaded().api.destroy(other));
    }
    static_cast<void>(loaded().api.destroy(handle_));
  }
}

cudnnHandle_t Library::handle() const {
  require<UnsupportedError>(problem_.empty(), problem_);
  return handle_;
}

std::vector<Target> Library::targets(int count) {
  std::vector<Target> all{{handle(), nullptr, device_}};
  const cuda::DeviceGuard guard(device_);
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(std::max(count, 1)); ++i) {
    if (i == others_.size()) {
      cudnnHandle_t made = nullptr;
      if (api().create(&made) != CUDNN_STATUS_SUCCESS) {
        break;  // stop here: fewer threads will make the plans
      }
      others_.push_back(made);
    }
    all.push_back({others_[i], nullptr, device_});
  }
  return all;
}

Library& library(Context& context) {
  return context.library<Library>([&] { return std::make_shared<Library>(context); });
}

}  // namespace lockstep::ops::cudnn
