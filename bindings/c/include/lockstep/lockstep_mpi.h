/* Communicators from MPI: liblockstep_mpi, the only part of the C interface that uses an MPI library. */
#ifndef LOCKSTEP_LOCKSTEP_MPI_H
#define LOCKSTEP_LOCKSTEP_MPI_H

#include <mpi.h>

#include <lockstep/lockstep.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* Makes a communicator over a duplicate of the host program's MPI communicator. The original and its error handler do
 * not change. Collective. MPI must be initialised, at any thread level. lockstep calls MPI in the calling thread only:
 * below MPI_THREAD_MULTIPLE, call the collective entries of lockstep from the thread that may call MPI. The duplicate
 * is freed with the last handle that uses it (collective), or by MPI_Finalize, whichever comes first. After
 * MPI_Finalize calls return LOCKSTEP_ERR_STATE, but handles can still be destroyed. */
LOCKSTEP_API lockstep_status lockstep_comm_from_mpi(lockstep_context, MPI_Comm, lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* lockstep_comm_from_mpi for a Fortran handle: an INTEGER, or the MPI_VAL of a TYPE(MPI_Comm). */
LOCKSTEP_API lockstep_status lockstep_comm_from_mpi_f(lockstep_context, int64_t fortran_comm,
                                                      lockstep_comm*) LOCKSTEP_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif
