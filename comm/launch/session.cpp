#include <lockstep/comm/launch/session.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/detail/process_start.hpp>
#include <lockstep/comm/launch/detail/rank_watch.hpp>
#include <lockstep/comm/launch/detail/recorded_communicator.hpp>
#include <lockstep/comm/launch/detail/standard_files.hpp>
#include <lockstep/comm/launch/detail/world.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/version.hpp>

namespace lockstep::comm {
namespace detail {
namespace {

class WorldOfOne final : public World {
 public:
  WorldOfOne() { description = "one rank without MPI"; }
  std::unique_ptr<Communicator> communicator() override { return LocalGroup(1).communicator(0); }
  Stream* serial() override { return nullptr; }
  void finalise() override {}
  [[noreturn]] void abort(int code) noexcept override { std::_Exit(code); }
};

}  // namespace

std::unique_ptr<World> make_world_of_one() {
  return std::make_unique<WorldOfOne>();
}

namespace {

/// Writes one line to standard error: "lockstep: ", `kind` ("error: " or empty), the rank if it is not negative, and
/// `text`.
void write_line(const char* kind, int rank, std::string_view text) noexcept {
  char line[4096];
  int used = rank < 0 ? std::snprintf(line, sizeof line, "lockstep: %s", kind)
                      : std::snprintf(line, sizeof line, "lockstep: %srank %d: ", kind, rank);
  while (!text.empty() && used + 5 < static_cast<int>(sizeof line)) {
    if (text[0] == '\n' || text[0] == '\r' || text[0] == '\t') {
      line[used++] = ' ';
      text.remove_prefix(1);
    } else {
      const PrintedCharacter printed = print_character(text, line + used);
      used += static_cast<int>(printed.written);
      text.remove_prefix(printed.read);
    }
  }
  line[used++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(used));
}

}  // namespace

void write_error(int rank, std::string_view text) noexcept {
  write_line("error: ", rank, text);
}

void write_note(int rank, std::string_view text) noexcept {
  write_line("", rank, text);
}

void print_error(int rank, std::string_view text) noexcept {
  std::fflush(stdout);
  std::fflush(stderr);
  write_error(rank, text);
}

Failure handled_failure() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return {e.what(), e.code()};
  } catch (const std::bad_alloc&) {
    return {"out of host memory (std::bad_alloc)", exit_code::kFailure};
  } catch (const std::exception& e) {
    return {e.what(), exit_code::kFailure};
  } catch (...) {
    return {"an exception that is not a std::exception", exit_code::kFailure};
  }
}

}  // namespace detail

namespace {

using detail::print_error;

constexpr Backends kBackends{.mpi = LOCKSTEP_HAS_MPI != 0, .gloo = LOCKSTEP_HAS_GLOO != 0};

std::unique_ptr<detail::World> make_world([[maybe_unused]] int& argc, [[maybe_unused]] char**& argv,
                                          [[maybe_unused]] const Launch& launch,
                                          [[maybe_unused]] const std::optional<MeetingPlace>& place) {
#if LOCKSTEP_HAS_GLOO
  if (place) {
    return detail::make_gloo_world(launch, *place);
  }
#endif
#if LOCKSTEP_HAS_MPI
  return detail::make_mpi_world(argc, argv);
#else
  return detail::make_world_of_one();
#endif
}

/// Returns the rank of this process by its environment variables alone, without a session; -1 if they give no rank.
int rank_without_session() noexcept {
  try {
    return likely_rank(process_environment());
  } catch (...) {
    return -1;
  }
}

}  // namespace

struct Session::Impl {
  std::unique_ptr<detail::RankWatch> watch;
  Launch launch;
  std::unique_ptr<detail::World> world;
  std::unique_ptr<Communicator> grad;
  std::unique_ptr<Communicator> inline_ops;
  std::unique_ptr<Communicator> control;
  std::optional<Stream> worker;
  Stream* communication = nullptr;
  bool noted = false;  ///< true after noted() was called
  int uncaught = std::uncaught_exceptions();
  bool agreed_to_fail = false;  ///< true after agree() has found a failure on any rank
  bool closed = false;          ///< true after close() was called

  /// Wraps `communicator` so that the StatusTable records its operations. Without a StatusTable, returns it unchanged.
  std::unique_ptr<Communicator> logged(std::unique_ptr<Communicator> communicator, detail::LoggedCommunicator as) {
    FlightRecorder* log = watch ? watch->end().log(as) : nullptr;
    return log != nullptr ? detail::recorded(std::move(communicator), *log) : std::move(communicator);
  }

