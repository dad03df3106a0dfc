// Replaces oneDNN's dnnl_primitive_execute in a test program that counts allocations (count_allocations.hpp). oneDNN's
// allocations while a primitive runs are not counted.
#include <dlfcn.h>

#include <dnnl.h>

#include "tests/comm/count_allocations.hpp"

extern "C" dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                                const dnnl_exec_arg_t* arguments) {
  using Execute = dnnl_status_t (*)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t*);
  static const auto execute = reinterpret_cast<Execute>(dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  if (execute == nullptr) {
    return dnnl_runtime_error;
  }
  count_allocations::ignored = true;
  const dnnl_status_t status = execute(primitive, stream, count, arguments);
  count_allocations::ignored = false;
  ++count_allocations::bracketed;
  return status;
}
