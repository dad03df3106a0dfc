! lockstep for Fortran: the C interface for Fortran arrays. lockstep.h has the contract of every call. An array may be any
! section of kind real(4), real(8), integer(4) or integer(8); it is passed without a copy. F2018 (assumed rank).
! bindings/fortran/README.md has the rules and the traps, docs/embedding.md a program.
!
! Order. The first dimension of an array is its fastest axis. Extents, strides and letters of axes are in that order. The
! module reverses them for C, which counts from the slowest: axes = 'whn' is C's "nhw", a linear layer's weight is (in, out),
! the sample shape of a convolution (channels, columns, rows).
!
! stat, errmsg: as for allocate. Without stat a failure is an error stop with its text. With stat the program goes on: stat is
! 0 or a LOCKSTEP_ERR_*, and errmsg is the text of a failure, cut or filled up with blanks.
!
! Handles. An assigned handle names the same context, communicator, model or trainer; destroying one handle ends the object for
! both. A call with a handle that was destroyed fails (LOCKSTEP_ERR_INVALID). There are no finalisers: Fortran runs them in no
! defined order and not at the end of a program, while destroying a communicator is collective. Call lockstep_destroy, in any
! order.
#define OPTIONAL_STAT integer(c_int), intent(out), optional :: stat
#define OPTIONAL_ERRMSG character(len=*, kind=c_char), intent(inout), optional :: errmsg
#define OPTIONAL_STAT_ERRMSG OPTIONAL_STAT; OPTIONAL_ERRMSG
module lockstep
  use, intrinsic :: iso_c_binding, only: c_char, c_double, c_f_pointer, c_float, c_funptr, c_int, c_int32_t, c_int64_t, &
    c_null_char, c_null_funptr, c_null_ptr, c_ptr, c_size_t, c_sizeof
  implicit none
  private

  public :: lockstep_context, lockstep_comm, lockstep_model, lockstep_trainer, lockstep_view
  public :: lockstep_context_options, lockstep_allocator, lockstep_comm_ops, lockstep_layer_options, lockstep_trainer_options, &
    lockstep_report
  public :: lockstep_version, lockstep_build_info, lockstep_status_name, lockstep_last_error
  public :: lockstep_context_create, lockstep_context_synchronize, lockstep_context_memory
  public :: lockstep_comm_create, lockstep_comm_rank, lockstep_comm_agree
  public :: lockstep_model_create, lockstep_model_mlp, lockstep_model_add, lockstep_model_initialise, lockstep_model_prepare, &
    lockstep_model_share, lockstep_model_broadcast, lockstep_model_save, lockstep_model_load
  public :: lockstep_parameter_count, lockstep_parameter_info, lockstep_parameter_read, lockstep_parameter_write
  public :: lockstep_view_of, lockstep_view_from_ptr, lockstep_infer, lockstep_infer_many
  public :: lockstep_trainer_create, lockstep_trainer_add, lockstep_trainer_add_view, lockstep_trainer_update, &
    lockstep_trainer_abandon, lockstep_trainer_loss, lockstep_trainer_report, lockstep_trainer_check, &
    lockstep_trainer_broadcast, lockstep_trainer_average, lockstep_trainer_save, lockstep_trainer_load
  public :: lockstep_destroy
  public :: lockstep_finish, lockstep_adopt, lockstep_handle  ! for lockstep_mpi and layers like it

  ! ---- Numbers of lockstep.h.
  integer(c_int32_t), parameter, public :: LOCKSTEP_VERSION_MAJOR = 0, LOCKSTEP_VERSION_MINOR = 1, LOCKSTEP_VERSION_PATCH = 0
  integer(c_int), parameter, public :: LOCKSTEP_OK = 0, LOCKSTEP_ERR_INVALID = 1, LOCKSTEP_ERR_SHAPE = 2, &
    LOCKSTEP_ERR_DTYPE = 3, LOCKSTEP_ERR_DEVICE = 4, LOCKSTEP_ERR_UNSUPPORTED = 5, LOCKSTEP_ERR_STATE = 6, &
    LOCKSTEP_ERR_OUT_OF_MEMORY = 20, LOCKSTEP_ERR_IO = 21, LOCKSTEP_ERR_FORMAT = 22, LOCKSTEP_ERR_CUDA = 40, &
    LOCKSTEP_ERR_NCCL = 41, LOCKSTEP_ERR_MPI = 42, LOCKSTEP_ERR_PEER = 43, LOCKSTEP_ERR_INTERNAL = 60
  integer(c_int32_t), parameter, public :: LOCKSTEP_F32 = 1, LOCKSTEP_F64 = 2, LOCKSTEP_BF16 = 3, LOCKSTEP_F16 = 4, &
    LOCKSTEP_I32 = 5, LOCKSTEP_I64 = 6, LOCKSTEP_U8 = 7
  integer(c_int32_t), parameter, public :: LOCKSTEP_CPU = 1, LOCKSTEP_CUDA = 2
  integer(c_int32_t), parameter, public :: LOCKSTEP_STREAM_OWN = 0, LOCKSTEP_STREAM_GIVEN = 1
  integer(c_int32_t), parameter, public :: LOCKSTEP_ACTIVATION_NONE = 0, LOCKSTEP_ACTIVATION_RELU = 1, &
    LOCKSTEP_ACTIVATION_TANH = 2, LOCKSTEP_ACTIVATION_SIGMOID = 3, LOCKSTEP_ACTIVATION_GELU = 4, &
    LOCKSTEP_ACTIVATION_GELU_TANH = 5, LOCKSTEP_ACTIVATION_SILU = 6
  integer(c_int32_t), parameter, public :: LOCKSTEP_BIAS_DEFAULT = 0, LOCKSTEP_BIAS_WITH = 1, LOCKSTEP_BIAS_WITHOUT = 2
  integer(c_int32_t), parameter, public :: LOCKSTEP_OPTIMIZER_SGD = 0, LOCKSTEP_OPTIMIZER_ADAM = 1, &
    LOCKSTEP_OPTIMIZER_ADAMW = 2, LOCKSTEP_OPTIMIZER_LARS = 3
  integer(c_int32_t), parameter, public :: LOCKSTEP_LOSS_MSE = 0, LOCKSTEP_LOSS_L1 = 1, LOCKSTEP_LOSS_HUBER = 2, &
    LOCKSTEP_LOSS_CROSS_ENTROPY = 3
  integer(c_int32_t), parameter, public :: LOCKSTEP_WEIGHTS_NONE = 0, LOCKSTEP_WEIGHTS_SAMPLE = 1, LOCKSTEP_WEIGHTS_ELEMENT = 2

  ! ---- Handles.
  type, bind(C) :: lockstep_context
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C) :: lockstep_comm
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C) :: lockstep_model
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C) :: lockstep_trainer
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! A window on the program's memory, made by lockstep_view_of or lockstep_view_from_ptr. It is valid as long as that memory.
  type, bind(C) :: lockstep_view
    private
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: dtype = 0, device_type = 0, device_id = 0, ndim = 0
    integer(c_int64_t) :: shape(8) = 0, strides(8) = 0
    character(kind=c_char) :: axes(16) = c_null_char
  end type

  ! ---- Options of lockstep.h with their defaults; the calls below set struct_size.
  type, bind(C) :: lockstep_allocator
    integer(c_int32_t) :: struct_size = 0, flags = 0
    type(c_ptr) :: user = c_null_ptr
    type(c_funptr) :: allocate = c_null_funptr, deallocate = c_null_funptr
  end type
  type, bind(C) :: lockstep_context_options
    integer(c_int32_t) :: struct_size = 0, device_type = LOCKSTEP_CPU, device_id = 0, threads = 0, &
      stream_kind = LOCKSTEP_STREAM_OWN, reserved = 0
    type(c_ptr) :: stream = c_null_ptr
    type(c_ptr) :: memory = c_null_ptr  ! c_loc of a lockstep_allocator; the caller sets its struct_size (c_sizeof)
    integer(c_int64_t) :: memory_limit = 0
  end type
  type, bind(C) :: lockstep_comm_ops
    integer(c_int32_t) :: struct_size = 0, flags = 0
    type(c_ptr) :: user = c_null_ptr
    integer(c_int32_t) :: rank = 0, size = 0
    type(c_funptr) :: all_reduce_sum = c_null_funptr, broadcast = c_null_funptr, all_gather = c_null_funptr, &
      barrier = c_null_funptr, error_text = c_null_funptr, destroy = c_null_funptr
  end type
  type, bind(C) :: lockstep_layer_options
    integer(c_int32_t) :: struct_size = 0, activation = LOCKSTEP_ACTIVATION_NONE, bias = LOCKSTEP_BIAS_DEFAULT, pad_mode = 0
    ! One number per axis in C's order, which the module does not reverse here: (planes,) rows, columns.
    integer(c_int32_t) :: kernel(3) = 0, stride(3) = 0, pad(3) = 0, dilation(3) = 0
    integer(c_int32_t) :: groups = 0, reserved = 0
    real(c_double) :: epsilon = 0, momentum = 0, rate = 0
    integer(c_int32_t) :: output_pad(3) = 0, share = 0
  end type
  type, bind(C) :: lockstep_trainer_options
    integer(c_int32_t) :: struct_size = 0, optimizer = LOCKSTEP_OPTIMIZER_ADAM, loss = LOCKSTEP_LOSS_MSE, nesterov = 0, &
      skip_non_finite = 0, check_input = 0, weights = LOCKSTEP_WEIGHTS_NONE, sync_batch_norm = 0
    real(c_double) :: beta1 = 0.9_c_double, beta2 = 0.999_c_double, epsilon = 1e-8_c_double, momentum = 0.9_c_double, &
      weight_decay = 0, clip_norm = 0, huber_delta = 1
    integer(c_int64_t) :: max_batch = 0, bucket_bytes = 0
  end type
  ! The last step of all ranks together, as lockstep_trainer_report describes it.
  type, bind(C) :: lockstep_report
    integer(c_int32_t) :: struct_size = 0, reserved = 0
    integer(c_int64_t) :: step = 0, skipped = 0, samples = 0
    real(c_double) :: loss = 0, gradient_norm = 0
  end type

  ! ---- Calls that take arrays are C procedures, which receive the array itself. With a Fortran procedure in between,
  ! gfortran would pack sections of components (cells%t).
  interface
    ! Computes out = model(in) for any number of samples. in_axes, out_axes: a letter for each dimension, fastest first.
    subroutine lockstep_infer(model, in, out, in_axes, out_axes, stream, stat, errmsg) bind(C, name='lockstep_f_infer')
      import :: lockstep_model, c_char, c_int, c_ptr
      type(lockstep_model), intent(in) :: model
      type(*), dimension(..), intent(in) :: in
      type(*), dimension(..), intent(inout) :: out
      character(len=*, kind=c_char), intent(in), optional :: in_axes, out_axes
      type(c_ptr), intent(in), optional :: stream
      OPTIONAL_STAT_ERRMSG
    end subroutine

    ! Computes out(i) from in(i) for all views together.
    subroutine lockstep_infer_many(model, in, out, stream, stat, errmsg) bind(C, name='lockstep_f_infer_many')
      import :: lockstep_model, lockstep_view, c_char, c_int, c_ptr
      type(lockstep_model), intent(in) :: model
      type(lockstep_view), intent(in) :: in(:), out(:)
      type(c_ptr), intent(in), optional :: stream
      OPTIONAL_STAT_ERRMSG
    end subroutine

    ! Makes a view of an array, which has the target attribute or belongs to a pointer. The view is valid while the array lives.
    subroutine lockstep_view_of(array, view, axes, stat, errmsg) bind(C, name='lockstep_f_view_of')
      import :: lockstep_view, c_char, c_int
      type(*), dimension(..), intent(in), target :: array
      type(lockstep_view), intent(out) :: view
      character(len=*, kind=c_char), intent(in), optional :: axes
      OPTIONAL_STAT_ERRMSG
    end subroutine

    ! Makes a view of memory at an address: for F2008 (c_loc of a contiguous target), for other types (LOCKSTEP_U8), and for
    ! memory of a GPU (device_id present). strides: in elements; absent: without gaps.
    subroutine lockstep_view_from_ptr(data, shape, strides, dtype, axes, device_id, view, stat, errmsg) &
        bind(C, name='lockstep_f_view_from_ptr')
      import :: lockstep_view, c_char, c_int, c_int32_t, c_int64_t, c_ptr
      type(c_ptr), intent(in) :: data
      integer(c_int64_t), intent(in) :: shape(:)
      integer(c_int64_t), intent(in), optional :: strides(:)
      integer(c_int32_t), intent(in) :: dtype
      character(len=*, kind=c_char), intent(in), optional :: axes
      integer(c_int32_t), intent(in), optional :: device_id
      type(lockstep_view), intent(out) :: view
      OPTIONAL_STAT_ERRMSG
    end subroutine

    subroutine lockstep_parameter_read(model, name, values, stat, errmsg) bind(C, name='lockstep_f_parameter_read')
      import :: lockstep_model, c_char, c_int
      type(lockstep_model), intent(in) :: model
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(inout) :: values
      OPTIONAL_STAT_ERRMSG
    end subroutine

    subroutine lockstep_parameter_write(model, name, values, stat, errmsg) bind(C, name='lockstep_f_parameter_write')
      import :: lockstep_model, c_char, c_int
      type(lockstep_model), intent(in) :: model
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(in) :: values
      OPTIONAL_STAT_ERRMSG
    end subroutine

    ! Adds the gradients of the samples in the arrays.
    subroutine lockstep_trainer_add(trainer, in, target, weight, in_axes, target_axes, weight_axes, stream, stat, errmsg) &
        bind(C, name='lockstep_f_trainer_add')
      import :: lockstep_trainer, c_char, c_int, c_ptr
      type(lockstep_trainer), intent(in) :: trainer
      type(*), dimension(..), intent(in) :: in, target
      type(*), dimension(..), intent(in), optional :: weight
      character(len=*, kind=c_char), intent(in), optional :: in_axes, target_axes, weight_axes
      type(c_ptr), intent(in), optional :: stream
      OPTIONAL_STAT_ERRMSG
    end subroutine

    subroutine lockstep_trainer_add_view(trainer, in, target, weight, stream, stat, errmsg) &
        bind(C, name='lockstep_f_trainer_add_view')
      import :: lockstep_trainer, lockstep_view, c_char, c_int, c_ptr
      type(lockstep_trainer), intent(in) :: trainer
      type(lockstep_view), intent(in) :: in, target
      type(lockstep_view), intent(in), optional :: weight
      type(c_ptr), intent(in), optional :: stream
      OPTIONAL_STAT_ERRMSG
    end subroutine
  end interface

  ! Makes a communicator of one rank (context, comm), of the program's own functions (context, ops, comm), or of NCCL
  ! (context, nccl_comm, control, comm). lockstep_mpi and lockstep_mpi_f08 add those of MPI.
  interface lockstep_comm_create
    module procedure comm_self, comm_from_ops, comm_from_nccl
  end interface

  ! Makes the parameters; takes a seed of 32 or 64 bits.
  interface lockstep_model_initialise
    module procedure model_initialise_32, model_initialise_64
  end interface

  ! Ends a step; takes a learning rate of 32 or 64 bits.
  interface lockstep_trainer_update
    module procedure trainer_update_32, trainer_update_64
  end interface

  ! Destroys the object that the handle names; the handle then names nothing. Does nothing for a handle that names nothing.
  ! Collective for communicators.
  interface lockstep_destroy
    module procedure context_destroy, comm_destroy, model_destroy, trainer_destroy
  end interface

  ! For layers above this module: lockstep_handle returns the C handle, lockstep_adopt makes a handle of a C handle.
  interface lockstep_handle
    module procedure context_handle
  end interface
  interface lockstep_adopt
    module procedure comm_adopt
  end interface

  ! ---- Private: the functions of lockstep.h that take no arrays.
  type, bind(C) :: parameter_info
    integer(c_int32_t) :: struct_size = 0, ndim = 0
    integer(c_int64_t) :: shape(8) = 0
    type(c_ptr) :: name = c_null_ptr
  end type

  interface
    function c_strlen(text) bind(C, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
    function c_version() bind(C, name='lockstep_version')
      import :: c_int32_t
      integer(c_int32_t) :: c_version
    end function
    function c_build_info() bind(C, name='lockstep_build_info')
      import :: c_ptr
      type(c_ptr) :: c_build_info
    end function
    function c_status_name(status) bind(C, name='lockstep_status_name')
      import :: c_int32_t, c_ptr
      integer(c_int32_t), value :: status
      type(c_ptr) :: c_status_name
    end function
    function c_last_error() bind(C, name='lockstep_last_error')
      import :: c_ptr
      type(c_ptr) :: c_last_error
    end function
    function c_context_create(options, context) bind(C, name='lockstep_context_create')
      import :: c_int32_t, lockstep_context, lockstep_context_options
      type(lockstep_context_options), intent(in) :: options
      type(lockstep_context), intent(out) :: context
      integer(c_int32_t) :: c_context_create
    end function
    function c_context_destroy(context) bind(C, name='lockstep_context_destroy')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t) :: c_context_destroy
    end function
    function c_context_synchronize(context) bind(C, name='lockstep_context_synchronize')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t) :: c_context_synchronize
    end function
    function c_context_memory(context, in_use, peak) bind(C, name='lockstep_context_memory')
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int64_t), intent(out) :: in_use, peak
      integer(c_int32_t) :: c_context_memory
    end function
    function c_comm_self(context, comm) bind(C, name='lockstep_comm_self')
      import :: c_int32_t, c_ptr, lockstep_comm
      type(c_ptr), value :: context
      type(lockstep_comm), intent(out) :: comm
      integer(c_int32_t) :: c_comm_self
    end function
    function c_comm_from_ops(context, ops, comm) bind(C, name='lockstep_comm_from_ops')
      import :: c_int32_t, c_ptr, lockstep_comm, lockstep_comm_ops
      type(c_ptr), value :: context
      type(lockstep_comm_ops), intent(in) :: ops
      type(lockstep_comm), intent(out) :: comm
      integer(c_int32_t) :: c_comm_from_ops
    end function
    function c_comm_from_nccl(context, nccl_comm, control, comm) bind(C, name='lockstep_comm_from_nccl')
      import :: c_int32_t, c_ptr, lockstep_comm
      type(c_ptr), value :: context, nccl_comm, control
      type(lockstep_comm), intent(out) :: comm
      integer(c_int32_t) :: c_comm_from_nccl
    end function
    function c_comm_rank(comm, rank, size) bind(C, name='lockstep_comm_rank')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(out) :: rank, size
      integer(c_int32_t) :: c_comm_rank
    end function
    function c_comm_agree(comm, mine, largest) bind(C, name='lockstep_comm_agree')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: mine
      integer(c_int32_t), intent(out) :: largest
      integer(c_int32_t) :: c_comm_agree
    end function
    function c_comm_destroy(comm) bind(C, name='lockstep_comm_destroy')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int32_t) :: c_comm_destroy
    end function
    function c_model_create(context, dtype, shape, ndim, model) bind(C, name='lockstep_model_create')
      import :: c_int32_t, c_int64_t, c_ptr, lockstep_model
      type(c_ptr), value :: context
      integer(c_int32_t), value :: dtype, ndim
      integer(c_int64_t), intent(in) :: shape(*)
      type(lockstep_model), intent(out) :: model
      integer(c_int32_t) :: c_model_create
    end function
    function c_model_mlp(context, dtype, widths, n, activation, model) bind(C, name='lockstep_model_mlp')
      import :: c_int32_t, c_int64_t, c_ptr, lockstep_model
      type(c_ptr), value :: context
      integer(c_int32_t), value :: dtype, n, activation
      integer(c_int64_t), intent(in) :: widths(*)
      type(lockstep_model), intent(out) :: model
      integer(c_int32_t) :: c_model_mlp
    end function
    function c_model_add(model, kind, kind_n, name, name_n, inputs, ninputs, size, options, node) &
        bind(C, name='lockstep_model_add')
      import :: c_char, c_int32_t, c_int64_t, c_ptr, c_size_t, lockstep_layer_options
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: kind(*), name(*)
      integer(c_size_t), value :: kind_n, name_n
      integer(c_int32_t), intent(in) :: inputs(*)
      integer(c_int32_t), value :: ninputs
      integer(c_int64_t), value :: size
      type(lockstep_layer_options), intent(in) :: options
      integer(c_int32_t), intent(out) :: node
      integer(c_int32_t) :: c_model_add
    end function
    function c_model_initialise(model, seed) bind(C, name='lockstep_model_initialise')
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: model
      integer(c_int64_t), value :: seed
      integer(c_int32_t) :: c_model_initialise
    end function
    function c_model_prepare(model, max_batch) bind(C, name='lockstep_model_prepare')
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: model
      integer(c_int64_t), value :: max_batch
      integer(c_int32_t) :: c_model_prepare
    end function
    function c_model_share(model, context, shared) bind(C, name='lockstep_model_share')
      import :: c_int32_t, c_ptr, lockstep_model
      type(c_ptr), value :: model, context
      type(lockstep_model), intent(out) :: shared
      integer(c_int32_t) :: c_model_share
    end function
    function c_model_broadcast(model, comm, root) bind(C, name='lockstep_model_broadcast')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: model, comm
      integer(c_int32_t), value :: root
      integer(c_int32_t) :: c_model_broadcast
    end function
    function c_model_save(model, path, n) bind(C, name='lockstep_model_save')
      import :: c_char, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_model_save
    end function
    function c_model_load(model, path, n) bind(C, name='lockstep_model_load')
      import :: c_char, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_model_load
    end function
    function c_model_destroy(model) bind(C, name='lockstep_model_destroy')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: model
      integer(c_int32_t) :: c_model_destroy
    end function
    function c_parameter_count(model, count) bind(C, name='lockstep_parameter_count')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: model
      integer(c_int32_t), intent(out) :: count
      integer(c_int32_t) :: c_parameter_count
    end function
    function c_parameter_info(model, index, info) bind(C, name='lockstep_parameter_info')
      import :: c_int32_t, c_ptr, parameter_info
      type(c_ptr), value :: model
      integer(c_int32_t), value :: index
      type(parameter_info), intent(inout) :: info
      integer(c_int32_t) :: c_parameter_info
    end function
    function c_trainer_create(model, comm, options, trainer) bind(C, name='lockstep_trainer_create')
      import :: c_int32_t, c_ptr, lockstep_trainer, lockstep_trainer_options
      type(c_ptr), value :: model, comm
      type(lockstep_trainer_options), intent(in) :: options
      type(lockstep_trainer), intent(out) :: trainer
      integer(c_int32_t) :: c_trainer_create
    end function
    function c_trainer_update(trainer, learning_rate) bind(C, name='lockstep_trainer_update')
      import :: c_double, c_int32_t, c_ptr
      type(c_ptr), value :: trainer
      real(c_double), value :: learning_rate
      integer(c_int32_t) :: c_trainer_update
    end function
    function c_trainer_abandon(trainer) bind(C, name='lockstep_trainer_abandon')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: trainer
      integer(c_int32_t) :: c_trainer_abandon
    end function
    function c_trainer_loss(trainer, wait, loss, step) bind(C, name='lockstep_trainer_loss')
      import :: c_double, c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: trainer
      integer(c_int32_t), value :: wait
      real(c_double), intent(out) :: loss
      integer(c_int64_t), intent(out) :: step
      integer(c_int32_t) :: c_trainer_loss
    end function
    function c_trainer_report(trainer, report) bind(C, name='lockstep_trainer_report')
      import :: c_int32_t, c_ptr, lockstep_report
      type(c_ptr), value :: trainer
      type(lockstep_report), intent(inout) :: report
      integer(c_int32_t) :: c_trainer_report
    end function
    function c_trainer_check(trainer) bind(C, name='lockstep_trainer_check')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: trainer
      integer(c_int32_t) :: c_trainer_check
    end function
    function c_trainer_broadcast(trainer, root) bind(C, name='lockstep_trainer_broadcast')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: trainer
      integer(c_int32_t), value :: root
      integer(c_int32_t) :: c_trainer_broadcast
    end function
    function c_trainer_average(trainer) bind(C, name='lockstep_trainer_average')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: trainer
      integer(c_int32_t) :: c_trainer_average
    end function
    function c_trainer_save(trainer, folder, n) bind(C, name='lockstep_trainer_save')
      import :: c_char, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: trainer
      character(kind=c_char), intent(in) :: folder(*)
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_trainer_save
    end function
    function c_trainer_load(trainer, folder, n) bind(C, name='lockstep_trainer_load')
      import :: c_char, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: trainer
      character(kind=c_char), intent(in) :: folder(*)
      integer(c_size_t), value :: n
      integer(c_int32_t) :: c_trainer_load
    end function
    function c_trainer_destroy(trainer) bind(C, name='lockstep_trainer_destroy')
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: trainer
      integer(c_int32_t) :: c_trainer_destroy
    end function
  end interface

