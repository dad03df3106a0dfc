# lockstep_instruction_sets(RESULT options...): sets RESULT to the instruction sets of x86-64, joined by commas, that the C++
# compiler may use with CMAKE_CXX_FLAGS and these options; empty for the oldest x86-64 and on other processors. Compiles a file
# that reads the compiler's macros, so that -march=native and the options of a compiler wrapper (Spack's) count as in the
# build. runtime/machine/instruction_sets.cpp has the same names and asks the processor.
function(lockstep_instruction_sets result)
  set(${result} "" PARENT_SCOPE)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    return()
  endif()
  set(text "extern const char lockstep_sets[];\nconst char lockstep_sets[] = \"lockstep_sets=\"\n")
  foreach(name sse3 ssse3 fma sse4.1 sse4.2 movbe popcnt avx f16c lzcnt xop fma4 tbm bmi avx2 bmi2 avx512f avx512dq
          avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512vbmi2 gfni avx512vnni avx512bitalg
          avx512vpopcntdq avx512fp16 avxvnni avx512bf16)
    string(TOUPPER "${name}" macro)
    string(REPLACE "." "_" macro "${macro}")
    string(APPEND text "#if defined(__${macro}__)\n\"${name},\"\n#endif\n")
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/instruction_sets)
  file(WRITE ${folder}/sets.cpp "${text}\"=\";\n")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${flags} ${ARGN} -fno-lto -c ${folder}/sets.cpp -o ${folder}/sets.o
    OUTPUT_VARIABLE error ERROR_VARIABLE error RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} does not take ${ARGN} (LOCKSTEP_CPU_ARCH): ${error}")
  endif()
  file(STRINGS ${folder}/sets.o found REGEX "lockstep_sets=.*=")
  string(REGEX REPLACE ".*lockstep_sets=([^=]*)=.*" "\\1" found "${found}")
  string(REGEX REPLACE ",$" "" found "${found}")
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# lockstep_processor_variants(RESULT OLDEST): sets RESULT to {"x86-64-v3","sse3,avx2"},{...}: the processors of LOCKSTEP_CPU_ARCH
# and their instruction sets, as the initializers of an array of BuiltFor (runtime/machine/instruction_sets.hpp). Sets OLDEST
# to the instruction sets of the first one. A list begins with the oldest processor: each has the sets of the one before.
function(lockstep_processor_variants result oldest)
  set(variants "")
  set(below "")
  set(architectures "${LOCKSTEP_CPU_ARCH}")
  if(NOT architectures)
    lockstep_instruction_sets(sets)
    set(variants "{\"\",\"${sets}\"}")
    set(first "${sets}")
  endif()
  lockstep_instruction_sets(common)  # CMAKE_CXX_FLAGS with -march=: all other files have these instructions
  string(REPLACE "," ";" common "${common}")
  foreach(architecture IN LISTS architectures)
    lockstep_instruction_sets(sets -march=${architecture})
    string(REPLACE "," ";" names "${sets}")
    list(APPEND names ${common})
    list(REMOVE_DUPLICATES names)
    list(JOIN names "," sets)
    foreach(name IN LISTS below)
      if(NOT name IN_LIST names)
        message(FATAL_ERROR "LOCKSTEP_CPU_ARCH is '${LOCKSTEP_CPU_ARCH}', but ${architecture} lacks ${name}; expected the \
oldest processor first, and each to have the instructions of the one before")
      endif()
    endforeach()
    if(NOT variants)
      set(first "${sets}")
    endif()
    list(APPEND variants "{\"${architecture}\",\"${sets}\"}")
    set(below "${names}")
  endforeach()
  list(JOIN variants "," variants)
  set(${result} "${variants}" PARENT_SCOPE)
  set(${oldest} "${first}" PARENT_SCOPE)
endfunction()
