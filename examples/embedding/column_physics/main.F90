! A column model's physics with a network inside: an OpenMP loop over blocks of columns, each thread with a model of its own that
! shares the parameters.
!
!   column_physics         blocks of 1, 7, 32 and 1000 columns with 1, 2 and 3 threads: the same bits
!
! state (ncol, nlev, nvar) is the program's array, columns fastest; the network takes the four variables of a cell, whose axis is
! not the fastest, and gives a tendency (ncol, nlev). The weights come from a file in a real code; here they are drawn, and the
! answer is compared with loops in plain Fortran.
program column_physics
  use lockstep
  implicit none
  integer, parameter :: ncol = 1000, nlev = 12, nvar = 4, width = 32
  integer, parameter :: blocks(4) = [1, 7, 32, 1000], thread_counts(3) = [1, 2, 3]
  real(8), parameter :: canary = -777.25d0
  real(8), allocatable :: state(:, :, :), tendency(:, :), first(:, :), exact(:, :)
  type(lockstep_context) :: main_context
  type(lockstep_model) :: model
  real(8) :: w1(nvar, width), w2(width, width), w3(width, 1), b1(width), b2(width), b3(1), worst
  integer :: i, j
  logical :: same, untouched

  allocate (state(ncol, nlev, nvar), tendency(ncol, 0:nlev + 1), first(ncol, nlev), exact(ncol, nlev))
  call random_number(state)
  state = 2*state - 1
  call lockstep_context_create(main_context, lockstep_context_options(threads=1))
  call lockstep_model_mlp(main_context, LOCKSTEP_F64, [nvar, width, width, 1], LOCKSTEP_ACTIVATION_TANH, model)
  call lockstep_model_initialise(model, 1)
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
  print '(a, l1, a, es8.1, a, l1)', 'the same bits for blocks of 1, 7, 32, 1000 columns and 1, 2, 3 threads: ', same, &
    '; largest difference from plain loops ', worst, '; memory outside the views untouched: ', untouched
  deallocate (state, tendency, first, exact)  ! arrays of a main program live on otherwise, which leak checkers report
  if (.not. (same .and. untouched .and. worst < 1d-13)) error stop 1

contains

  ! A handle is for one thread at a time, so that each has a context and a share of the model.
  subroutine physics(columns, threads)
    integer, intent(in) :: columns, threads
    type(lockstep_context) :: context
    type(lockstep_model) :: mine
    integer :: begin, end
    !$omp parallel num_threads(threads) private(context, mine, begin, end)
    call lockstep_context_create(context, lockstep_context_options(threads=1))
    !$omp critical (share)
    call lockstep_model_share(model, context, mine)
    !$omp end critical (share)
    call lockstep_model_prepare(mine, columns*nlev)
    !$omp do schedule(dynamic)
    do begin = 1, ncol, columns
      end = min(begin + columns - 1, ncol)
      call lockstep_infer(mine, state(begin:end, :, :), tendency(begin:end, 1:nlev), in_axes='nnc', out_axes='nn')
    end do
    !$omp end do
    call lockstep_destroy(mine)
    call lockstep_destroy(context)
    !$omp end parallel
  end subroutine

  ! What the network is, a cell at a time.
  subroutine plain_loops()
    real(8) :: h1(width), h2(width)
    integer :: column, level
    do level = 1, nlev
      do column = 1, ncol
        h1 = tanh(matmul(state(column, level, :), w1) + b1)
        h2 = tanh(matmul(h1, w2) + b2)
        exact(column, level) = dot_product(h2, w3(:, 1)) + b3(1)
      end do
    end do
  end subroutine
end program column_physics
