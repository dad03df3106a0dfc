# Test programs that run ops, launchers and kernels of the library on the stand-in for the CUDA runtime and the emulation.
include(${CMAKE_CURRENT_LIST_DIR}/faults.cmake)

# lockstep_add_emulated_ops(NAME kernels.cuda OPS op... TESTS objects)
# NAME.race and NAME.asan: the tests (an object library) linked with the library's own archives, in which the objects of
# nvcc are passed over for the emulated copies, and with the stand-in. Kernels and emulation are instrumented, the tests
# are not. NAME.coverage: the asan run has reached every line of the kernels.
# NAME.faults.race and .asan: every planted fault is caught, or every LOCKSTEP_FAULT_SHARDS-th.
function(lockstep_add_emulated_ops)
  cmake_parse_arguments(T "" "NAME;TESTS" "OPS" ${ARGN})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/emulated)
  lockstep_plant_faults(OPS ${T_OPS} FOLDER ${folder})
  set(kernels ${T_OPS})
  list(TRANSFORM kernels PREPEND ${folder}/)
  list(TRANSFORM kernels APPEND .cu.cpp)
  set(archives $<TARGET_FILE:lockstep_test_support> $<TARGET_FILE:lockstep_op_case> $<TARGET_FILE:lockstep_kernels>
    $<TARGET_FILE:lockstep_runtime>)
  set(includes ${folder}/include ${folder} ${PROJECT_SOURCE_DIR}
    $<TARGET_PROPERTY:lockstep_kernels,INTERFACE_INCLUDE_DIRECTORIES>
    $<TARGET_PROPERTY:lockstep_runtime,INTERFACE_INCLUDE_DIRECTORIES>)
  string(REPLACE "." "_" target test_${T_NAME})
  foreach(variant IN LISTS LOCKSTEP_EMULATION_VARIANTS)
    set(program ${target}_${variant})
    add_library(${program}_kernels OBJECT ${kernels})
    target_include_directories(${program}_kernels BEFORE PRIVATE ${includes})
    lockstep_emulated_kernel_settings(${program}_kernels ${variant})
    lockstep_compile_settings(${program}_kernels)
    target_compile_options(${program}_kernels PRIVATE $<$<STREQUAL:${variant},asan>:--coverage>)
    add_executable(${program} $<TARGET_OBJECTS:${T_TESTS}> ${PROJECT_SOURCE_DIR}/tests/virtual_gpu/kernels/environment.cpp
      ${PROJECT_SOURCE_DIR}/tests/virtual_gpu/kernels/launch.cpp)
    add_dependencies(${program} lockstep_test_support lockstep_op_case lockstep_kernels lockstep_runtime)
    target_include_directories(${program} BEFORE PRIVATE ${includes})
    target_compile_definitions(${program} PRIVATE LOCKSTEP_CUDA_STANDIN=1)
    target_link_libraries(${program} PRIVATE ${program}_kernels ${archives} lockstep_emulation_${variant}
      lockstep_cuda_standin GTest::gtest Threads::Threads $<TARGET_NAME_IF_EXISTS:OpenMP::OpenMP_CXX>
      $<$<BOOL:${LOCKSTEP_HAS_ONEDNN}>:DNNL::dnnl>)
    target_link_options(${program} PRIVATE $<$<STREQUAL:${variant},asan>:--coverage>)
    lockstep_compile_settings(${program})
    add_test(NAME ${T_NAME}.${variant} COMMAND ${program} --gtest_brief=1)
    add_executable(${program}_faults planted_faults_test.cpp)
    target_include_directories(${program}_faults PRIVATE ${folder})
    target_compile_definitions(${program}_faults PRIVATE EMULATED_BUILD="${variant}"
      EMULATED_TESTS="$<TARGET_FILE:${program}>")
    target_link_libraries(${program}_faults PRIVATE GTest::gtest_main)
    lockstep_compile_settings(${program}_faults)
    add_dependencies(${program}_faults ${program})
    add_test(NAME ${T_NAME}.faults.${variant} COMMAND ${program}_faults)
    set_tests_properties(${T_NAME}.${variant} ${T_NAME}.faults.${variant} PROPERTIES TIMEOUT 900 COST 300
      LABELS "kernels;emulation" ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT};CUDA_VISIBLE_DEVICES=")
    set_property(TEST ${T_NAME}.faults.${variant} APPEND PROPERTY ENVIRONMENT
      GTEST_TOTAL_SHARDS=${LOCKSTEP_FAULT_SHARDS} GTEST_SHARD_INDEX=0)
  endforeach()
  find_program(LOCKSTEP_GCOV NAMES gcov)
  mark_as_advanced(LOCKSTEP_GCOV)
  if(LOCKSTEP_GCOV)
    add_test(NAME ${T_NAME}.coverage COMMAND ${PROJECT_SOURCE_DIR}/tests/virtual_gpu/kernels/coverage.sh
      ${PROJECT_SOURCE_DIR}/kernels/cuda ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}_asan_kernels.dir)
    set_tests_properties(${T_NAME}.asan PROPERTIES FIXTURES_SETUP ${T_NAME}.ran)
    set_tests_properties(${T_NAME}.coverage PROPERTIES FIXTURES_REQUIRED ${T_NAME}.ran LABELS "kernels;emulation"
      TIMEOUT 120)
  endif()
endfunction()
