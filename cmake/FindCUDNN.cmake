# Finds cuDNN in CUDNN_ROOT, the CUDA toolkit, the system or the Python package nvidia-cudnn. Sets CUDNN::CUDNN and
# CUDNN_VERSION. libcudnn loads its parts (graph, ops, engines) itself, from its own folder.

include(${CMAKE_CURRENT_LIST_DIR}/LockstepSitePackages.cmake)
lockstep_find_nvidia(CUDNN cudnn_version.h NAMES cudnn libcudnn.so.9 FOLDER cudnn)
lockstep_header_version(CUDNN_VERSION "${CUDNN_INCLUDE_DIR}/cudnn_version.h" CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)

if(CUDNN_FOUND AND NOT TARGET CUDNN::CUDNN)
  add_library(CUDNN::CUDNN UNKNOWN IMPORTED)
  set_target_properties(CUDNN::CUDNN PROPERTIES IMPORTED_LOCATION "${CUDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CUDNN_INCLUDE_DIR}")
endif()
