! Tests components of derived types whose stride is no multiple of the element size. The option -fpack-derived, with
! which this file is compiled, makes such strides.
program packed_test
  use, intrinsic :: iso_c_binding
  use checks
  use lockstep
  implicit none
  type packed
    real(c_float) :: flag
    real(c_double) :: t
  end type
  type(packed) :: odd(2, 3)
  real(c_double) :: out(3), copy(2, 3)
  type(lockstep_context) :: context
  type(lockstep_model) :: line
  character(200) :: text
  integer(c_int) :: stat
  call lockstep_context_create(context)
  call make_line(context, line)
  odd%flag = 0
  odd%t = 1
  call lockstep_infer(line, odd%t, out, out_axes='n', stat=stat, errmsg=text)
  call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'in lie 12 bytes apart along dimension 1, expected a multiple of 8')
  copy = odd%t
  call lockstep_infer(line, copy, out, out_axes='n')
  call check(all(out == 2), 'a copy')
  call finish()
end program packed_test
