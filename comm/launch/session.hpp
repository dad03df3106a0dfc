#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/error.hpp>
#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm {

/// Thrown on every rank by Session::agree() after the lowest failing rank's text was printed: nothing is left to say.
class AgreedFailure : public Error {
 public:
  AgreedFailure(const std::string& message, int code) : Error(message), code_(code) {}
  [[nodiscard]] int code() const noexcept override { return code_; }

 private:
  int code_;
};

/// Starts and ends MPI for a program of ours and knows the ranks. One per process, made first and destroyed last;
/// libraries embedded in somebody else's program make communicators without it. Without MPI in the build, or when
/// the program was not started by mpirun, it is a world of one.
///
/// Three communicators, so that their operations never mix: grad (gradient buckets), inline (collectives on the
/// compute path), control (host values: checks, metrics, agreement).
class Session {
 public:
  /// Asks MPI for MPI_THREAD_MULTIPLE and takes what it gets; when MPI is initialised already, somebody else finalises
  /// it. With MPI_THREAD_SERIALIZED a Session that initialised MPI communicates on a worker, so the program makes no
  /// MPI call of its own while communication_stream() has work; with an MPI that somebody else initialised at that
  /// level it communicates inline, in the thread that calls, as that somebody may call MPI too. A process without a
  /// launcher tells Open MPI through the environment, while MPI_Init_thread runs, that it starts nothing elsewhere
  /// (OMPI_MCA_plm=isolated, unless set). UsageError when the launcher's environment contradicts itself or MPI
  /// (comm/launch/launch.hpp); with several ranks rank 0 prints it and all throw AgreedFailure. So they do when ranks
  /// run different versions or builds of lockstep.
  Session(int& argc, char**& argv);
  ~Session();  ///< finalises MPI unless the process is going down by an exception on this rank only
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] int local_rank() const;  ///< rank among the ranks of this node
  [[nodiscard]] int local_size() const;
  [[nodiscard]] int node() const;  ///< 0 .. nodes() - 1, in the order of the nodes' lowest ranks
  [[nodiscard]] int nodes() const;
  [[nodiscard]] std::string host() const;
  [[nodiscard]] const Launch& launch() const;     ///< who started this rank
  [[nodiscard]] std::string description() const;  ///< "Open MPI 4.1.4, thread level multiple"

  [[nodiscard]] Communicator& grad();
  [[nodiscard]] Communicator& inline_ops();
  [[nodiscard]] Communicator& control();
  /// Host worker for gradient communication; made on first use. Inline when grad() cannot overlap.
  [[nodiscard]] Stream& communication_stream();

  /// Runs a phase that may fail on some ranks and waits for the others. When all succeed it returns; otherwise rank 0
  /// prints the lowest failing rank's text ("lockstep: error: rank 3: text", without the rank when all ranks failed
  /// with one text) as one line and every rank throws AgreedFailure.
  /// For failures that leave this rank able to take part; a phase must not communicate after it failed.
  void agree(const std::function<void()>& phase);

  /// A failure that the others do not know of: prints "lockstep: error: [rank R: ]text" and ends the job with `code`
  /// (MPI_Abort; in a world of one the process ends). Runs no destructor.
  [[noreturn]] void abort(std::string_view text, int code) noexcept;
  /// The same for a failure that was printed already.
  [[noreturn]] void abort(int code) noexcept;

 private:
  struct Impl;
  void close();
  std::unique_ptr<Impl> impl_;
};

/// The main() of a program: makes the session, calls body and turns exceptions into exit codes. AgreedFailure ends
/// quietly with its code, and so does an error of every rank (comm/error.hpp), which rank 0 prints; any other exception
/// is this rank's alone and goes through Session::abort() with the code of its kind (3 when it is not an Error). An
/// exception unwinds body's frame first: memory there that the communication stream uses must stay until that stream is
/// idle (GradientReducer sees to it for the arena).
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body) noexcept;

}  // namespace lockstep::comm
