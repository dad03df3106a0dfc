# lockstep_site_packages(result): sets `result` to the site-packages folders of the python3 on PATH, in import order; empty
# without python3, and with LOCKSTEP_SITE_PACKAGES=OFF. NVIDIA's Python packages put libraries and headers there, as
# nvidia/NAME/lib and nvidia/NAME/include.
function(lockstep_site_packages result)
  set(folders "")
  if(DEFINED LOCKSTEP_SITE_PACKAGES AND NOT LOCKSTEP_SITE_PACKAGES)
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  find_program(LOCKSTEP_PYTHON NAMES python3)
  mark_as_advanced(LOCKSTEP_PYTHON)
  if(LOCKSTEP_PYTHON)
    execute_process(
      COMMAND ${LOCKSTEP_PYTHON} -c
        "import sys; print(';'.join(p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))))"
      OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      set(folders "")
    endif()
  endif()
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# lockstep_find_nvidia(PREFIX header NAMES library names FOLDER names in site-packages): sets PREFIX_LIBRARY and
# PREFIX_INCLUDE_DIR. Sets PREFIX_OF_PYTHON to TRUE when they belong to a Python package and PREFIX_ROOT does not name them.
# Order: PREFIX_ROOT, the CUDA toolkit, the system, Python's site-packages. The header next to the library comes first, so
# that both have one version.
function(lockstep_find_nvidia prefix header)
  cmake_parse_arguments(F "" "" "FOLDER;NAMES" ${ARGN})
  lockstep_site_packages(folders)
  set(sites "")
  foreach(folder IN LISTS folders)
    list(TRANSFORM F_FOLDER PREPEND ${folder}/nvidia/ OUTPUT_VARIABLE of_folder)
    list(APPEND sites ${of_folder})
  endforeach()
  set(of_python "/(site|dist)-packages/nvidia/")
  set(named FALSE)
  if(${prefix}_ROOT OR NOT "$ENV{${prefix}_ROOT}" STREQUAL "")
    set(named TRUE)
  endif()
  if(NOT sites AND NOT named AND "${${prefix}_LIBRARY}" MATCHES "${of_python}")
    # The cached values come from an earlier configure run that looked in site-packages.
    unset(${prefix}_LIBRARY CACHE)
    unset(${prefix}_INCLUDE_DIR CACHE)
  endif()
  find_library(${prefix}_LIBRARY NAMES ${F_NAMES} HINTS ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_LIBRARY_DIR}
    PATHS ${sites} PATH_SUFFIXES lib lib64)
  set(beside "")
  if(${prefix}_LIBRARY)
    get_filename_component(folder "${${prefix}_LIBRARY}" DIRECTORY)
    set(beside "${folder}/../include")
  endif()
  find_path(${prefix}_INCLUDE_DIR NAMES ${header} HINTS "${beside}" ${CUDAToolkit_INCLUDE_DIRS}
    PATHS ${sites} PATH_SUFFIXES include)
  mark_as_advanced(${prefix}_LIBRARY ${prefix}_INCLUDE_DIR)
  set(${prefix}_OF_PYTHON FALSE PARENT_SCOPE)
  if(NOT named AND "${${prefix}_LIBRARY}" MATCHES "${of_python}")
    set(${prefix}_OF_PYTHON TRUE PARENT_SCOPE)
  endif()
endfunction()

# lockstep_header_version(result file MACRO...): sets `result` to the numbers of `#define MACRO number`, joined by dots;
# empty when one of the macros is missing.
function(lockstep_header_version result file)
  set(version "")
  if(EXISTS "${file}")
    foreach(macro IN LISTS ARGN)
      file(STRINGS "${file}" line REGEX "^#define[ \t]+${macro}[ \t]+[0-9]+" LIMIT_COUNT 1)
      if(NOT line)
        set(version "")
        break()
      endif()
      string(REGEX REPLACE "^#define[ \t]+${macro}[ \t]+([0-9]+).*" "\\1" number "${line}")
      list(APPEND version ${number})
    endforeach()
  endif()
  string(REPLACE ";" "." version "${version}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()
