! Helper procedures of the tests of the Fortran module.
module checks
  use, intrinsic :: iso_c_binding, only: c_double, c_int
  use lockstep
  implicit none
  private
  public :: check, check_error, make_line, finish

  integer :: failed = 0, passed = 0

contains

  subroutine check(good, what)
    logical, intent(in) :: good
    character(*), intent(in) :: what
    if (good) then
      passed = passed + 1
    else
      failed = failed + 1
      print '(2a)', 'FAILED: ', what
    end if
  end subroutine

  ! Checks that the status is `expected` and that its text contains `part`.
  subroutine check_error(stat, expected, text, part)
    integer(c_int), intent(in) :: stat, expected
    character(*), intent(in) :: text, part
    call check(stat == expected .and. index(text, part) > 0, 'expected '//lockstep_status_name(expected)//' "'//part// &
      '", have '//lockstep_status_name(stat)//' "'//trim(text)//'"')
  end subroutine

  ! Makes an f64 model that computes y = 3 a - 2 b + 1.
  subroutine make_line(context, model)
    type(lockstep_context), intent(in) :: context
    type(lockstep_model), intent(out) :: model
    call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 1], LOCKSTEP_ACTIVATION_NONE, model)
    call lockstep_model_initialise(model, 1)
    call lockstep_parameter_write(model, '1.weight', reshape([3d0, -2d0], [2, 1]))
    call lockstep_parameter_write(model, '1.bias', [1d0])
  end subroutine

  subroutine finish()
    print '(i0, a, i0, a)', passed, ' passed, ', failed, ' failed'
    if (failed > 0 .or. passed == 0) error stop 1
  end subroutine
end module checks
