! Memory functions of the host program, which allocate twice and then fail.
module small_memory
  use, intrinsic :: iso_c_binding
  implicit none
  integer :: taken = 0, given_back = 0
  integer, parameter :: pieces = 2
  character(kind=c_char), target :: memory(0:2**16 - 1, pieces)
contains
  function take(user, bytes, alignment, stream) bind(C) result(place)
    type(c_ptr), value :: user, stream
    integer(c_size_t), value :: bytes, alignment
    type(c_ptr) :: place
    integer(c_size_t) :: begin
    place = c_null_ptr
    if (c_associated(user) .or. c_associated(stream) .or. taken == pieces) return
    begin = modulo(-transfer(c_loc(memory(0, taken + 1)), 0_c_size_t), alignment)
    if (begin + bytes > size(memory, 1)) return
    taken = taken + 1
    place = c_loc(memory(begin, taken))
  end function
  subroutine give_back(user, place, bytes, stream) bind(C)
    type(c_ptr), value :: user, place, stream
    integer(c_size_t), value :: bytes
    if (c_associated(place) .and. bytes > 0 .and. .not. c_associated(user) .and. .not. c_associated(stream)) &
      given_back = given_back + 1
  end subroutine
end module small_memory

! Functions of a communicator of one rank. `gather` returns the status `answer`, which the test sets.
module own_ranks
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int32_t) :: answer = 0
contains
  function gather(user, in, out, bytes) bind(C) result(status)
    type(c_ptr), value :: user, in, out
    integer(c_int64_t), value :: bytes
    integer(c_int32_t) :: status
    character(kind=c_char), pointer :: from(:), to(:)
    call c_f_pointer(in, from, [bytes])
    call c_f_pointer(out, to, [bytes])
    to = from
    status = merge(0, answer, c_associated(user))
  end function
  function send(user, data, bytes, root) bind(C) result(status)
    type(c_ptr), value :: user, data
    integer(c_int64_t), value :: bytes
    integer(c_int32_t), value :: root
    integer(c_int32_t) :: status
    status = merge(0, 1, c_associated(data) .and. .not. c_associated(user) .and. bytes > 0 .and. root >= 0)
  end function
  function meet(user) bind(C) result(status)
    type(c_ptr), value :: user
    integer(c_int32_t) :: status
    status = merge(1, 0, c_associated(user))
  end function
end module own_ranks

! Tests the Fortran interface: constants and structs (compared with the C header), statuses and texts, handles, a training, and
! files.
program calls_test
  use, intrinsic :: iso_c_binding
  use checks
  use lockstep
  implicit none

  interface
    function header_constant(name) bind(C)
      import :: c_char, c_int32_t
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int32_t) :: header_constant
    end function
    function header_trainer_options(options) bind(C)
      import :: c_int64_t, lockstep_trainer_options
      type(lockstep_trainer_options), intent(out) :: options
      integer(c_int64_t) :: header_trainer_options
    end function
    function header_layer_options(options) bind(C)
      import :: c_int64_t, lockstep_layer_options
      type(lockstep_layer_options), intent(out) :: options
      integer(c_int64_t) :: header_layer_options
    end function
    function header_report(report) bind(C)
      import :: c_int64_t, lockstep_report
      type(lockstep_report), intent(out) :: report
      integer(c_int64_t) :: header_report
    end function
    function header_context_options(options) bind(C)
      import :: c_int64_t, lockstep_context_options
      type(lockstep_context_options), intent(out) :: options
      integer(c_int64_t) :: header_context_options
    end function
    function header_sizes(allocator, comm_ops) bind(C)
      import :: c_int64_t
      integer(c_int64_t), intent(out) :: allocator, comm_ops
      integer(c_int64_t) :: header_sizes
    end function
    function c_trainer_options_init(options, n) bind(C, name='lockstep_trainer_options_init')
      import :: c_int32_t, c_size_t, lockstep_trainer_options
      type(lockstep_trainer_options), intent(out) :: options
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_trainer_options_init
    end function
    function c_layer_options_init(options, n) bind(C, name='lockstep_layer_options_init')
      import :: c_int32_t, c_size_t, lockstep_layer_options
      type(lockstep_layer_options), intent(out) :: options
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_layer_options_init
    end function
    function c_context_options_init(options, n) bind(C, name='lockstep_context_options_init')
      import :: c_int32_t, c_size_t, lockstep_context_options
      type(lockstep_context_options), intent(out) :: options
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_context_options_init
    end function
  end interface

  type(lockstep_context) :: context

  call lockstep_context_create(context)
  call constants()
  call structs()
  call defaults()
  call texts()
  call handles()
  call train()
  call vectors()
  call tapes()
  call schedules()
  call lent_memory()
  call statuses()
  call finish()

