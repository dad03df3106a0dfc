! Trains a closure, a term that a solver lacks, through this solver. The solver knows the advection of the Lorenz-96 system
! dx_k/dt = x_(k-1) (x_(k+1) - x_(k-2)) + c(x_k), but not the closure c. The observations come from c(x) = -x + 8, so the
! right coefficients of c are known.
!
! A priori, c is fitted to the differences of observations that are 0.2 time units apart. A posteriori, the solver runs
! from one observation to the next, and its adjoint gives the gradient of the misfit: lockstep's tapes differentiate c, and
! this program differentiates the other terms. main.c has the same program in C, and an assimilation.
!
!   mpirun -np P closure_fortran      has the same members of the ensemble for any P up to 8; status 0: the answer is right
program closure
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
  use mpi_f08
  use lockstep
  use lockstep_mpi_f08
  implicit none
  integer, parameter :: cells = 36, members = 8, steps = 20, updates = 600
  real(real64), parameter :: dt = 1e-2_real64, sixth = 1/6.0_real64
  real(real64), parameter :: ahead(4) = [0.0_real64, 0.5_real64, 0.5_real64, 1.0_real64], &
    weight(4) = [sixth, 2*sixth, 2*sixth, sixth]

  ! A run of the solver from one observation to the next.
  type :: window
    logical :: is_truth = .true.                 ! c(x) = -x + 8, as in the true system
    type(lockstep_tape) :: tape                  ! tape of the network for c; not used if is_truth
    real(real64), allocatable :: x(:, :, :, :)   ! shape (cells, members, stage, step): states at which c was evaluated
    integer(int64) :: pass(4, steps)             ! number of the tape's pass for each evaluation of c
  end type
  integer :: rank, ranks
  logical :: good

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  if (ranks > members) then
    write (error_unit, '(a, i0, a, i0)') 'closure: ', ranks, ' ranks, expected at most ', members
    call MPI_Abort(MPI_COMM_WORLD, 2)
  end if
  call run(good)
  call MPI_Finalize()
  if (.not. good) stop 1, quiet=.true.

