# oneDNN as the target DNNL::dnnl. Its own package file is not used: the one of Debian 12 is an error, even for QUIET,
# without the OpenCL headers, which nothing here needs. Installed beside lockstepConfig.cmake.
# Sets DNNL_FOUND, DNNL_VERSION. DNNL_ROOT: where to look first.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
mark_as_advanced(DNNL_INCLUDE_DIR DNNL_LIBRARY)
if(DNNL_INCLUDE_DIR)
  file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h _lines REGEX "define +DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" DNNL_VERSION "${_lines}")
  string(REPLACE ";" "." DNNL_VERSION "${DNNL_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DNNL REQUIRED_VARS DNNL_LIBRARY DNNL_INCLUDE_DIR VERSION_VAR DNNL_VERSION)
if(DNNL_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
