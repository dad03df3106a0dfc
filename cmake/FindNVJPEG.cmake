# Finds nvJPEG in NVJPEG_ROOT, the CUDA toolkit, the system or the Python package nvidia-nvjpeg. Sets
# NVJPEG_INCLUDE_DIR, NVJPEG_VERSION and, if found, NVJPEG_LIBRARY, which only running needs. If the user has set
# NVJPEG_INCLUDE_DIR, takes it and the library next to it.

include(${CMAKE_CURRENT_LIST_DIR}/LockstepSitePackages.cmake)
set(_names nvjpeg libnvjpeg.so.13 libnvjpeg.so.12)
if(NVJPEG_INCLUDE_DIR AND NOT NVJPEG_LIBRARY)
  find_library(NVJPEG_LIBRARY NAMES ${_names} PATHS ${NVJPEG_INCLUDE_DIR}/.. PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)
endif()
lockstep_find_nvidia(NVJPEG nvjpeg.h NAMES ${_names} FOLDER cu13 nvjpeg)
lockstep_header_version(NVJPEG_VERSION "${NVJPEG_INCLUDE_DIR}/nvjpeg.h" NVJPEG_VER_MAJOR NVJPEG_VER_MINOR NVJPEG_VER_PATCH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NVJPEG REQUIRED_VARS NVJPEG_INCLUDE_DIR VERSION_VAR NVJPEG_VERSION)
