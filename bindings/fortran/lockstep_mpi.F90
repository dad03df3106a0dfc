! Communicators from MPI: lockstep_comm_create(context, mpi_comm, comm) for the integer handles of mpif.h and `use mpi`.
! lockstep_mpi.h has the contract (lockstep_comm_from_mpi_f).
module lockstep_mpi
  use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t, c_null_ptr, c_ptr
  use lockstep, only: lockstep_adopt, lockstep_comm, lockstep_comm_create, lockstep_context, lockstep_finish, lockstep_handle
  implicit none
  private
  public :: lockstep_comm_create

  interface lockstep_comm_create
    module procedure comm_from_mpi
  end interface

  interface
    function c_comm_from_mpi_f(context, mpi_comm, comm) bind(C, name='lockstep_comm_from_mpi_f')
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int64_t), value :: mpi_comm
      type(c_ptr), intent(out) :: comm
      integer(c_int32_t) :: c_comm_from_mpi_f
    end function
  end interface

contains

  subroutine comm_from_mpi(context, parent, comm, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    integer, intent(in) :: parent
    type(lockstep_comm), intent(out) :: comm
    integer(c_int), intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: handle
    integer(c_int32_t) :: status
    handle = c_null_ptr
    status = c_comm_from_mpi_f(lockstep_handle(context), int(parent, c_int64_t), handle)
    call lockstep_adopt(handle, comm)
    call lockstep_finish(status, stat, errmsg)
  end subroutine
end module lockstep_mpi
