! A column model that calls a network in its physics. Each rank computes its part of the columns in an
! OpenMP loop over blocks of columns. Each thread has its own model handle, and all models share the parameters.
!
!   mpirun -np P column_physics [SEED]     computes blocks of 1, 7, 32 and 1000 columns with 1, 2 and 3 threads, and checks
!                                          that all results have the same bits. The printed fingerprint is equal for every
!                                          P. SEED (default 1) is the seed of the parameters.
!
! state (columns, nlev, nvar) and tendency (columns, nlev) are arrays of the program. For each cell, the network takes the
! nvar variables and returns the tendency. The variables of a cell are not adjacent in memory, because the index of columns
! varies fastest. A real program reads the weights from a file. Here the weights are random, and the result is compared
! with plain Fortran loops.
program column_physics
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use mpi_f08
  use lockstep
  implicit none
  integer, parameter :: ncol = 1000, nlev = 12, nvar = 4, width = 32
  integer, parameter :: blocks(4) = [1, 7, 32, 1000], thread_counts(3) = [1, 2, 3]
  integer(int64), parameter :: prime = 2147483647
  real(real64), parameter :: canary = -777.25_real64
  real(real64), allocatable :: state(:, :, :), tendency(:, :), first(:, :), exact(:, :)
  type(lockstep_context) :: main_context
  type(lockstep_model) :: model
  real(real64) :: w1(nvar, width), w2(width, width), w3(width, 1), b1(width), b2(width), b3(1), worst
  integer(int64) :: fingerprint
  integer :: level, rank, ranks, before, columns, seed, i, j  ! before: number of columns of all lower ranks
  logical :: same, untouched
  character(20) :: text

  call MPI_Init_thread(MPI_THREAD_FUNNELED, level)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  seed = 1
  if (command_argument_count() > 0) then
    call get_command_argument(1, text)
    read (text, *) seed
  end if
  before = ncol*rank/ranks
  columns = ncol*(rank + 1)/ranks - before
  allocate (state(columns, nlev, nvar), tendency(columns, 0:nlev + 1), first(columns, nlev), exact(columns, nlev))
  call draw_state()
  call lockstep_context_create(main_context, lockstep_context_options(threads=1))
  call lockstep_model_mlp(main_context, LOCKSTEP_F64, [nvar, width, width, 1], LOCKSTEP_ACTIVATION_TANH, model)
  call lockstep_model_initialise(model, seed)
  call lockstep_parameter_read(model, '1.weight', w1)
  call lockstep_parameter_read(model, '1.bias', b1)
  call lockstep_parameter_read(model, '2.weight', w2)
  call lockstep_parameter_read(model, '2.bias', b2)
  call lockstep_parameter_read(model, '3.weight', w3)
  call lockstep_parameter_read(model, '3.bias', b3)
  call plain_loops()

  same = .true.
  untouched = .true.
  worst = 0
  do i = 1, size(blocks)
    do j = 1, size(thread_counts)
      tendency = canary
      call physics(blocks(i), thread_counts(j))
      untouched = untouched .and. all(tendency(:, [0, nlev + 1]) == canary)
      if (i == 1 .and. j == 1) first = tendency(:, 1:nlev)
      same = same .and. all(tendency(:, 1:nlev) == first)
      worst = max(worst, maxval(abs(tendency(:, 1:nlev) - exact)))
    end do
  end do
  call lockstep_destroy(model)
  call lockstep_destroy(main_context)
  fingerprint = fingerprint_of(first)
  call MPI_Allreduce(MPI_IN_PLACE, fingerprint, 1, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD)
  call MPI_Allreduce(MPI_IN_PLACE, worst, 1, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD)
  call MPI_Allreduce(MPI_IN_PLACE, same, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
  call MPI_Allreduce(MPI_IN_PLACE, untouched, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
  if (rank == 0) then
    print '(a, l1, a, es8.1, a, l1)', 'the same bits for blocks of 1, 7, 32, 1000 columns and 1, 2, 3 threads: ', same, &
      '; largest difference from plain loops ', worst, '; memory outside the views untouched: ', untouched
    print '(i0, a, i0)', ranks, ' ranks: fingerprint ', mod(fingerprint, prime)
  end if
  deallocate (state, tendency, first, exact)  ! a main program does not free its arrays; leak checkers would report them
  call MPI_Finalize()
  if (.not. (same .and. untouched .and. worst < 1e-13_real64)) error stop 1

contains

  ! Computes all blocks. Only one thread at a time may use a handle, so each thread makes its own context and its own
  ! model (lockstep_model_share).
  subroutine physics(block, threads)
    integer, intent(in) :: block, threads
    type(lockstep_context) :: context
    type(lockstep_model) :: mine
    integer :: begin, end
    !$omp parallel num_threads(threads) private(context, mine, begin, end)
    call lockstep_context_create(context, lockstep_context_options(threads=1))
    !$omp critical (share)
    call lockstep_model_share(model, context, mine)
    !$omp end critical (share)
    call lockstep_model_prepare(mine, block*nlev)
    !$omp do schedule(dynamic)
    do begin = 1, columns, block
      end = min(begin + block - 1, columns)
      call lockstep_infer(mine, state(begin:end, :, :), tendency(begin:end, 1:nlev), in_axes='nnc', out_axes='nn')
    end do
    !$omp end do
    call lockstep_destroy(mine)
    call lockstep_destroy(context)
    !$omp end parallel
  end subroutine

  ! Computes the network in plain Fortran, cell by cell.
  subroutine plain_loops()
    real(real64) :: h1(width), h2(width)
    integer :: column, lev
    do lev = 1, nlev
      do column = 1, columns
        h1 = tanh(matmul(state(column, lev, :), w1) + b1)
        h2 = tanh(matmul(h1, w2) + b2)
        exact(column, lev) = dot_product(h2, w3(:, 1)) + b3(1)
      end do
    end do
  end subroutine

  ! Sets the state to numbers in (-1, 1) that depend on a column's index among the columns of all ranks.
  subroutine draw_state()
    integer(int64) :: x, at
    integer :: column, lev, var, k
    do var = 1, nvar
      do lev = 1, nlev
        do column = 1, columns
          at = ((var - 1)*nlev + lev - 1)*ncol + before + column
          x = at + 99991
          do k = 1, 4
            x = mod(x*x + at, prime)
          end do
          state(column, lev, var) = 2*real(x, real64)/prime - 1
        end do
      end do
    end do
  end subroutine

  ! Returns a hash of all bits of these columns and of their indices among the columns of all ranks.
  integer(int64) function fingerprint_of(values) result(total)
    real(real64), intent(in) :: values(:, :)
    integer(int64) :: bits, column_bits
    integer :: column, lev
    total = 0
    do column = 1, size(values, 1)
      column_bits = before + column
      do lev = 1, size(values, 2)
        bits = transfer(values(column, lev), bits)
        column_bits = mod(column_bits*65599 + ibits(bits, 0, 32), prime)
        column_bits = mod(column_bits*65599 + ibits(bits, 32, 32), prime)
      end do
      total = mod(total + column_bits*(before + column), prime)
    end do
  end function
end program column_physics
