#pragma once

#include <memory>
#include <string>

#include <mpi.h>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Ways to run all_reduce().
enum class HostAllReduce {
  automatic,  ///< `shared` if all ranks are on one node and can share memory; otherwise `mpi`
  mpi,        ///< calls MPI_Allreduce
  shared,     ///< sums in memory that the ranks share (comm/shared/shared_sum.hpp); MpiError if they cannot
};

struct MpiOptions {
  /// A host worker (StateError otherwise), which must not move and must outlive the communicator. A program that passes
  /// a worker promises to make no MPI call of its own while an operation is under way on a stream that is not inline:
  /// from the call until the program has waited for the operation (Stream::synchronize(), Event::synchronize(), or
  /// GradientReducer::finish() with an inline compute stream). Only thread level SERIALIZED uses the worker: MULTIPLE
  /// needs none, and lower levels allow none.
  Stream* sole_mpi_worker = nullptr;
  /// Must be equal on all ranks; otherwise all of them take `mpi`. Communicators of split() inherit the value.
  HostAllReduce all_reduce = HostAllReduce::automatic;
  /// true: ranks that share memory also use the memory for reduce_scatter(), all_gather() and broadcast(). Sums are
  /// then in rank order. For HierarchicalCommunicator. Communicators of split() inherit the value.
  bool all_in_memory = false;
};

/// Describes the all-reduce of a communicator of make_mpi_communicator(), or of a wrapper around such a communicator.
struct AllReducePath {
  bool shared = false;
  std::string problem;  ///< reason why ranks of one node do not share memory; empty if they do, or are not asked to
};

/// Makes a communicator over the caller's ranks. Collective. MPI_Comm_dup makes a duplicate, which gets the error
/// handler MPI_ERRORS_RETURN; the caller's communicator does not change. MPI must be initialised. Tensors must be on
/// the CPU.
///
/// At every thread level, an operation on an inline stream makes its MPI calls in the calling thread and is complete
/// when it returns. The level decides which threads may call, and whether the communicator takes other streams (host
/// workers):
///   MULTIPLE            any thread; any stream, whose thread makes the MPI calls
///   SERIALIZED          any thread, but the program must ensure that only one at a time makes MPI calls, lockstep's
///                       calls included; any stream if MpiOptions::sole_mpi_worker is given: that worker makes the
///                       MPI calls, in order, and events order the operation's stream and the worker
///   FUNNELED, SINGLE    the thread that initialised MPI; inline streams only
/// A call that the level forbids throws StateError before anything is sent. can_overlap() is true if the communicator
/// takes streams other than inline ones.
///
/// At SERIALIZED, an inline operation of any communicator of lockstep first waits until the sole worker is idle, and
/// rethrows the worker's failure. So one thread may mix inline and worker operations freely. A process has one sole
/// worker: StateError for a second worker while a communicator made with the first exists.
///
/// Ranks of one node share a window, made here and in split(): all_reduce() adds there, in rank order, and makes no MPI
/// call. All other operations use MPI unless MpiOptions::all_in_memory is set. all_reduce() of ranks on several nodes
/// uses MPI, too; HierarchicalCommunicator divides it into sums within and between nodes.
///
/// The destructor frees the duplicate (collective). If it was not called, MPI_Finalize frees the duplicate.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options = {});

/// Returns how the communicator runs its all-reduces; {} for a communicator without MPI.
[[nodiscard]] AllReducePath all_reduce_path(Communicator& communicator);

}  // namespace lockstep::comm
