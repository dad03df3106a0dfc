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
    if(how STREQUAL "subdirectory")  # lockstep is compiled once more
      set(options "-DLOCKSTEP_CUDA=OFF")
      if(CMAKE_CXX_COMPILER_LAUNCHER)  # ccache: with the same flags it has most objects
        string(APPEND options "|-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
               "|-DLOCKSTEP_WERROR=${LOCKSTEP_WERROR}|-DLOCKSTEP_SANITIZE=${LOCKSTEP_SANITIZE}")
      else()
        set(type Debug)
        string(APPEND options "|-DCMAKE_CXX_FLAGS_DEBUG=-O0")
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

# The same for the C interface.
find_program(LOCKSTEP_PKG_CONFIG NAMES pkg-config pkgconf)
find_program(LOCKSTEP_C_COMPILER NAMES gcc clang cc)
mark_as_advanced(LOCKSTEP_PKG_CONFIG LOCKSTEP_C_COMPILER)
if(LOCKSTEP_SANITIZE OR NOT LOCKSTEP_C_COMPILER OR NOT LOCKSTEP_INSTALL)
  lockstep_skip_tests(NAMES downstream.c REASON "needs an installed build without sanitizer, and a C compiler" LABELS install)
else()
  set(files include/lockstep/lockstep.h include/lockstep/lockstep_dlpack.h ${CMAKE_INSTALL_LIBDIR}/liblockstep.so ${CMAKE_INSTALL_LIBDIR}/liblockstep.so.0
      ${CMAKE_INSTALL_LIBDIR}/liblockstep.a ${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep.pc
      ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep/lockstepConfig.cmake)
  set(mpirun "")
  if(LOCKSTEP_HAS_MPI)
    list(APPEND files include/lockstep/lockstep_mpi.h ${CMAKE_INSTALL_LIBDIR}/liblockstep_mpi.so.0
      ${CMAKE_INSTALL_LIBDIR}/liblockstep_mpi.a ${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep-mpi.pc)
    list(JOIN LOCKSTEP_MPIRUN "|" mpirun)
  endif()
  list(JOIN files "|" files)
  add_test(NAME downstream.c COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DBUILD_DIR=${PROJECT_BINARY_DIR}
    -DCONFIG=$<CONFIG> -DC_COMPILER=${LOCKSTEP_C_COMPILER} -DGENERATOR=${CMAKE_GENERATOR} -DPKG_CONFIG=${LOCKSTEP_PKG_CONFIG}
    -DMPIRUN=${mpirun} -DLIBDIR=${CMAKE_INSTALL_LIBDIR} -DEXPECTED_FILES=${files}
    -P ${PROJECT_SOURCE_DIR}/tests/downstream/c/run.cmake)
  set_tests_properties(downstream.c PROPERTIES TIMEOUT 300 LABELS "downstream;bindings;embedding" PROCESSORS 2
    ENVIRONMENT "${LOCKSTEP_RANKS_ENVIRONMENT}")
endif()

# The same for the Fortran module.
if(LOCKSTEP_SANITIZE OR NOT LOCKSTEP_HAS_FORTRAN OR NOT LOCKSTEP_INSTALL)
  lockstep_skip_tests(NAMES downstream.fortran REASON "needs an installed build without sanitizer, and a Fortran compiler"
    LABELS install)
else()
  set(mpirun "")
  if(TARGET lockstep_fortran_mpi AND MPI_Fortran_HAVE_F08_MODULE)
    list(JOIN LOCKSTEP_MPIRUN "|" mpirun)
  endif()
  add_test(NAME downstream.fortran COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DBUILD_DIR=${PROJECT_BINARY_DIR}
    -DCONFIG=$<CONFIG> -DC_COMPILER=${CMAKE_C_COMPILER} -DFORTRAN_COMPILER=${CMAKE_Fortran_COMPILER}
    -DGENERATOR=${CMAKE_GENERATOR} -DMPIRUN=${mpirun} -DLIBDIR=${CMAKE_INSTALL_LIBDIR}
    -P ${PROJECT_SOURCE_DIR}/tests/downstream/fortran/run.cmake)
  set_tests_properties(downstream.fortran PROPERTIES TIMEOUT 300 LABELS "downstream;bindings;embedding" PROCESSORS 2
    ENVIRONMENT "${LOCKSTEP_RANKS_ENVIRONMENT}")
endif()
