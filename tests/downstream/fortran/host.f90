! Learns y = 3 x - 1 from samples and prints the prediction for x = 2.
program host
  use lockstep
  implicit none
  type(lockstep_context) :: context
  type(lockstep_comm) :: ranks  ! a communicator of one rank; MPI programs use lockstep_mpi or lockstep_mpi_f08
  type(lockstep_model) :: model
  type(lockstep_trainer) :: trainer
  integer :: step
  real(8) :: x(4) = [-1d0, 0d0, 0.5d0, 2d0], y(4) = [-4d0, -1d0, 0.5d0, 5d0], answer(1)

  call lockstep_context_create(context)
  call lockstep_comm_create(context, ranks)
  call lockstep_model_mlp(context, LOCKSTEP_F64, [1, 1], LOCKSTEP_ACTIVATION_NONE, model)
  call lockstep_model_initialise(model, 1)
  call lockstep_trainer_create(model, ranks, lockstep_trainer_options(max_batch=4), trainer)
  do step = 1, 2000
    call lockstep_trainer_add(trainer, x, y, in_axes='n', target_axes='n')
    call lockstep_trainer_update(trainer, 1d-2)
  end do
  call lockstep_infer(model, [2d0], answer, in_axes='n', out_axes='n')
  print '(f5.3)', answer
  call lockstep_destroy(trainer)  ! in any order
  call lockstep_destroy(model)
  call lockstep_destroy(ranks)
  call lockstep_destroy(context)
end program host
