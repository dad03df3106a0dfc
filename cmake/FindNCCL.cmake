# Finds NCCL in NCCL_ROOT, the CUDA toolkit, the system or the Python package nvidia-nccl. Sets NCCL::NCCL and
# NCCL_VERSION.

include(${CMAKE_CURRENT_LIST_DIR}/LockstepSitePackages.cmake)
lockstep_find_nvidia(NCCL nccl.h NAMES nccl libnccl.so.2 FOLDER nccl)
lockstep_header_version(NCCL_VERSION "${NCCL_INCLUDE_DIR}/nccl.h" NCCL_MAJOR NCCL_MINOR NCCL_PATCH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
