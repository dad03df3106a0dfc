! Call lockstep_infer as a Fortran program does, for bench_embedding: x (features, samples), y (outputs, samples). A failure stops
! the program with an error message.
subroutine bench_infer_f32(model, x, y, n) bind(C)
  use, intrinsic :: iso_c_binding, only: c_float, c_int64_t
  use lockstep, only: lockstep_infer, lockstep_model
  implicit none
  type(lockstep_model), intent(in) :: model
  integer(c_int64_t), value :: n
  real(c_float), intent(in) :: x(4, n)
  real(c_float), intent(inout) :: y(1, n)
  call lockstep_infer(model, x, y)
end subroutine

subroutine bench_infer_f64(model, x, y, n) bind(C)
  use, intrinsic :: iso_c_binding, only: c_double, c_int64_t
  use lockstep, only: lockstep_infer, lockstep_model
  implicit none
  type(lockstep_model), intent(in) :: model
  integer(c_int64_t), value :: n
  real(c_double), intent(in) :: x(4, n)
  real(c_double), intent(inout) :: y(1, n)
  call lockstep_infer(model, x, y)
end subroutine
