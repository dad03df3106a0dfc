# Functions that declare tests.

# lockstep_skip_tests(NAMES comm.hello_ranks ... REASON "text" [LABELS ..]): adds ctest entries for tests that this
# build cannot run. ctest reports them as skipped; scripts/count-tests.awk prints the reason, which is their whole
# output.
function(lockstep_skip_tests)
  cmake_parse_arguments(T "" "REASON" "NAMES;LABELS" ${ARGN})
  foreach(name IN LISTS T_NAMES)
    string(REGEX REPLACE "\\..*" "" floor ${name})
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "${T_REASON}")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "." LABELS "${floor};${T_LABELS}")
  endforeach()
endfunction()
set(LOCKSTEP_NO_MPI "needs MPI, this build has none")
set(LOCKSTEP_NO_CUDA "needs the CUDA toolkit, this build has none")

# lockstep_add_test_entry(NAME COMMAND .. [TIMEOUT s] [LABELS ..] [ENVIRONMENT ..] [PROCESSORS n]): adds an entry of
# ctest, with the label of its floor.
function(lockstep_add_test_entry name)
  cmake_parse_arguments(E "" "TIMEOUT;PROCESSORS" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  set(timeout 240)
  if(E_TIMEOUT)
    set(timeout ${E_TIMEOUT})
  endif()
  if(LOCKSTEP_SANITIZE)
    math(EXPR timeout "3 * ${timeout}")  # allows for code with sanitizers on a slow machine
  endif()
  string(REGEX REPLACE "\\..*" "" floor ${name})
  add_test(NAME ${name} COMMAND ${E_COMMAND})
  # Long tests begin first, so that none of them runs alone at the end.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} COST ${timeout} LABELS "${floor};${E_LABELS}"
    ENVIRONMENT "${E_ENVIRONMENT}")
  if(E_PROCESSORS)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${E_PROCESSORS})
  endif()
endfunction()

# Adds a GoogleTest program: test_FLOOR_NAME for floor.name.
function(lockstep_add_test_program name)
  cmake_parse_arguments(P "" "" "SOURCES;LINK" ${ARGN})
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${P_SOURCES})
  target_link_libraries(${target} PRIVATE ${P_LINK} lockstep_test_support)
  lockstep_test_settings(${target})
  if(LOCKSTEP_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM lockstep_test_headers)
  endif()
endfunction()

# lockstep_add_test(NAME runtime.stream SOURCES ... LINK lockstep::runtime [RANKS 2 3] [STARTS_RANKS] [PARTS n] [LABELS ..]
#                   [TIMEOUT s])
# A program; one ctest entry, or with RANKS one entry per number of ranks, run under mpirun. Without MPI such
# entries are skipped and the program, which may include MPI's header, is not built. STARTS_RANKS: it calls mpirun itself.
# PARTS: n entries, which ctest can run at the same time, with a part of its tests each; for programs that take minutes.
function(lockstep_add_test)
  cmake_parse_arguments(T "STARTS_RANKS" "NAME;TIMEOUT;PARTS" "SOURCES;LINK;RANKS;LABELS" ${ARGN})
  if(T_RANKS AND NOT LOCKSTEP_HAS_MPI)
    list(TRANSFORM T_RANKS PREPEND ${T_NAME}.ranks)
    lockstep_skip_tests(NAMES ${T_RANKS} REASON ${LOCKSTEP_NO_MPI} LABELS mpi ${T_LABELS})
    return()
  endif()
  lockstep_add_test_program(${T_NAME} SOURCES ${T_SOURCES} LINK ${T_LINK})
  string(REPLACE "." "_" target test_${T_NAME})
  foreach(ranks IN LISTS T_RANKS)
    lockstep_add_test_entry(${T_NAME}.ranks${ranks} COMMAND ${LOCKSTEP_MPIRUN} -np ${ranks} $<TARGET_FILE:${target}>
      TIMEOUT ${T_TIMEOUT} LABELS mpi ${T_LABELS} ENVIRONMENT ${LOCKSTEP_RANKS_ENVIRONMENT} PROCESSORS 2)
  endforeach()
  set(environment ${LOCKSTEP_TEST_ENVIRONMENT})
  if(T_STARTS_RANKS)
    set(environment ${LOCKSTEP_RANKS_ENVIRONMENT})
  endif()
  if(T_PARTS)
    foreach(part RANGE 1 ${T_PARTS})
      math(EXPR index "${part} - 1")
      lockstep_add_test_entry(${T_NAME}.part${part} COMMAND ${target} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS}
        ENVIRONMENT ${environment} GTEST_TOTAL_SHARDS=${T_PARTS} GTEST_SHARD_INDEX=${index})
    endforeach()
  elseif(NOT T_RANKS)
    lockstep_add_test_entry(${T_NAME} COMMAND ${target} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS} ENVIRONMENT ${environment})
  endif()
endfunction()

# lockstep_add_test_room(NAME nn.data [FOLDER data] TESTS loader ... [SOURCES ...] LINK lockstep::nn)
# The tests of a folder in one program, test_nn_data, which links and starts once. For each of TESTS FOLDER/TEST_test.cpp and an entry
# nn.TEST, which runs what this file holds (support/main.cpp); the target test_nn_TEST builds the program. For tests that need nothing
# of a process: no MPI, no functions in the place of a library's, no label of their own.
function(lockstep_add_test_room)
  cmake_parse_arguments(R "" "NAME;FOLDER" "TESTS;SOURCES;LINK" ${ARGN})
  string(REPLACE "." "_" target test_${R_NAME})
  string(REGEX REPLACE "\\..*" "" floor ${R_NAME})
  set(sources ${R_TESTS})
  if(R_FOLDER)
    list(TRANSFORM sources PREPEND ${R_FOLDER}/)
  endif()
  list(TRANSFORM sources APPEND _test.cpp)
  lockstep_add_test_program(${R_NAME} SOURCES ${sources} ${R_SOURCES} LINK ${R_LINK})
  foreach(test IN LISTS R_TESTS)
    lockstep_add_test_entry(${floor}.${test} COMMAND ${target} --file=${test} ENVIRONMENT ${LOCKSTEP_TEST_ENVIRONMENT})
    if(NOT TARGET test_${floor}_${test})
      add_custom_target(test_${floor}_${test} DEPENDS ${target})
    endif()
  endforeach()
endfunction()

# lockstep_call_main(TARGET PROGRAM): a test program calls the main() of another program as PROGRAM_main(), with _ for -
# (support/run_here.hpp). main.cpp is compiled once more, for all tests; the program's other objects are linked.
function(lockstep_call_main target program)
  string(REPLACE - _ name ${program}_main)
  get_target_property(libraries ${program} LINK_LIBRARIES)
  if(NOT TARGET ${name})
    get_target_property(folder ${program} SOURCE_DIR)
    get_target_property(main ${program} SOURCES)
    list(FILTER main INCLUDE REGEX "main\\.cpp$")
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${folder}/${main})
    target_compile_definitions(${name} PRIVATE main=${name})
    target_link_libraries(${name} PRIVATE ${libraries})
    lockstep_program_settings(${name})
  endif()
  target_link_libraries(${target} PRIVATE
    $<TARGET_OBJECTS:${name}> $<FILTER:$<TARGET_OBJECTS:${program}>,EXCLUDE,/main.cpp> ${libraries})
  add_dependencies(${target} ${name} ${program})
endfunction()
