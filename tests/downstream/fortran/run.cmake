# Installs the components Runtime and Development of BUILD_DIR to a prefix, moves that, and builds and runs host.f90 against it:
# by find_package from a project in Fortran and C alone, and with the sources by hand, as a Makefile would.
# Arguments: SOURCE_DIR BUILD_DIR CONFIG C_COMPILER FORTRAN_COMPILER GENERATOR, MPIRUN (joined by |, empty without MPI), LIBDIR
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../steps.cmake)
set(here ${BUILD_DIR}/downstream/fortran)
set(prefix ${here}/prefix)
string(REPLACE "|" ";" mpirun "${MPIRUN}")

file(REMOVE_RECURSE ${here})
install_components(${prefix})

set(mpi_host OFF)
if(mpirun)
  set(mpi_host ON)
endif()
must(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/downstream/fortran -B ${here}/build -G ${GENERATOR}
  -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_Fortran_COMPILER=${FORTRAN_COMPILER} -Dlockstep_ROOT=${prefix}
  -DMPI_HOST=${mpi_host})
must(${CMAKE_COMMAND} --build ${here}/build)
must_answer(${here}/build/host)
if(mpirun)
  must(${mpirun} -np 2 ${here}/build/mpi_host)
  if(NOT output MATCHES "rank 0 of 2, the last is 1" OR NOT output MATCHES "rank 1 of 2, the last is 1")
    message(FATAL_ERROR "expected two ranks that know each other")
  endif()
endif()

file(MAKE_DIRECTORY ${here}/hand)
set(sources ${prefix}/share/lockstep/fortran)
must(${C_COMPILER} -I${prefix}/include -c ${sources}/descriptor.c -o ${here}/hand/descriptor.o)
must(${FORTRAN_COMPILER} -J${here}/hand ${sources}/lockstep.F90 ${SOURCE_DIR}/tests/downstream/fortran/host.f90
  ${here}/hand/descriptor.o -o ${here}/hand/host -L${prefix}/${LIBDIR} -llockstep -Wl,-rpath,${prefix}/${LIBDIR})
must_answer(${here}/hand/host)

# A project without Fortran is told why.
file(WRITE ${here}/c_only/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(c_only LANGUAGES C)\n"
  "find_package(lockstep REQUIRED COMPONENTS fortran)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${here}/c_only -B ${here}/c_only/build -G ${GENERATOR}
  -DCMAKE_C_COMPILER=${C_COMPILER} -Dlockstep_ROOT=${prefix} RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
string(REGEX REPLACE "[ \n]+" " " said "${said}")
if(status EQUAL 0 OR NOT said MATCHES "needs the languages C and Fortran")
  message(FATAL_ERROR "expected a refusal that names the languages, have status ${status}: ${said}")
endif()
