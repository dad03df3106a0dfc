! An MPI program in Fortran. Its ranks agree on the largest rank through lockstep.
program ranks_host
  use mpi_f08
  use lockstep
  use lockstep_mpi_f08
  implicit none
  type(lockstep_context) :: context
  type(lockstep_comm) :: ranks
  integer :: rank, size, largest
  call MPI_Init()
  call lockstep_context_create(context)
  call lockstep_comm_create(context, MPI_COMM_WORLD, ranks)
  call lockstep_comm_rank(ranks, rank, size)
  call lockstep_comm_agree(ranks, rank, largest)
  print '(3(a, i0))', 'rank ', rank, ' of ', size, ', the last is ', largest
  call lockstep_destroy(ranks)
  call lockstep_destroy(context)
  call MPI_Finalize()
end program ranks_host
