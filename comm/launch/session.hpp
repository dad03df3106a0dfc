#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/error.hpp>
#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/comm/watchdog.hpp>

namespace lockstep::comm {

/// Thrown on every rank by Session::agree(), after rank 0 has printed the error text of the lowest rank that failed.
class AgreedFailure : public Error {
 public:
  AgreedFailure(const std::string& message, int code) : Error(message), code_(code) {}
  [[nodiscard]] int code() const noexcept override { return code_; }

 private:
  int code_;
};

/// Starts and ends MPI or gloo for a program of this project, and provides the rank of this process. A process may make
/// only one Session, and must make it before and destroy it after all other objects of lockstep. Programs that embed
/// lockstep need no Session; they make communicators themselves. Without a launcher, the session has one rank. Ranks
/// that torchrun started meet without MPI and exchange host tensors by gloo (meet_by_gloo()).
///
/// A Session has three communicators, so that their operations never mix: grad (gradient buckets), inline_ops
/// (collectives on the compute path) and control (host values: checks, metrics, agreement).
class Session {
 public:
  /// Initialises MPI. Asks for MPI_THREAD_MULTIPLE and accepts the thread level that MPI gives. If the program has
  /// already initialised MPI, the session does not finalise MPI.
  ///
  /// At MPI_THREAD_SERIALIZED, a Session that initialised MPI communicates on a worker thread. Then the program must
  /// make no MPI call of its own while communication_stream() has work. If the program had initialised MPI at that
  /// level, the session communicates inline, in the calling thread, because the program may call MPI, too.
  ///
  /// In a process without a launcher, the session sets OMPI_MCA_plm=isolated and OMPI_MCA_ess_singleton_isolated=1
  /// (unless they are set) while MPI_Init_thread runs: then Open MPI starts no daemon and does not search for a way to
  /// start processes elsewhere. Open MPI's temporary files get their own folder in TMPDIR. Throws UsageError if that
  /// folder cannot be made, or if the launcher's variables contradict each other or MPI (comm/launch/launch.hpp). With
  /// several ranks, rank 0 prints such an error, and all ranks throw AgreedFailure; the same happens if ranks run
  /// different versions or builds of lockstep.
  ///
  /// Without MPI, throws RendezvousError if the ranks cannot meet within MeetingPlace::timeout_s. If rank 0, or another
  /// rank of the same host, prints the same error, this rank throws AgreedFailure instead, so that the error is not
  /// printed twice. If a rank is lost later, operations throw PeerError. If a rank ends the job with abort(), the
  /// processes of all ranks end with its code.
  ///
  /// With watchdog_s above 0, a Watchdog begins before MPI starts, so a rank that hangs while the ranks find each other
  /// also ends the job. If ranks of one node call different collectives, the watchdog ends the job, too, with code 3:
  /// "ranks call different operations: operation 57 of grad is all_reduce of 1000 f32 on rank 0 and all_gather of 20
  /// f32 on rank 1". The watchdog ends the job at its next check (at least once a second). On several nodes, each node
  /// sends about one UDP datagram a second to the next node until close() returns, so that a silent node is named
  /// (comm/launch/detail/node_heartbeat.hpp).
  Session(int& argc, char**& argv, double watchdog_s = 0, Backend backend = Backend::automatic);
  /// Calls close(), unless an exception on this rank alone ends the process. Errors of close() are only printed.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The functions from rank() to nodes() return the members of RankPlace that have these names.
  [[nodiscard]] int rank() const { return place_->rank; }
  [[nodiscard]] int size() const { return place_->size; }
  [[nodiscard]] int local_rank() const { return place_->local_rank; }
  [[nodiscard]] int local_size() const { return place_->local_size; }
  [[nodiscard]] int node() const { return place_->node; }
  [[nodiscard]] int nodes() const { return place_->nodes; }
  [[nodiscard]] std::string host() const;
  [[nodiscard]] const Launch& launch() const;     ///< how this rank was started
  [[nodiscard]] Watchdog* watchdog();             ///< nullptr if watchdog_s was 0
  [[nodiscard]] std::string description() const;  ///< transport: "Open MPI 4.1.4, thread level multiple", "gloo 0.5.0"

