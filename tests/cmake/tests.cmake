# Tests of our find modules: configure runs of a small project, without a compiler.
add_test(NAME cmake.find_nvidia COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
  -DWORK=${CMAKE_CURRENT_BINARY_DIR}/find_nvidia "-DGENERATOR=${CMAKE_GENERATOR}" -P ${CMAKE_CURRENT_LIST_DIR}/find_nvidia.cmake)
set_tests_properties(cmake.find_nvidia PROPERTIES LABELS "cmake" TIMEOUT 120)

# Checks that the libraries that a host program embeds need nothing that only the owner of a process may do. (Of
# kernels, nvcc's own start-up code calls exit.)
find_program(LOCKSTEP_NM NAMES nm)
mark_as_advanced(LOCKSTEP_NM)
if(LOCKSTEP_NM)
  add_test(NAME cmake.symbols COMMAND ${CMAKE_COMMAND} -DNM=${LOCKSTEP_NM}
    "-DARCHIVES=$<TARGET_FILE:lockstep_runtime>;$<TARGET_FILE:lockstep_comm>;$<TARGET_FILE:lockstep_nn>"
    -DWANTED_IN=$<TARGET_FILE:lockstep_launch>
    "-DFORBIDDEN=fork|vfork|exec[a-z]*|posix_spawn.*|signal|sigaction|setenv|unsetenv|putenv|exit|MPI_Init|MPI_Init_thread"
    -P ${CMAKE_CURRENT_LIST_DIR}/symbols.cmake)
  set_tests_properties(cmake.symbols PROPERTIES LABELS "cmake" TIMEOUT 120)
else()
  lockstep_skip_tests(NAMES cmake.symbols REASON "needs nm")
endif()

# Checks that README.md shows a part of a real program.
add_test(NAME cmake.readme_snippet COMMAND ${CMAKE_COMMAND} -DPROGRAM=${PROJECT_SOURCE_DIR}/examples/own_model/main.cpp
  -DDOCUMENT=${PROJECT_SOURCE_DIR}/README.md -P ${CMAKE_CURRENT_LIST_DIR}/snippet.cmake)
set_tests_properties(cmake.readme_snippet PROPERTIES LABELS "cmake" TIMEOUT 20)
