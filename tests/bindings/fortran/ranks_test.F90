! Tests several ranks in Fortran: communicators from an integer and from a type(MPI_Comm), training with different numbers of
! samples, and errors on one rank.
program ranks_test
  use, intrinsic :: iso_c_binding
  use checks
  use lockstep
  use mpi_f08
  use lockstep_mpi_f08
  implicit none
  type(lockstep_context) :: context
  type(lockstep_comm) :: world, pairs, none
  type(lockstep_model) :: model
  type(lockstep_trainer) :: trainer
  type(lockstep_trainer_options) :: options
  type(lockstep_report) :: report
  type(MPI_Comm) :: half
  real(c_double) :: x(2, 12), y(12), w(2, 1), all_w(2)
  character(300) :: text
  integer :: rank, ranks, my_rank, size_of, largest, begin, end, i, stat, level
  call MPI_Init_thread(MPI_THREAD_FUNNELED, level)
  call MPI_Comm_rank(MPI_COMM_WORLD, my_rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size_of)
  call lockstep_context_create(context)
  call lockstep_comm_create(context, MPI_COMM_WORLD, world)
  call lockstep_comm_rank(world, rank, ranks)
  call check(rank == my_rank .and. ranks == size_of, 'rank and size of a type(MPI_Comm)')
  call MPI_Comm_split(MPI_COMM_WORLD, my_rank/2, -my_rank, half)
  call lockstep_comm_create(context, half%MPI_VAL, pairs)
  call lockstep_comm_agree(pairs, my_rank, largest)
  call check(largest == min(my_rank/2*2 + 1, size_of - 1), 'an integer')
  call lockstep_destroy(pairs)
  call MPI_Comm_free(half)
  call lockstep_comm_create(context, MPI_COMM_NULL, none, stat, text)
  call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'MPI_COMM_NULL')

  ! Rank r has samples begin + 1 to end. Higher ranks have more samples.
  begin = 12*rank*(rank + 1)/(ranks*(ranks + 1))
  end = 12*(rank + 1)*(rank + 2)/(ranks*(ranks + 1))
  x = reshape([(sin(real(i*i, c_double)), i=1, 24)], [2, 12])
  y = 3*x(1, :) - 2*x(2, :) + 1
  call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 1], LOCKSTEP_ACTIVATION_NONE, model)
  call lockstep_model_initialise(model, 3 + my_rank)
  options%max_batch = 12
  options%optimizer = LOCKSTEP_OPTIMIZER_SGD
  if (ranks > 1) then
    call lockstep_trainer_create(model, world, options, trainer, stat, text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'lockstep_model_broadcast')
  end if
  call lockstep_model_broadcast(model, world, ranks - 1)
  options%sync_batch_norm = 1  ! has no effect, because the model has no batch norm
  call lockstep_trainer_create(model, world, options, trainer)

  ! Rank 0 has added no samples. Its update returns STATE, and that of all other ranks PEER. No rank waits.
  if (rank /= 0) call lockstep_trainer_add(trainer, x, y, target_axes='n')
  call lockstep_trainer_update(trainer, 0.1d0, stat, text)
  if (rank == 0) then
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'lockstep_trainer_update')
  else
    call check_error(stat, LOCKSTEP_ERR_PEER, text, 'agreed: rank 0')
  end if
  call lockstep_trainer_abandon(trainer)
  do i = 1, 500
    call lockstep_trainer_add(trainer, x(:, begin + 1:end), y(begin + 1:end), target_axes='n')
    call lockstep_trainer_update(trainer, 0.1d0)
  end do
  call lockstep_trainer_report(trainer, report)
  call check(report%step == 500 .and. report%samples == 12 .and. report%loss < 1d-18, 'the step of all ranks')
  call lockstep_trainer_check(trainer)
  call lockstep_parameter_read(model, '1.weight', w)
  call check(abs(w(1, 1) - 3) < 1d-9 .and. abs(w(2, 1) + 2) < 1d-9, 'weights are found')
  all_w = w(:, 1)
  call MPI_Bcast(all_w, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)
  call check(all(all_w == w(:, 1)), 'the same bits on all ranks')
  call lockstep_destroy(context)
  call lockstep_destroy(model)
  call lockstep_destroy(world)
  call lockstep_destroy(trainer)
  call MPI_Finalize()
  call finish()
end program ranks_test
