#include "tests/kernels/failing_cudnn.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace {

void* real(const char* name) {
  static void* const library = dlopen(LOCKSTEP_REAL_CUDNN, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

struct State {
  std::mutex mutex;
  std::map<cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t> types;
  cudnnBackendDescriptorType_t failing{};
  int left = 0, seen = 0;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
};
State& state() {
  static State one;
  return one;
}

}  // namespace

#define LOCKSTEP_REAL(function) reinterpret_cast<decltype(&::function)>(real(#function))

extern "C" {

void failing_cudnn_fail(cudnnBackendDescriptorType_t type, int n, cudnnStatus_t status) {
  const std::lock_guard lock(state().mutex);
  state().failing = type;
  state().left = n;
  state().seen = 0;
  state().status = status;
}
int failing_cudnn_finalised(void) {
  return state().seen;
}

size_t cudnnGetVersion(void) {
  return LOCKSTEP_REAL(cudnnGetVersion)();
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return LOCKSTEP_REAL(cudnnGetErrorString)(status);
}
void cudnnGetLastErrorString(char* message, size_t size) {
  LOCKSTEP_REAL(cudnnGetLastErrorString)(message, size);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return LOCKSTEP_REAL(cudnnCreate)(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return LOCKSTEP_REAL(cudnnDestroy)(handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return LOCKSTEP_REAL(cudnnSetStream)(handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
  const cudnnStatus_t status = LOCKSTEP_REAL(cudnnBackendCreateDescriptor)(type, made);
  const std::lock_guard lock(state().mutex);
  state().types[*made] = type;
  return status;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return LOCKSTEP_REAL(cudnnBackendDestroyDescriptor)(descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  return LOCKSTEP_REAL(cudnnBackendSetAttribute)(descriptor, name, type, count, values);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, int64_t* found, void* values) {
  return LOCKSTEP_REAL(cudnnBackendGetAttribute)(descriptor, name, type, count, found, values);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  {
    const std::lock_guard lock(state().mutex);
    if (state().types[descriptor] == state().failing) {
      ++state().seen;
      if (state().left > 0 && --state().left == 0) {
        return state().status;
      }
    }
  }
  return LOCKSTEP_REAL(cudnnBackendFinalize)(descriptor);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return LOCKSTEP_REAL(cudnnBackendExecute)(handle, plan, pack);
}
}
