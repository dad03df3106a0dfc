#pragma once

#include <memory>
#include <string>

#include <mpi.h>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// What adds in all_reduce().
enum class HostAllReduce {
  automatic,  ///< shared, where all ranks are on one node and can share memory; else mpi
  mpi,        ///< MPI_Allreduce
  shared,     ///< the ranks in memory that they share (comm/shared/shared_sum.hpp); MpiError where they cannot
};

struct MpiOptions {
  /// A host worker (StateError otherwise), which must not move and must outlive the communicator. By passing it, the
  /// program promises to make no MPI call of its own from the moment an operation is enqueued on a stream that is not
  /// inline until the program has waited for it (Stream::synchronize(), Event::synchronize(), or
  /// GradientReducer::finish() with an inline compute stream). Only thread level SERIALIZED uses the worker: MULTIPLE
  /// needs none, and lower levels allow none.
  Stream* sole_mpi_worker = nullptr;
  /// The same on all ranks, or all take mpi. Parts that split() makes have it from the whole.
  HostAllReduce all_reduce = HostAllReduce::automatic;
  /// Ranks that share memory reduce_scatter(), all_gather() and broadcast() there too; sums are then in rank order. For
  /// HierarchicalCommunicator. Inherited likewise.
  bool all_in_memory = false;
};

/// Of a communicator of make_mpi_communicator(), or of one around it.
struct AllReducePath {
  bool shared = false;
  std::string problem;  ///< why ranks of one node do not share memory; empty where they do, or are not meant to
};

/// Collective over the caller's communicator. It is duplicated (MPI_Comm_dup), and the duplicate gets the error handler
/// MPI_ERRORS_RETURN; the caller's communicator does not change. MPI must be initialised. Tensors are on the CPU.
///
/// At every thread level, an operation on an inline stream makes its MPI calls in the calling thread and is complete
/// when it returns. The level decides which threads may call, and whether operations on other streams (host workers)
/// are taken:
///   MULTIPLE            any thread; any stream, whose thread makes the MPI calls
///   SERIALIZED          any thread, but the program sees to it that only one at a time makes MPI calls, those of
///                       lockstep included; any stream where MpiOptions::sole_mpi_worker is given: that worker makes
///                       the MPI calls, in order, and events order the operation's stream and the worker
///   FUNNELED, SINGLE    the thread that initialised MPI; inline streams only
/// A call that the level forbids throws StateError before anything is sent. can_overlap() tells whether streams other
/// than inline ones are taken.
///
/// At SERIALIZED an inline operation of any communicator of lockstep first waits until the sole worker is idle, and
/// rethrows its failure: one thread may mix inline and worker operations freely. A process has one such worker:
/// StateError for a second one while a communicator made with the first exists.
///
/// Ranks of one node share a window, made here and in split(): all_reduce() adds there, in rank order, and makes no MPI
/// call. All other operations are MPI's unless MpiOptions::all_in_memory, and so are all_reduce() of ranks on several
/// nodes, which HierarchicalCommunicator divides.
///
/// The destructor frees the duplicate (collective); otherwise MPI_Finalize does.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options = {});

/// {} for a communicator that is none of MPI's.
[[nodiscard]] AllReducePath all_reduce_path(Communicator& communicator);

}  // namespace lockstep::comm
