# ctest entries for the project in this folder, which is configured by run.cmake and not part of the build.
if(NOT LOCKSTEP_HAS_MPI)
  foreach(how install subdirectory)
    lockstep_skip_tests(NAMES downstream.${how} REASON ${LOCKSTEP_NO_MPI} LABELS mpi ${how})
  endforeach()
else()
  list(JOIN LOCKSTEP_MPIRUN "|" mpirun)
  list(JOIN MPI_CXX_INCLUDE_DIRS "|" includes)
  foreach(how install subdirectory)
    set(type $<CONFIG>)  # only that one is installed
    set(options "")
    if(how STREQUAL "subdirectory")
      set(type Debug)  # lockstep is compiled once more: quickly
      set(options "-DLOCKSTEP_CUDA=OFF|-DCMAKE_CXX_FLAGS_DEBUG=-O0")
      if(CMAKE_CXX_COMPILER_LAUNCHER)
        string(APPEND options "|-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}")
      endif()
    endif()
    add_test(NAME downstream.${how} COMMAND ${CMAKE_COMMAND} -DHOW=${how} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
      -DBUILD_DIR=${PROJECT_BINARY_DIR} -DCONFIG=${type} -DCOMPILER=${CMAKE_CXX_COMPILER}
      -DGENERATOR=${CMAKE_GENERATOR} -DOPTIONS=${options} -DMPIRUN=${mpirun} -DINCLUDES=${includes}
      -P ${PROJECT_SOURCE_DIR}/tests/downstream/run.cmake)
    set_tests_properties(downstream.${how} PROPERTIES TIMEOUT 900 LABELS "downstream;mpi;${how}" PROCESSORS 2
      ENVIRONMENT "${LOCKSTEP_RANKS_ENVIRONMENT}")
  endforeach()
endif()
