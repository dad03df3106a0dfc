# Installs the components Runtime and Development of BUILD_DIR to a prefix, moves that, and builds and runs host.f90 and
# mpi_host.f90 against it: by find_package from a project in Fortran and C alone, and with pkg-config, as a Makefile would, each
# with the shared library and with the archive.
# Arguments: SOURCE_DIR BUILD_DIR CONFIG C_COMPILER FORTRAN_COMPILER MPI_FORTRAN_COMPILER GENERATOR PKG_CONFIG, MPIRUN (joined by |,
# empty without MPI), MPI_SUFFIX, LIBDIR
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../steps.cmake)
set(here ${BUILD_DIR}/downstream/fortran)
set(prefix ${here}/prefix)
set(hosts ${SOURCE_DIR}/tests/downstream/fortran)
string(REPLACE "|" ";" mpirun "${MPIRUN}")

file(REMOVE_RECURSE ${here})
install_components(${prefix})

set(mpi_host OFF)
if(mpirun)
  set(mpi_host ON)
endif()
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
foreach(kind shared static)
  set(static OFF)
  if(kind STREQUAL "static")
    set(static ON)
  endif()
  set(build ${here}/build_${kind})
  must(${CMAKE_COMMAND} -S ${hosts} -B ${build} -G ${GENERATOR} -DCMAKE_C_COMPILER=${C_COMPILER}
    -DCMAKE_Fortran_COMPILER=${FORTRAN_COMPILER} -Dlockstep_ROOT=${prefix} -Dlockstep_STATIC=${static} -DMPI_HOST=${mpi_host}
    -DMPI_EXECUTABLE_SUFFIX=${MPI_SUFFIX})
  must(${CMAKE_COMMAND} --build ${build})
  must_answer(${build}/host)
  must_be(${kind} ${build}/host)
  if(mpirun)
    must_count(${mpirun} -np 2 ${build}/mpi_host)
    must_be(${kind} ${build}/mpi_host)
  endif()
  if(PKG_CONFIG)
    set(hand ${here}/hand_${kind})
    file(MAKE_DIRECTORY ${hand})
    must(${PKG_CONFIG} --variable=sources lockstep-fortran)
    string(STRIP "${output}" module)
    ask_pkg_config(${kind} lockstep-fortran)
    must(${C_COMPILER} -c ${module}/descriptor.c -o ${hand}/descriptor.o ${flags})
    must(${FORTRAN_COMPILER} -J${hand} ${module}/lockstep.F90 ${hosts}/host.f90 ${hand}/descriptor.o -o ${hand}/host ${flags})
    must_answer(${hand}/host)
    must_be(${kind} ${hand}/host)
    if(mpirun AND MPI_FORTRAN_COMPILER)
      ask_pkg_config(${kind} lockstep-mpi)
      must(${MPI_FORTRAN_COMPILER} -J${hand} ${module}/lockstep.F90 ${module}/lockstep_mpi.F90 ${module}/lockstep_mpi_f08.F90
        ${hosts}/mpi_host.f90 ${hand}/descriptor.o -o ${hand}/mpi_host ${flags})
      must_count(${mpirun} -np 2 ${hand}/mpi_host)
      must_be(${kind} ${hand}/mpi_host)
    endif()
  endif()
endforeach()

# A project without Fortran or without C is told the reason.
set(mpi "")
if(mpirun)
  set(mpi mpi)
endif()
foreach(language C Fortran)
  set(only ${here}/${language}_only)
  file(WRITE ${only}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(only LANGUAGES ${language})\n"
    "find_package(lockstep REQUIRED COMPONENTS fortran ${mpi})\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${only} -B ${only}/build -G ${GENERATOR} -DCMAKE_C_COMPILER=${C_COMPILER}
    -DCMAKE_Fortran_COMPILER=${FORTRAN_COMPILER} -Dlockstep_ROOT=${prefix} RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(status EQUAL 0 OR NOT said MATCHES "needs the languages C and Fortran")
    message(FATAL_ERROR "${language}: expected a refusal that names the languages, have status ${status}: ${said}")
  endif()
endforeach()
