# Functions that the scripts here share.

# must(COMMAND...): runs the command and shows its output, which it leaves in `output`. Ends the script if the command
# fails.
function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output ECHO_OUTPUT_VARIABLE
                  ECHO_ERROR_VARIABLE)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit status ${status}: ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# must_answer(COMMAND...): runs a host that has learned y = 3 x - 1, and checks its answer for x = 2.
function(must_answer)
  must(${ARGN})
  if(NOT output STREQUAL "5.000\n")
    message(FATAL_ERROR "the answer is ${output}, expected 5.000")
  endif()
endfunction()

# must_count(COMMAND...): checks that two ranks of a host with MPI count themselves.
function(must_count)
  must(${ARGN})
  if(NOT output MATCHES "rank 0 of 2, the last is 1" OR NOT output MATCHES "rank 1 of 2, the last is 1")
    message(FATAL_ERROR "expected two ranks that know each other")
  endif()
endfunction()

# must_be(shared|static PROGRAM): checks that it needs liblockstep.so.0, or none of our libraries.
find_program(READELF NAMES readelf)
function(must_be kind program)
  if(NOT READELF)
    return()
  endif()
  execute_process(COMMAND ${READELF} -d ${program} OUTPUT_VARIABLE dynamic)
  if(NOT dynamic MATCHES "NEEDED" OR (kind STREQUAL "static" AND dynamic MATCHES "liblockstep") OR
     (kind STREQUAL "shared" AND NOT dynamic MATCHES "liblockstep(_mpi)?\\.so\\.0\\]"))
    message(FATAL_ERROR "${program} is not linked as ${kind}:\n${dynamic}")
  endif()
endfunction()

# install_components(PREFIX): installs from BUILD_DIR the components that a host in C or Fortran needs, into a new
# folder. It then moves the folder, as the package must not know where it was made.
function(install_components prefix)
  file(REMOVE_RECURSE ${prefix} ${prefix}.first)
  foreach(component Runtime Development)
    must(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix}.first --config ${CONFIG} --component ${component})
  endforeach()
  file(RENAME ${prefix}.first ${prefix})
endfunction()

# ask_pkg_config(KIND FILE): sets `flags` to the flags that pkg-config prints. If KIND is static, it names the archives,
# since the linker prefers a shared library that lies beside its archive.
function(ask_pkg_config kind file)
  set(static "")
  if(kind STREQUAL "static")
    set(static --static)
  endif()
  must(${PKG_CONFIG} ${static} --cflags --libs ${file})
  separate_arguments(flags UNIX_COMMAND "${output}")
  if(static)
    list(TRANSFORM flags REPLACE "^-l(lockstep|lockstep_mpi)$" "-l:lib\\1.a")
  else()
    list(APPEND flags -Wl,-rpath,${prefix}/${LIBDIR})
  endif()
  set(flags ${flags} PARENT_SCOPE)
endfunction()
