#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <cudnn.h>

#include <lockstep/kernels/detail/loaded_api.hpp>
#include <lockstep/runtime/context/context.hpp>

/// cuDNN 9 through its graph ("backend") C interface: attributes of descriptors are set one by one, then the
/// descriptors are finalised. A failed call throws UnsupportedError if cuDNN does not support the call, OutOfMemory if
/// memory is short, otherwise Error. The text of the error has the expression, the status and cuDNN's last error
/// message.
namespace lockstep::ops::cudnn {

/// The functions of libcudnn that the provider uses. The library is loaded when a convolution is first planned, so that
/// programs start on machines without the library. libcudnn itself loads its other libraries (engines and heuristics,
/// 350 MB) when they are needed.
struct Api {
  const SharedLibrary* from = nullptr;
  LOCKSTEP_FUNCTION(get_version, cudnnGetVersion);
  LOCKSTEP_FUNCTION(get_error_string, cudnnGetErrorString);
  LOCKSTEP_FUNCTION(get_last_error_string, cudnnGetLastErrorString);
  LOCKSTEP_FUNCTION(create, cudnnCreate);
  LOCKSTEP_FUNCTION(destroy, cudnnDestroy);
  LOCKSTEP_FUNCTION(set_stream, cudnnSetStream);
  LOCKSTEP_FUNCTION(create_descriptor, cudnnBackendCreateDescriptor);
  LOCKSTEP_FUNCTION(destroy_descriptor, cudnnBackendDestroyDescriptor);
  LOCKSTEP_FUNCTION(set_attribute, cudnnBackendSetAttribute);
  LOCKSTEP_FUNCTION(get_attribute, cudnnBackendGetAttribute);
  LOCKSTEP_FUNCTION(finalize, cudnnBackendFinalize);
  LOCKSTEP_FUNCTION(execute, cudnnBackendExecute);
};

/// Loads libcudnn once. Returns why libcudnn cannot be used (not found, too old, or another major version), or an empty
/// string if it can be used.
[[nodiscard]] const std::string& unusable();
/// Returns the functions of libcudnn. Throws UnsupportedError with the text of unusable() when libcudnn cannot be used.
[[nodiscard]] const Api& api();
/// Returns the text for a number that cudnnGetVersion() returns: "9.19.0" for 91900.
[[nodiscard]] std::string version_text(std::size_t version);
/// Returns why version `running` of cuDNN cannot serve a program built with version `built`, or "" if it can.
[[nodiscard]] std::string version_problem(std::size_t built, std::size_t running);

/// Throws unless `status` is CUDNN_STATUS_SUCCESS; `expression` is the text of the failed call.
void check(cudnnStatus_t status, const char* expression);

/// Owns one backend descriptor of cuDNN. Move-only; not thread safe.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  [[nodiscard]] cudnnBackendDescriptor_t get() const { return raw_.get(); }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, std::int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    const cudnnBackendDescriptor_t raw = other.get();
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }
  void set(cudnnBackendAttributeName_t name, std::span<const Descriptor> others);
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void finalize();

  /// Returns the number of values that the attribute `name` has.
  [[nodiscard]] std::int64_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    return read(name, type, 0, nullptr);
  }
  template <class T>
  [[nodiscard]] std::vector<T> values(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    std::vector<T> all(static_cast<std::size_t>(count(name, type)));
    all.resize(static_cast<std::size_t>(read(name, type, static_cast<std::int64_t>(all.size()), all.data())));
    return all;
  }
  template <class T>
  [[nodiscard]] T value(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    T one{};
    (void)read(name, type, 1, &one);
    return one;
  }
  /// Returns at most `limit` values of the attribute `name`, whose values are descriptors of type `type`. This function
  /// creates the descriptors, and cuDNN fills them in.
  [[nodiscard]] std::vector<Descriptor> descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                                    std::int64_t limit) const;

 private:
  std::int64_t read(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                    void* values) const;
  struct Destroy {
    void operator()(cudnnBackendDescriptor_t raw) const noexcept;
  };
  std::unique_ptr<std::remove_pointer_t<cudnnBackendDescriptor_t>, Destroy> raw_;
};

class PlanCache;

/// The device to plan for: either the device of `handle`, or `properties` made from a description in JSON (as in
/// CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). Planning with `properties` needs no GPU and no driver.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
  std::optional<Device> device{};  ///< device of the handle; each thread that makes plans makes this device current
};
/// Returns finalised properties of the device that `json` describes; the device need not be in this machine.
[[nodiscard]] Descriptor describe_device(const std::string& json);

/// Holds the plans of a context, and a cuDNN handle on the context's device and stream. If no handle can be made, holds
/// the reason instead.
class Library {
 public:
  explicit Library(Context& context);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();
  /// Returns the handle. handle() and targets() throw UnsupportedError when libcudnn cannot be used or finds no driver.
  [[nodiscard]] cudnnHandle_t handle() const;
  [[nodiscard]] bool usable() const { return problem_.empty(); }
  /// Returns at most `count` targets, one for each thread that makes plans, and at least one target. The first target
  /// has handle(); each other target has a handle of its own, which only makes plans. Returns fewer targets if cuDNN
  /// cannot create more handles.
  [[nodiscard]] std::vector<Target> targets(int count);
  [[nodiscard]] PlanCache& plans() { return *plans_; }

 private:
  Device device_;
  cudnnHandle_t handle_ = nullptr;
  std::vector<cudnnHandle_t> others_;  ///< handles of targets(), kept because plans may need the handles that made them
  std::unique_ptr<PlanCache> plans_;
  std::string problem_;
};
[[nodiscard]] Library& library(Context& context);

}  // namespace lockstep::ops::cudnn

/// Calls a function of Api and checks the returned status. The text of an error contains `expression`.
#define LOCKSTEP_CUDNN_CHECK(expression) ::lockstep::ops::cudnn::check((expression), #expression)
