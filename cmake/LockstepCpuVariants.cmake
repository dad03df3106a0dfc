# LOCKSTEP_CAN_JOIN: true if this compiler and its tools can make variants: x86-64, ELF, GNU ld (lld has no
# --force-group-allocation), objcopy, nm and readelf. LOCKSTEP_JOIN_PROGRAMS has the tools for join_cpu_variants.cmake.
set(LOCKSTEP_CAN_JOIN OFF)
find_program(LOCKSTEP_JOIN_LINKER NAMES ld.bfd ld)
mark_as_advanced(LOCKSTEP_JOIN_LINKER)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8 AND CMAKE_EXECUTABLE_FORMAT STREQUAL "ELF"
   AND LOCKSTEP_JOIN_LINKER AND CMAKE_OBJCOPY AND CMAKE_NM AND CMAKE_READELF)
  execute_process(COMMAND ${LOCKSTEP_JOIN_LINKER} --help OUTPUT_VARIABLE _help ERROR_QUIET)
  if(_help MATCHES "--force-group-allocation")
    set(LOCKSTEP_CAN_JOIN ON)
  endif()
endif()
set(LOCKSTEP_JOIN_PROGRAMS -DLINKER=${LOCKSTEP_JOIN_LINKER} -DNM=${CMAKE_NM} -DOBJCOPY=${CMAKE_OBJCOPY} -DREADELF=${CMAKE_READELF})

# lockstep_add_host_kernels(TARGET FILE...): adds files whose loops are compiled for the processors of LOCKSTEP_CPU_ARCH.
#
# With one processor the files become sources of the target, with LOCKSTEP_CPU_OPTIONS.
#
# With a list, such as x86-64-v3;x86-64-v4, each file is compiled once for each processor. Each result is a variant. A process
# chooses its variant when it makes the first Context (runtime/machine/instruction_sets.hpp).
#
# join_cpu_variants.cmake makes one object of all variants. In this object only the functions that the files define, and types
# of exceptions, are visible. Each visible function is a jump to the same function of the chosen variant. Inline functions and
# instances of templates stay hidden: otherwise the linker could take the code of std::vector from the variant of the newest
# processor, and an older processor would stop at the first instruction that it lacks. The target's property
# LOCKSTEP_JOINED_OBJECT has the object's name, because $<TARGET_OBJECTS:> leaves this object out.
function(lockstep_add_host_kernels target)
  list(LENGTH LOCKSTEP_CPU_ARCH variants)
  if(variants LESS 2)
    target_sources(${target} PRIVATE ${ARGN})
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${LOCKSTEP_CPU_OPTIONS}")
    return()
  endif()
  set(joined ${CMAKE_CURRENT_BINARY_DIR}/${target}_variants.o)
  set(arguments "")
  set(depends ${PROJECT_SOURCE_DIR}/cmake/join_cpu_variants.cmake)
  foreach(architecture IN LISTS LOCKSTEP_CPU_ARCH)
    set(objects ${target}_${architecture})
    add_library(${objects} OBJECT ${ARGN})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD OFF)
    get_target_property(tidy ${target} CXX_CLANG_TIDY)
    if(tidy)
      set_target_properties(${objects} PROPERTIES CXX_CLANG_TIDY "${tidy}")
    endif()
    lockstep_compile_settings(${objects})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    # The join needs machine code, not what -flto leaves.
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS> ${LOCKSTEP_CPU_OPTIONS} -march=${architecture} -fno-lto)
    list(APPEND arguments "-DOBJECTS_${architecture}=$<JOIN:$<TARGET_OBJECTS:${objects}>,|>")
    list(APPEND depends ${objects} $<TARGET_OBJECTS:${objects}>)
  endforeach()
  list(JOIN LOCKSTEP_CPU_ARCH "|" names)
  add_custom_command(OUTPUT ${joined} VERBATIM DEPENDS ${depends} COMMENT "Joining the variants of ${target}"
    COMMAND ${CMAKE_COMMAND} "-DVARIANTS=${names}" ${arguments} -DOUTPUT=${joined} -DCOMPILER=${CMAKE_CXX_COMPILER}
    "-DFLAGS=${CMAKE_CXX_COMPILER_ARG1} ${CMAKE_CXX_FLAGS}" ${LOCKSTEP_JOIN_PROGRAMS} -P ${PROJECT_SOURCE_DIR}/cmake/join_cpu_variants.cmake)
  set_source_files_properties(${joined} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE ${joined})
  set_property(TARGET ${target} PROPERTY LOCKSTEP_JOINED_OBJECT ${joined})
endfunction()