contains

  subroutine constants()
    call same('OK', LOCKSTEP_OK); call same('ERR_INVALID', LOCKSTEP_ERR_INVALID); call same('ERR_SHAPE', LOCKSTEP_ERR_SHAPE)
    call same('ERR_DTYPE', LOCKSTEP_ERR_DTYPE); call same('ERR_DEVICE', LOCKSTEP_ERR_DEVICE)
    call same('ERR_UNSUPPORTED', LOCKSTEP_ERR_UNSUPPORTED); call same('ERR_STATE', LOCKSTEP_ERR_STATE)
    call same('ERR_OUT_OF_MEMORY', LOCKSTEP_ERR_OUT_OF_MEMORY); call same('ERR_IO', LOCKSTEP_ERR_IO)
    call same('ERR_FORMAT', LOCKSTEP_ERR_FORMAT); call same('ERR_CUDA', LOCKSTEP_ERR_CUDA)
    call same('ERR_NCCL', LOCKSTEP_ERR_NCCL); call same('ERR_MPI', LOCKSTEP_ERR_MPI)
    call same('ERR_PEER', LOCKSTEP_ERR_PEER); call same('ERR_INTERNAL', LOCKSTEP_ERR_INTERNAL)
    call same('F32', LOCKSTEP_F32); call same('F64', LOCKSTEP_F64); call same('BF16', LOCKSTEP_BF16)
    call same('F16', LOCKSTEP_F16); call same('I32', LOCKSTEP_I32); call same('I64', LOCKSTEP_I64)
    call same('U8', LOCKSTEP_U8); call same('CPU', LOCKSTEP_CPU); call same('CUDA', LOCKSTEP_CUDA)
    call same('STREAM_OWN', LOCKSTEP_STREAM_OWN); call same('STREAM_GIVEN', LOCKSTEP_STREAM_GIVEN)
    call same('ACTIVATION_NONE', LOCKSTEP_ACTIVATION_NONE); call same('ACTIVATION_RELU', LOCKSTEP_ACTIVATION_RELU)
    call same('ACTIVATION_TANH', LOCKSTEP_ACTIVATION_TANH); call same('ACTIVATION_SIGMOID', LOCKSTEP_ACTIVATION_SIGMOID)
    call same('ACTIVATION_GELU', LOCKSTEP_ACTIVATION_GELU); call same('ACTIVATION_GELU_TANH', LOCKSTEP_ACTIVATION_GELU_TANH)
    call same('ACTIVATION_SILU', LOCKSTEP_ACTIVATION_SILU); call same('BIAS_DEFAULT', LOCKSTEP_BIAS_DEFAULT)
    call same('BIAS_WITH', LOCKSTEP_BIAS_WITH); call same('BIAS_WITHOUT', LOCKSTEP_BIAS_WITHOUT)
    call same('OPTIMIZER_SGD', LOCKSTEP_OPTIMIZER_SGD); call same('OPTIMIZER_ADAM', LOCKSTEP_OPTIMIZER_ADAM)
    call same('OPTIMIZER_ADAMW', LOCKSTEP_OPTIMIZER_ADAMW); call same('OPTIMIZER_LARS', LOCKSTEP_OPTIMIZER_LARS)
    call same('LOSS_MSE', LOCKSTEP_LOSS_MSE); call same('LOSS_L1', LOCKSTEP_LOSS_L1)
    call same('LOSS_HUBER', LOCKSTEP_LOSS_HUBER); call same('LOSS_CROSS_ENTROPY', LOCKSTEP_LOSS_CROSS_ENTROPY)
    call same('WEIGHTS_NONE', LOCKSTEP_WEIGHTS_NONE); call same('WEIGHTS_SAMPLE', LOCKSTEP_WEIGHTS_SAMPLE)
    call same('WEIGHTS_ELEMENT', LOCKSTEP_WEIGHTS_ELEMENT); call same('VERSION_MAJOR', LOCKSTEP_VERSION_MAJOR)
    call same('VERSION_MINOR', LOCKSTEP_VERSION_MINOR); call same('VERSION_PATCH', LOCKSTEP_VERSION_PATCH)
    call check(lockstep_version() == 10000*LOCKSTEP_VERSION_MAJOR + 100*LOCKSTEP_VERSION_MINOR + LOCKSTEP_VERSION_PATCH, &
      'the version of the library')
    call check(index(lockstep_build_info(), '"version": "') > 0, 'build_info')
    call check(lockstep_status_name(LOCKSTEP_ERR_PEER) == 'PEER' .and. lockstep_status_name(99) == 'UNKNOWN', 'status_name')
  end subroutine

  subroutine same(name, number)
    character(*), intent(in) :: name
    integer(c_int32_t), intent(in) :: number
    call check(header_constant(name//c_null_char) == number, 'LOCKSTEP_'//name)
  end subroutine

  ! Compares sizes and offsets of all fields with the C header.
  subroutine structs()
    type(lockstep_trainer_options) :: t
    type(lockstep_layer_options) :: l
    type(lockstep_context_options) :: c
    type(lockstep_allocator) :: a
    type(lockstep_comm_ops) :: o
    type(lockstep_view) :: v
    type(lockstep_report) :: r
    integer(c_int64_t) :: allocator, comm_ops
    call check(header_report(r) == c_sizeof(r), 'the size of lockstep_report')
    call check(all([r%struct_size, r%reserved] == [1, 2]) .and. &
      all([r%step, r%skipped, r%samples] == [3, 4, 5]) .and. all([r%loss, r%gradient_norm] == [6, 7]), 'report')
    call check(header_trainer_options(t) == c_sizeof(t), 'the size of lockstep_trainer_options')
    call check(all([t%struct_size, t%optimizer, t%loss, t%nesterov, t%skip_non_finite, t%check_input, t%weights, &
      t%sync_batch_norm] == [1, 2, 3, 4, 5, 6, 7, 8]) .and. all([t%beta1, t%beta2, t%epsilon, t%momentum, t%weight_decay, &
      t%clip_norm, t%huber_delta] == [9, 10, 11, 12, 13, 14, 15]) .and. t%max_batch == 16 .and. &
      t%bucket_bytes == 17, 'trainer_options')
    call check(header_layer_options(l) == c_sizeof(l), 'the size of lockstep_layer_options')
    call check(all([l%struct_size, l%activation, l%bias, l%pad_mode, l%kernel, l%stride, l%pad, l%dilation, l%groups, &
      l%reserved] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]) .and. all([l%epsilon, l%momentum, &
      l%rate] == [19, 20, 21]) .and. all([l%output_pad, l%share] == [22, 23, 24, 25]), 'layer_options')
    call check(header_context_options(c) == c_sizeof(c), 'the size of lockstep_context_options')
    call check(all([c%struct_size, c%device_type, c%device_id, c%threads, c%stream_kind, c%reserved] == [1, 2, 3, 4, 5, 6]) &
      .and. c%memory_limit == 9, 'context_options')
    call check(header_sizes(allocator, comm_ops) == c_sizeof(v), 'the size of lockstep_view')
    call check(allocator == c_sizeof(a) .and. comm_ops == c_sizeof(o), 'the sizes of allocator and comm_ops')
  end subroutine

  ! Checks that the default values of each Fortran type are those of the library.
  subroutine defaults()
    type(lockstep_trainer_options) :: t, t0
    type(lockstep_layer_options) :: l, l0
    type(lockstep_context_options) :: c, c0
    call check(c_trainer_options_init(t0, c_sizeof(t0)) == 0 .and. c_layer_options_init(l0, c_sizeof(l0)) == 0 .and. &
      c_context_options_init(c0, c_sizeof(c0)) == 0, 'init')
    call check(all([t%optimizer, t%loss, t%nesterov, t%skip_non_finite, t%check_input, t%weights, &
      t%sync_batch_norm] == [t0%optimizer, t0%loss, t0%nesterov, t0%skip_non_finite, t0%check_input, t0%weights, &
      t0%sync_batch_norm]) .and. &
      all([t%beta1, t%beta2, t%epsilon, t%momentum, t%weight_decay, t%clip_norm, t%huber_delta] == [t0%beta1, t0%beta2, &
      t0%epsilon, t0%momentum, t0%weight_decay, t0%clip_norm, t0%huber_delta]) .and. t%max_batch == t0%max_batch .and. &
      t%bucket_bytes == t0%bucket_bytes, 'defaults of trainer_options')
    call check(all([l%activation, l%bias, l%pad_mode, l%kernel, l%stride, l%pad, l%dilation, l%groups, l%reserved] == &
      [l0%activation, l0%bias, l0%pad_mode, l0%kernel, l0%stride, l0%pad, l0%dilation, l0%groups, l0%reserved]) .and. &
      all([l%epsilon, l%momentum, l%rate] == [l0%epsilon, l0%momentum, l0%rate]) .and. &
      all([l%output_pad, l%share] == [l0%output_pad, l0%share]), 'defaults of layer_options')
    call check(all([c%device_type, c%device_id, c%threads, c%stream_kind, c%reserved] == [c0%device_type, c0%device_id, &
      c0%threads, c0%stream_kind, c0%reserved]) .and. c%memory_limit == c0%memory_limit .and. &
      (c_associated(c0%stream) .eqv. c_associated(c%stream)) .and. .not. c_associated(c0%memory), 'defaults of context_options')
  end subroutine

  ! Passes its own optional arguments on, as a program may do. gfortran 12 crashes if an optional errmsg is passed on to a C
  ! procedure, even with present(). So a local text is passed instead.
  subroutine passed_on(model, x, y, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    real(c_double), intent(in) :: x(:)
    real(c_double), intent(inout) :: y(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(300) :: text
    if (present(errmsg)) text = errmsg
    call lockstep_infer(model, x, y, stat=stat, errmsg=text)
    if (present(errmsg)) errmsg = text
  end subroutine

  subroutine texts()
    type(lockstep_model) :: line
    real(c_double) :: x(3), y(1)
    character(:), allocatable :: long
    character(12) :: short
    character(400) :: text
    integer :: stat
    x = 1
    call make_line(context, line)
    text = 'as it was'
    stat = -1
    call lockstep_infer(line, x(1:2), y, in_axes='c', out_axes='c', stat=stat, errmsg=text)
    call check(stat == LOCKSTEP_OK .and. text == 'as it was', 'a call that succeeds leaves errmsg alone')
    call lockstep_infer(line, x, y, in_axes='c', out_axes='c', stat=stat)
    call check(stat == LOCKSTEP_ERR_SHAPE, 'stat alone')
    call lockstep_infer(line, x, y, in_axes='c', out_axes='c', stat=stat, errmsg=short)
    call check(short == 'lockstep_inf', 'a short errmsg is cut: '//short)
    call lockstep_infer(line, x, y, in_axes='c', out_axes='c', stat=stat, errmsg=text)
    call check(text(len_trim(text) + 1:) == '' .and. trim(text) == lockstep_last_error(), 'a long one is filled with blanks')
    allocate (character(300) :: long)
    call lockstep_infer(line, x, y, in_axes='c', out_axes='c', stat=stat, errmsg=long)
    call check(len(long) == 300 .and. trim(long) == lockstep_last_error(), 'errmsg of deferred length keeps it')
    call passed_on(line, x, y, stat, long)
    call check(stat /= 0 .and. len(long) == 300 .and. trim(long) == lockstep_last_error(), 'passed on')
    call passed_on(line, x, y, stat)
    call check(stat /= 0, 'passed on without errmsg')
    ! Procedures of the module that are written in Fortran must treat stat and errmsg as those written in C do.
    text = 'as it was'
    call lockstep_model_prepare(line, 4, stat, text)
    call check(stat == 0 .and. text == 'as it was', 'prepare')
    call lockstep_model_prepare(line, 0, stat, short)
    call check(stat == LOCKSTEP_ERR_INVALID .and. short == 'lockstep_mod', 'prepare: cut')
    call lockstep_model_prepare(line, 0, stat, long)
    call check(len(long) == 300 .and. index(long, 'max_batch is 0') > 0, 'prepare: deferred length')
    call lockstep_model_load(line, 'no/such/file', stat, text)
    call check_error(stat, LOCKSTEP_ERR_IO, text, 'no/such/file')
    call lockstep_model_load(line, '', stat, text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'path')
    call lockstep_model_create(context, LOCKSTEP_F64, [integer ::], line, stat, text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'sample_shape')
    call lockstep_model_mlp(context, LOCKSTEP_I32, [1, 1], LOCKSTEP_ACTIVATION_NONE, line, stat, text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'i32')
  end subroutine

  ! Returns a handle. Copies of a handle refer to the same object. Destroying one copy destroys the object for all copies.
  function made() result(model)
    type(lockstep_model) :: model
    call make_line(context, model)
  end function

  subroutine handles()
    type(lockstep_context) :: own
    type(lockstep_comm) :: self
    type(lockstep_model) :: first, second, shared, none
    type(lockstep_trainer) :: trainer
    type(lockstep_trainer_options) :: options
    character(200) :: text
    integer :: stat, rank, ranks, largest
    integer(c_int64_t) :: in_use, peak
    real(c_double) :: y(1)
    first = made()
    second = first
    call lockstep_parameter_write(second, '1.bias', [5d0])
    call lockstep_infer(first, [0d0, 0d0], y, in_axes='c', out_axes='c')
    call check(all(y == 5), 'assignment shares')
    call lockstep_destroy(first)
    call lockstep_infer(second, [0d0, 0d0], y, in_axes='c', out_axes='c', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'lockstep_infer')
    call lockstep_destroy(second, stat, text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'lockstep_model_destroy')
    call lockstep_destroy(first)
    call lockstep_destroy(none, stat)
    call check(stat == 0, 'destroying nothing')
    call lockstep_infer(none, [0d0, 0d0], y, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'model')
    call lockstep_context_create(own)
    call lockstep_comm_create(own, self)
    call lockstep_comm_rank(self, rank, ranks)
    call lockstep_comm_agree(self, -3, largest)
    call check(rank == 0 .and. ranks == 1 .and. largest == -3, 'a communicator of one rank')
    first = made()
    call lockstep_model_share(first, own, shared)
    options%max_batch = 1
    call lockstep_trainer_create(first, self, options, trainer)
    call lockstep_trainer_update(trainer, 0.1d0, stat, text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'lockstep_trainer_update')
    call lockstep_context_memory(own, in_use, peak)
    call lockstep_context_synchronize(own)
    call lockstep_destroy(own)
    call lockstep_destroy(first)
    call lockstep_destroy(self)
    call lockstep_infer(shared, [1d0, 1d0], y, in_axes='c', out_axes='c')
    call check(all(y == 2), 'what is needed stays')
    call lockstep_destroy(trainer)
    call lockstep_destroy(shared)
  end subroutine

  ! Learns y = 3 a - 2 b + 1 from exact samples. Later, some samples are wrong but have weight 0, so they must have no effect.
  subroutine train()
    type(lockstep_comm) :: self
    type(lockstep_model) :: model, other
    type(lockstep_trainer) :: trainer
    type(lockstep_trainer_options) :: options
    real(c_double), target :: x(2, 12), y(13)
    real(c_double) :: w(2, 1), b(1), found(12), weight(12), loss
    real(c_double), allocatable :: no_weight(:)
    type(lockstep_view) :: in, target
    type(lockstep_report) :: report
    integer(c_int64_t) :: step
    integer :: i, stat, count
    character(200) :: text
    call random_number(x)
    y(1:12) = 3*x(1, :) - 2*x(2, :) + 1
    call lockstep_comm_create(context, self)
    call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 1], LOCKSTEP_ACTIVATION_NONE, model)
    call lockstep_model_initialise(model, 3)
    call lockstep_parameter_count(model, count)
    call check(count == 2, 'parameter_count')
    options%max_batch = 12
    options%optimizer = LOCKSTEP_OPTIMIZER_SGD
    call lockstep_trainer_create(model, self, options, trainer)
    call lockstep_trainer_add(trainer, x(:, 1:3), y(1:4), target_axes='n', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'lockstep_trainer_add')
    call lockstep_trainer_add(trainer, x, y, weight=y, stat=stat, errmsg=text)
    call check(stat /= 0 .and. index(text, 'weight') > 0, 'a weight that nobody asked for: '//trim(text))
    call lockstep_trainer_add(trainer, x, y(1:12)*1000, no_weight, target_axes='n')  ! not allocated, so it counts as absent
    call lockstep_trainer_abandon(trainer)
    call lockstep_view_of(x(:, 7:12), in)
    call lockstep_view_of(y(7:12), target, 'n')
    do i = 1, 2000
      call lockstep_trainer_add(trainer, x(:, 1:6), y(1:6), target_axes='n')
      call lockstep_trainer_add_view(trainer, in, target)
      call lockstep_trainer_update(trainer, 0.1d0)
    end do
    call lockstep_trainer_loss(trainer, loss, step)
    call lockstep_parameter_read(model, '1.weight', w)
    call lockstep_parameter_read(model, '1.bias', b)
    call check(step == 2000 .and. loss < 1d-20, 'loss')
    call check(abs(w(1, 1) - 3) < 1d-9 .and. abs(w(2, 1) + 2) < 1d-9 .and. abs(b(1) - 1) < 1d-9, 'weights are found')
    call lockstep_infer(model, x, found, out_axes='n')
    call check(maxval(abs(found - y(1:12))) < 1d-9, 'inference of what was trained')
    call lockstep_trainer_loss(trainer, loss, wait=.false.)
    call check(loss < 1d-20, 'loss without waiting')
    call lockstep_trainer_report(trainer, report)
    call check(report%step == 2000 .and. report%samples == 12 .and. report%skipped == 0 .and. report%loss < 1d-20 .and. &
      report%gradient_norm < 1d-10, 'report of a step')
    call lockstep_trainer_check(trainer)
    call lockstep_model_broadcast(model, self, 0)
    call lockstep_model_broadcast(model, self, 1, stat, text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'root is 1')
    call lockstep_trainer_broadcast(trainer, 0)
    call lockstep_trainer_average(trainer)
    call lockstep_model_save(model, 'calls_test.safetensors  ')
    call lockstep_trainer_save(trainer, 'calls_test.state')
    call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 1], LOCKSTEP_ACTIVATION_NONE, other)
    call lockstep_model_load(other, 'calls_test.safetensors')
    call lockstep_infer(other, x, found, out_axes='n')
    call check(maxval(abs(found - y(1:12))) < 1d-9, 'save and load')
    call lockstep_trainer_load(trainer, 'calls_test.state')
    call lockstep_destroy(trainer)

    options%weights = LOCKSTEP_WEIGHTS_SAMPLE
    weight = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]
    y(5:8) = -99
    call lockstep_model_initialise(model, 4)
    call lockstep_trainer_create(model, self, options, trainer)
    do i = 1, 3000
      call lockstep_trainer_add(trainer, x, y(1:12), weight, target_axes='n', weight_axes='n')
      call lockstep_trainer_update(trainer, 0.1d0)
    end do
    call lockstep_parameter_read(model, '1.weight', w)
    call check(abs(w(1, 1) - 3) < 1d-6 .and. abs(w(2, 1) + 2) < 1d-6, 'samples of no weight')
    call lockstep_destroy(trainer)
    call lockstep_destroy(self)
  end subroutine

  ! An optimizer of the host program must give the same parameters as lockstep's SGD with the same learning rate.
  subroutine vectors()
    type :: entry_of_vector
      integer :: junk = -7
      real(c_double) :: value = 0
    end type
    type(lockstep_comm) :: self
    type(lockstep_model) :: model, other
    type(lockstep_trainer) :: trainer, expected
    type(lockstep_trainer_options) :: options
    type(entry_of_vector), allocatable :: p(:)
    real(c_double) :: x(2, 6), y(3, 6), norm
    real(c_double), allocatable :: g(:), q(:)
    real(c_float), allocatable :: short(:)
    integer(c_int64_t) :: n, whole
    integer :: stat, i
    character(200) :: text
    call random_number(x)
    call random_number(y)
    call lockstep_comm_create(context, self)
    call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 3], LOCKSTEP_ACTIVATION_NONE, model)
    call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 3], LOCKSTEP_ACTIVATION_NONE, other)
    call lockstep_model_initialise(model, 3)
    call lockstep_model_initialise(other, 3)
    call lockstep_parameters_size(model, n)
    call lockstep_parameters_size(model, whole, LOCKSTEP_WITH_STATISTICS)
    call check(n == 9 .and. whole == 9, 'size of a vector')
    allocate (p(n), g(n), q(n), short(n - 1))
    options%max_batch = 6
    options%optimizer = LOCKSTEP_OPTIMIZER_SGD
    options%momentum = 0
    call lockstep_trainer_create(model, self, options, trainer)
    call lockstep_trainer_create(other, self, options, expected)
    do i = 1, 5
      call lockstep_trainer_add(trainer, x, y)
      call lockstep_trainer_reduce(trainer, norm)
      call lockstep_gradients_read(trainer, g)
      call check(abs(norm - norm2(g)) < 1d-12*norm, 'norm of the gradients')
      call lockstep_parameters_read(model, p(:)%value, LOCKSTEP_WITH_STATISTICS)
      p%value = p%value - 0.1d0*g
      if (i == 5) then  ! in step 5, the host scales the gradients, and the trainer updates
        g = g/2
        call lockstep_gradients_write(trainer, g)
        call lockstep_trainer_apply(trainer, 0.2)
      else
        call lockstep_trainer_abandon(trainer)
        call lockstep_parameters_write(model, p(:)%value)
      end if
      call lockstep_trainer_add(expected, x, y)
      call lockstep_trainer_reduce(expected)
      call lockstep_trainer_apply(expected, 0.1d0)
      call lockstep_parameters_read(model, g)
      call lockstep_parameters_read(other, q)
      call check(maxval(abs(g - q)) < merge(1d-8, 1d-15, i == 5), 'an update of the program')  ! 0.2 is a real(4)
    end do
    call check(all(p%junk == -7), 'memory next to a vector')
    call lockstep_parameters_read(model, short, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, 'vector is (8), expected one axis of 9')
    call lockstep_parameters_write(model, p(:)%junk, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_DTYPE, text, 'f32 or f64')
    call lockstep_gradients_read(trainer, q, stat, text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'lockstep_gradients_read')
    call lockstep_gradients_write(trainer, q, stat, text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'lockstep_gradients_write')
    call lockstep_trainer_apply(trainer, 0.1d0, stat, text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'lockstep_trainer_apply')
    call lockstep_trainer_reduce(trainer, stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'lockstep_trainer_reduce')
    call lockstep_destroy(trainer)
    call lockstep_destroy(expected)
    call lockstep_destroy(model)
    call lockstep_destroy(other)
    call lockstep_destroy(self)
  end subroutine

  subroutine schedules()
    type(lockstep_schedule) :: schedule
    real(c_double) :: rate
    integer :: stat
    character(200) :: text
    schedule = lockstep_schedule(kind=LOCKSTEP_SCHEDULE_POLYNOMIAL, base=0.5d0, warmup_steps=2, total_steps=12, power=1d0)
    call lockstep_schedule_rate(schedule, 0, rate)
    call check(abs(rate - 0.25d0) < 1d-15, 'a rate of a warm-up')
    call lockstep_schedule_rate(schedule, 7_c_int64_t, rate)
    call check(abs(rate - 0.25d0) < 1d-15, 'a rate of a polynomial')
    call lockstep_schedule_rate(schedule, -1, rate, stat, text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'step is -1')
  end subroutine

  ! A linear layer y = w^T x + b, with two passes on the tape. Expected gradients: dL/dx = w dL/dy, and dL/dw = x dL/dy^T.
  subroutine tapes()
    type(lockstep_comm) :: self
    type(lockstep_model) :: model
    type(lockstep_trainer) :: trainer
    type(lockstep_trainer_options) :: options
    type(lockstep_tape) :: tape, own, products
    real(c_double) :: x(2, 2), y(3), dy(3, 2), dx(2, 2), w(2, 3), w_new(2, 3), b(3), expected(2, 3)
    integer(c_int64_t) :: pass(2)
    integer :: stat, k
    character(200) :: text
    call random_number(x)
    call random_number(dy)
    call lockstep_comm_create(context, self)
    call lockstep_model_mlp(context, LOCKSTEP_F64, [2, 3], LOCKSTEP_ACTIVATION_NONE, model)
    call lockstep_model_initialise(model, 3)
    options%max_batch = 1
    options%optimizer = LOCKSTEP_OPTIMIZER_SGD
    options%momentum = 0
    options%loss = LOCKSTEP_LOSS_GIVEN
    call lockstep_tape_create(model, lockstep_tape_options(max_batch=1, slots=2), tape, stat, text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'LOCKSTEP_LOSS_GIVEN')
    call lockstep_trainer_create(model, self, options, trainer)
    call lockstep_tape_create(model, lockstep_tape_options(max_batch=1, slots=2), tape)
    call lockstep_tape_create(model, lockstep_tape_options(max_batch=1, own_gradients=1), own)
    call lockstep_parameter_read(model, '1.weight', w)
    call lockstep_parameter_read(model, '1.bias', b)
    do k = 1, 2
      call lockstep_tape_forward(tape, x(:, k), y, pass(k), in_axes='c', out_axes='c')
      call check(maxval(abs(y - matmul(x(:, k), w) - b)) < 1d-15, 'forward of a tape')
    end do
    call lockstep_tape_forward(tape, x(:, 1), pass=pass(1), in_axes='c', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'all 2 slots')
    expected = 0
    do k = 2, 1, -1
      call lockstep_tape_backward(tape, int(k - 1, c_int64_t), dy(:, k), dx(:, k), out_axes='c', in_axes='c')
      call check(maxval(abs(dx(:, k) - matmul(w, dy(:, k)))) < 1d-15, 'dL/dx of a tape')
      expected = expected + spread(x(:, k), 2, 3)*spread(dy(:, k), 1, 2)
    end do
    call lockstep_tape_backward(tape, 0_c_int64_t, dy(:, 1), out_axes='c', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'pass 0 has no slot')
    call lockstep_tape_forward(own, x(:, 1), pass=pass(1), in_axes='c')
    call lockstep_tape_backward(own, pass(1), dy(:, 1), out_axes='c')
    call lockstep_trainer_collect(trainer, own)
    expected = expected + spread(x(:, 1), 2, 3)*spread(dy(:, 1), 1, 2)
    call lockstep_trainer_update(trainer, 0.5d0)
    call lockstep_parameter_read(model, '1.weight', w_new)
    call check(maxval(abs(w_new - w + 0.5d0*expected)) < 1d-15, 'an update by tapes')
    call lockstep_tape_forward(tape, x(:, 1), pass=pass(1), in_axes='c')
    call lockstep_tape_release(tape, pass(1))
    call lockstep_tape_release(tape, -1_c_int64_t)

    call lockstep_tape_create(model, lockstep_tape_options(max_batch=1, pass=LOCKSTEP_PASS_INFER, parameter_gradients=0, &
      jvp=1), products)
    call lockstep_tape_forward(products, x(:, 1), pass=pass(1), in_axes='c')
    call lockstep_tape_vjp(products, pass(1), dy(:, 1), dx(:, 1), out_axes='c', in_axes='c')
    call check(maxval(abs(dx(:, 1) - matmul(w_new, dy(:, 1)))) < 1d-15, 'a product with the transposed Jacobian')
    call lockstep_tape_jvp(products, pass(1), x(:, 2), y, in_axes='c', out_axes='c')
    call check(maxval(abs(y - matmul(x(:, 2), w_new))) < 1d-15, 'a product with the Jacobian')
    call lockstep_tape_jvp(products, pass(1), y, y, in_axes='c', out_axes='c', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_SHAPE, text, '3')
    call lockstep_tape_vjp(tape, pass(1), dy(:, 1), dx(:, 1), out_axes='c', in_axes='c', stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_STATE, text, 'vjp')
    call lockstep_destroy(products)
    call lockstep_destroy(tape)
    call lockstep_destroy(own)
    call lockstep_destroy(trainer)
    call lockstep_destroy(model)
    call lockstep_destroy(self)
  end subroutine

  subroutine lent_memory()
    use small_memory
    type(lockstep_allocator), target :: allocator
    type(lockstep_context_options) :: options
    type(lockstep_context) :: own
    type(lockstep_model) :: model
    type(lockstep_comm_ops) :: ops
    type(lockstep_comm) :: comm
    character(200) :: text
    integer :: i, stat
    allocator%struct_size = int(c_sizeof(allocator), c_int32_t)
    allocator%allocate = c_funloc(take)
    allocator%deallocate = c_funloc(give_back)
    options%memory = c_loc(allocator)
    call lockstep_context_create(own, options)
    stat = LOCKSTEP_OK
    do i = 1, 10
      call lockstep_model_mlp(own, LOCKSTEP_F64, [2, 1], LOCKSTEP_ACTIVATION_NONE, model)
      call lockstep_model_initialise(model, i, stat, text)
      if (stat == LOCKSTEP_OK) call lockstep_model_prepare(model, 4, stat, text)
      call lockstep_destroy(model)
      if (stat /= LOCKSTEP_OK) exit
    end do
    call check_error(stat, LOCKSTEP_ERR_OUT_OF_MEMORY, text, 'lockstep_model_')
    call check(taken == pieces .and. given_back == taken, 'what was taken is given back')
    ops%rank = 3
    ops%size = 2
    call lockstep_comm_create(own, ops, comm, stat, text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'lockstep_comm_from_ops')
    call lockstep_destroy(own)
  end subroutine

  ! Checks the statuses that no other test of this program gets. No call is known to return INTERNAL, so test bindings.c.entry
  ! checks it.
  subroutine statuses()
    use own_ranks
    type(lockstep_context) :: elsewhere
    type(lockstep_context_options) :: options
    type(lockstep_model) :: model
    type(lockstep_comm_ops) :: ops
    type(lockstep_comm) :: ranks, none
    character(200) :: text
    integer :: i, largest, stat, unit
    integer, parameter :: numbers(*) = [LOCKSTEP_ERR_CUDA, LOCKSTEP_ERR_NCCL, LOCKSTEP_ERR_MPI, LOCKSTEP_ERR_PEER]
    options%device_type = 13
    call lockstep_context_create(elsewhere, options, stat, text)
    call check_error(stat, LOCKSTEP_ERR_DEVICE, text, 'device_type is 13')
    call lockstep_model_create(context, LOCKSTEP_F64, [1, 8, 8], model)
    call lockstep_model_add(model, 'conv2d', '1', [0], 1, lockstep_layer_options(kernel=[3, 5, 4]), stat=stat, errmsg=text)
    call check_error(stat, LOCKSTEP_ERR_INVALID, text, 'kernel[2] is 4')
    call lockstep_destroy(model)
    open (newunit=unit, file='calls_test.damaged', status='replace', action='write')
    write (unit, '(a)') 'no tensors'
    close (unit)
    call make_line(context, model)
    call lockstep_model_load(model, 'calls_test.damaged', stat, text)
    call check_error(stat, LOCKSTEP_ERR_FORMAT, text, 'calls_test.damaged')
    open (newunit=unit, file='calls_test.damaged', status='old')
    close (unit, status='delete')
    call lockstep_destroy(model)
    ops%size = 1
    ops%all_reduce_sum = c_funloc(send)
    ops%broadcast = c_funloc(send)
    ops%all_gather = c_funloc(gather)
    ops%barrier = c_funloc(meet)
    call lockstep_comm_create(context, ops, ranks)
    do i = 1, size(numbers)
      answer = numbers(i)
      call lockstep_comm_agree(ranks, 7, largest, stat, text)
      call check_error(stat, numbers(i), text, 'all_gather returned')
    end do
    answer = 0
    call lockstep_comm_agree(ranks, 7, largest)
    call check(largest == 7, 'a communicator that failed goes on')
    call lockstep_comm_create(context, c_null_ptr, ranks, none, stat, text)
    call check((stat == LOCKSTEP_ERR_INVALID .or. stat == LOCKSTEP_ERR_UNSUPPORTED) .and. index(text, 'nccl') > 0, &
      'no communicator of NCCL: '//trim(text))
    call lockstep_destroy(ranks)
  end subroutine
end program calls_test
