# Plants faults in the emulated copies of the kernels. A run-time switch turns them on one by one, so that CI proves
# again and again that its checks would find them.

# lockstep_plant_faults(OPS op... FOLDER folder): for every kernels/cuda/OP.cu a file folder/OP.cu.cpp, and for the helper
# headers of kernels/cuda/ that faults name, folder/include/lockstep/kernels/cuda/HEADER: the sources with what
# tests/kernels/OP_faults.json and tests/kernels/cuda_helper_faults.json plant in them. Writes folder/planted_faults.hpp, a
# table of all, and sets LOCKSTEP_PLANTED_FAULTS to their number.
#
#   {"filter": "gtest filter", "faults": [{"name": "tail", "file": "block_reduce.hpp", "find": "i < count",
#                                          "plant": "i <= count", "caught_by": ["race", "asan"]}]}
# `find` occurs once in the file (default OP.cu), and two of a file do not overlap. It becomes
# (planted(n) ? (plant) : (find)), or when it is a statement, that is it ends in `;`, or in `}` with a `;` before it,
# if (planted(n)) { plant } else { find }. The default filter is Ops/CudaCases.MatchTheHost/OP: add :CudaOp.* for the tests
# of OP_cuda_test.cpp.
function(lockstep_plant_faults)
  cmake_parse_arguments(F "" "FOLDER" "OPS" ${ARGN})
  set(tests ${PROJECT_SOURCE_DIR}/tests/kernels)
  set(kernels ${PROJECT_SOURCE_DIR}/kernels/cuda)
  set(number 0)
  set(table "")
  set(files "")
  foreach(op IN LISTS F_OPS ITEMS cuda_helper)
    if(NOT op STREQUAL cuda_helper)
      list(APPEND files ${op}.cu)
    endif()
    set(json ${tests}/${op}_faults.json)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${json})
    if(NOT EXISTS ${json})
      continue()
    endif()
    file(READ ${json} text)
    string(JSON count LENGTH "${text}" faults)
    set(default_filter "Ops/CudaCases.MatchTheHost/${op}")
    string(JSON filter ERROR_VARIABLE none GET "${text}" filter)
    if(none)
      set(filter ${default_filter})
    endif()
    math(EXPR last "${count} - 1")
    foreach(i RANGE ${last})
      math(EXPR number "${number} + 1")
      string(JSON name GET "${text}" faults ${i} name)
      string(JSON find GET "${text}" faults ${i} find)
      string(JSON plant GET "${text}" faults ${i} plant)
      string(JSON caught_by GET "${text}" faults ${i} caught_by)
      string(JSON file ERROR_VARIABLE none GET "${text}" faults ${i} file)
      if(none)
        set(file ${op}.cu)
      endif()
      string(JSON own_filter ERROR_VARIABLE none GET "${text}" faults ${i} filter)
      if(none)
        set(own_filter ${filter})
      endif()
      if(NOT file IN_LIST files)
        list(APPEND files ${file})
      endif()
      string(MAKE_C_IDENTIFIER ${file} key)
      if(NOT DEFINED source_${key})
        file(READ ${kernels}/${file} source_${key})
      endif()
      string(FIND "${source_${key}}" "${find}" first)
      string(FIND "${source_${key}}" "${find}" final REVERSE)
      if(first EQUAL -1 OR NOT first EQUAL final)
        message(FATAL_ERROR "${json}: fault '${name}': '${find}' must occur exactly once in kernels/cuda/${file}, and not within what an earlier fault replaces")
      endif()
      set(switch "::lockstep::emulation::planted(${number})")
      if(find MATCHES ";$" OR find MATCHES ";.*}$")
        set(planted "if (${switch}) { ${plant} } else { ${find} }")
      else()
        set(planted "(${switch} ? (${plant}) : (${find}))")
      endif()
      string(REPLACE "${find}" "${planted}" source_${key} "${source_${key}}")
      set(race false)
      set(asan false)
      if(caught_by MATCHES "race")
        set(race true)
      endif()
      if(caught_by MATCHES "asan")
        set(asan true)
      endif()
      if(NOT race AND NOT asan)
        message(FATAL_ERROR "${json}: fault '${name}': caught_by is '${caught_by}', expected race, asan or both")
      endif()
      string(MAKE_C_IDENTIFIER "${op}_${name}" id)
      string(APPEND table "    {${number}, \"${id}\", \"${own_filter}\", ${race}, ${asan}},\n")
    endforeach()
  endforeach()
  foreach(file IN LISTS files)
    string(MAKE_C_IDENTIFIER ${file} key)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernels}/${file})
    if(NOT DEFINED source_${key})
      file(READ ${kernels}/${file} source_${key})
    endif()
    if(file MATCHES "[.]cu$")
      set(out ${F_FOLDER}/${file}.cpp)
    else()
      set(out ${F_FOLDER}/include/lockstep/kernels/cuda/${file})
      string(REPLACE "#pragma once" "" source_${key} "${source_${key}}")  # moves before #line, below
    endif()
    set(head "#include <lockstep/emulation/planted.hpp>\n#line 1 \"${kernels}/${file}\"\n")
    if(NOT file MATCHES "[.]cu$")
      set(head "#pragma once\n${head}")
    endif()
    lockstep_write_if_different(${out} "${head}${source_${key}}")
  endforeach()
  lockstep_write_if_different(${F_FOLDER}/planted_faults.hpp "#pragma once

struct PlantedFault {
  int number;
  const char* name;
  const char* filter;  // of the tests that find it
  bool race;           // found by the build with the race checker
  bool asan;           // found by the build with AddressSanitizer
};

inline constexpr PlantedFault kPlantedFaults[] = {
${table}};
")
  set(LOCKSTEP_PLANTED_FAULTS ${number} PARENT_SCOPE)
endfunction()

# Leaves the time of an unchanged file alone, so that nothing is compiled again.
function(lockstep_write_if_different path content)
  if(EXISTS ${path})
    file(READ ${path} before)
    if(before STREQUAL content)
      return()
    endif()
  endif()
  file(WRITE ${path} "${content}")
endfunction()
