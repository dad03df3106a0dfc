# lockstep_fortran_module(HEADER TEMPLATE OUTPUT) writes lockstep.F90: the text of lockstep.F90.in with the parts that follow from
# lockstep.h in these places:
#   @numbers@     the macros that are numbers
#   @handles@     a type for each kind of handle
#   @interfaces@  a function c_x for each entry lockstep_x; gfortran 12 passes values wrongly through a shared abstract interface
#   @procedures@  a procedure for each entry lockstep_x that the template names but does not define: after `public ::` as
#                 lockstep_x, after `module procedure` as x or, with numbers of 64 bits, x_64
# The template has by hand: fields of structs, in the order of lockstep.h; the names of handles after `public ::`; interfaces of
# the procedures of descriptor.c, for entries with views; procedures with arrays, optional arguments or other names, which call c_x.

# One row for each kind of argument. The columns are: C's type; the declaration in the interface, then in the procedure; the value
# that the procedure passes to C; statements of the procedure: after the call, one that declares a variable, two before the call.
# H is a handle, S a struct that begins with its size, T the type, N the name (without one in lockstep.h: the type's), M the name
# without _n. An entry that has an argument of another type gets no interface; a row of two columns allows no procedure, and
# CMake stops at a named entry. A procedure returns a status in stat, a text as its result.
set(lockstep_fortran_arguments [[
destroy H       | type(c_ptr), value              | type(T), intent(inout) | N%handle | N%handle = c_null_ptr
H               | type(c_ptr), value              | type(T), intent(in) | N%handle
H*              | type(T), intent(out)            | type(T), intent(out) | N
const S*        | type(T), intent(in)             | type(T), intent(in) | c_N | | type(T) :: c_N | c_N = N | c_N%SIZE
S*              | type(T), intent(inout)          | type(T), intent(out) | N | | | N%SIZE
const char*     | character(kind=c_char), intent(in), dimension(*) | character(*), intent(in) | trim(N)//c_null_char
size_t          | integer(c_size_t), value        | | len_trim(M, c_size_t)
int32_t         | integer(c_int32_t), value       | integer, intent(in) | int(N, c_int32_t)
int64_t         | integer(c_int64_t), value       | integer, intent(in) | int(N, c_int64_t)
uint64_t        | integer(c_int64_t), value       | integer(c_int64_t), intent(in) | N
double          | real(c_double), value           | real(c_double), intent(in) | N
lockstep_dtype  | integer(c_int32_t), value       | integer(c_int32_t), intent(in) | N
lockstep_status | integer(c_int32_t), value       | integer(c_int), intent(in) | N
lockstep_stream | type(c_ptr), value              | type(c_ptr), intent(in) | N
void*           | type(c_ptr), value              | type(c_ptr), intent(in) | N
int32_t*        | integer(c_int32_t), intent(out) | integer, intent(out) | c_N | N = int(c_N) | integer(c_int32_t) :: c_N | c_N = -1
int64_t*        | integer(c_int64_t), intent(out) | integer(c_int64_t), intent(out) | N
double*         | real(c_double), intent(out), optional | real(c_double), intent(out) | N
const int32_t*  | integer(c_int32_t), intent(in), dimension(*)
const int64_t*  | integer(c_int64_t), intent(in), dimension(*)
]])
string(REPLACE "\n" ";" lockstep_fortran_arguments "${lockstep_fortran_arguments}")

