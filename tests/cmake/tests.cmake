# Tests of our find modules: configure runs of a small project, without a compiler.
add_test(NAME cmake.find_nvidia COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
  -DWORK=${CMAKE_CURRENT_BINARY_DIR}/find_nvidia "-DGENERATOR=${CMAKE_GENERATOR}" -P ${CMAKE_CURRENT_LIST_DIR}/find_nvidia.cmake)
set_tests_properties(cmake.find_nvidia PROPERTIES LABELS "cmake" TIMEOUT 120)
