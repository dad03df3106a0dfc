! heat2d in Fortran; main.c describes the program and its options. The program passes array sections to lockstep without a copy:
! u(0:nx + 1, 0:rows + 1) is the temperature with its halo, next(1:nx, 1:rows) is the next step's temperature without the halo.
program heat2d
  use, intrinsic :: ieee_arithmetic, only: ieee_is_finite
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
  use mpi_f08
  use lockstep
  use lockstep_mpi_f08
  implicit none
  integer, parameter :: nx = 32, ny = 29, guard = 3, steps = 600, saved = 400, cells = 9
  real(real64), parameter :: r = 0.2_real64, pi = 3.141592653589793_real64, canary = -777.25_real64
  logical :: f32 = .false., half = .false., sine = .false., wrong_halo = .false., good  ! options; good: true if the run succeeds
  character(1000) :: save_to = '', load_from = ''
  type(MPI_Comm) :: group                  ! the ranks that share a field
  integer :: rank, ranks, rows, first_row  ! rank and size of the group; number and first of this rank's rows
  integer :: level, me, all_ranks
  logical :: trains

  call MPI_Init_thread(MPI_THREAD_FUNNELED, level)
  call MPI_Comm_rank(MPI_COMM_WORLD, me)
  call MPI_Comm_size(MPI_COMM_WORLD, all_ranks)
  if (.not. arguments_are_good() .or. all_ranks > ny) then
    write (error_unit, '(2a, i0, a)') 'heat2d [--type f32] [--train half] [--save FOLDER] [--load FOLDER] [--field sine] ', &
      '[--halo wrong], with at most ', ny, ' ranks'
    call MPI_Finalize()
    stop 2, quiet=.true.
  end if
  trains = .not. half .or. mod(me, 2) == 0
  call MPI_Comm_split(MPI_COMM_WORLD, merge(1, 0, trains), me, group)
  call MPI_Comm_rank(group, rank)
  call MPI_Comm_size(group, ranks)
  first_row = ny*rank/ranks
  rows = ny*(rank + 1)/ranks - first_row
  if (trains) then
    call train(good)
  else
    call go_on(good)
  end if
  call MPI_Allreduce(MPI_IN_PLACE, good, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
  call MPI_Comm_free(group)
  call MPI_Finalize()
  if (.not. good) stop 1, quiet=.true.

contains

  ! Allocates a field: u(1:nx, 1:rows) is this rank's part, with a halo of one cell. Around
  ! the halo are `guard` more cells, which nothing may touch.
  subroutine new_field(u)
    real(real64), allocatable, intent(out) :: u(:, :)
    allocate (u(-guard:nx + 1 + guard, -guard:rows + 1 + guard), source=canary)
  end subroutine

  ! Returns true if the only changed cells are those of this rank's part and of a halo of `halo` cells around it.
  logical function untouched(u, halo)
    real(real64), intent(in) :: u(-guard:, -guard:)
    integer, intent(in) :: halo
    untouched = count(u /= canary) == count(u(1 - halo:nx + halo, 1 - halo:rows + halo) /= canary)
  end function

  ! Returns a number in (-1, 1) that depends only on i, so the C and C++ programs use the same numbers, with any number of
  ! ranks.
  real(real64) function draw(i)
    integer, intent(in) :: i
    integer(int64) :: x
    integer :: k
    x = i + 99991_int64
    do k = 1, 4
      x = mod(x*x + i, 2147483647_int64)
    end do
    draw = 2*real(x, real64)/2147483647 - 1
  end function

  subroutine begin(u, step, one_mode)
    real(real64), intent(inout) :: u(-guard:, -guard:)
    integer, intent(in) :: step
    logical, intent(in) :: one_mode
    integer :: column, row, y
    do row = 1, rows
      y = first_row + row - 1
      do column = 1, nx
        if (one_mode) then
          u(column, row) = 2*sin(2*pi*(column - 1)/nx)*sin(2*pi*y/ny)
        else
          u(column, row) = draw((step*ny + y)*nx + column - 1)
        end if
      end do
    end do
  end subroutine

  ! Fills the halo of u. The field is periodic, and the ranks of `comm` have consecutive ranges of its rows.
  subroutine exchange(u, comm)
    real(real64), intent(inout) :: u(-guard:, -guard:)
    type(MPI_Comm), intent(in) :: comm
    real(real64) :: out(nx), in(nx)
    integer :: mine, all, above, below
    call MPI_Comm_rank(comm, mine)
    call MPI_Comm_size(comm, all)
    above = mod(mine + all - 1, all)
    below = mod(mine + 1, all)
    out = u(1:nx, 1)
    call MPI_Sendrecv(out, nx, MPI_DOUBLE_PRECISION, above, 0, in, nx, MPI_DOUBLE_PRECISION, below, 0, comm, &
      MPI_STATUS_IGNORE)
    u(1:nx, rows + 1) = in
    out = u(1:nx, rows)
    call MPI_Sendrecv(out, nx, MPI_DOUBLE_PRECISION, below, 1, in, nx, MPI_DOUBLE_PRECISION, above, 1, comm, &
      MPI_STATUS_IGNORE)
    u(1:nx, 0) = in
    u(0, 0:rows + 1) = u(nx, 0:rows + 1)
    u(nx + 1, 0:rows + 1) = u(1, 0:rows + 1)
  end subroutine

  subroutine solve(u, next)
    real(real64), intent(in) :: u(-guard:, -guard:)
    real(real64), intent(inout) :: next(-guard:, -guard:)
    next(1:nx, 1:rows) = u(1:nx, 1:rows) + r*(u(1:nx, 0:rows - 1) + u(1:nx, 2:rows + 1) + u(0:nx - 1, 1:rows) &
      + u(2:nx + 1, 1:rows) - 4*u(1:nx, 1:rows))
  end subroutine

  ! Adds to the normal matrix, for each cell, the products of every two values in the cell's 3 x 3 neighbourhood.
  subroutine add_normal(u, normal)
    real(real64), intent(in) :: u(-guard:, -guard:)
    real(real64), intent(inout) :: normal(cells, cells)
    real(real64) :: nine(cells)
    integer :: x, y, i
    do y = 1, rows
      do x = 1, nx
        nine = reshape(u(x - 1:x + 1, y - 1:y + 1), [cells])
        do i = 1, cells
          normal(:, i) = normal(:, i) + nine*nine(i)
        end do
      end do
    end do
  end subroutine

  ! Returns the rank of the normal matrix, by elimination from its largest diagonal element. The rank is the number of
  ! weights, or of linear combinations of weights, that the fields determine.
  integer function rank_of(normal)
    real(real64), intent(in) :: normal(cells, cells)
    real(real64) :: m(cells, cells), column(cells), largest
    integer :: i, p
    m = normal
    do rank_of = 0, cells - 1
      p = maxloc([(m(i, i), i=1, cells)], 1)
      if (rank_of == 0) largest = m(p, p)
      if (.not. m(p, p) > 1e-10_real64*largest) return
      column = m(:, p)
      do i = 1, cells
        m(:, i) = m(:, i) - column*(m(p, i)/column(p))
      end do
    end do
  end function

  elemental real(real64) function error_of(have, exact)
    real(real64), intent(in) :: have, exact
    error_of = abs(have - exact)
    if (.not. ieee_is_finite(error_of)) error_of = huge(error_of)
  end function

  ! Trains a convolution while the solver runs. Sets good to true if the convolution has learned the solver's stencil.
  subroutine train(good)
    logical, intent(out) :: good
    real(real64), parameter :: exact(cells) = [0._real64, r, 0._real64, r, 1 - 4*r, r, 0._real64, r, 0._real64]
    real(real64), allocatable :: u(:, :), next(:, :), learned(:, :)
    real(real64) :: w(3, 3, 1, 1), normal(cells, cells), loss, error(2), gate
    type(lockstep_context) :: context
    type(lockstep_comm) :: comm
    type(lockstep_model) :: model
    type(lockstep_trainer) :: trainer
    type(lockstep_trainer_options) :: options
    integer :: step, first, told_apart, written

    call new_field(u)
    call new_field(next)
    call new_field(learned)
    call lockstep_context_create(context, lockstep_context_options(threads=1))
    call lockstep_comm_create(context, group, comm)

    ! A convolution of 3 x 3 without padding and bias maps a field with its halo to the cells outside the halo.
    call lockstep_model_create(context, merge(LOCKSTEP_F32, LOCKSTEP_F64, f32), [1, nx + 2, rows + 2], model)
    call lockstep_model_add(model, 'conv2d', 'stencil', [0], features=1)
    call lockstep_model_initialise(model, 1)
    options%optimizer = LOCKSTEP_OPTIMIZER_SGD  ! SGD has momentum, which --save saves, too
    options%weights = LOCKSTEP_WEIGHTS_SAMPLE
    options%max_batch = 1
    call lockstep_trainer_create(model, comm, options, trainer)
    if (load_from /= '') call lockstep_trainer_load(trainer, load_from)

    normal = 0
    first = merge(saved, 0, load_from /= '')
    do step = first, steps - 1
      call begin(u, step, sine)
      call exchange(u, group)
      call solve(u, next)
      if (wrong_halo) call exchange(u, MPI_COMM_SELF)
      call add_normal(u, normal)
      call lockstep_trainer_add(trainer, u(0:nx + 1, 0:rows + 1), next(1:nx, 1:rows), [real(nx*rows, real64)], &
        in_axes='wh', target_axes='wh', weight_axes='n')
      call lockstep_trainer_update(trainer, 0.1_real64)
      if (mod(step + 1, 100) == 0) then
        call lockstep_trainer_loss(trainer, loss)
        loss = loss*rows/ny  ! this rank's part of the mean over all cells
        call MPI_Allreduce(MPI_IN_PLACE, loss, 1, MPI_DOUBLE_PRECISION, MPI_SUM, group)
        if (rank == 0) print '(a, i0, a, es16.10)', 'step ', step + 1, ': loss ', loss
      end if
      if (save_to /= '' .and. step + 1 == saved) call lockstep_trainer_save(trainer, save_to)
    end do
    call lockstep_infer(model, u(0:nx + 1, 0:rows + 1), learned(1:nx, 1:rows), in_axes='wh', out_axes='wh')

    call lockstep_parameter_read(model, 'stencil.weight', w)
    error(1) = maxval(error_of(reshape(w, [cells]), exact))
    error(2) = maxval(error_of(learned(1:nx, 1:rows), next(1:nx, 1:rows)))
    written = count(.not. [untouched(u, 1), untouched(next, 0), untouched(learned, 0)])
    call MPI_Allreduce(MPI_IN_PLACE, error, 2, MPI_DOUBLE_PRECISION, MPI_MAX, group)
    call MPI_Allreduce(MPI_IN_PLACE, written, 1, MPI_INTEGER, MPI_SUM, group)
    call MPI_Allreduce(MPI_IN_PLACE, normal, cells*cells, MPI_DOUBLE_PRECISION, MPI_SUM, group)
    gate = merge(1e-5_real64, 1e-10_real64, f32)
    told_apart = rank_of(normal)
    good = all(error < gate) .and. told_apart == cells
    if (rank == 0) then
      print '(3f20.16)', w
      print '(i0, 3a, es7.1, a, es7.1)', ranks, ' ranks, ', merge('f32', 'f64', f32), ': largest error of a weight ', &
        error(1), ', of the field ', error(2)
      print '(i0, a, i0, a)', told_apart, ' of 9 weights can be told apart; ', written, ' arrays written outside the views'
      if (good) then
        print '(a)', 'the stencil is learned'
      else if (told_apart < cells) then
        print '(a)', 'NOT learned: the fields do not tell the weights apart'
      else
        print '(a)', 'NOT learned: the solver sees something that the network does not'
      end if
    end if
    good = good .and. written == 0
    call lockstep_destroy(context)  ! the handles may be destroyed in any order
    call lockstep_destroy(model)
    call lockstep_destroy(trainer)
    call lockstep_destroy(comm)
  end subroutine

  ! Runs the solver on the ranks that do not train. Their field is a single sine mode, which the numerical scheme multiplies
  ! by a known factor in each step. Sets good to true if the final field agrees with this factor.
  subroutine go_on(good)
    logical, intent(out) :: good
    real(real64), allocatable :: u(:, :), next(:, :), start(:, :)
    real(real64) :: decay, error
    integer :: step
    call new_field(u)
    call new_field(next)
    call new_field(start)
    call begin(start, 0, .true.)
    call begin(u, 0, .true.)
    do step = 1, steps
      call exchange(u, group)
      call solve(u, next)
      u(1:nx, 1:rows) = next(1:nx, 1:rows)
    end do
    decay = (1 - 4*r*(sin(pi/nx)**2 + sin(pi/ny)**2))**steps
    error = maxval(error_of(u(1:nx, 1:rows)/decay, start(1:nx, 1:rows)))
    call MPI_Allreduce(MPI_IN_PLACE, error, 1, MPI_DOUBLE_PRECISION, MPI_MAX, group)
    if (rank == 0) print '(i0, a, i0, a, es7.1)', ranks, ' other ranks solved ', steps, &
      ' steps meanwhile: largest error ', error
    good = error < 1e-9_real64
  end subroutine

  logical function arguments_are_good()
    character(1000) :: name, value
    integer :: i
    arguments_are_good = mod(command_argument_count(), 2) == 0
    do i = 1, command_argument_count() - 1, 2
      call get_command_argument(i, name)
      call get_command_argument(i + 1, value)
      select case (trim(name)//' '//value)
      case ('--type f32')
        f32 = .true.
      case ('--train half')
        half = .true.
      case ('--field sine')
        sine = .true.
      case ('--halo wrong')
        wrong_halo = .true.
      case default
        if (name == '--save') save_to = value
        if (name == '--load') load_from = value
        arguments_are_good = arguments_are_good .and. (name == '--save' .or. name == '--load')
      end select
    end do
  end function
end program heat2d
