# Installation: static libraries, public headers as <lockstep/FLOOR/*.hpp>, and a package for find_package(lockstep).

include(CMakePackageConfigHelpers)

# lockstep::lockstep is everything that a host program embeds. A program that needs less links lockstep::runtime, ::kernels,
# ::comm (::comm_mpi with MPI's own header) or ::nn. Programs that start their own ranks also link lockstep::launch, training
# programs lockstep::app.
add_library(lockstep INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep)
target_link_libraries(lockstep INTERFACE lockstep_nn)
set(_targets lockstep lockstep_runtime lockstep_kernels lockstep_comm lockstep_launch lockstep_nn lockstep_app)
if(TARGET lockstep_comm_mpi)
  target_link_libraries(lockstep INTERFACE lockstep_comm_mpi)
  list(APPEND _targets lockstep_comm_mpi)
endif()
if(TARGET lockstep_comm_gloo)  # not a part of lockstep::lockstep: a host program has its own communicators
  list(APPEND _targets lockstep_comm_gloo)
endif()

if(NOT LOCKSTEP_INSTALL)
  return()
endif()

set(_floors runtime kernels comm nn app)
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

# Folders without public headers are not installed: those of backends and of CUDA, detail/, parts/, the folders inside
# nn/layers, nn/optim and nn/step. Headers that need MPI or gloo are installed only with it.
set(_internal REGEX "/nn/(layers|optim|step)/[a-z]+$" EXCLUDE
  PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE PATTERN "onednn" EXCLUDE PATTERN "cudnn" EXCLUDE
  PATTERN "cublaslt" EXCLUDE PATTERN "nvjpeg" EXCLUDE PATTERN "detail" EXCLUDE PATTERN "nccl" EXCLUDE PATTERN "images" EXCLUDE PATTERN "cli" EXCLUDE)
if(NOT LOCKSTEP_HAS_MPI)
  list(APPEND _internal PATTERN "mpi" EXCLUDE)
endif()
if(NOT LOCKSTEP_HAS_GLOO)
  list(APPEND _internal PATTERN "gloo" EXCLUDE)
endif()
foreach(_floor IN LISTS _floors)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${_floor}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${_floor}
    FILES_MATCHING PATTERN "*.hpp" ${_internal})
endforeach()

# The find_dependency() calls of a program that links the static libraries, made from the link libraries of the floors.
set(LOCKSTEP_FIND_DEPENDENCIES "")
set(_known
  "Threads::Threads=Threads"
  "OpenMP::OpenMP_CXX=OpenMP COMPONENTS CXX"
  "MPI::MPI_CXX=MPI COMPONENTS CXX"
  "GLOO::gloo=GLOO"
  "DNNL::dnnl=DNNL"
  "NCCL::NCCL=NCCL"
  "ZLIB::ZLIB=ZLIB"
  "LIBDEFLATE::libdeflate=LIBDEFLATE"
  "JPEG::JPEG=JPEG"
  "PNG::PNG=PNG"
  "CUDA::[a-zA-Z_]+=CUDAToolkit"
  "nlohmann_json::nlohmann_json=nlohmann_json")
set(_linked ${_floors})
if(TARGET lockstep_comm_mpi)
  list(APPEND _linked comm_mpi)
endif()
if(TARGET lockstep_comm_gloo)
  list(APPEND _linked comm_gloo)
endif()
foreach(_floor IN LISTS _linked)
  get_target_property(_links lockstep_${_floor} INTERFACE_LINK_LIBRARIES)
  foreach(_link IN LISTS _links)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" _link "${_link}")
    if(_link MATCHES "^lockstep(::|_)|^\\$<BUILD_INTERFACE:" OR NOT _link MATCHES "::")
      continue()
    endif()
    set(_call "")
    foreach(_entry IN LISTS _known)
      string(REGEX MATCH "^(.*[^:])=(.*)$" _unused "${_entry}")
      if(_link MATCHES "^${CMAKE_MATCH_1}$")
        string(REGEX REPLACE "^.*[^:]=" "" _call "${_entry}")
      endif()
    endforeach()
    if(NOT _call)
      message(FATAL_ERROR "lockstep_${_floor} links ${_link}: add it to _known in cmake/LockstepInstall.cmake, "
                          "so that lockstepConfig.cmake can find it")
    endif()
    if(_call MATCHES "^MPI" AND NOT LOCKSTEP_FIND_DEPENDENCIES MATCHES "MPI_CXX_SKIP_MPICXX")
      string(APPEND LOCKSTEP_FIND_DEPENDENCIES "set(MPI_CXX_SKIP_MPICXX ON)\n")
    endif()
    if(NOT LOCKSTEP_FIND_DEPENDENCIES MATCHES "find_dependency\\(${_call}\\)")
      string(APPEND LOCKSTEP_FIND_DEPENDENCIES "find_dependency(${_call})\n")
    endif()
  endforeach()
endforeach()

# Prints a notice when the installation uses libraries of a Python's site-packages, which nobody has asked for.
lockstep_of_python(_of_python)
if(_of_python)
  foreach(_component Runtime Development)
    install(CODE "message(NOTICE \"lockstep: this installation uses ${_of_python} where a Python has put them. Another build: \
-DLOCKSTEP_SITE_PACKAGES=OFF, with NCCL_ROOT, CUDNN_ROOT and NVJPEG_ROOT.\")" COMPONENT ${_component})
  endforeach()
endif()

install(TARGETS ${_targets} EXPORT lockstepTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${_package})
set(LOCKSTEP_FORTRAN_SOURCES ${CMAKE_INSTALL_DATADIR}/lockstep/fortran)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/lockstepConfig.cmake INSTALL_DESTINATION ${_package} PATH_VARS LOCKSTEP_FORTRAN_SOURCES)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake ${CMAKE_CURRENT_LIST_DIR}/FindGLOO.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindLIBDEFLATE.cmake DESTINATION ${_package} COMPONENT Development)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake ${CMAKE_CURRENT_LIST_DIR}/LockstepSitePackages.cmake
  DESTINATION ${_package})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT Development)
foreach(program train_resnet train_text hello_ranks lockstep-cost lockstep-devices lockstep-info lockstep-pack lockstep-report lockstep-scale)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
if(TARGET train_resnet)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/recipes ${PROJECT_SOURCE_DIR}/examples/slurm
    DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
endif()
