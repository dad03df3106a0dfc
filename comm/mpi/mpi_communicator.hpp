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
  shared,     ///< sums in shared memory (comm/shared/shared_sum.hpp); MpiError if the ranks share no memory
};

struct MpiOptions {
  /// The only worker that makes MPI calls at thread level SERIALIZED; at other levels the worker is not used. Must be a
  /// host worker (otherwise StateError), must not move, and must outlive the communicator. A program that passes a
  /// worker must make no MPI call of its own while an operation is under way on a stream that is not inline. An
  /// operation is under way from its call until the program has waited for it with Stream::synchronize(),
  /// Event::synchronize(), or GradientReducer::finish() with an inline compute stream.
  Stream* sole_mpi_worker = nullptr;
  /// If the ranks give different values, all ranks use `mpi`. Communicators that split() makes inherit the value.
  HostAllReduce all_reduce = HostAllReduce::automatic;
  /// If true, ranks that share memory also use it for reduce_scatter(), all_gather() and broadcast(), and sums are in
  /// rank order. This is for HierarchicalCommunicator. Communicators that split() makes inherit the value.
  bool all_in_memory = false;
};

/// Describes how all_reduce() works on a communicator of make_mpi_communicator(), or on a wrapper around one.
struct AllReducePath {
  bool shared = false;
  std::string problem;  ///< reason why the node's ranks cannot share memory; empty if there is no problem
};

/// Makes a communicator over the ranks of `parent`. Collective. The communicator uses a duplicate of `parent`
/// (MPI_Comm_dup) with the error handler MPI_ERRORS_RETURN; `parent` does not change. MPI must be initialised. Tensors
/// must be on the CPU.
///
/// At every thread level, an operation on an inline stream makes its MPI calls in the calling thread and is complete
/// when it returns. The level decides which threads may call an operation, and whether the communicator takes other
/// streams (host workers):
///   MULTIPLE            any thread; any stream, whose thread makes the MPI calls
///   SERIALIZED          any thread, but the program must ensure that only one thread at a time makes MPI calls,
///                       lockstep's calls included; any stream if MpiOptions::sole_mpi_worker is given: that worker
///                       makes the MPI calls, in order, and events order the operation's stream and the worker
///   FUNNELED, SINGLE    the thread that initialised MPI; inline streams only
/// A call that the level forbids throws StateError before anything is sent. can_overlap() is true if the communicator
/// takes streams other than inline ones.
///
/// At SERIALIZED, an inline operation of any communicator of lockstep first waits until the sole worker is idle, and
/// rethrows the worker's failure. So one thread may mix inline and worker operations freely. A process has one sole
/// worker: a second worker is a StateError while a communicator made with the first worker exists.
///
/// If all ranks are on one node, they share memory (a window), which this function and split() make. all_reduce() adds
/// in the window, in rank order, without MPI calls. All other operations use MPI unless MpiOptions::all_in_memory is
/// set. If the ranks are on several nodes, all_reduce() uses MPI, too; HierarchicalCommunicator divides such an
/// all-reduce into sums within and between nodes.
///
/// The communicator's destructor is collective and frees the duplicate. If the destructor was not called, MPI_Finalize
/// frees the duplicate.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options = {});

/// Returns how `communicator` runs its all-reduces; an empty AllReducePath for a communicator without MPI.
[[nodiscard]] AllReducePath all_reduce_path(Communicator& communicator);

}  // namespace lockstep::comm
