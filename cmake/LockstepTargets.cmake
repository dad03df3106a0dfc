# Functions that declare floors, rooms and ops, and set the options of targets.

include(GNUInstallDirs)

# Sets the compile and link options that every target of lockstep has.
function(lockstep_compile_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>  # CMake 3.25 does not know CUDA_STANDARD 20
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                              -Wno-missing-field-initializers>  # designated initialisers may leave fields at their defaults
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${LOCKSTEP_WERROR}>>:-Werror>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${LOCKSTEP_WERROR}>>:-Werror=all-warnings>)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT APPLE)
    # A program does not load libraries that it does not use, as with Debian's g++: hello_ranks needs no oneDNN.
    target_link_options(${target} PRIVATE $<HOST_LINK:LINKER:--as-needed>)
  endif()
  if(LOCKSTEP_LINKER)  # only for programs: installed libraries are linked as their users link them
    target_link_options(${target} PRIVATE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<HOST_LINK:-fuse-ld=${LOCKSTEP_LINKER}>>)
  endif()
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOCKSTEP_SANITIZE}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
    # clang warns that loops with a sanitizer's checks are not vectorised.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-pass-failed>)
  endif()
endfunction()

# lockstep_compile_for_size(files/json.cpp ...): compiles files for size: files that plan, or read and write files, and
# that no training step runs. They then need half of the space. A Debug build, and a sanitizer, compile them like the
# other files.
function(lockstep_compile_for_size)
  if(NOT LOCKSTEP_SANITIZE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-Os>)
    set_property(SOURCE ${ARGN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# lockstep_precompile(target [gtest/gtest.h ...]): with LOCKSTEP_PRECOMPILED, compiles the standard headers and the given ones
# once for the target. Compilers do not mix options of optimisation, addressing and OpenMP: files with their own options skip
# the precompiled headers (SKIP_PRECOMPILE_HEADERS). With precompiled headers ccache finds an object only if all options are
# equal. runtime, kernels and comm have none, as builds without CUDA give them other options.
function(lockstep_precompile target)
  if(LOCKSTEP_PRECOMPILED)
    # Without the headers' times in it, ccache recognises the precompiled file (scripts/lib.sh).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>)
    set(headers ${ARGN} <algorithm> <array> <cmath> <filesystem> <fstream> <functional> <map> <memory> <optional> <span> <sstream>
      <string> <thread> <vector>)
    target_precompile_headers(${target} PRIVATE ${headers})
    # The checksum of the headers' text. With CCACHE_PCH_EXTSUM ccache reads it instead of the precompiled file, 70 MB that it
    # would read for every object.
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir)
    list(TRANSFORM headers PREPEND "#include ")
    list(JOIN headers "\n" lines)
    file(CONFIGURE OUTPUT ${folder}/headers.cpp CONTENT "${lines}\n" @ONLY)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -E -P ${folder}/headers.cpp RESULT_VARIABLE failed OUTPUT_VARIABLE text
      ERROR_QUIET)
    if(NOT failed)
      string(SHA256 sum "${text}")
      file(CONFIGURE OUTPUT ${folder}/cmake_pch.hxx.gch.sum CONTENT "${sum}\n" @ONLY)
      configure_file(${folder}/cmake_pch.hxx.gch.sum ${folder}/cmake_pch.hxx.pch.sum COPYONLY)
    endif()
  endif()
endfunction()