contains

  subroutine run(good)
    logical, intent(out) :: good
    type(lockstep_context) :: context
    type(lockstep_comm) :: comm
    type(lockstep_model) :: model
    type(window) :: truth, modelled
    real(real64), allocatable :: x(:, :), y(:, :)  ! shape (cells, members of this rank): observations, 0.2 time units apart
    real(real64) :: before(2), after(2)
    integer :: first, mine, k, m

    call lockstep_context_create(context)
    call lockstep_comm_create(context, MPI_COMM_WORLD, comm)
    call lockstep_model_mlp(context, LOCKSTEP_F64, [1, 1], LOCKSTEP_ACTIVATION_NONE, model)
    call lockstep_model_initialise(model, 1)
    first = members*rank/ranks
    mine = members*(rank + 1)/ranks - first
    allocate (x(cells, mine), y(cells, mine), truth%x(cells, mine, 4, steps), modelled%x(cells, mine, 4, steps))
    do m = 1, mine
      x(:, m) = [(8 + sin(1.7_real64*((first + m - 1)*cells + k - 1)), k=1, cells)]
    end do
    do k = 1, 50  ! moves the states onto the attractor
      call solve(truth, x)
    end do
    y = x
    call solve(truth, y)

    call fit_a_priori(x, y, before)
    call train_a_posteriori(comm, model, modelled, x, y, after)
    if (rank == 0) then
      write (*, '(a)') 'truth:        c(x) = -1.0000 x + 8.0000'
      write (*, '(a, f0.4, a, f0.4)') 'a priori:     c(x) = ', before(1), ' x + ', before(2)
      write (*, '(a, f0.4, a, f0.4)') 'a posteriori: c(x) = ', after(1), ' x + ', after(2)
    end if
    good = abs(after(1) + 1) < 1e-3_real64 .and. abs(after(2) - 8) < 1e-2_real64 .and. abs(before(1) + 1) > 0.05_real64
    call lockstep_destroy(model)
    call lockstep_destroy(comm)
    call lockstep_destroy(context)
  end subroutine

  ! Advances x by one window, with the Runge-Kutta method of order 4.
  subroutine solve(w, x)
    type(window), intent(inout) :: w
    real(real64), intent(inout) :: x(:, :)
    real(real64) :: slope(size(x, 1), size(x, 2)), total(size(x, 1), size(x, 2))
    integer :: step, stage
    do step = 1, steps
      slope = 0
      total = x
      do stage = 1, 4
        w%x(:, :, stage, step) = x + ahead(stage)*dt*slope
        call tendency(w, stage, step, slope)
        total = total + weight(stage)*dt*slope
      end do
      x = total
    end do
  end subroutine

  subroutine tendency(w, stage, step, slope)
    type(window), intent(inout) :: w
    integer, intent(in) :: stage, step
    real(real64), intent(out) :: slope(:, :)
    associate (x => w%x(:, :, stage, step))
      if (w%is_truth) then
        slope = 8 - x
      else
        call evaluate(w, stage, step, slope)
      end if
      slope = slope + cshift(x, -1)*(cshift(x, 1) - cshift(x, -2))
    end associate
  end subroutine

  ! Sets slope to c(x) at the states of a stage, by the tape's model. Each cell of each member is a sample of one
  ! number.
  subroutine evaluate(w, stage, step, slope)
    type(window), intent(inout) :: w
    integer, intent(in) :: stage, step
    real(real64), intent(out), contiguous, target :: slope(:, :)
    real(real64), pointer :: out(:, :)
    out(1:1, 1:size(slope)) => slope
    call lockstep_tape_forward(w%tape, reshape(w%x(:, :, stage, step), [1, size(slope)]), out, w%pass(stage, step), &
      in_axes='cn', out_axes='cn')
  end subroutine

  ! Turns a = dL/d(last state of the window) into dL/d(first state). The tape gets the gradients of c's parameters.
  subroutine adjoint(w, a)
    type(window), intent(inout) :: w
    real(real64), intent(inout) :: a(:, :)
    real(real64) :: next(size(a, 1), size(a, 2)), g(size(a, 1), size(a, 2)), total(size(a, 1), size(a, 2))
    real(real64), parameter :: following(4) = [0.5_real64, 0.5_real64, 1.0_real64, 0.0_real64]  ! ahead(stage + 1), or 0
    integer :: step, stage
    do step = steps, 1, -1
      next = 0
      total = a
      do stage = 4, 1, -1
        g = dt*(weight(stage)*a + following(stage)*next)
        call adjoint_of_tendency(w, stage, step, g, next)
        total = total + next
      end do
      a = total
    end do
  end subroutine

  subroutine adjoint_of_tendency(w, stage, step, g, next)
    type(window), intent(inout) :: w
    integer, intent(in) :: stage, step
    real(real64), intent(in) :: g(:, :)
    real(real64), intent(out), contiguous, target :: next(:, :)
    real(real64), pointer :: in_gradient(:, :)
    in_gradient(1:1, 1:size(next)) => next
    call lockstep_tape_backward(w%tape, w%pass(stage, step), reshape(g, [1, size(g)]), in_gradient, out_axes='cn', &
      in_axes='cn')
    associate (x => w%x(:, :, stage, step))
      next = next + cshift(g*(cshift(x, 1) - cshift(x, -2)), 1) + cshift(g*cshift(x, -1), -1) - cshift(g*cshift(x, -1), 2)
    end associate
  end subroutine

  ! Fits c(x) = c(1) x + c(2) by least squares to (y - x)/0.2 minus the advection at x, over all ranks.
  subroutine fit_a_priori(x, y, c)
    real(real64), intent(in) :: x(:, :), y(:, :)
    real(real64), intent(out) :: c(2)
    real(real64) :: t(size(x, 1), size(x, 2)), sums(5)
    t = (y - x)/(steps*dt) - cshift(x, -1)*(cshift(x, 1) - cshift(x, -2))
    sums = [real(size(x), real64), sum(x), sum(x**2), sum(t), sum(x*t)]
    call MPI_Allreduce(MPI_IN_PLACE, sums, 5, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
    c(1) = (sums(1)*sums(5) - sums(2)*sums(4))/(sums(1)*sums(3) - sums(2)**2)
    c(2) = (sums(4) - c(1)*sums(2))/sums(1)
  end subroutine

  subroutine train_a_posteriori(comm, model, w, x, y, c)
    type(lockstep_comm), intent(in) :: comm
    type(lockstep_model), intent(in) :: model
    type(window), intent(inout) :: w
    real(real64), intent(in) :: x(:, :), y(:, :)
    real(real64), intent(out) :: c(2)
    type(lockstep_trainer) :: trainer
    real(real64) :: state(size(x, 1), size(x, 2)), rate, matrix(1, 1), vector(1)
    integer :: update
    call lockstep_trainer_create(model, comm, lockstep_trainer_options(max_batch=1, loss=LOCKSTEP_LOSS_GIVEN), trainer)
    call lockstep_tape_create(model, &
      lockstep_tape_options(max_batch=size(x, kind=int64), slots=4_int64*steps), w%tape)
    w%is_truth = .false.
    rate = 0.5_real64
    do update = 1, updates
      state = x
      call solve(w, state)
      state = (state - y)/(members*cells)  ! dL/d(state); L: half the mean square misfit over all ranks
      call adjoint(w, state)
      call lockstep_trainer_update(trainer, rate)  ! sums the gradients over the ranks
      rate = 0.99_real64*rate
    end do
    call lockstep_parameter_read(model, '1.weight', matrix)
    call lockstep_parameter_read(model, '1.bias', vector)
    c = [matrix(1, 1), vector(1)]
    call lockstep_destroy(w%tape)
    call lockstep_destroy(trainer)
  end subroutine

end program
