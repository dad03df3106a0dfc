! Tests which Fortran arrays are passed without a copy, and which are refused with an error that names the argument.
program views_test
  use, intrinsic :: iso_c_binding
  use checks
  use lockstep
  implicit none

  type cell
    real(c_double) :: t
    real(c_float) :: u, v
  end type
  real(c_double), parameter :: canary = -777.25d0
  type(lockstep_context) :: context
  type(lockstep_model) :: line
  character(200) :: text
  integer(c_int) :: stat

  call lockstep_context_create(context)
  call make_line(context, line)
  call sections()
  call components()
  call kinds()
  call refused()
  call traps()
  call views()
  call order()
  call finish()

contains

  elemental real(c_double) function answer(a, b)
    real(c_double), intent(in) :: a, b
    answer = 3*a - 2*b + 1
  end function

  subroutine fill(a)
    real(c_double), intent(out) :: a(:, :)
    integer :: i, j
    do j = 1, size(a, 2)
      do i = 1, size(a, 1)
        a(i, j) = 10*j + i
      end do
    end do
  end subroutine

  ! Passes array sections: interiors, reversed arrays, every third element, and features as first or last dimension. The elements
  ! around the output must not change.
  subroutine sections()
    real(c_double) :: a(9, 7), out(9, 7)
    integer :: i
    call fill(a)
    out = canary
    call lockstep_infer(line, a(4:5, 2:6), out(3:3, 2:6))  ! features in the first dimension, as in the model
    call check(all(out(3, 2:6) == answer(a(4, 2:6), a(5, 2:6))), 'interior')
    out(3, 2:6) = canary
    call check(all(out == canary), 'nothing else was written')
    call lockstep_infer(line, a(2:8, 3:4), out(2:8, 5:5), in_axes='nc', out_axes='nc')
    call check(all(out(2:8, 5) == answer(a(2:8, 3), a(2:8, 4))), 'features behind')
    call lockstep_infer(line, a(9:1:-1, 7:1:-6), out(:, 1), in_axes='nc', out_axes='n')
    call check(all(out(:, 1) == [(answer(a(i, 7), a(i, 1)), i=9, 1, -1)]), 'backwards')
    out = canary
    call lockstep_infer(line, a(1:7:3, 2:3), out(9:3:-3, 6), in_axes='nc ', out_axes='n')
    call check(all(out(9:3:-3, 6) == answer(a(1:7:3, 2), a(1:7:3, 3))), 'every third')
    call check(count(out == canary) == 60, 'every third: nothing else was written')
    call lockstep_infer(line, a(:, 1:0), out(:, 1:0), in_axes='cn', out_axes='cn', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'the input has 9 features')
    call lockstep_infer(line, a(1:2, 1:0), out(1:1, 1:0))  ! no samples: the call does nothing
  end subroutine

  subroutine components()
    type(cell) :: cells(2, 6)
    real(c_double) :: out(6)
    real(c_double), pointer :: t(:, :)
    type(cell), target :: pointed(2, 6)
    type(cell), allocatable :: allocated_cells(:, :)
    integer :: call_number
    cells%t = reshape([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [2, 6])
    cells%u = 50
    cells%v = 60
    call lockstep_infer(line, cells%t, out, out_axes='n')
    call check(all(out == answer(cells(1, :)%t, cells(2, :)%t)), 'cells%t')
    call lockstep_infer(line, cells(:, 2:6:2)%t, cells(1, 1:3)%t, out_axes='n')
    call check(all(cells(1, 1:3)%t == [3*3 - 2*4 + 1, 3*7 - 2*8 + 1, 3*11 - 2*12 + 1]), 'cells%t is written')
    call check(all(cells%u == 50) .and. all(cells%v == 60), 'what lies between is not')
    allocated_cells = cells
    do call_number = 1, 3  ! uses (:, :), because gfortran 12 moves the array at each call with allocated_cells%t
      call lockstep_infer(line, allocated_cells(:, :)%t, out, out_axes='n')
      call check(all(out == answer(cells(1, :)%t, cells(2, :)%t)), 'allocated_cells(:, :)%t')
    end do
    deallocate (allocated_cells)
    pointed = cells
    t => pointed%t
    call lockstep_infer(line, t, out, out_axes='n')
    call check(all(out == answer(cells(1, :)%t, cells(2, :)%t)), 'a pointer to cells%t')
  end subroutine

  subroutine kinds()
    real(c_float) :: singles(2, 3), out(3)
    integer(c_int32_t) :: i32(2, 3)
    integer(c_int64_t) :: i64(2, 3)
    singles = reshape([1, 2, 3, 4, 5, 6], [2, 3])
    i32 = int(singles)
    i64 = int(singles, c_int64_t)
    call lockstep_infer(line, singles, out, out_axes='n')
    call check(all(out == [0, 2, 4]), 'real(4)')
    out = 0
    call lockstep_infer(line, i32, out, out_axes='n', stat=stat, errmsg=text)
    if (stat == LOCKSTEP_OK) then
      call check(all(out == [0, 2, 4]), 'integer(4)')
      call lockstep_infer(line, i64, out, out_axes='n')
      call check(all(out == [0, 2, 4]), 'integer(8)')
    else
      call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'i32')
      call lockstep_infer(line, i64, out, out_axes='n', stat=stat, errmsg=text)
      call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'i64')
    end if
  end subroutine

  subroutine refused()
    real(c_double) :: a(2, 3), out(3), one
    complex(c_double) :: complexes(2, 3)
    logical :: logicals(2, 3)
    character(3) :: characters(2, 3)
    integer(c_int8_t) :: bytes(2, 3)
    type(cell) :: cells(2, 3)
    real(c_double), allocatable :: nothing(:, :)
    real(c_double), pointer :: nowhere(:, :)
    real(c_double) :: nine(1, 1, 1, 1, 1, 1, 1, 1, 1)
    a = 1
    call lockstep_infer(line, complexes, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'lockstep_infer: in is complex')
    call lockstep_infer(line, logicals, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'in is')
    call lockstep_infer(line, characters, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'in is character')
    call lockstep_infer(line, bytes, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'lockstep_view_from_ptr takes others')
    call lockstep_infer(line, cells, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'elements of 16 bytes')
    one = 1
    call lockstep_infer(line, one, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'in has 0 dimensions, expected 1 to 8: pass an array of one element')
    call lockstep_infer(line, a, one, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'out has 0 dimensions')
    nine = 1
    call lockstep_infer(line, nine, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'in has 9 dimensions')
    call lockstep_infer(line, nothing, out, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'in is not allocated')
    nullify (nowhere)
    call lockstep_infer(line, a, nowhere, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'out is not allocated')
    call lockstep_infer(line, a, out, in_axes='cnn', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, "in: axes 'cnn' for 2 dimensions, expected a letter for each")
    call lockstep_infer(line, a, out, in_axes=repeat('n', 40), stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'for 2 dimensions')
    call lockstep_infer(line, a, out, in_axes='zn', out_axes='n', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, "'z'")
    call lockstep_parameter_read(line, '1.weight', out, stat, text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'lockstep_parameter_read')
    call lockstep_parameter_read(line, 'no such', out, stat, text)
    call check(stat /= LOCKSTEP_OK .and. index(text, 'no such') > 0, 'a parameter that is not there: '//trim(text))
    call lockstep_parameter_read(line, '  ', out, stat, text)
    call check(stat /= LOCKSTEP_OK, 'a parameter without a name')
  end subroutine

  subroutine assumed_size(a, n, out)
    integer, intent(in) :: n
    real(c_double), intent(in) :: a(2, *)
    real(c_double), intent(out) :: out(:)
    call lockstep_infer(line, a, out, out_axes='n', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'in is assumed-size, expected a section')
    call lockstep_infer(line, a(:, 1:n), out, out_axes='n')
  end subroutine

  ! A dummy argument with an explicit shape is contiguous. So the compiler copies a section before and after the call, which is slow
  ! but gives right results.
  subroutine explicit_shape(a, n, out)
    integer, intent(in) :: n
    real(c_double), intent(in) :: a(2, n)
    real(c_double), intent(inout) :: out(n)
    call lockstep_infer(line, a, out, out_axes='n')
  end subroutine

  subroutine traps()
    real(c_double) :: a(2, 4), out(4), spread(4, 4), chosen(2, 3)
    integer :: i
    a = reshape([(real(i, c_double), i=1, 8)], [2, 4])
    call assumed_size(a, 4, out)
    call check(all(out == answer(a(1, :), a(2, :))), 'a section of an assumed-size array')
    spread = canary
    spread(1:3:2, :) = a
    call explicit_shape(spread(1:3:2, :), 4, spread(2, :))
    call check(all(spread(2, :) == answer(a(1, :), a(2, :))) .and. all(spread(4, :) == canary), 'explicit shape')
    ! gfortran 12 crashes on a vector subscript such as a(:, [1, 4, 2]) in the call. So the test passes a temporary array.
    chosen = a(:, [1, 4, 2])
    call lockstep_infer(line, chosen, out(1:3), out_axes='n')
    call check(all(out(1:3) == answer(a(1, [1, 4, 2]), a(2, [1, 4, 2]))), 'vector subscript')
    ! An expression may be an input, too.
    call lockstep_infer(line, 2*a + 1, out, out_axes='n')
    call check(all(out == answer(2*a(1, :) + 1, 2*a(2, :) + 1)), 'an expression')
  end subroutine

  ! Tests lockstep_view_of, lockstep_view_from_ptr, and the procedures that take views.
  subroutine views()
    real(c_double), target :: a(4, 6), out(6)
    type(lockstep_view) :: in(3), to(3), copy
    integer :: i
    call fill(a)
    out = canary
    do i = 1, 3
      call lockstep_view_of(a(3:2:-1, 2*i - 1:2*i), in(i))
      call lockstep_view_of(out(7 - 2*i:8 - 2*i), to(i), axes='n')
    end do
    call lockstep_infer_many(line, in, to)
    call check(all(out == [answer(a(3, 5:6), a(2, 5:6)), answer(a(3, 3:4), a(2, 3:4)), answer(a(3, 1:2), a(2, 1:2))]), &
      'infer_many')
    out = canary
    call lockstep_infer_many(line, in(3:1:-2), to(3:1:-2))
    call check(all(out([1, 2, 5, 6]) == [answer(a(3, 5:6), a(2, 5:6)), answer(a(3, 1:2), a(2, 1:2))]), 'infer_many: sections')
    call check(all(out(3:4) == canary), 'infer_many: the others are not written')
    call lockstep_infer_many(line, in(1:2), to, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, '2 views in and 3 views out, expected as many')
    call lockstep_infer_many(line, in(1:0), to(1:0))
    call lockstep_view_from_ptr(c_loc(a(2, 1)), [2_c_int64_t, 6_c_int64_t], [2_c_int64_t, 4_c_int64_t], LOCKSTEP_F64, &
      view=copy)
    call lockstep_view_from_ptr(c_loc(out), [6_c_int64_t], dtype=LOCKSTEP_F64, axes='n', view=to(1))
    call lockstep_infer_many(line, [copy], to(1:1))
    call check(all(out == answer(a(2, :), a(4, :))), 'view_from_ptr')
    call lockstep_view_from_ptr(c_loc(a), [2_c_int64_t], [1_c_int64_t, 2_c_int64_t], LOCKSTEP_F64, view=copy, stat=stat, &
      errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, '2 strides for 1 extents')
    call lockstep_view_from_ptr(c_loc(a), [huge(1_c_int64_t), 2_c_int64_t], dtype=LOCKSTEP_F64, view=copy, stat=stat, &
      errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'lockstep_view_from_ptr: shape does not fit an address')
    call lockstep_view_from_ptr(c_loc(a), [2_c_int64_t, 1_c_int64_t], dtype=99, view=copy)
    call lockstep_infer_many(line, [copy], to(1:1), stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'dtype is 99')
    call lockstep_view_from_ptr(c_loc(a), [2_c_int64_t, 1_c_int64_t], dtype=LOCKSTEP_F64, device_id=0, view=copy)
    call lockstep_infer_many(line, [copy], to(1:1), stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DEVICE, text, 'in')
  end subroutine

  ! Tests that the first dimension varies fastest. One convolution shifts the array u by one column, and another shifts
  ! u by one row, so a wrong order gives a wrong result.
  subroutine order()
    integer, parameter :: columns = 5, rows = 4
    type(lockstep_model) :: shift
    type(lockstep_layer_options) :: options
    real(c_double) :: u(columns, rows), moved(columns, rows), kernel(3, 3, 1, 1)
    character(:), allocatable :: name
    integer, allocatable :: shape_of(:)
    integer :: node
    options%kernel(1) = 3
    options%pad(1) = 1
    call lockstep_model_create(context, LOCKSTEP_F64, [1, columns, rows], shift)
    call lockstep_model_add(shift, 'conv2d', 'stencil', [0], 1, options, node)
    call check(node == 1, 'the first node')
    call lockstep_model_initialise(shift, 7_c_int64_t)
    call lockstep_parameter_info(shift, 1, name, shape_of)
    call check(name == 'stencil.weight' .and. all(shape_of == [3, 3, 1, 1]), 'parameter_info')
    call fill(u)
    kernel = 0
    kernel(3, 2, 1, 1) = 1  ! (columns, rows, in, out): takes the element of the next column
    call lockstep_parameter_write(shift, 'stencil.weight', kernel)
    call lockstep_infer(shift, u, moved, in_axes='wh', out_axes='wh')
    call check(all(moved(1:4, :) == u(2:5, :)) .and. all(moved(5, :) == 0), 'one column')
    kernel = 0
    kernel(2, 3, 1, 1) = 1
    call lockstep_parameter_write(shift, 'stencil.weight', kernel)
    call lockstep_infer(shift, u, moved, in_axes='wh', out_axes='wh')
    call check(all(moved(:, 1:3) == u(:, 2:4)) .and. all(moved(:, 4) == 0), 'one row')
    kernel = -1
    call lockstep_parameter_read(shift, 'stencil.weight', kernel)
    call check(kernel(2, 3, 1, 1) == 1 .and. sum(abs(kernel)) == 1, 'parameter_read')
    call lockstep_infer(shift, u, moved, in_axes='hw', out_axes='hw', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'in')
    call lockstep_destroy(shift)
    ! Options with three numbers are for planes, rows and columns, in this order.
    block
      real(c_double) :: field(columns, rows, 3), one_row(columns, rows, 3), taps(1, 3, 1, 1, 1)
      options = lockstep_layer_options(kernel=[1, 3, 1], pad=[0, 1, 0])
      call lockstep_model_create(context, LOCKSTEP_F64, [1, columns, rows, 3], shift)
      call lockstep_model_add(shift, 'conv3d', 'rows', [0], 1, options)
      call lockstep_model_initialise(shift, 7_c_int64_t)
      call lockstep_parameter_info(shift, 1, name, shape_of)
      call check(all(shape_of == [1, 3, 1, 1, 1]), 'a kernel of three rows')
      call random_number(field)
      taps(1, :, 1, 1, 1) = [0, 0, 1]
      call lockstep_parameter_write(shift, 'rows.weight', taps)
      call lockstep_infer(shift, field, one_row, in_axes='whd', out_axes='whd')
      call check(all(one_row(:, 1:3, :) == field(:, 2:4, :)) .and. all(one_row(:, 4, :) == 0), 'one row of each plane')
      call lockstep_destroy(shift)
    end block
    ! An array (columns, features, levels): the features are the middle dimension.
    block
      real(c_double) :: field(5, 2, 3), out(5, 3)
      integer :: k
      call random_number(field)
      call lockstep_infer(line, field, out, in_axes='ncn', out_axes='nn')
      call check(all([(maxval(abs(out(:, k) - answer(field(:, 1, k), field(:, 2, k)))) < 1d-14, k=1, 3)]), 'ncn')
    end block
  end subroutine
end program views_test
