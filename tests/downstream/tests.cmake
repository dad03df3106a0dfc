# ctest entries for the project in this folder, which is configured by run.cmake and not part of the build.
if(NOT LOCKSTEP_HAS_MPI)
  foreach(how install subdirectory)
    lockstep_skip_tests(NAMES downstream.${how} REASON ${LOCKSTEP_NO_MPI} LABELS mpi ${how})
  endforeach()
else()
  list(JOIN LOCKSTEP_MPIRUN "|" mpirun)
  list(JOIN MPI_CXX_INCLUDE_DIRS "|" includes)
  foreach(how install subdirectory)
    set(type $<CONFIG>)  # the only configuration that is installed
    set(options "")
    if(how STREQUAL "subdirectory")
      set(type Debug)  # compiles lockstep once more, and quickly
      set(options "-DLOCKSTEP_CUDA=OFF|-DCMAKE_CXX_FLAGS_DEBUG=-O0")
      if(CMAKE_CXX_COMPILER_LAUNCHER)
        string(APPEND options "|-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}")
      endif()
    endif()
    add_test(NAME downstream.${how} COMMAND ${CMAKE_COMMAND} -DHOW=${how} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
      -DBUILD_DIR=${PROJECT_BINARY_DIR} -DCONFIG=${type} -DCOMPILER=${CMAKE_CXX_COMPILER}
      -DGENERATOR=${CMAKE_GENERATOR} -DOPTIONS=${options} -DMPIRUN=${mpirun} -DINCLUDES=${includes}
      -DPROGRAMS=$<TARGET_EXISTS:train_resnet>
      -P ${PROJECT_SOURCE_DIR}/tests/downstream/run.cmake)
    set_tests_properties(downstream.${how} PROPERTIES TIMEOUT 900 LABELS "downstream;mpi;${how}" PROCESSORS 2
      ENVIRONMENT "${LOCKSTEP_RANKS_ENVIRONMENT}")
  endforeach()
endif()

# Tests the C interface, the Fortran module and the programs of examples/embedding in the same way, by CMake and by
# pkg-config.
find_program(LOCKSTEP_PKG_CONFIG NAMES pkg-config pkgconf)
find_program(LOCKSTEP_C_COMPILER NAMES gcc clang cc)
mark_as_advanced(LOCKSTEP_PKG_CONFIG LOCKSTEP_C_COMPILER)
set(mpirun "")
if(LOCKSTEP_HAS_MPI)
  list(JOIN LOCKSTEP_MPIRUN "|" mpirun)
  # The C compiler of the same MPI.
  cmake_path(GET MPI_CXX_COMPILER PARENT_PATH folder)
  cmake_path(GET MPI_CXX_COMPILER FILENAME wrapper)
  string(REGEX REPLACE "cxx|c\\+\\+|CC" "cc" wrapper "${wrapper}")
  find_program(LOCKSTEP_MPI_C_COMPILER NAMES ${wrapper} HINTS ${folder})
  mark_as_advanced(LOCKSTEP_MPI_C_COMPILER)
endif()

# lockstep_add_downstream_test(name timeout -D..): runs name/run.cmake.
function(lockstep_add_downstream_test name timeout)
  add_test(NAME downstream.${name} COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DBUILD_DIR=${PROJECT_BINARY_DIR}
    -DCONFIG=$<CONFIG> -DGENERATOR=${CMAKE_GENERATOR} -DPKG_CONFIG=${LOCKSTEP_PKG_CONFIG} -DLIBDIR=${CMAKE_INSTALL_LIBDIR}
    -DMPI_SUFFIX=${MPI_EXECUTABLE_SUFFIX} ${ARGN} -P ${PROJECT_SOURCE_DIR}/tests/downstream/${name}/run.cmake)
  set_tests_properties(downstream.${name} PROPERTIES TIMEOUT ${timeout} LABELS "downstream;bindings;embedding" PROCESSORS 2
    ENVIRONMENT "${LOCKSTEP_RANKS_ENVIRONMENT}")
endfunction()

set(installed TRUE)
if(LOCKSTEP_SANITIZE OR NOT LOCKSTEP_INSTALL OR NOT BUILD_SHARED_LIBS)
  set(installed FALSE)
