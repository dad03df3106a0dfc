# Finds libdeflate as the target LIBDEFLATE::libdeflate. libdeflate's own package file is not used: versions before 1.15, as
# in Debian 12, have none. This file is installed next to lockstepConfig.cmake.
# Sets LIBDEFLATE_FOUND, LIBDEFLATE_VERSION. LIBDEFLATE_ROOT: the folder to look in first.
find_path(LIBDEFLATE_INCLUDE_DIR libdeflate.h)
find_library(LIBDEFLATE_LIBRARY deflate)
mark_as_advanced(LIBDEFLATE_INCLUDE_DIR LIBDEFLATE_LIBRARY)
if(LIBDEFLATE_INCLUDE_DIR)
  file(STRINGS ${LIBDEFLATE_INCLUDE_DIR}/libdeflate.h _lines REGEX "define +LIBDEFLATE_VERSION_(MAJOR|MINOR)[ \t]")
  string(REGEX REPLACE "[^0-9;]" "" LIBDEFLATE_VERSION "${_lines}")
  string(REPLACE ";" "." LIBDEFLATE_VERSION "${LIBDEFLATE_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LIBDEFLATE REQUIRED_VARS LIBDEFLATE_LIBRARY LIBDEFLATE_INCLUDE_DIR
  VERSION_VAR LIBDEFLATE_VERSION)
if(LIBDEFLATE_FOUND AND NOT TARGET LIBDEFLATE::libdeflate)
  add_library(LIBDEFLATE::libdeflate UNKNOWN IMPORTED)
  set_target_properties(LIBDEFLATE::libdeflate PROPERTIES IMPORTED_LOCATION ${LIBDEFLATE_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LIBDEFLATE_INCLUDE_DIR})
endif()
