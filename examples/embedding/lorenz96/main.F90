! Trains a network while the two-scale Lorenz-96 system runs. The network learns to predict U = -(h c/b) sum Y, the
! effect of the fast variables Y on the slow variables X, from X alone. A model that has only the slow variables can then
! use the network in place of Y. Wilks (2005) uses a quartic polynomial in place of Y; the program compares the two.
!
!   mpirun -np P lorenz96 [STEPS]      uses the same samples for any P. The exit status is 0 if, in a test, the network
!                                      explains more than 87 % of the variance of U, and 2 % more than the polynomial. The
!                                      default of 1250 steps is enough for this.
!
! The 20 members of an ensemble are divided between the ranks. In a step, each member advances by 0.02 time units, and the
! network is trained on samples that are drawn from all states of the members so far. Every fifth member is only for the
! test.
program lorenz96
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
  use mpi_f08
  use lockstep
  use lockstep_mpi_f08
  implicit none
  integer, parameter :: slow = 8, fast = 32*slow, members = 20, drawn = 16  ! drawn: samples per member and step
  real(real64), parameter :: forcing = 20, h = 1, b = 10, c = 10, dt = 1e-3_real64, pi = 3.141592653589793_real64
  integer :: steps, rank, ranks, level, first, mine  ! this rank has members first + 1 to first + mine
  logical :: good

  call MPI_Init_thread(MPI_THREAD_FUNNELED, level)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  steps = steps_asked_for()
  if (steps < 1 .or. ranks > members) then
    write (error_unit, '(a, i0, a)') 'lorenz96 [STEPS], at least 1, with at most ', members, ' ranks'
    call MPI_Finalize()
    stop 2, quiet=.true.
  end if
  first = members*rank/ranks
  mine = members*(rank + 1)/ranks - first
  call run(good)
  call MPI_Finalize()
  if (.not. good) stop 1, quiet=.true.

contains

  subroutine run(good)
    logical, intent(out) :: good
    real(real64), allocatable :: x(:, :), y(:, :)                  ! shape (variables, members of this rank)
    real(real64), allocatable :: seen_x(:, :, :), seen_u(:, :, :)  ! values X/5 and U/5; shape (slow, steps, members)
    real(real64), allocatable :: batch_x(:, :), batch_u(:, :)      ! shape (slow, samples)
    real(real64) :: loss, r2_network, r2_quartic
    type(lockstep_context) :: context
    type(lockstep_comm) :: comm
    type(lockstep_model) :: model
    type(lockstep_trainer) :: trainer
    integer :: step, m, i, n, at

    allocate (x(slow, mine), y(fast, mine), seen_x(slow, steps, mine), seen_u(slow, steps, mine))
    allocate (batch_x(slow, drawn*mine), batch_u(slow, drawn*mine))
    do m = 1, mine
      x(:, m) = [(5*draw((first + m)*slow + i), i=1, slow)]
      y(:, m) = [(0.1_real64*draw((first + m)*fast + i), i=1, fast)]
      call integrate(x(:, m), y(:, m), 5000)  ! moves the state onto the attractor
    end do

    call lockstep_context_create(context, lockstep_context_options(threads=1))
    call lockstep_comm_create(context, MPI_COMM_WORLD, comm)
    call lockstep_model_mlp(context, LOCKSTEP_F32, [slow, 64, 64, slow], LOCKSTEP_ACTIVATION_TANH, model)
    call lockstep_model_initialise(model, 1)
    call lockstep_trainer_create(model, comm, lockstep_trainer_options(max_batch=drawn*mine), trainer)
    do step = 1, steps
      n = 0
      do m = 1, mine
        call integrate(x(:, m), y(:, m), 20)
        seen_x(:, step, m) = x(:, m)/5
        seen_u(:, step, m) = subgrid(y(:, m))/5
        if (is_test(m)) cycle
        do i = 1, drawn
          at = 1 + int((1 + draw((step*members + first + m)*drawn + i))/2*step)
          n = n + 1
          batch_x(:, n) = seen_x(:, at, m)
          batch_u(:, n) = seen_u(:, at, m)
        end do
      end do
      call lockstep_trainer_add(trainer, batch_x(:, 1:n), batch_u(:, 1:n))  ! n is 0 if all members of a rank are for the test
      call lockstep_trainer_update(trainer, 6e-3_real64*(1 + cos(pi*(step - 1)/steps))/2)
      if (mod(step, 250) == 0 .or. step == steps) then
        call lockstep_trainer_loss(trainer, loss)
        loss = merge(loss*n, 0._real64, n > 0)
        call MPI_Allreduce(MPI_IN_PLACE, loss, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
        call MPI_Allreduce(MPI_IN_PLACE, n, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
        if (rank == 0) print '(a, i0, a, es10.4)', 'step ', step, ': loss ', loss/n
      end if
    end do

    call test_both(model, seen_x, seen_u, r2_network, r2_quartic)
    good = r2_network > 0.87_real64 .and. r2_network > r2_quartic + 0.02_real64
    if (rank == 0) then
      print '(i0, a, f7.4, a, f7.4)', ranks, ' ranks: of the variance of U the network explains', r2_network, &
        ', the polynomial', r2_quartic
      if (good) print '(a)', 'the closure is learned'
      if (.not. good) print '(a)', 'NOT learned: expected more than 0.87, and 0.02 more than the polynomial'
    end if
    call lockstep_destroy(trainer)
    call lockstep_destroy(model)
    call lockstep_destroy(comm)
    call lockstep_destroy(context)
  end subroutine

  logical function is_test(m)
    integer, intent(in) :: m
    is_test = mod(first + m, 5) == 0
  end function

  ! ---- The system.

  function subgrid(y) result(u)
    real(real64), intent(in) :: y(fast)
    real(real64) :: u(slow)
    u = -h*c/b*sum(reshape(y, [fast/slow, slow]), 1)
  end function

  subroutine tendency(x, y, dx, dy)
    real(real64), intent(in) :: x(slow), y(fast)
    real(real64), intent(out) :: dx(slow), dy(fast)
    real(real64) :: xs(-1:slow + 1), ys(0:fast + 2)  ! x and y with their periodic neighbours on both sides
    integer :: j
    xs(1:slow) = x
    xs(-1:0) = x(slow - 1:slow)
    xs(slow + 1) = x(1)
    ys(1:fast) = y
    ys(0) = y(fast)
    ys(fast + 1:fast + 2) = y(1:2)
    dx = -xs(0:slow - 1)*(xs(-1:slow - 2) - xs(2:slow + 1)) - x + forcing + subgrid(y)
    do j = 1, slow
      dy((j - 1)*(fast/slow) + 1:j*(fast/slow)) = h*c/b*x(j)
    end do
    dy = dy - c*b*ys(2:fast + 1)*(ys(3:fast + 2) - ys(0:fast - 1)) - c*y
  end subroutine

  ! Advances x and y by `times` steps of the classical Runge-Kutta method.
  subroutine integrate(x, y, times)
    real(real64), intent(inout) :: x(slow), y(fast)
    integer, intent(in) :: times
    real(real64), dimension(slow) :: x1, x2, x3, x4
    real(real64), dimension(fast) :: y1, y2, y3, y4
    integer :: i
    do i = 1, times
      call tendency(x, y, x1, y1)
      call tendency(x + dt/2*x1, y + dt/2*y1, x2, y2)
      call tendency(x + dt/2*x2, y + dt/2*y2, x3, y3)
      call tendency(x + dt*x3, y + dt*y3, x4, y4)
      x = x + dt/6*(x1 + 2*(x2 + x3) + x4)
      y = y + dt/6*(y1 + 2*(y2 + y3) + y4)
    end do
  end subroutine

  ! ---- The test.

  ! Sets r2_network and r2_quartic to the shares of U's variance that the network and a quartic polynomial explain in the
  ! test members. The polynomial is fitted to the other members.
  subroutine test_both(model, x, u, r2_network, r2_quartic)
    type(lockstep_model), intent(in) :: model
    real(real64), intent(in) :: x(:, :, :), u(:, :, :)
    real(real64), intent(out) :: r2_network, r2_quartic
    real(real64) :: fit(5, 6), found(slow, steps), sums(5)  ! sums: sums of 1, U, U*U and the two squared errors
    real(real64) :: powers(5)
    integer :: m, i, k
    fit = 0
    do m = 1, mine
      if (is_test(m)) cycle
      do i = 1, steps
        do k = 1, slow
          powers = x(k, i, m)**[0, 1, 2, 3, 4]
          fit(:, 1:5) = fit(:, 1:5) + spread(powers, 2, 5)*spread(powers, 1, 5)
          fit(:, 6) = fit(:, 6) + powers*u(k, i, m)
        end do
      end do
    end do
    call MPI_Allreduce(MPI_IN_PLACE, fit, size(fit), MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
    do i = 1, 5  ! Gauss-Jordan elimination without pivoting, because the matrix is positive definite
      fit(i, :) = fit(i, :)/fit(i, i)
      do k = 1, 5
        if (k /= i) fit(k, :) = fit(k, :) - fit(k, i)*fit(i, :)
      end do
    end do

    sums = 0
    do m = 1, mine
      if (.not. is_test(m)) cycle
      call lockstep_infer(model, x(:, :, m), found)
      sums(1:3) = sums(1:3) + [real(slow*steps, real64), sum(u(:, :, m)), sum(u(:, :, m)**2)]
      sums(4) = sums(4) + sum((found - u(:, :, m))**2)
      found = fit(1, 6) + x(:, :, m)*(fit(2, 6) + x(:, :, m)*(fit(3, 6) + x(:, :, m)*(fit(4, 6) + x(:, :, m)*fit(5, 6))))
      sums(5) = sums(5) + sum((found - u(:, :, m))**2)
    end do
    call MPI_Allreduce(MPI_IN_PLACE, sums, size(sums), MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
    r2_network = 1 - sums(4)/(sums(3) - sums(2)**2/sums(1))
    r2_quartic = 1 - sums(5)/(sums(3) - sums(2)**2/sums(1))
  end subroutine

  ! Returns a number in [-1, 1) for each i, equal for every number of ranks.
  real(real64) function draw(i)
    integer, intent(in) :: i
    integer(int64) :: z
    integer :: k
    z = i + 99991_int64
    do k = 1, 4
      z = mod(z*z + i, 2147483647_int64)
    end do
    draw = 2*real(z, real64)/2147483647 - 1
  end function

  integer function steps_asked_for() result(asked)
    character(20) :: text
    integer :: status
    asked = 1250
    if (command_argument_count() == 0) return
    call get_command_argument(1, text)
    read (text, *, iostat=status) asked
    if (status /= 0 .or. command_argument_count() > 1) asked = 0
  end function
end program lorenz96
