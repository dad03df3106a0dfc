# generate.cmake with a header of a few lines: every row of its table, names that CMake takes for false (n, no, off), comments with
# signs that end its lists, and entries that generate.cmake refuses. Arguments: SOURCE_DIR BUILD_DIR
cmake_minimum_required(VERSION 3.25)
include(${SOURCE_DIR}/bindings/fortran/generate.cmake)

if(REFUSED)
  lockstep_fortran_module(${BUILD_DIR}/x.h ${BUILD_DIR}/${REFUSED}.F90.in ${BUILD_DIR}/${REFUSED}.F90)
  return()
endif()

file(MAKE_DIRECTORY ${BUILD_DIR})
file(WRITE ${BUILD_DIR}/x.h [[
#define LOCKSTEP_ERR_ODD 7
#define LOCKSTEP_VERSION (1 + 1)
#define LOCKSTEP_F32 1
#define LOCKSTEP_API visible
typedef struct lockstep_model_s* lockstep_model;
typedef struct lockstep_view {
  void* data;
} lockstep_view;
typedef struct lockstep_options {
  uint32_t struct_size;
} lockstep_options;
/* ---- A part. */
LOCKSTEP_API uint32_t lockstep_version(void) LOCKSTEP_NOEXCEPT; /* 1; not a comment of the next */
LOCKSTEP_API const char* lockstep_why(lockstep_status) LOCKSTEP_NOEXCEPT;
/* A chance in [0, 1); the model's `x`
 * and 50 more. */
LOCKSTEP_API lockstep_status lockstep_set(lockstep_model, int32_t n, int64_t no, double off, const char* name,
                                          size_t name_n, lockstep_dtype, void* y, lockstep_stream f,
                                          const lockstep_options*) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_get(lockstep_model, lockstep_model* copy, int32_t* count, int64_t* bytes,
                                          double* loss, lockstep_options*) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_model_seed(lockstep_model, uint64_t seed) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_shape(const int64_t* shape, const int32_t* order, int32_t) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_look(lockstep_model, const lockstep_view* at) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_call(void (*back)(int32_t)) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_model_destroy(lockstep_model) LOCKSTEP_NOEXCEPT;
]])
file(WRITE ${BUILD_DIR}/x.F90.in [[
  public :: lockstep_why, lockstep_version, lockstep_set, & ! lockstep_shape
    lockstep_get
@numbers@
@handles@
    module procedure model_seed_64
    module procedure model_destroy
@interfaces@
  function lockstep_version()
@procedures@
]])
lockstep_fortran_module(${BUILD_DIR}/x.h ${BUILD_DIR}/x.F90.in ${BUILD_DIR}/x.F90)
file(READ ${BUILD_DIR}/x.F90 made)
string(REGEX REPLACE "\n[\n ]+" "\n" made "${made}")  # removes indents and empty lines
set(expected [[
  public :: lockstep_why, lockstep_version, lockstep_set, & ! lockstep_shape
lockstep_get
integer(c_int), parameter, public :: LOCKSTEP_ERR_ODD = 7
integer(c_int32_t), parameter, public :: LOCKSTEP_F32 = 1
type, bind(C) :: lockstep_model
private
type(c_ptr) :: handle = c_null_ptr
end type
module procedure model_seed_64
module procedure model_destroy
function c_version() &
bind(C, name='lockstep_version')
import
integer(c_int32_t) :: c_version
end function
function c_why(status) &
bind(C, name='lockstep_why')
import
integer(c_int32_t), value :: status
type(c_ptr) :: c_why
end function
function c_set(model, n, no, off, name, name_n, dtype, y, f, options) &
bind(C, name='lockstep_set')
import
type(c_ptr), value :: model
integer(c_int32_t), value :: n
integer(c_int64_t), value :: no
real(c_double), value :: off
character(kind=c_char), intent(in), dimension(*) :: name
integer(c_size_t), value :: name_n
integer(c_int32_t), value :: dtype
type(c_ptr), value :: y
type(c_ptr), value :: f
type(lockstep_options), intent(in) :: options
integer(c_int32_t) :: c_set
end function
function c_get(model, copy, count, bytes, loss, options) &
bind(C, name='lockstep_get')
import
type(c_ptr), value :: model
type(lockstep_model), intent(out) :: copy
integer(c_int32_t), intent(out) :: count
integer(c_int64_t), intent(out) :: bytes
real(c_double), intent(out), optional :: loss
type(lockstep_options), intent(inout) :: options
integer(c_int32_t) :: c_get
end function
function c_model_seed(model, seed) &
bind(C, name='lockstep_model_seed')
import
type(c_ptr), value :: model
integer(c_int64_t), value :: seed
integer(c_int32_t) :: c_model_seed
end function
function c_shape(shape, order, int32_t) &
bind(C, name='lockstep_shape')
import
integer(c_int64_t), intent(in), dimension(*) :: shape
integer(c_int32_t), intent(in), dimension(*) :: order
integer(c_int32_t), value :: int32_t
integer(c_int32_t) :: c_shape
end function
function c_model_destroy(model) &
bind(C, name='lockstep_model_destroy')
import
type(c_ptr), value :: model
integer(c_int32_t) :: c_model_destroy
end function
function lockstep_version()
function lockstep_why(status) result(text)
integer(c_int), intent(in) :: status
character(:), allocatable :: text
text = text_at(c_why(status))
end function
! A chance in [0, 1); the model's `x`
! and 50 more.
subroutine lockstep_set(model, n, no, off, name, dtype, y, f, options, stat, errmsg)
type(lockstep_model), intent(in) :: model
integer, intent(in) :: n
integer, intent(in) :: no
real(c_double), intent(in) :: off
character(*), intent(in) :: name
integer(c_int32_t), intent(in) :: dtype
type(c_ptr), intent(in) :: y
type(c_ptr), intent(in) :: f
type(lockstep_options), intent(in) :: options
OPTIONAL_STAT_ERRMSG
type(lockstep_options) :: c_options
integer(c_int32_t) :: status
c_options = options
c_options%struct_size = int(c_sizeof(c_options), c_int32_t)
status = c_set(model%handle, &
int(n, c_int32_t), &
int(no, c_int64_t), &
off, &
trim(name)//c_null_char, &
len_trim(name, c_size_t), &
dtype, &
y, &
f, &
c_options)
call lockstep_finish(status, stat, errmsg)
end subroutine
subroutine lockstep_get(model, copy, count, bytes, loss, options, stat, errmsg)
type(lockstep_model), intent(in) :: model
type(lockstep_model), intent(out) :: copy
integer, intent(out) :: count
integer(c_int64_t), intent(out) :: bytes
real(c_double), intent(out) :: loss
type(lockstep_options), intent(out) :: options
OPTIONAL_STAT_ERRMSG
integer(c_int32_t) :: c_count
integer(c_int32_t) :: status
c_count = -1
options%struct_size = int(c_sizeof(options), c_int32_t)
status = c_get(model%handle, &
copy, &
c_count, &
bytes, &
loss, &
options)
count = int(c_count)
call lockstep_finish(status, stat, errmsg)
end subroutine
subroutine model_seed_64(model, seed, stat, errmsg)
type(lockstep_model), intent(in) :: model
integer(c_int64_t), intent(in) :: seed
OPTIONAL_STAT_ERRMSG
integer(c_int32_t) :: status
status = c_model_seed(model%handle, &
seed)
call lockstep_finish(status, stat, errmsg)
end subroutine
subroutine model_destroy(model, stat, errmsg)
type(lockstep_model), intent(inout) :: model
OPTIONAL_STAT_ERRMSG
integer(c_int32_t) :: status
status = c_model_destroy(model%handle)
model%handle = c_null_ptr
call lockstep_finish(status, stat, errmsg)
end subroutine
]])
if(NOT made STREQUAL expected)
  file(WRITE ${BUILD_DIR}/expected.F90 "${expected}")
  message(FATAL_ERROR "${BUILD_DIR}/x.F90 is, but for indents and empty lines, not ${BUILD_DIR}/expected.F90")
endif()

# Each kind of entry: a row of two columns, a view, a function, a returned number.
foreach(name shape look call version)
  file(WRITE ${BUILD_DIR}/${name}.F90.in "public :: lockstep_${name}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${SOURCE_DIR} -DBUILD_DIR=${BUILD_DIR} -DREFUSED=${name}
    -P ${CMAKE_CURRENT_LIST_FILE} RESULT_VARIABLE status ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(status EQUAL 0 OR NOT said MATCHES "has no procedure lockstep_${name}, and generate.cmake makes none")
    message(FATAL_ERROR "lockstep_${name}: expected a refusal, have status ${status}: ${said}")
  endif()
endforeach()
