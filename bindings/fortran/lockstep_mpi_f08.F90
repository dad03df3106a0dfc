! Communicators from MPI: lockstep_comm_create(context, mpi_comm, comm) for a type(MPI_Comm) of `use mpi_f08`, or an integer.
module lockstep_mpi_f08
  use, intrinsic :: iso_c_binding, only: c_int
  use mpi_f08, only: MPI_Comm
  use lockstep, only: lockstep_comm, lockstep_context
  use lockstep_mpi, only: lockstep_comm_create
  implicit none
  private
  public :: lockstep_comm_create

  interface lockstep_comm_create
    module procedure comm_from_mpi_f08
  end interface

contains

  subroutine comm_from_mpi_f08(context, parent, comm, stat, errmsg)
    type(lockstep_context), intent(in) :: context
    type(MPI_Comm), intent(in) :: parent
    type(lockstep_comm), intent(out) :: comm
    integer(c_int), intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    ! int(), because MPI_VAL may be shorter than a default integer with -fdefault-integer-8.
    call lockstep_comm_create(context, int(parent%MPI_VAL), comm, stat, errmsg)
  end subroutine
end module lockstep_mpi_f08
