# Builds lockstep with this machine's compiler and toolkit. Sourced by gpu-check.sh.

# build_here: builds runtime and kernels on this machine, and then a program that uses them to fill a tensor on the GPU.
# Libraries that the other folders need may be missing on this machine. So the folder nn is configured but never built,
# nlohmann-json is replaced by an empty library, and zlib by the one function that runtime links.
build_here() {
  local tool reason='' build=$work/build
  for tool in cmake ninja nvcc c++ ar; do
    if ! command -v "$tool" > /dev/null; then reason="no $tool on this machine"; fi
  done
  mkdir -p "$build/program" "$build/none"
  cat > "$build/program/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(gpu_check LANGUAGES CXX)
set(LOCKSTEP_CUDA ON CACHE STRING "")
foreach(name NCCL CUDNN CUBLASLT NVJPEG MPI ONEDNN LIBDEFLATE)
  set(LOCKSTEP_\${name} OFF CACHE STRING "")
endforeach()
foreach(name TESTS BENCH EXAMPLES)
  set(LOCKSTEP_\${name} OFF CACHE BOOL "")
endforeach()
set(ZLIB_LIBRARY "$build/none/libz.a" CACHE STRING "")
set(ZLIB_INCLUDE_DIR "$build/none" CACHE STRING "")
file(WRITE "\${CMAKE_BINARY_DIR}/none/nlohmann_jsonConfig.cmake" "
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
endif()
")
set(nlohmann_json_DIR "\${CMAKE_BINARY_DIR}/none" CACHE STRING "")
add_subdirectory($repository lockstep EXCLUDE_FROM_ALL)
add_executable(fill_once main.cpp)
target_link_libraries(fill_once PRIVATE lockstep::kernels)
END
  cat > "$build/none/zlib.h" << 'END'
using Bytef = unsigned char;
extern "C" unsigned long crc32_z(unsigned long before, const Bytef* bytes, unsigned long count);
END
  printf '#include "zlib.h"\nunsigned long crc32_z(unsigned long before, const Bytef*, unsigned long) { return before; }\n' \
    > "$build/none/zlib.cpp"
  cat > "$build/program/main.cpp" << 'END'
#include <cstdio>
#include <vector>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>
#include <lockstep/runtime/base/version.hpp>

int main() {
  using namespace lockstep;
  std::puts(build_description().c_str());
  if (num_gpus() == 0) {
    std::puts("no CUDA device");
    return 77;
  }
  CudaContext context(Device::cuda(0));
  const Tensor device = Tensor::zeros(context, Shape{1001}, DType::f32);
  ops::fill(context, 2.5, device);
  std::vector<float> host(1001);
  copy(context, device, TensorView(std::span(host), Shape{1001}));
  context.synchronize();
  for (const float value : host) {
    if (!(value == 2.5F)) {
      std::puts("wrong value");
      return 1;
    }
  }
  std::puts("filled 1001 elements on the device");
}
END
  export build
  PATH=$own_path LD_LIBRARY_PATH=$own_libraries check "build here" 240 read_status bash -ec '
    c++ -c "$build/none/zlib.cpp" -o "$build/none/zlib.o"
    ar rcs "$build/none/libz.a" "$build/none/zlib.o"
    cmake -S "$build/program" -B "$build/tree" -G Ninja -DCMAKE_BUILD_TYPE=Release
    cmake --build "$build/tree"
    "$build/tree/fill_once"' || true
}