  /// Lets the nodes exchange the addresses at which they listen for heartbeats. Collective: ranks without a watchdog
  /// take part, too, because other ranks may have one.
  void start_heartbeat(const std::string& host) {
    if (world->nodes == 1) {
      return;
    }
    std::unique_ptr<detail::NodeHeartbeat> heartbeat;
    if (watch) {
      heartbeat = std::make_unique<detail::NodeHeartbeat>(detail::HeartbeatPlace{.rank = world->rank,
                                                                                 .node = world->node,
                                                                                 .nodes = world->nodes,
                                                                                 .listens = world->local_rank == 0,
                                                                                 .host = host});
    }
    const auto address_texts = all_gather_text(*control, heartbeat ? heartbeat->address_text() : "");
    if (heartbeat) {
      heartbeat->set_addresses(address_texts);
      watch->end().start_heartbeat(std::move(heartbeat), world->local_size);
    }
  }
};

Session::Session(int& argc, char**& argv, double watchdog_s, Backend backend)
    : Session(argc, argv, watchdog_s, backend, nullptr) {}

/// After the ranks have met, sets *of_several (unless `of_several` is nullptr) to true if there are several ranks.
Session::Session(int& argc, char**& argv, double watchdog_s, Backend backend, bool* of_several)
    : impl_(std::make_unique<Impl>()) {
  const Environment environment = process_environment();
  std::string problem;
  const auto attempt = [&](auto&& find_out) {
    try {
      impl_->launch = find_out();
    } catch (const UsageError& e) {
      problem = e.what();
    }
  };
  attempt([&] { return detect_launch(environment); });
  std::optional<MeetingPlace> place;  // address where the ranks meet without MPI
  if (meet_by_gloo(impl_->launch, environment, backend, kBackends)) {
    place = meeting_place(environment);
  }
  if (watchdog_s > 0) {
    impl_->watch = std::make_unique<detail::RankWatch>(watchdog_s, impl_->launch, environment);
    impl_->watch->watchdog().begin(place ? "waiting for other ranks to come" : "waiting for other ranks to start MPI");
  }
  // A rank with wrong environment variables starts MPI, too; otherwise the other ranks would wait for this rank.
  try {
    impl_->world = make_world(argc, argv, impl_->launch, place);
  } catch (...) {
    if (impl_->watch) {
      impl_->watch->end().forget_ranks();
    }
    throw;
  }
  detail::World& world = *impl_->world;
  place_ = &world;
  if (of_several != nullptr) {
    *of_several = world.size > 1;
  }
  if (problem.empty()) {
    problem = world.problem;
  }
  if (impl_->watch) {
    impl_->watch->end().set_session(this);
    impl_->watch->watchdog().begin("comparing the programs of the ranks");
  }
  if (problem.empty()) {
    attempt([&] { return confirm_launch(impl_->launch, environment, world.rank, world.size, world.description); });
  }
  try {
    require<UsageError>(world.size > 1 || problem.empty(), problem);
    impl_->grad = impl_->logged(world.communicator(), detail::LoggedCommunicator::grad);
    impl_->inline_ops = impl_->logged(world.communicator(), detail::LoggedCommunicator::inline_ops);
    impl_->control = impl_->logged(world.communicator(), detail::LoggedCommunicator::control);
    agree([&] { require<UsageError>(problem.empty(), problem); });
    agree([&] { require_same_on_all_ranks(control(), "program " + build_description()); });
    impl_->start_heartbeat(host());
  } catch (const AgreedFailure&) {
    close();  // waits for all ranks, which does not hang, because every rank throws AgreedFailure
    throw;
  } catch (...) {
    end_watch();
    impl_->grad.reset();
    impl_->inline_ops.reset();
    impl_->control.reset();
    if (world.size == 1) {
      world.finalise();
    }
    throw;
  }
}

/// From now on, a watchdog that finds a hang ends only this process. It does not call Session::abort(), because the
/// session may already be finalising MPI.
void Session::end_watch() noexcept {
  if (impl_->watch) {
    impl_->watch->end().set_session(nullptr);
    impl_->watch->watchdog().begin("waiting for other ranks to end");
  }
}

void Session::close() {
  if (std::exchange(impl_->closed, true)) {
    return;
  }
  end_watch();
  impl_->worker.reset();
  impl_->grad.reset();
  impl_->inline_ops.reset();
  impl_->control.reset();
  impl_->world->finalise();
  if (impl_->watch) {
    impl_->watch->end().end_heartbeat();
  }
}

Session::~Session() {
  if (impl_->closed) {
    return;
  }
  end_watch();
  if (std::uncaught_exceptions() > impl_->uncaught && !impl_->agreed_to_fail) {
    return;  // does not wait for the other ranks, because they do not know of the failure
  }
  try {
    close();
  } catch (...) {
    print_error(impl_->world->rank, detail::handled_failure().text);
  }
}

const Launch& Session::launch() const {
  return impl_->launch;
}
std::string Session::sums() const {
  return impl_->world->sums;
}
std::string Session::description() const {
  return impl_->world->description;
}
Watchdog* Session::watchdog() {
  return impl_->watch ? &impl_->watch->watchdog() : nullptr;
}

std::string Session::host() const {
  return detail::StatusTable::host();
}

Communicator& Session::grad() {
  return *impl_->grad;
}
Communicator& Session::inline_ops() {
  return *impl_->inline_ops;
}
Communicator& Session::control() {
  return *impl_->control;
}

Stream& Session::communication_stream() {
  if (impl_->communication == nullptr) {
    impl_->communication = impl_->world->serial();
    if (impl_->communication == nullptr) {
      impl_->worker.emplace(impl_->grad->can_overlap() ? Stream::host_worker("lockstep-comm") : Stream::host_inline());
      impl_->communication = &*impl_->worker;
    }
  }
  return *impl_->communication;
}

void Session::keep_operations(const std::string& path) {
  if (impl_->watch) {
    impl_->watch->end().keep_operations(path);
  }
}

std::unique_ptr<Communicator> Session::noted(std::unique_ptr<Communicator> communicator) {
  return std::exchange(impl_->noted, true) ? std::move(communicator)
                                           : impl_->logged(std::move(communicator), detail::LoggedCommunicator::gpu);
}

void Session::agree(const std::function<void()>& phase) {
  std::string text;
  int code = exit_code::kFinished;
  try {
    phase();
  } catch (const AgreedFailure&) {
    throw;  // an agree() within `phase` has thrown this exception on all ranks
  } catch (...) {
    const detail::Failure failure = detail::handled_failure();
    text = failure.text;
    code = failure.code;
  }
  const std::vector<double> codes = all_gather_value(control(), code);
  const auto failed = [](double c) { return c != exit_code::kFinished; };
  const auto first = std::find_if(codes.begin(), codes.end(), failed);
  if (first == codes.end()) {
    return;
  }
  const std::vector<std::string> texts = all_gather_text(control(), text);
  const auto culprit = static_cast<int>(first - codes.begin());
  const std::string& reason = texts[static_cast<std::size_t>(culprit)];
  const bool everybody = std::all_of(codes.begin(), codes.end(), failed) &&
                         std::all_of(texts.begin(), texts.end(), [&](const std::string& t) { return t == reason; });
  if (rank() == 0) {
    print_error(everybody ? -1 : culprit, reason);
  }
  impl_->agreed_to_fail = true;
  throw AgreedFailure(everybody ? reason : concat("rank ", culprit, ": ", reason), static_cast<int>(*first));
}

void Session::abort(std::string_view text, int code) noexcept {
  print_error(size() > 1 ? rank() : -1, text);
  if (impl_->watch) {
    impl_->watch->end().save_operations();
  }
  abort(code);
}

void Session::abort(int code) noexcept {
  impl_->world->abort(code);
  // Never executed, because World::abort() does not return. The compiler cannot rely on this for a virtual function,
  // but it knows that _Exit() does not return.
  std::_Exit(code);
}

int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                double watchdog_s, Backend backend) noexcept {
  detail::start_process();
  bool of_several = false;
  // After the ranks have met, all ranks find an error together, and one rank prints it. Before the ranks meet, each
  // process prints its own error, because environment variables about other ranks may be left over from another
  // program.
  const auto tell_together = [&](const char* text, int code) {
    if (!of_several || rank_without_session() <= 0) {
      print_error(-1, text);
    }
    return code;
  };
  try {
    Session session(argc, argv, watchdog_s, backend, &of_several);
    // A single rank ends MPI normally: no rank waits for it, and MPI_Abort would print a page after the error line.
    const auto failed = [&](std::string_view text, int code) {
      if (session.size() > 1) {
        session.abort(text, code);
      }
      print_error(-1, text);
      return code;
    };
    try {
      const int code = body(session, argc, argv);
      detail::require_output_written();
      session.close();
      return code;
    } catch (const AgreedFailure& e) {
      return e.code();
    } catch (const FoundTogether&) {
      const detail::Failure failure = detail::handled_failure();
      if (session.rank() == 0) {
        print_error(-1, failure.text);
      }
      return failure.code;
    } catch (...) {
      const detail::Failure failure = detail::handled_failure();
      return failed(failure.text, failure.code);
    }
  } catch (const AgreedFailure& e) {
    return e.code();
  } catch (const UsageError& e) {
    return tell_together(e.what(), e.code());
  } catch (const FoundTogether&) {
    const detail::Failure failure = detail::handled_failure();
    return tell_together(failure.text, failure.code);
  } catch (...) {
    const detail::Failure failure = detail::handled_failure();
    print_error(rank_without_session(), failure.text);
    return failure.code;
  }
}

}  // namespace lockstep::comm
