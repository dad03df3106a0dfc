# Finds gloo with its TCP transport as the target GLOO::gloo. gloo's own package file, GlooConfig.cmake, is not used: its
# target has no namespace, and some packages lack the file. This file is installed next to lockstepConfig.cmake.
# Sets GLOO_FOUND, GLOO_VERSION. GLOO_ROOT: the folder to look in first.
find_path(GLOO_INCLUDE_DIR gloo/transport/tcp/device.h)
find_library(GLOO_LIBRARY gloo)
mark_as_advanced(GLOO_INCLUDE_DIR GLOO_LIBRARY)
if(GLOO_INCLUDE_DIR)
  file(STRINGS ${GLOO_INCLUDE_DIR}/gloo/config.h _lines REGEX "define +GLOO_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" GLOO_VERSION "${_lines}")
  string(REPLACE ";" "." GLOO_VERSION "${GLOO_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GLOO REQUIRED_VARS GLOO_LIBRARY GLOO_INCLUDE_DIR VERSION_VAR GLOO_VERSION)
if(GLOO_FOUND AND NOT TARGET GLOO::gloo)
  add_library(GLOO::gloo UNKNOWN IMPORTED)
  set_target_properties(GLOO::gloo PROPERTIES IMPORTED_LOCATION ${GLOO_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${GLOO_INCLUDE_DIR})
endif()
