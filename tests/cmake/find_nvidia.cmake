# cmake -DSOURCE=.. -DWORK=.. -DGENERATOR=.. -P find_nvidia.cmake: FindNCCL, FindCUDNN and FindNVJPEG against folders made here, with the system
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

set(nvjpeg_header "#define NVJPEG_VER_MAJOR 13\n#define NVJPEG_VER_MINOR 3\n#define NVJPEG_VER_PATCH 2\n")
set(cudnn_header "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 0\n")
function(nccl_header result minor)
  set(${result} "#define NCCL_MAJOR 2\n#define NCCL_MINOR ${minor}\n#define NCCL_PATCH 9\n" PARENT_SCOPE)
endfunction()

# expect(case "line;line" cmake options...)
function(expect case lines)
  set(result ${WORK}/${case}/result.txt)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${PYTHONPATH} CUDA_PATH= NCCL_ROOT= CUDNN_ROOT= NVJPEG_ROOT=
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
expect(nothing "NCCL none;CUDNN none;NVJPEG none" -DLOCKSTEP_PYTHON=/bin/false)

find_program(python3 NAMES python3)
if(python3)
  set(PYTHONPATH ${WORK}/python/site-packages)
  set(nvidia ${PYTHONPATH}/nvidia)
  nccl_header(text 28)
  make_library(${nvidia}/nccl NCCL libnccl.so.2 nccl.h "${text}")
  make_library(${nvidia}/cudnn CUDNN libcudnn.so.9 cudnn_version.h "${cudnn_header}")
  make_library(${nvidia}/cu13 NVJPEG libnvjpeg.so.13 nvjpeg.h "${nvjpeg_header}")
  expect(site_packages "NCCL 2.28.9 ${nvidia}/nccl/lib/libnccl.so.2 ${nvidia}/nccl/include;\
CUDNN 9.19.0 ${nvidia}/cudnn/lib/libcudnn.so.9 ${nvidia}/cudnn/include;\
NVJPEG 13.3.2 ${nvidia}/cu13/lib/libnvjpeg.so.13 ${nvidia}/cu13/include")
  expect(not_python "NCCL none;CUDNN none;NVJPEG none" -DLOCKSTEP_SITE_PACKAGES=OFF)
  file(REMOVE ${WORK}/site_packages/result.txt)
  expect(site_packages "NCCL none;CUDNN none;NVJPEG none" -DLOCKSTEP_SITE_PACKAGES=OFF)
  expect(named "NCCL 2.28.9 ${nvidia}/nccl/lib/libnccl.so.2 ${nvidia}/nccl/include;CUDNN none;NVJPEG none"
    -DLOCKSTEP_SITE_PACKAGES=OFF -DNCCL_ROOT=${nvidia}/nccl)

  set(root ${WORK}/root)
  nccl_header(text 27)
  make_library(${root} NCCL libnccl.so.2 nccl.h "${text}")
  expect(root "NCCL 2.27.9 ${root}/lib/libnccl.so.2 ${root}/include;\
CUDNN 9.19.0 ${nvidia}/cudnn/lib/libcudnn.so.9 ${nvidia}/cudnn/include;\
NVJPEG 13.3.2 ${nvidia}/cu13/lib/libnvjpeg.so.13 ${nvidia}/cu13/include" -DNCCL_ROOT=${root})

  # Each package of CUDA 12 has its own folder.
  file(RENAME ${nvidia}/cu13 ${nvidia}/nvjpeg)
  expect(nvjpeg_12 "NCCL none;CUDNN none;NVJPEG 13.3.2 ${nvidia}/nvjpeg/lib/libnvjpeg.so.13 ${nvidia}/nvjpeg/include"
    -DLOCKSTEP_SITE_PACKAGES=OFF -DNVJPEG_ROOT=${nvidia}/nvjpeg)
  file(REMOVE_RECURSE ${nvidia}/nccl ${nvidia}/cudnn)
  expect(nvjpeg_alone "NCCL none;CUDNN none;NVJPEG 13.3.2 ${nvidia}/nvjpeg/lib/libnvjpeg.so.13 ${nvidia}/nvjpeg/include")
else()
  message(STATUS "site_packages and root: skipped, no python3")
endif()

set(PYTHONPATH "")
# If a header is named, the library beside it is taken, if there is one.
set(root ${WORK}/header)
make_library(${root} NVJPEG libnvjpeg.so.13 nvjpeg.h "${nvjpeg_header}")
expect(header "NCCL none;CUDNN none;NVJPEG 13.3.2 ${root}/lib/libnvjpeg.so.13 ${root}/include"
  -DNVJPEG_INCLUDE_DIR=${root}/include -DLOCKSTEP_PYTHON=/bin/false)
file(REMOVE_RECURSE ${root}/lib)
expect(header_alone "NCCL none;CUDNN none;NVJPEG 13.3.2 NVJPEG_LIBRARY-NOTFOUND ${root}/include"
  -DNVJPEG_INCLUDE_DIR=${root}/include -DLOCKSTEP_PYTHON=/bin/false)

set(root ${WORK}/no_version)
make_library(${root} NCCL libnccl.so.2 nccl.h "#define NCCL_MAJOR 2\n")
expect(no_version "NCCL  ${root}/lib/libnccl.so.2 ${root}/include;CUDNN none;NVJPEG none" -DNCCL_ROOT=${root}
  -DLOCKSTEP_PYTHON=/bin/false)