endif()
if(NOT installed OR NOT LOCKSTEP_C_COMPILER)
  lockstep_skip_tests(NAMES downstream.c REASON "needs an installed shared build without sanitizer, and a C compiler"
    LABELS install)
else()
  set(files include/lockstep/lockstep.h include/lockstep/lockstep_dlpack.h ${CMAKE_INSTALL_LIBDIR}/liblockstep.so ${CMAKE_INSTALL_LIBDIR}/liblockstep.so.0
      ${CMAKE_INSTALL_LIBDIR}/liblockstep.a ${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep.pc
      ${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep-fortran.pc ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep/lockstepConfig.cmake)
  if(LOCKSTEP_HAS_MPI)
    list(APPEND files include/lockstep/lockstep_mpi.h ${CMAKE_INSTALL_LIBDIR}/liblockstep_mpi.so.0
      ${CMAKE_INSTALL_LIBDIR}/liblockstep_mpi.a ${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep-mpi.pc)
  endif()
  list(JOIN files "|" files)
  # The limit is 3.25 MiB without CUDA, and 20 MiB with it for one architecture. It does not apply to clang's build in
  # CI, which is compiled with less optimisation.
  set(largest "")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    list(LENGTH CMAKE_CUDA_ARCHITECTURES architectures)
    if(NOT LOCKSTEP_HAS_CUDA)
      set(largest 3407872)
    elseif(architectures EQUAL 1)
      set(largest 20971520)
    endif()
  endif()
  lockstep_add_downstream_test(c 300 -DC_COMPILER=${LOCKSTEP_C_COMPILER} -DMPI_C_COMPILER=${LOCKSTEP_MPI_C_COMPILER}
    -DMPIRUN=${mpirun} -DEXPECTED_FILES=${files} -DLARGEST=${largest})
endif()

if(NOT installed OR NOT LOCKSTEP_HAS_FORTRAN)
  lockstep_skip_tests(NAMES downstream.fortran REASON "needs an installed shared build without sanitizer, and a Fortran compiler"
    LABELS install)
else()
  set(fortran_mpirun "")
  if(TARGET lockstep_fortran_mpi AND MPI_Fortran_HAVE_F08_MODULE)
    set(fortran_mpirun "${mpirun}")
  endif()
  lockstep_add_downstream_test(fortran 300 -DC_COMPILER=${CMAKE_C_COMPILER} -DFORTRAN_COMPILER=${CMAKE_Fortran_COMPILER}
    -DMPI_FORTRAN_COMPILER=${MPI_Fortran_COMPILER} -DMPIRUN=${fortran_mpirun})
endif()

if(NOT installed OR NOT LOCKSTEP_HAS_MPI OR NOT LOCKSTEP_C_COMPILER)
  lockstep_skip_tests(NAMES downstream.apps REASON "needs an installed shared build without sanitizer, MPI and a C compiler"
    LABELS install)
else()
  set(fortran "")
  if(TARGET lockstep_fortran_mpi AND MPI_Fortran_HAVE_F08_MODULE)
    set(fortran ${CMAKE_Fortran_COMPILER})
  endif()
  set(c ${LOCKSTEP_C_COMPILER})
  if(fortran)
    set(c ${CMAKE_C_COMPILER})
  endif()
  set(LOCKSTEP_APPS_RANKS 3 CACHE STRING "Numbers of ranks that downstream.apps runs its programs with, joined by |")
  mark_as_advanced(LOCKSTEP_APPS_RANKS)
  lockstep_add_downstream_test(apps 900 -DC_COMPILER=${c} -DCXX_COMPILER=${CMAKE_CXX_COMPILER} -DFORTRAN_COMPILER=${fortran}
    -DMPI_C_COMPILER=${LOCKSTEP_MPI_C_COMPILER} -DMPI_CXX_COMPILER=${MPI_CXX_COMPILER}
    -DMPI_FORTRAN_COMPILER=${MPI_Fortran_COMPILER} -DMPIRUN=${mpirun} -DRANKS=${LOCKSTEP_APPS_RANKS})
endif()
