# lockstep_add_fortran(SOURCES MODULE): makes the target lockstep::fortran and, if lockstep::mpi and MPI::MPI_Fortran exist,
# lockstep::fortran_mpi. Compiles them from MODULE, which is lockstep.F90, and the folder SOURCES, because .mod files and array
# descriptors differ between Fortran compilers. Requires the target lockstep::c and the languages C and Fortran.
include(CheckIncludeFile)

function(lockstep_add_fortran sources module)
  if(TARGET lockstep::fortran)
    return()
  endif()
  set(build ${CMAKE_CURRENT_BINARY_DIR}/lockstep_fortran)
  add_library(lockstep_fortran STATIC ${sources}/descriptor.c ${module})
  add_library(lockstep::fortran ALIAS lockstep_fortran)
  set_target_properties(lockstep_fortran PROPERTIES POSITION_INDEPENDENT_CODE ON C_STANDARD 99
    Fortran_MODULE_DIRECTORY ${build}/modules)
  target_include_directories(lockstep_fortran PUBLIC ${build}/modules)
  if(EXISTS ${sources}/include)
    target_include_directories(lockstep_fortran PUBLIC ${sources}/include)
  endif()
  target_link_libraries(lockstep_fortran PUBLIC lockstep::c)

  # A C compiler of another vendor has no ISO_Fortran_binding.h and gets a copy of this one header from the Fortran
  # compiler.
  check_include_file(ISO_Fortran_binding.h LOCKSTEP_C_HAS_FORTRAN_DESCRIPTORS)
  if(NOT LOCKSTEP_C_HAS_FORTRAN_DESCRIPTORS)
    execute_process(COMMAND ${CMAKE_Fortran_COMPILER} -print-file-name=include/ISO_Fortran_binding.h OUTPUT_VARIABLE header
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT EXISTS "${header}")
      message(FATAL_ERROR "ISO_Fortran_binding.h is neither ${CMAKE_C_COMPILER}'s nor ${CMAKE_Fortran_COMPILER}'s, but is "
                          "needed by lockstep::fortran: set CMAKE_C_COMPILER to the C compiler that goes with it.")
    endif()
    configure_file("${header}" ${build}/include/ISO_Fortran_binding.h COPYONLY)
    target_include_directories(lockstep_fortran PRIVATE ${build}/include)
  endif()

  if(TARGET lockstep::mpi AND TARGET MPI::MPI_Fortran)
    add_library(lockstep_fortran_mpi STATIC ${sources}/lockstep_mpi.F90)
    add_library(lockstep::fortran_mpi ALIAS lockstep_fortran_mpi)
    set_target_properties(lockstep_fortran_mpi PROPERTIES POSITION_INDEPENDENT_CODE ON
      Fortran_MODULE_DIRECTORY ${build}/modules)
    target_link_libraries(lockstep_fortran_mpi PUBLIC lockstep_fortran lockstep::mpi MPI::MPI_Fortran)
    if(MPI_Fortran_HAVE_F08_MODULE)
      target_sources(lockstep_fortran_mpi PRIVATE ${sources}/lockstep_mpi_f08.F90)
    endif()
  endif()
endfunction()
