# cmake -DSOURCE=.. -DWORK=.. -DGENERATOR=.. -P find_nvidia.cmake: FindNCCL and FindCUDNN against folders made here, with the system
# and the CUDA toolkit out of sight. Layouts: nothing; Python's site-packages (no libNAME.so, only the versioned name);
# the same with LOCKSTEP_SITE_PACKAGES=OFF, at once and in a build folder that has found them; NAME_ROOT, which wins over
# site-packages and may lie there; a header without its version macros.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})

function(make_library root name library header text)
  file(MAKE_DIRECTORY ${root}/lib ${root}/include)
  file(WRITE ${root}/lib/${library} "")
  file(WRITE ${root}/include/${header} "${text}")
endfunction()

set(cudnn_header "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 0\n")
function(nccl_header result minor)
  set(${result} "#define NCCL_MAJOR 2\n#define NCCL_MINOR ${minor}\n#define NCCL_PATCH 9\n" PARENT_SCOPE)
endfunction()

# expect(case "line;line" cmake options...)
function(expect case lines)
  set(result ${WORK}/${case}/result.txt)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${PYTHONPATH} CUDA_PATH= NCCL_ROOT= CUDNN_ROOT=
      ${CMAKE_COMMAND} -G "${GENERATOR}" -S ${CMAKE_CURRENT_LIST_DIR}/find_nvidia -B ${WORK}/${case}/build
      -DLOCKSTEP_CMAKE=${SOURCE}/cmake -DRESULT=${result} -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
      -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=ON ${ARGN}
    OUTPUT_VARIABLE log ERROR_VARIABLE log RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${case}: configure failed:\n${log}")
  endif()
  file(STRINGS ${result} got)
  if(NOT got STREQUAL lines)
    message(FATAL_ERROR "${case}: found\n  ${got}\nexpected\n  ${lines}\n${log}")
  endif()
  message(STATUS "${case}: ok")
endfunction()

set(PYTHONPATH "")
expect(nothing "NCCL none;CUDNN none" -DLOCKSTEP_PYTHON=/bin/false)

find_program(python3 NAMES python3)
if(python3)
  set(PYTHONPATH ${WORK}/python/site-packages)
  set(nvidia ${PYTHONPATH}/nvidia)
  nccl_header(text 28)
  make_library(${nvidia}/nccl NCCL libnccl.so.2 nccl.h "${text}")
  make_library(${nvidia}/cudnn CUDNN libcudnn.so.9 cudnn_version.h "${cudnn_header}")
  expect(site_packages "NCCL 2.28.9 ${nvidia}/nccl/lib/libnccl.so.2 ${nvidia}/nccl/include;\
CUDNN 9.19.0 ${nvidia}/cudnn/lib/libcudnn.so.9 ${nvidia}/cudnn/include")
  expect(not_python "NCCL none;CUDNN none" -DLOCKSTEP_SITE_PACKAGES=OFF)
  file(REMOVE ${WORK}/site_packages/result.txt)
  expect(site_packages "NCCL none;CUDNN none" -DLOCKSTEP_SITE_PACKAGES=OFF)
  expect(named "NCCL 2.28.9 ${nvidia}/nccl/lib/libnccl.so.2 ${nvidia}/nccl/include;CUDNN none"
    -DLOCKSTEP_SITE_PACKAGES=OFF -DNCCL_ROOT=${nvidia}/nccl)

  set(root ${WORK}/root)
  nccl_header(text 27)
  make_library(${root} NCCL libnccl.so.2 nccl.h "${text}")
  expect(root "NCCL 2.27.9 ${root}/lib/libnccl.so.2 ${root}/include;\
CUDNN 9.19.0 ${nvidia}/cudnn/lib/libcudnn.so.9 ${nvidia}/cudnn/include" -DNCCL_ROOT=${root})
else()
  message(STATUS "site_packages and root: skipped, no python3")
endif()

set(PYTHONPATH "")
set(root ${WORK}/no_version)
make_library(${root} NCCL libnccl.so.2 nccl.h "#define NCCL_MAJOR 2\n")
expect(no_version "NCCL  ${root}/lib/libnccl.so.2 ${root}/include;CUDNN none" -DNCCL_ROOT=${root}
  -DLOCKSTEP_PYTHON=/bin/false)
