# Makes one object of the objects of all variants (LockstepCpuVariants.cmake). Run as a script with VARIANTS ("a|b", from the
# oldest processor to the newest), OBJECTS_a and OBJECTS_b (files, "x.o|y.o"), OUTPUT, and the programs COMPILER, LINKER, NM
# and OBJCOPY.

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
  set(part ${OUTPUT}.${variant}.o)
  # Without groups the functions that several objects share are there once, as in a program.
  run(${LINKER} -r --force-group-allocation -o ${part} ${objects})

  # T: a function of a file. V, W, u: what headers define. Data of a file would be there once for each variant, so that the
  # file's own code and the program would not see the same.
  run(${NM} --defined-only --extern-only --format=posix ${part})
  string(REGEX MATCHALL "[^\n]+" lines "${output}")
  set(found "")
  set(renamed "")
  set(visible "")
  set(unique "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([^ ]+) ([A-Za-z])" unused "${line}")
    set(symbol "${CMAKE_MATCH_1}")
    set(kind "${CMAKE_MATCH_2}")
    if(kind STREQUAL "T")
      list(APPEND found "${symbol}")
      string(APPEND renamed "${symbol} ${symbol}.${variant}\n")
      string(APPEND visible "${symbol}.${variant}\n")
    elseif(symbol MATCHES "^_ZT[IS]")  # types of exceptions and their names: some libraries compare the addresses
      string(APPEND visible "${symbol}\n")
    elseif(kind STREQUAL "u")  # objcopy hides such a symbol only after it has become weak
      string(APPEND unique "${symbol}\n")
    elseif(NOT kind MATCHES "[VW]" AND NOT symbol MATCHES "^DW[.]ref[.]")  # DW.ref: for the unwinder
      message(FATAL_ERROR "${symbol} is visible data of a host kernel, expected functions: each variant would have its own")
    endif()
  endforeach()
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
set(code "\t.hidden lockstep_cpu_variant\n")
set(number 0)
foreach(function IN LISTS functions)
  string(APPEND code "\t.section .text.${function},\"ax\",@progbits\n\t.globl ${function}\n\t.type ${function},@function\n\t.balign 16\n${function}:\n"
    "\tmovq lockstep_cpu_variant(%rip), %r11\n\tleaq .Lvariants${number}(%rip), %r10\n\tjmp *(%r10,%r11,8)\n"
    "\t.size ${function},.-${function}\n"
    "\t.section .data.rel.ro.${function},\"aw\",@progbits\n\t.balign 8\n.Lvariants${number}:\n")
  foreach(variant IN LISTS variants)
    string(APPEND code "\t.quad \"${function}.${variant}\"\n")
  endforeach()
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT}.s "${code}\t.section .note.GNU-stack,\"\",@progbits\n")
run(${COMPILER} -c ${OUTPUT}.s -o ${OUTPUT}.jumps.o)
run(${LINKER} -r -o ${OUTPUT} ${OUTPUT}.jumps.o ${parts})
