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

/// Thrown on every rank by Session::agree() after it has printed the text of the lowest failing rank.
class AgreedFailure : public Error {
 public:
  AgreedFailure(const std::string& message, int code) : Error(message), code_(code) {}
  [[nodiscard]] int code() const noexcept override { return code_; }

 private:
  int code_;
};

/// Starts and ends MPI, or what is in its place, for a program of this project, and knows the ranks. A process has one,
/// made first and destroyed last; a program that embeds lockstep makes communicators without it. Without a launcher it
/// is a world of one. Ranks of torchrun meet without MPI and exchange host tensors by gloo (meet_by_gloo()).
///
/// It has three communicators, so that their operations never mix: grad (gradient buckets), inline (collectives on the
/// compute path) and control (host values: checks, metrics, agreement).
class Session {
 public:
  /// Asks MPI for MPI_THREAD_MULTIPLE and accepts the level that it gets. When MPI is already initialised, the session
  /// does not finalise it.
  ///
  /// At MPI_THREAD_SERIALIZED, a Session that initialised MPI communicates on a worker; the program must make no MPI
  /// call of its own while communication_stream() has work. When the program had initialised MPI at that level, the
  /// session communicates inline, in the calling thread, as the program may call MPI too.
  ///
  /// In a process without a launcher it sets OMPI_MCA_plm=isolated and OMPI_MCA_ess_singleton_isolated=1 (unless they
  /// are set) while MPI_Init_thread runs: Open MPI then starts no daemon and looks for no way to start processes
  /// elsewhere. Its temporary files are in a folder of its own; UsageError where TMPDIR cannot have one. UsageError
  /// when the launcher's environment contradicts itself or MPI (comm/launch/launch.hpp); with several ranks rank 0
  /// prints it and all throw AgreedFailure, as they do when ranks run different versions or builds of lockstep.
  ///
  /// Without MPI: RendezvousError when the ranks cannot meet (comm/gloo/rendezvous.hpp), within the time of
  /// meeting_place(); AgreedFailure on those for which rank 0 prints it. When a rank is lost later, operations throw
  /// PeerError; when a rank ends the job with abort(), the processes of all ranks end with its code.
  ///
  /// watchdog_s above 0: a Watchdog begins before MPI does, so that a rank that hangs while the ranks find each other
  /// ends the job too. It also ends a job with code 3 whose ranks, on one node, call different collectives: "ranks call
  /// different operations: operation 57 of grad is all_reduce of 1000 f32 on rank 0 and all_gather of 20 f32 on rank
  /// 1", at its next look (at least once a second). On several nodes each sends about one UDP datagram a second to the
  /// next one until close() returns, which names a node that falls silent (comm/launch/detail/node_heartbeat.hpp).
  Session(int& argc, char**& argv, double watchdog_s = 0, Backend backend = Backend::automatic);
  /// close(), unless the process is going down by an exception on this rank only. What close() throws is only printed.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // As RankPlace says.
  [[nodiscard]] int rank() const { return place_->rank; }
  [[nodiscard]] int size() const { return place_->size; }
  [[nodiscard]] int local_rank() const { return place_->local_rank; }
  [[nodiscard]] int local_size() const { return place_->local_size; }
  [[nodiscard]] int node() const { return place_->node; }
  [[nodiscard]] int nodes() const { return place_->nodes; }
  [[nodiscard]] std::string host() const;
  [[nodiscard]] const Launch& launch() const;     ///< who started this rank
  [[nodiscard]] Watchdog* watchdog();             ///< nullptr: none was asked for
  [[nodiscard]] std::string description() const;  ///< "Open MPI 4.1.4, thread level multiple", "gloo 0.5.0"

  /// Which way all-reduces of host tensors take: "in shared memory within a node, by MPI between 2 nodes", "by MPI". It
  /// decides the order of their sums. Empty where this is rank order: all ranks share one node's memory, one rank, and
  /// without MPI.
  [[nodiscard]] std::string sums() const;

  [[nodiscard]] Communicator& grad();
  [[nodiscard]] Communicator& inline_ops();
  [[nodiscard]] Communicator& control();
  /// Host worker for gradient communication; made on first use. Inline when grad() cannot overlap.
  [[nodiscard]] Stream& communication_stream();

  /// When an error of a rank or its watchdog ends the job, `path` becomes a JSON file with the last 1,024 collectives
  /// that each rank of this node has called on the communicators above (and on those of noted()). Needs watchdog_s, and
  /// ranks that share a node.
  void keep_operations(const std::string& path);
  /// A communicator of all ranks, made from another, whose collectives are noted too; once. Where they are not noted it
  /// is the one that is given.
  [[nodiscard]] std::unique_ptr<Communicator> noted(std::unique_ptr<Communicator> communicator);

  /// Runs a phase that may fail on some ranks, and waits for the others. When it fails anywhere, rank 0 prints the text
  /// of the lowest failing rank as one line ("lockstep: error: rank 3: text", without the rank when all ranks failed
  /// with one text) and every rank throws AgreedFailure. For failures after which this rank can still communicate; a
  /// phase must not communicate after it has failed.
  void agree(const std::function<void()>& phase);

  /// Collective: finalises MPI, or waits for all ranks to end. Afterwards only the destructor and abort() may be
  /// called. PeerError when a rank is lost before it ends.
  void close();

  /// For a failure that the other ranks do not know of: prints "lockstep: error: [rank R: ]text" and ends the job with
  /// `code` (MPI_Abort; with gloo all ranks are told; in a world of one the process ends). Runs no destructor.
  [[noreturn]] void abort(std::string_view text, int code) noexcept;
  /// The same for a failure that was already printed.
  [[noreturn]] void abort(int code) noexcept;

 private:
  struct Impl;
  friend int run_program(int, char**, const std::function<int(Session&, int argc, char** argv)>&, double,
                         Backend) noexcept;
  Session(int& argc, char**& argv, double watchdog_s, Backend backend, bool* of_several);
  void end_watch() noexcept;
  std::unique_ptr<Impl> impl_;
  const RankPlace* place_ = nullptr;  ///< of the world
};

/// The main() of a program: makes the session, calls body and turns exceptions into exit codes. AgreedFailure and an
/// error of every rank (comm/error.hpp, printed by rank 0) end the program with their code. Any other exception is this
/// rank's own: Session::abort() ends the job with the code of its kind (3 when it is not an Error). An exception
/// unwinds body's frame first: memory there that the communication stream uses must stay until that stream is idle
/// (GradientReducer ensures it for the arena). Output that cannot be written to standard output is an error, too (3).
/// CUDA_DEVICE_MAX_CONNECTIONS becomes 32 unless it is set, so no other thread may read the environment meanwhile.
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                double watchdog_s = 0, Backend backend = Backend::automatic) noexcept;

}  // namespace lockstep::comm