  /// Describes how all-reduces of host tensors are made: "in shared memory within a node, by MPI between 2 nodes", "by
  /// MPI". Different orders of additions have different texts. The text is empty if an all-reduce adds in rank order,
  /// which holds in three cases: all ranks share one node's memory, there is one rank, or the session runs without MPI.
  [[nodiscard]] std::string sums() const;

  [[nodiscard]] Communicator& grad();
  [[nodiscard]] Communicator& inline_ops();
  [[nodiscard]] Communicator& control();
  /// Returns the stream for gradient communication: a host worker, or an inline stream if grad() cannot overlap. The
  /// first call makes the stream.
  [[nodiscard]] Stream& communication_stream();

  /// Sets the path of a JSON file that is written if a watchdog ends the job, or if an error on a rank ends it. The
  /// file has the last 1,024 collectives that each rank of this node has called on grad(), inline_ops(), control() and
  /// the communicator of noted(). Nothing is written if watchdog_s was 0, or if this rank is alone on its node.
  void keep_operations(const std::string& path);
  /// Wraps `communicator`, which must have all ranks, so that the file of keep_operations() has its collectives, too.
  /// Returns `communicator` unchanged from the second call on, and if nothing is recorded.
  [[nodiscard]] std::unique_ptr<Communicator> noted(std::unique_ptr<Communicator> communicator);

  /// Runs `phase`, which may fail on some ranks, and waits until all ranks have run it. If `phase` fails on any rank,
  /// rank 0 prints the error text of the lowest failing rank as one line, and every rank throws AgreedFailure. The line
  /// is "lockstep: error: rank 3: text", or "lockstep: error: text" if all ranks failed with the same text. Use agree()
  /// for failures after which a rank can still communicate. `phase` must not communicate after it has failed.
  void agree(const std::function<void()>& phase);

  /// Finalises MPI; without MPI, waits until all ranks end. Collective. Afterwards only the destructor and abort() may
  /// be called. Throws PeerError if a rank is lost before it ends.
  void close();

  /// Prints "lockstep: error: [rank R: ]text" and ends the job with `code`, after a failure that happened on this rank
  /// alone. With MPI, this function calls MPI_Abort; with gloo, it tells all ranks to end; with a single rank, it ends
  /// the process. No destructor runs.
  [[noreturn]] void abort(std::string_view text, int code) noexcept;
  /// Ends the job with `code` after a failure whose text was already printed. No destructor runs.
  [[noreturn]] void abort(int code) noexcept;

 private:
  struct Impl;
  friend int run_program(int, char**, const std::function<int(Session&, int argc, char** argv)>&, double,
                         Backend) noexcept;
  Session(int& argc, char**& argv, double watchdog_s, Backend backend, bool* of_several);
  void end_watch() noexcept;
  std::unique_ptr<Impl> impl_;
  const RankPlace* place_ = nullptr;  ///< place of this rank among all ranks
};

/// Runs the main() of a program: makes the session, calls `body` and turns exceptions into exit codes. Sets the
/// environment variable CUDA_DEVICE_MAX_CONNECTIONS to 32 unless it is set; meanwhile no other thread may read the
/// environment.
///
/// AgreedFailure, and an error that every rank throws (comm/error.hpp; rank 0 prints it), end the program with the code
/// of the exception. Any other exception belongs to this rank alone: Session::abort() ends the job with the exception's
/// code, or 3 if the exception is not an Error. Output that cannot be written is an error, too (code 3).
///
/// An exception destroys the objects in `body`. If their destructors free memory that the communication stream uses,
/// they must first wait until this stream is idle (GradientReducer does this for the arena).
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                double watchdog_s = 0, Backend backend = Backend::automatic) noexcept;

}  // namespace lockstep::comm
