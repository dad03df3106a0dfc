/* Communicators from MPI: liblockstep_mpi, the only part of the C interface that knows an MPI library. */
#ifndef LOCKSTEP_LOCKSTEP_MPI_H
#define LOCKSTEP_LOCKSTEP_MPI_H

#include <mpi.h>

#include <lockstep/lockstep.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* Collective over the host program's communicator, which is duplicated; the original and its error handler are left
 * alone. MPI is initialised, at any thread level; with less than MPI_THREAD_MULTIPLE the collective entries of lockstep
 * are called by the thread that may call MPI. MPI is called in the calling thread only. The duplicate is freed with the
 * last handle that uses it (collective), or by MPI_Finalize, whichever comes first; later calls are LOCKSTEP_ERR_STATE,
 * and destroying goes on working. */
LOCKSTEP_API lockstep_status lockstep_comm_from_mpi(lockstep_context, MPI_Comm, lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* The same for a Fortran handle: an INTEGER, or the MPI_VAL of a TYPE(MPI_Comm). */
LOCKSTEP_API lockstep_status lockstep_comm_from_mpi_f(lockstep_context, int64_t fortran_comm,
                                                      lockstep_comm*) LOCKSTEP_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif
