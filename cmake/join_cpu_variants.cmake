# Makes one object of the objects of all variants (LockstepCpuVariants.cmake). Run as a script with VARIANTS ("a|b", from the
# oldest processor to the newest), OBJECTS_a and OBJECTS_b (files, "x.o|y.o"), OUTPUT, the programs COMPILER (with FLAGS),
# LINKER, NM, OBJCOPY and READELF.

cmake_policy(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(GET ARGN 0 program)
    message(FATAL_ERROR "${program} failed (${status}): ${error}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

string(REPLACE "|" ";" variants "${VARIANTS}")
set(parts "")
set(functions "")
foreach(variant IN LISTS variants)
  string(REPLACE "|" ";" objects "${OBJECTS_${variant}}")
  string(REPLACE "-" "_" suffix "${variant}")  # f.x86_64_v3: tools print f(int) [clone .x86_64_v3]
  set(part ${OUTPUT}.${variant}.o)
  # Without groups the functions that several objects share are there once, as in a program.
  run(${LINKER} -r --force-group-allocation -o ${part} ${objects})
  run(${READELF} -S -W ${part})
  if(output MATCHES "[.]init_array|[.]ctors")
    message(FATAL_ERROR "a host kernel has a static initialiser, expected none: all variants' would run when a program starts")
  endif()

  # T: a function of a file. V, W, u: what headers define. Data that can be written would be there once for each variant.
  run(${NM} --defined-only --extern-only --format=sysv ${part})
  string(REGEX MATCHALL "[^\n]+" lines "${output}")
  set(found "")
  set(renamed "")
  set(visible "")
  set(unique "")
  foreach(line IN LISTS lines)
    string(REPLACE "|" ";" columns "${line}")
    list(LENGTH columns count)
    if(NOT count EQUAL 7)
      continue()
    endif()
    string(REPLACE " " "" columns "${columns}")
    list(GET columns 0 symbol)
    list(GET columns 2 kind)
    list(GET columns 6 section)
    if(kind STREQUAL "T")
      list(APPEND found "${symbol}")
      string(APPEND renamed "${symbol} ${symbol}.${suffix}\n")
      string(APPEND visible "${symbol}.${suffix}\n")
    elseif(symbol MATCHES "^_ZT[IS]")  # types of exceptions and their names: some libraries compare the addresses
      string(APPEND visible "${symbol}\n")
    elseif(symbol MATCHES "^DW[.]ref[.]")  # for the unwinder
      continue()
    elseif(NOT kind MATCHES "[VWu]" OR (section MATCHES "^[.](data|bss|tdata|tbss)" AND NOT section MATCHES "^[.]data[.]rel[.]ro"))
      message(FATAL_ERROR "${symbol} is visible data of a host kernel, expected functions: each variant would have its own")
    elseif(kind STREQUAL "u")  # objcopy hides such a symbol only after it has become weak
      string(APPEND unique "${symbol}\n")
    endif()
  endforeach()
  if(NOT found)
    message(FATAL_ERROR "the objects of ${variant} define no function, expected host kernels: '${OBJECTS_${variant}}'")
  endif()
  list(SORT found)
  if(functions AND NOT found STREQUAL functions)
    message(FATAL_ERROR "the variants ${variants} define different functions")
  endif()
  set(functions "${found}")
  file(WRITE ${part}.renamed "${renamed}")
  file(WRITE ${part}.visible "${visible}")
  set(weaken "")
  if(unique)  # objcopy fails with an empty list
    file(WRITE ${part}.unique "${unique}")
    set(weaken --weaken-symbols=${part}.unique)
  endif()
  run(${OBJCOPY} --redefine-syms=${part}.renamed ${weaken} ${part})
  run(${OBJCOPY} --keep-global-symbols=${part}.visible ${part})
  list(APPEND parts ${part})
endforeach()

# Each function jumps to the one of the variant whose number runtime/machine/instruction_sets.cpp has chosen. The registers
# r10 and r11 carry no argument (System V ABI for x86-64, section 3.2.3).
set(code "#if defined(__CET__)\n#include <cet.h>\n#else\n#define _CET_ENDBR\n#endif\n")
foreach(function IN LISTS functions)
  string(APPEND code "\t.section .text.${function},\"ax\",@progbits\n\t.globl ${function}\n\t.type ${function},@function\n"
    "\t.balign 16\n${function}:\n\t.cfi_startproc\n\t_CET_ENDBR\n\tmovq lockstep_cpu_variant@GOTPCREL(%rip), %r11\n"
    "\tmovq (%r11), %r11\n\tleaq .Lvariants_${function}(%rip), %r10\n\tjmp *(%r10,%r11,8)\n\t.cfi_endproc\n"
    "\t.size ${function},.-${function}\n"
    "\t.section .data.rel.ro.${function},\"aw\",@progbits\n\t.balign 8\n.Lvariants_${function}:\n")
  foreach(variant IN LISTS variants)
    string(REPLACE "-" "_" suffix "${variant}")
    string(APPEND code "\t.quad ${function}.${suffix}\n")
  endforeach()
endforeach()
file(WRITE ${OUTPUT}.S "${code}\t.section .note.GNU-stack,\"\",@progbits\n")
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
run(${COMPILER} ${flags} -c ${OUTPUT}.S -o ${OUTPUT}.jumps.o)
run(${LINKER} -r -o ${OUTPUT} ${OUTPUT}.jumps.o ${parts})
