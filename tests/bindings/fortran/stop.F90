! Without `stat`, an error must stop the program and print its text. Without arguments, this program makes an error in a
! procedure that is written in C (array of wrong shape). With an argument, it makes an error in a procedure that is
! written in Fortran.
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