contains

  function text_at(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    call c_f_pointer(pointer, letters, [c_strlen(pointer)])
    allocate (character(len=size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

  ! Ends the program after a failure without stat; descriptor.c calls it.
  subroutine stop_with(pointer, n) bind(C, name='lockstep_f_stop')
    type(c_ptr), value :: pointer
    integer(c_int64_t), value :: n
    character(kind=c_char), pointer :: letters(:)
    character(n) :: text
    integer :: i
    call c_f_pointer(pointer, letters, [n])
    do i = 1, int(n)
      text(i:i) = letters(i)
    end do
    error stop text
  end subroutine

  ! Sets stat and errmsg at the end of every Fortran procedure, as lockstep_f_finish in descriptor.c does for C procedures
  ! (gfortran 12 cannot pass an optional errmsg on to C).
  subroutine lockstep_finish(status, stat, errmsg)
    integer(c_int32_t), intent(in) :: status
    OPTIONAL_STAT_ERRMSG
    character(:), allocatable :: text
    if (present(stat)) stat = status
    if (status == LOCKSTEP_OK) return
    text = lockstep_last_error()
    if (.not. present(stat)) error stop text
    if (present(errmsg)) errmsg = text
  end subroutine

  ! ---- The library.
  function lockstep_version() result(version)
    integer :: version
    version = int(c_version())
  end function

  function lockstep_build_info() result(text)
    character(:), allocatable :: text
    text = text_at(c_build_info())
  end function

  function lockstep_status_name(status) result(text)
    integer(c_int), intent(in) :: status
    character(:), allocatable :: text
    text = text_at(c_status_name(status))
  end function

  ! Returns the text of this thread's last call if that call failed, else an empty text.
  function lockstep_last_error() result(text)
    character(:), allocatable :: text
    text = text_at(c_last_error())
  end function

  ! ---- Context.
  subroutine lockstep_context_create(context, options, stat, errmsg)
    type(lockstep_context), intent(out) :: context
    type(lockstep_context_options), intent(in), optional :: options
    OPTIONAL_STAT_ERRMSG
    type(lockstep_context_options) :: given
    if (present(options)) given = options
    given%struct_size = int(c_sizeof(given), c_int32_t)
    call lockstep_finish(c_context_create(given, context), stat, errmsg)
  end subroutine

  ! Waits for the context's stream.
  subroutine lockstep_context_synchronize(context, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_context_synchronize(context%handle), stat, errmsg)
  end subroutine

  ! Returns the bytes of the context's memory in use, now and at most so far; -1 where they are not counted.
  subroutine lockstep_context_memory(context, in_use, peak, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    integer(c_int64_t), intent(out) :: in_use, peak
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_context_memory(context%handle, in_use, peak), stat, errmsg)
  end subroutine

  pure function context_handle(context) result(handle)
    type(lockstep_context), intent(in) :: context
    type(c_ptr) :: handle
    handle = context%handle
  end function

  ! ---- Communicator.
  subroutine comm_self(context, comm, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    type(lockstep_comm), intent(out) :: comm
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_comm_self(context%handle, comm), stat, errmsg)
  end subroutine

  subroutine comm_from_ops(context, ops, comm, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    type(lockstep_comm_ops), intent(in) :: ops
    type(lockstep_comm), intent(out) :: comm
    OPTIONAL_STAT_ERRMSG
    type(lockstep_comm_ops) :: given
    given = ops
    given%struct_size = int(c_sizeof(given), c_int32_t)
    call lockstep_finish(c_comm_from_ops(context%handle, given, comm), stat, errmsg)
  end subroutine

  ! nccl_comm: an ncclComm_t. control: a communicator of the same ranks, for host memory.
  subroutine comm_from_nccl(context, nccl_comm, control, comm, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    type(c_ptr), intent(in) :: nccl_comm
    type(lockstep_comm), intent(in) :: control
    type(lockstep_comm), intent(out) :: comm
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_comm_from_nccl(context%handle, nccl_comm, control%handle, comm), stat, errmsg)
  end subroutine

  pure subroutine comm_adopt(handle, comm)
    type(c_ptr), intent(in) :: handle
    type(lockstep_comm), intent(out) :: comm
    comm%handle = handle
  end subroutine

  ! Ranks are counted from 0, as in MPI.
  subroutine lockstep_comm_rank(comm, rank, size, stat, errmsg)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out) :: rank, size
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status, here, all
    here = -1
    all = -1
    status = c_comm_rank(comm%handle, here, all)
    rank = int(here)
    size = int(all)
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  ! Returns the largest of the ranks' numbers. Collective.
  subroutine lockstep_comm_agree(comm, mine, largest, stat, errmsg)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(in) :: mine
    integer, intent(out) :: largest
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status, found
    found = -huge(found)
    status = c_comm_agree(comm%handle, int(mine, c_int32_t), found)
    largest = int(found)
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  ! ---- Model.
  ! sample_shape: the shape of one sample's array: (features), (channels, positions) or (channels, columns, rows[, planes]).
  subroutine lockstep_model_create(context, dtype, sample_shape, model, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    integer(c_int32_t), intent(in) :: dtype
    integer, intent(in) :: sample_shape(:)
    type(lockstep_model), intent(out) :: model
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: n
    n = int(size(sample_shape), c_int32_t)
    call lockstep_finish(c_model_create(context%handle, dtype, int(sample_shape(n:1:-1), c_int64_t), n, model), stat, errmsg)
  end subroutine

  subroutine lockstep_model_mlp(context, dtype, widths, activation, model, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    integer(c_int32_t), intent(in) :: dtype
    integer, intent(in) :: widths(:)
    integer(c_int32_t), intent(in) :: activation
    type(lockstep_model), intent(out) :: model
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_mlp(context%handle, dtype, int(widths, c_int64_t), int(size(widths), c_int32_t), &
      activation, model), stat, errmsg)
  end subroutine

  ! inputs: nodes; 0 is the model's input. features: features of linear, channels of convolutions; absent: 0. node: the output.
  subroutine lockstep_model_add(model, kind, name, inputs, features, options, node, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    character(*), intent(in) :: kind, name
    integer, intent(in) :: inputs(:)
    integer, intent(in), optional :: features
    type(lockstep_layer_options), intent(in), optional :: options
    integer, intent(out), optional :: node
    OPTIONAL_STAT_ERRMSG
    type(lockstep_layer_options) :: given
    integer(c_int32_t) :: status, made
    integer(c_int64_t) :: width
    if (present(options)) given = options
    given%struct_size = int(c_sizeof(given), c_int32_t)
    width = 0
    if (present(features)) width = int(features, c_int64_t)
    made = -1
    status = c_model_add(model%handle, trim(kind)//c_null_char, len_trim(kind, c_size_t), trim(name)//c_null_char, &
      len_trim(name, c_size_t), int(inputs, c_int32_t), int(size(inputs), c_int32_t), width, given, made)
    if (present(node)) node = int(made)
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  subroutine model_initialise_32(model, seed, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    integer(c_int32_t), intent(in) :: seed
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_initialise(model%handle, int(seed, c_int64_t)), stat, errmsg)
  end subroutine

  subroutine model_initialise_64(model, seed, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    integer(c_int64_t), intent(in) :: seed
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_initialise(model%handle, seed), stat, errmsg)
  end subroutine

  ! Plans and allocates for up to max_batch samples; inference of no more samples then allocates nothing.
  subroutine lockstep_model_prepare(model, max_batch, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    integer, intent(in) :: max_batch
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_prepare(model%handle, int(max_batch, c_int64_t)), stat, errmsg)
  end subroutine

  ! Makes a model with the same parameters for the context of another thread.
  subroutine lockstep_model_share(model, context, shared, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    type(lockstep_context), intent(in) :: context
    type(lockstep_model), intent(out) :: shared
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_share(model%handle, context%handle, shared), stat, errmsg)
  end subroutine

  ! Sends the root's parameters and running statistics to all ranks of the communicator, also to ranks that do not train.
  ! Collective.
  subroutine lockstep_model_broadcast(model, comm, root, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    type(lockstep_comm), intent(in) :: comm
    integer, intent(in) :: root
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_broadcast(model%handle, comm%handle, int(root, c_int32_t)), stat, errmsg)
  end subroutine

  subroutine lockstep_model_save(model, path, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    character(*), intent(in) :: path
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_save(model%handle, trim(path)//c_null_char, len_trim(path, c_size_t)), stat, errmsg)
  end subroutine

  subroutine lockstep_model_load(model, path, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    character(*), intent(in) :: path
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_model_load(model%handle, trim(path)//c_null_char, len_trim(path, c_size_t)), stat, errmsg)
  end subroutine

  ! ---- Parameters.
  subroutine lockstep_parameter_count(model, count, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    integer, intent(out) :: count
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status, found
    found = 0
    status = c_parameter_count(model%handle, found)
    count = int(found)
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  ! index counts from 1. shape is the shape of a Fortran array for the parameter. name and shape are not allocated after a
  ! failure.
  subroutine lockstep_parameter_info(model, index, name, shape, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    integer, intent(in) :: index
    character(:), allocatable, intent(out) :: name
    integer, allocatable, intent(out) :: shape(:)
    OPTIONAL_STAT_ERRMSG
    type(parameter_info) :: info
    integer(c_int32_t) :: status
    info%struct_size = int(c_sizeof(info), c_int32_t)
    status = c_parameter_info(model%handle, int(index - 1, c_int32_t), info)
    if (status == LOCKSTEP_OK) then
      name = text_at(info%name)
      shape = int(info%shape(info%ndim:1:-1))
    end if
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  ! ---- Training.
  ! Makes the one trainer of a model. Collective.
  subroutine lockstep_trainer_create(model, comm, options, trainer, stat, errmsg)
    type(lockstep_model), intent(in) :: model
    type(lockstep_comm), intent(in) :: comm
    type(lockstep_trainer_options), intent(in) :: options
    type(lockstep_trainer), intent(out) :: trainer
    OPTIONAL_STAT_ERRMSG
    type(lockstep_trainer_options) :: given
    given = options
    given%struct_size = int(c_sizeof(given), c_int32_t)
    call lockstep_finish(c_trainer_create(model%handle, comm%handle, given, trainer), stat, errmsg)
  end subroutine

  ! Sums the gradients over the ranks and updates the parameters. Collective.
  subroutine trainer_update_32(trainer, learning_rate, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    real(c_float), intent(in) :: learning_rate
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_update(trainer%handle, real(learning_rate, c_double)), stat, errmsg)
  end subroutine

  subroutine trainer_update_64(trainer, learning_rate, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    real(c_double), intent(in) :: learning_rate
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_update(trainer%handle, learning_rate), stat, errmsg)
  end subroutine

  subroutine lockstep_trainer_abandon(trainer, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_abandon(trainer%handle), stat, errmsg)
  end subroutine

  ! Returns the mean loss over this rank's samples. wait absent or true: waits for the last step; false: the newest loss that
  ! has arrived.
  subroutine lockstep_trainer_loss(trainer, loss, step, wait, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    real(c_double), intent(out) :: loss
    integer(c_int64_t), intent(out), optional :: step
    logical, intent(in), optional :: wait
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status, waits
    integer(c_int64_t) :: number
    waits = 1
    if (present(wait)) waits = merge(1_c_int32_t, 0_c_int32_t, wait)
    number = 0
    loss = 0
    status = c_trainer_loss(trainer%handle, waits, loss, number)
    if (present(step)) step = number
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  ! Describes the last step of all ranks together. Collective, as all following calls of the trainer.
  subroutine lockstep_trainer_report(trainer, report, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    type(lockstep_report), intent(out) :: report
    OPTIONAL_STAT_ERRMSG
    report%struct_size = int(c_sizeof(report), c_int32_t)
    call lockstep_finish(c_trainer_report(trainer%handle, report), stat, errmsg)
  end subroutine

  ! Compares the bits of the parameters over the ranks.
  subroutine lockstep_trainer_check(trainer, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_check(trainer%handle), stat, errmsg)
  end subroutine

  subroutine lockstep_trainer_broadcast(trainer, root, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    integer, intent(in) :: root
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_broadcast(trainer%handle, int(root, c_int32_t)), stat, errmsg)
  end subroutine

  subroutine lockstep_trainer_average(trainer, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_average(trainer%handle), stat, errmsg)
  end subroutine

  subroutine lockstep_trainer_save(trainer, folder, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    character(*), intent(in) :: folder
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_save(trainer%handle, trim(folder)//c_null_char, len_trim(folder, c_size_t)), stat, errmsg)
  end subroutine

  subroutine lockstep_trainer_load(trainer, folder, stat, errmsg)
    type(lockstep_trainer), intent(in) :: trainer
    character(*), intent(in) :: folder
    OPTIONAL_STAT_ERRMSG
    call lockstep_finish(c_trainer_load(trainer%handle, trim(folder)//c_null_char, len_trim(folder, c_size_t)), stat, errmsg)
  end subroutine

  ! ---- lockstep_destroy.
  subroutine context_destroy(context, stat, errmsg)
    type(lockstep_context), intent(inout) :: context
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status
    status = c_context_destroy(context%handle)
    context%handle = c_null_ptr
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  subroutine comm_destroy(comm, stat, errmsg)
    type(lockstep_comm), intent(inout) :: comm
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status
    status = c_comm_destroy(comm%handle)
    comm%handle = c_null_ptr
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  subroutine model_destroy(model, stat, errmsg)
    type(lockstep_model), intent(inout) :: model
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status
    status = c_model_destroy(model%handle)
    model%handle = c_null_ptr
    call lockstep_finish(status, stat, errmsg)
  end subroutine

  subroutine trainer_destroy(trainer, stat, errmsg)
    type(lockstep_trainer), intent(inout) :: trainer
    OPTIONAL_STAT_ERRMSG
    integer(c_int32_t) :: status
    status = c_trainer_destroy(trainer%handle)
    trainer%handle = c_null_ptr
    call lockstep_finish(status, stat, errmsg)
  end subroutine

end module lockstep