function(lockstep_fortran_module header template output)
  file(READ ${header} c)
  file(READ ${template} module)
  string(REGEX REPLACE "&[^\n]*\n" "" module "${module}")
  string(REGEX MATCHALL "(public ::|module procedure) [^\n!]*" named "${module}")
  string(REGEX MATCHALL "[a-z0-9_]+" named "${named}")

  foreach(text numbers handles interfaces procedures)
    set(${text} "")
  endforeach()
  string(REGEX MATCHALL "#define LOCKSTEP_[A-Z0-9_]+ [0-9]+" macros "${c}")
  foreach(macro IN LISTS macros)
    string(REGEX REPLACE "#define (.*) (.*)" "  integer(c_int32_t), parameter, public :: \\1 = \\2\n" number "${macro}")
    string(REGEX REPLACE "c_int32_t(.* LOCKSTEP_(OK|ERR))" "c_int\\1" number "${number}")  # as stat is
    string(APPEND numbers "${number}")
  endforeach()
  string(REGEX MATCHALL "lockstep_[a-z_]+ {\n  uint32_t struct_size" structs "${c}")
  list(TRANSFORM structs REPLACE " .*" "")
  string(REGEX MATCHALL "lockstep_[a-z]+_s[*]" handle_types "${c}")
  list(TRANSFORM handle_types REPLACE "_s[*]" "")
  foreach(type IN LISTS handle_types)
    string(APPEND handles "  type, bind(C) :: ${type}\n    private\n    type(c_ptr) :: handle = c_null_ptr\n  end type\n")
  endforeach()

  # From here @ ends an entry and % a comment. ~, ^ and | stand for ;, [ and ], at which CMake would divide or join a list.
  string(REPLACE "LOCKSTEP_NOEXCEPT;" "@" c "${c}")
  string(REPLACE "*/" "%" c "${c}")
  string(REPLACE ";" "~" c "${c}")
  string(REPLACE "[" "^" c "${c}")
  string(REPLACE "]" "|" c "${c}")
  string(REGEX MATCHALL "(\n/\\* [^-%][^%]*%)?\nLOCKSTEP_API [^@]*@" entries "${c}")
  foreach(entry IN LISTS entries)
    string(REGEX MATCH "LOCKSTEP_API (.*[ *])lockstep_([a-z0-9_]+)\\((.*)\\)" all "${entry}")
    set(returned "${CMAKE_MATCH_1}")
    set(x ${CMAKE_MATCH_2})
    string(REGEX REPLACE ",[ \n]+" ";" arguments "${CMAKE_MATCH_3}")
    list(REMOVE_ITEM arguments void)
    foreach(text names interface taken declared passed locals before after unknown by_hand)
      set(${text} "")
    endforeach()
    foreach(argument IN LISTS arguments)
      # If an argument has no name, its type becomes its name. A second name after the first does no harm.
      string(REGEX REPLACE "(lockstep_)?([a-z0-9_]+)[*]?$" "\\0 \\2" argument "${argument}")
      string(REGEX MATCH "^((const )?([a-z0-9_]+)[*]?) ([a-z0-9_]+)" all "${argument}")
      set(kind "${CMAKE_MATCH_1}")
      set(type "${CMAKE_MATCH_3}")
      set(name "${CMAKE_MATCH_4}")
      if(type IN_LIST handle_types)
        string(REPLACE ${type} H kind "${kind}")
      elseif(type IN_LIST structs)
        string(REPLACE ${type} S kind "${kind}")
      endif()
      if(x MATCHES "_destroy$")
        set(kind "destroy ${kind}")
      endif()
      string(REPLACE "*" "[*]" kind "${kind}")
      set(rule "${lockstep_fortran_arguments}")
      list(FILTER rule INCLUDE REGEX "^${kind} +[|]")
      string(REGEX REPLACE "_n$" "" text "${name}")
      string(REPLACE T "${type}" rule "${rule}")
      string(REPLACE M "${text}" rule "${rule}")
      string(REPLACE N "${name}" rule "${rule}")
      string(REGEX REPLACE "([a-z0-9_]+)%SIZE" "\\1%struct_size = int(c_sizeof(\\1), c_int32_t)" rule "${rule}")
      string(REGEX REPLACE " *[|] *" ";" rule "${rule}")
      list(POP_FRONT rule kind in_interface in_procedure passes then variable first second)
      if(NOT in_interface)
        set(unknown ${argument})
      elseif("${passes}" STREQUAL "")
        set(by_hand ${argument})
      elseif(in_procedure)
        list(APPEND taken ${name})
        string(APPEND declared "    ${in_procedure} :: ${name}\n")
      endif()
      list(APPEND names ${name})
      list(APPEND passed "${passes}")
      string(APPEND interface "      ${in_interface} :: ${name}\n")
      string(APPEND locals "    ${variable}\n")
      string(APPEND before "    ${first}\n    ${second}\n")
      string(APPEND after "    ${then}\n")
    endforeach()

    list(JOIN names ", " names)
    list(JOIN taken ", " taken)
    list(JOIN passed ", &\n      " passed)
    string(REGEX REPLACE ".*[*] $" "type(c_ptr)" result "${returned}")
    string(REGEX REPLACE "^[a-z0-9_]+ $" "integer(c_int32_t)" result "${result}")
    if(NOT unknown)
      string(APPEND interfaces "    function c_${x}(${names}) &\n        bind(C, name='lockstep_${x}')\n      import\n"
        "${interface}      ${result} :: c_${x}\n    end function\n")
    endif()
    foreach(name lockstep_${x} ${x} ${x}_64)
      if(NOT name IN_LIST named OR module MATCHES "(subroutine|function|interface) ${name}[^a-z0-9_]")
        continue()
      endif()
      if(unknown OR by_hand OR NOT returned MATCHES "^(lockstep_status|const char[*]) $")
        message(FATAL_ERROR "${template} has no procedure ${name}, and generate.cmake makes none: lockstep_${x} returns "
                            "\"${returned}\" and has \"${unknown}${by_hand}\", expected types that its table has")
      endif()
      string(CONCAT text "  subroutine ${name}(${taken}, stat, errmsg)\n${declared}    OPTIONAL_STAT_ERRMSG\n${locals}"
        "    integer(c_int32_t) :: status\n${before}    status = c_${x}(${passed})\n${after}"
        "    call lockstep_finish(status, stat, errmsg)\n  end subroutine\n")
      if(returned MATCHES "[*]")
        string(CONCAT text "  function ${name}(${taken}) result(text)\n${declared}    character(:), allocatable :: text\n"
          "    text = text_at(c_${x}(${passed}))\n  end function\n")
      endif()
      string(REGEX REPLACE "(\n +)+\n" "\n" text "${text}")
      if(entry MATCHES "^\n/\\* ([^%]*) %")
        string(REPLACE "\n * " "\n  ! " comment "  ! ${CMAKE_MATCH_1}\n")
        string(REPLACE "~" ";" comment "${comment}")
        string(REPLACE "^" "[" comment "${comment}")
        string(REPLACE "|" "]" comment "${comment}")
        string(PREPEND text "${comment}")
      endif()
      string(APPEND procedures "\n${text}")
    endforeach()
  endforeach()
  configure_file(${template} ${output} @ONLY)
endfunction()
