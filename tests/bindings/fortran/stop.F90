! Without `stat`, an error stops the program and prints its text. The error is in C (wrong array), or in Fortran if the program has
! an argument.
program stop
  use lockstep
  implicit none
  type(lockstep_context) :: context
  type(lockstep_model) :: model
  real :: x(3), y(1)
  x = 1
  call lockstep_context_create(context)
  call lockstep_model_mlp(context, LOCKSTEP_F32, [2, 1], LOCKSTEP_ACTIVATION_NONE, model)
  if (command_argument_count() > 0) call lockstep_model_prepare(model, 0)
  call lockstep_model_initialise(model, 1)
  call lockstep_infer(model, x, y, in_axes='c', out_axes='c')
  print '(a)', 'went on'
end program stop
