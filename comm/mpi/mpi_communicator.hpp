#pragma once

#include <memory>

#include <mpi.h>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

struct MpiOptions {
  /// A host worker (StateError otherwise) that stays where it is and outlives the communicator. By giving it the host
  /// program says: from the moment an operation is enqueued on a stream that is not inline until the program has waited
  /// for it (Stream::synchronize(), Event::synchronize(), GradientReducer::finish() with an inline compute stream), the
  /// program makes no MPI call of its own. Only thread level SERIALIZED makes use of the worker: MULTIPLE needs none,
  /// and the levels below allow none.
  Stream* sole_mpi_worker = nullptr;
};

/// Collective over the caller's communicator, which is duplicated (MPI_Comm_dup) and given an error handler of its own
/// (MPI_ERRORS_RETURN); the caller's is not touched. MPI must be initialised. Tensors on the CPU.
///
/// An operation on an inline stream makes its MPI calls in the thread that calls it and is over when it returns, at
/// every thread level that MPI was initialised with. The level decides which threads may call and whether operations on
/// other streams (host workers) are taken:
///   MULTIPLE            any thread; any stream, whose thread makes the MPI calls
///   SERIALIZED          any thread, but the program sees to it that only one at a time makes MPI calls, those of
///                       lockstep included; any stream where MpiOptions::sole_mpi_worker is given: that worker makes
///                       the MPI calls, in order, and events order the operation's stream and the worker
///   FUNNELED, SINGLE    the thread that initialised MPI; inline streams only
/// What a level does not allow is a StateError before anything is sent. can_overlap() tells whether other than inline
/// streams are taken.
///
/// At SERIALIZED an inline operation of any communicator of lockstep first waits until the sole worker is idle, and
/// rethrows its failure: the two may be mixed freely by one thread. The process has one such worker: StateError for a
/// second one while a communicator that was made with the first exists.
///
/// The duplicate is freed by the destructor (collective) or, if the program forgot, when MPI is finalised.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options = {});

}  // namespace lockstep::comm