# Calls lockstep_compile_settings() for a test program and appends LOCKSTEP_TEST_OPTIONS.
function(lockstep_test_settings target)
  lockstep_compile_settings(${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${LOCKSTEP_TEST_OPTIONS}>)
endfunction()

# Calls lockstep_compile_settings() for command lines, examples, tools or benchmarks and appends LOCKSTEP_PROGRAM_OPTIONS.
function(lockstep_program_settings target)
  lockstep_compile_settings(${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${LOCKSTEP_PROGRAM_OPTIONS}>)
endfunction()

# lockstep_add_floor(NAME runtime DEPENDS ... [ASKS MPI] SOURCES ...)
# Makes a static library lockstep_NAME (lockstep::NAME). Its headers are <lockstep/NAME/...>: the include root of the build
# tree holds one link to the floor's folder. A floor sees its own root and, by DEPENDS, those of the floors below; an upward
# include does not compile. ASKS: the floor's files see LOCKSTEP_HAS_MPI (0 or 1). Only floors that ask have the macro, so a
# build without MPI takes the objects of the others from ccache. -Wundef finds files that use it without asking. Without
# SOURCES the floor consists of rooms, lockstep_add_room(), whose files see fewer headers than the users of the floor.
function(lockstep_add_floor)
  cmake_parse_arguments(F "" "NAME" "DEPENDS;ASKS;SOURCES" ${ARGN})
  set(root ${PROJECT_BINARY_DIR}/include/${F_NAME})
  file(MAKE_DIRECTORY ${root}/lockstep)
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/lockstep/${F_NAME} SYMBOLIC)
  add_library(lockstep_${F_NAME} STATIC ${F_SOURCES})
  add_library(lockstep::${F_NAME} ALIAS lockstep_${F_NAME})
  set(unity ${LOCKSTEP_UNITY})
  if(F_NAME STREQUAL kernels)  # the files of ops share names of their own
    set(unity OFF)
  endif()
  set_target_properties(lockstep_${F_NAME} PROPERTIES EXPORT_NAME ${F_NAME} UNITY_BUILD ${unity})
  set(scope PUBLIC)
  if(NOT F_SOURCES)
    set(scope INTERFACE)
  endif()
  target_include_directories(lockstep_${F_NAME} ${scope}
    $<BUILD_INTERFACE:${root}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(lockstep_${F_NAME} PUBLIC ${F_DEPENDS})
  foreach(library IN LISTS F_ASKS)
    target_compile_definitions(lockstep_${F_NAME} PRIVATE LOCKSTEP_HAS_${library}=${LOCKSTEP_HAS_${library}})
  endforeach()
  lockstep_compile_settings(lockstep_${F_NAME})
  target_compile_options(lockstep_${F_NAME} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wundef>)
  if(NOT LOCKSTEP_SANITIZE)  # liblockstep.so is linked with --gc-sections, and leaves out the functions that C does not reach
    target_compile_options(lockstep_${F_NAME} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections>)
  endif()
  if(LOCKSTEP_SANITIZE AND F_NAME STREQUAL app)  # app has no part of a step: it is compiled as programs are, in half the time
    target_compile_options(lockstep_${F_NAME} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${LOCKSTEP_PROGRAM_OPTIONS}>)
  endif()
  if(LOCKSTEP_CLANG_TIDY)
    find_program(LOCKSTEP_CLANG_TIDY_PROGRAM NAMES clang-tidy clang-tidy-14 REQUIRED)
    set_target_properties(lockstep_${F_NAME} PROPERTIES CXX_CLANG_TIDY "${LOCKSTEP_CLANG_TIDY_PROGRAM};--quiet")
  endif()
endfunction()

# lockstep_add_room(nn plan BELOW batch model SOURCES plan.cpp ...)
# Declares a room: a folder of a floor, whose files are compiled into the floor's library. The files see only the headers of
# their room, of the rooms BELOW, which are declared before, and of the floors below: each room has its own include root. The
# target lockstep_nn_plan has these roots.
function(lockstep_add_room floor room)
  cmake_parse_arguments(R "" "" "BELOW;SOURCES" ${ARGN})
  set(root ${PROJECT_BINARY_DIR}/include/${floor}_)
  file(MAKE_DIRECTORY ${root}${room}/lockstep/${floor})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${room} ${root}${room}/lockstep/${floor}/${room} SYMBOLIC)
  foreach(below IN LISTS R_BELOW)
    if(NOT TARGET lockstep_${floor}_${below})
      message(FATAL_ERROR "room ${floor}/${room} is above ${below}, expected a room that is declared before it")
    endif()
  endforeach()
  list(TRANSFORM R_BELOW PREPEND ${root} OUTPUT_VARIABLE roots)
  list(TRANSFORM R_SOURCES PREPEND ${room}/)
  target_sources(lockstep_${floor} PRIVATE ${R_SOURCES})
  if(LOCKSTEP_UNITY)  # CMake joins only files without properties of their own
    target_include_directories(lockstep_${floor} PRIVATE ${PROJECT_BINARY_DIR}/include/${floor})
  else()
    set_property(SOURCE ${R_SOURCES} APPEND PROPERTY INCLUDE_DIRECTORIES ${root}${room} ${roots})
  endif()
  add_library(lockstep_${floor}_${room} INTERFACE)
  target_include_directories(lockstep_${floor}_${room} INTERFACE
    ${root}${room} ${roots} $<TARGET_PROPERTY:lockstep_${floor},INCLUDE_DIRECTORIES>)
endfunction()

# add_op(matmul BACKENDS cpu cuda onednn cublaslt): adds the files of one op by its name. Contract and checks, one file per
# backend, the cases and the test must all exist; a backend's file that exists must be listed.
function(add_op name)
  cmake_parse_arguments(OP "" "" "BACKENDS" ${ARGN})
  set(unknown ${OP_UNPARSED_ARGUMENTS} ${OP_BACKENDS})
  list(REMOVE_ITEM unknown cpu cuda onednn cudnn cublaslt)
  if(unknown)
    message(FATAL_ERROR "add_op(${name}): '${unknown}' is not known, expected BACKENDS and any of cpu, cuda, onednn, cudnn, cublaslt")
  endif()
  set(must ${name}.hpp ${name}.cpp ../tests/kernels/${name}_cases.hpp ../tests/kernels/${name}_test.cpp)
  foreach(backend cpu cuda onednn cudnn cublaslt)
    set(extension cpp)
    if(backend STREQUAL cuda)
      set(extension cu)
    endif()
    set(file ${backend}/${name}.${extension})
    if(backend IN_LIST OP_BACKENDS)
      list(APPEND must ${file})
      string(TOUPPER ${backend} upper)
      if(backend STREQUAL cpu)
        set_property(GLOBAL APPEND PROPERTY LOCKSTEP_CPU_SOURCES ${file})
      elseif(LOCKSTEP_HAS_${upper})
        target_sources(lockstep_kernels PRIVATE ${file})
      endif()
      if(backend STREQUAL cuda)
        list(APPEND must ../tests/kernels/${name}_faults.json)
        set_property(GLOBAL APPEND PROPERTY LOCKSTEP_CUDA_OPS ${name})
      endif()
    elseif(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
      message(FATAL_ERROR "add_op(${name}): kernels/${file} exists, but ${backend} is not in BACKENDS")
    endif()
  endforeach()
  foreach(file IN LISTS must)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
      message(FATAL_ERROR "add_op(${name}): ${file} is missing (relative to kernels/)")
    endif()
  endforeach()
  target_sources(lockstep_kernels PRIVATE ${name}.cpp)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_OPS ${name})
endfunction()
