# What the scripts here share.

# must(COMMAND...): runs it and shows what it prints, which is in `output` afterwards. Ends the script where it fails.
function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output ECHO_OUTPUT_VARIABLE
                  ECHO_ERROR_VARIABLE)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit status ${status}: ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# must_answer(COMMAND...): the hosts have learned y = 3 x - 1 and are asked for x = 2.
function(must_answer)
  must(${ARGN})
  if(NOT output STREQUAL "5.000\n")
    message(FATAL_ERROR "the answer is ${output}, expected 5.000")
  endif()
endfunction()

# install_components(PREFIX): those that a host in C or Fortran needs, from BUILD_DIR, into a folder that is made anew. It is
# moved afterwards: the package must not know where it was made.
function(install_components prefix)
  file(REMOVE_RECURSE ${prefix} ${prefix}.first)
  foreach(component Runtime Development)
    must(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix}.first --config ${CONFIG} --component ${component})
  endforeach()
  file(RENAME ${prefix}.first ${prefix})
endfunction()
