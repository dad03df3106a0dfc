#include <lockstep/comm/launch/detail/run_launcher.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <lockstep/comm/launch/detail/banner_filter.hpp>
#include <lockstep/comm/launch/detail/process_state.hpp>
#include <lockstep/comm/launch/detail/standard_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::comm::detail {

namespace {

constexpr std::array kPassedOn{SIGUSR1, SIGUSR2};
constexpr std::array kStop{SIGTERM, SIGINT, SIGHUP};
/// Two signals within this time count as one request to stop. When a terminal closes, for example, the shell sends one
/// signal and the kernel another.
constexpr std::chrono::seconds kSameRequest{1};
/// During this time after the launcher's start, a request to stop is sent again every second, because a launcher that
/// has no ranks yet forwards no signal.
constexpr std::chrono::seconds kStart{30};

/// Returns the signals to wait for: SIGCHLD, and the signals of kPassedOn and kStop and SIGTSTP, except signals that
/// this process ignores (nohup ignores SIGHUP).
sigset_t awaited() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  const auto add = [&](int number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
      sigaddset(&set, number);
    }
  };
  for (const int number : kPassedOn) {
    add(number);
  }
  for (const int number : kStop) {
    add(number);
  }
  add(SIGTSTP);
  return set;
}

[[noreturn]] void become(const std::vector<std::string>& command, const Environment& variables, pid_t parent,
                         sigset_t mask, int errors, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) {
    std::_Exit(128 + SIGTERM);  // the parent died before prctl() could take effect
  }
  ::setpgid(0, 0);
  give_null_files();
  if (errors >= 0) {
    ::dup2(errors, STDERR_FILENO);
    ::close(errors);
  }
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::close(output);
  }
  // Standard input becomes /dev/null if it is a terminal: a background process that reads from a terminal is stopped.
  if (::isatty(STDIN_FILENO) == 1) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) {
      ::dup2(null, STDIN_FILENO);
      ::close(null);
    }
  }
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<std::string> arguments = command;
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  sigdelset(&mask, SIGPIPE);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  // Restores the default, because this process may ignore SIGXFSZ. If mpirun ignored SIGXFSZ, too, mpirun would not end
  // after a write beyond the limit of file sizes (ulimit -f).
  ::signal(SIGXFSZ, SIG_DFL);
  ::execvp(pointers[0], pointers.data());
  std::fprintf(stderr, "lockstep: error: %s cannot be run: %s\n", pointers[0], std::strerror(errno));
  std::_Exit(127);
}

/// Returns the living children of all threads of `process`; nullopt if the system does not list children.
std::optional<std::vector<pid_t>> living_children(pid_t process) {
  std::vector<pid_t> living;
  std::error_code error;
  std::filesystem::directory_iterator thread(concat("/proc/", process, "/task"), error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    std::ifstream in(thread->path() / "children");
    if (!in.is_open()) {
      return std::nullopt;
    }
    for (pid_t child = 0; in >> child;) {
      if (const char state = state_of(child).state; state != 'Z' && state != 'X') {
        living.push_back(child);
      }
    }
  }
  return error ? std::nullopt : std::optional(living);
}

/// Ends a launcher that is stopped or has no living ranks for too long. The ranks' watchdogs cannot do this, because
/// they run only in the ranks.
class LauncherWatch {
 public:
  LauncherWatch(pid_t launcher, std::string name, const LauncherLimit& limit)
      : launcher_(launcher), name_(std::move(name)), limit_(limit) {}

  [[nodiscard]] bool may_have_ranks() const {
    const auto children = limit_.children ? living_children(launcher_) : std::nullopt;
    return !children || !children->empty();
  }

  /// Checks the launcher; called about once a second. Adds the time since the last check to the time for which the
  /// launcher has been stopped or has had no living ranks, but at most 2 s, so a pause of this process adds little.
  /// Returns true if this check has ended the launcher.
  bool look(bool asked_to_stop) {
    constexpr double kMostBetween = 2;
    constexpr double kAfterRequest = 10;  // seconds in which mpirun may clean up after its ranks
    const auto now = std::chrono::steady_clock::now();
    const double passed = std::min(kMostBetween, std::chrono::duration<double>(now - last_).count());
    last_ = now;
    if (asked_to_stop && !asked_) {
      asked_ = true;
      stopped_ = alone_ = 0;
    }
    const double most = asked_to_stop ? kAfterRequest : limit_.seconds;
    const auto children = limit_.children ? living_children(launcher_) : std::nullopt;
    stopped_ = state_of(launcher_).state == 'T' ? stopped_ + passed : 0;
    alone_ = children && children->empty() ? alone_ + passed : 0;
    if (most <= 0 || std::max(stopped_, alone_) < most || state_of(launcher_).state == 'Z') {
      return false;
    }
    std::fprintf(stderr, "lockstep: error: %s (pid %ld) %s for %.0f s: it is ended\n", name_.c_str(),
                 static_cast<long>(launcher_), stopped_ >= most ? "has been stopped" : "has had no living rank", most);
    end();
    return true;
  }

 private:
  void end() const {
    constexpr int kLooks = 40;
    constexpr std::chrono::milliseconds kBetween{50};
    const auto ranks = living_children(launcher_);
    ::kill(launcher_, SIGTERM);
    ::kill(launcher_, SIGCONT);
    for (int i = 0; i < kLooks && state_of(launcher_).state != 'Z'; ++i) {
      std::this_thread::sleep_for(kBetween);
    }
    ::kill(-launcher_, SIGKILL);
    ::kill(launcher_, SIGKILL);
    for (const pid_t rank : ranks.value_or(std::vector<pid_t>())) {
      if (state_of(rank).state != 'X') {
        ::kill(-rank, SIGKILL);  // mpirun gives each rank its own process group
        ::kill(rank, SIGKILL);
      }
    }
  }

  pid_t launcher_;
  std::string name_;
  LauncherLimit limit_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double stopped_ = 0;  ///< seconds for which the launcher has been stopped; 0 while it runs
  double alone_ = 0;
  bool asked_ = false;
};

/// Waits until `child` has ended, and forwards signals to it. Returns the status of `child`. Sets `stopped_by` to the
/// signal that asked this process to stop, and `ended` if `watch` has ended the child.
int wait_and_pass_on(pid_t child, const sigset_t& set, int& stopped_by, LauncherWatch& watch, bool& ended) {
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point first;
  bool asked = false;  // true after the ranks have been asked to stop
  for (;;) {
    siginfo_t info{};
    const timespec again{.tv_sec = 1, .tv_nsec = 0};
    const bool starting = std::chrono::steady_clock::now() - begin < kStart;
    const int number = ::sigtimedwait(&set, &info, &again);
    if (number < 0) {
      require<StateError>(errno == EINTR || errno == EAGAIN,
                          "the launcher cannot be waited for, expected a signal from it: ", std::strerror(errno));
      if (errno == EAGAIN) {
        // Repeats the request to stop, except while mpirun ends its ranks, because mpirun then ignores the signal.
        if (asked && starting && watch.may_have_ranks()) {
          ::kill(child, SIGUSR1);
        }
        ended = ended || watch.look(stopped_by != 0);
      }
      continue;
    }
    if (number == SIGCHLD) {
      int status = 0;
      if (::waitpid(child, &status, WNOHANG) == child) {
        return status;
      }
    } else if (number == SIGTSTP) {  // Ctrl-Z: mpirun stops the ranks, then this process stops, as the shell expects
      ::kill(child, SIGTSTP);
      ::raise(SIGSTOP);
      ::kill(child, SIGCONT);
    } else if (number == SIGUSR1 || number == SIGUSR2) {
      ::kill(child, number);
      asked = asked || number == SIGUSR1;
    } else if (stopped_by == 0) {
      ::kill(child, SIGUSR1);
      ::kill(child, SIGCONT);  // lets a stopped launcher continue, because it would not react otherwise
      asked = true;
      first = std::chrono::steady_clock::now();
      stopped_by = number;
    } else if (std::chrono::steady_clock::now() - first > kSameRequest) {
      ::kill(child, SIGTERM);
      stopped_by = number;
    }
  }
}

/// Relays the text that the launcher and its ranks write to standard output or error. After the launcher's end, relays
/// only text that is already in the pipe: a process that still runs then may keep the pipe open for ever.
struct Relay {
  Relay(int file, std::function<void(std::string_view)> writer) : from(file), write(std::move(writer)) {}

  int from;
  std::function<void(std::string_view)> write;
  std::atomic<bool> ended = false;  ///< true after the launcher has ended
  std::atomic<bool> done = false;

  void run() {
    constexpr int kLookMs = 50;
    std::array<char, 4096> part{};
    for (;;) {
      const bool last = ended;
      pollfd waiting{.fd = from, .events = POLLIN, .revents = 0};
      const int ready = ::poll(&waiting, 1, kLookMs);
      if (ready > 0) {
        const ssize_t got = ::read(from, part.data(), part.size());
        if (got > 0) {
          write({part.data(), static_cast<std::size_t>(got)});
        } else if (got == 0 || errno != EINTR) {
          break;
        }
      } else if (last) {
        break;
      }
    }
    ::close(from);
    done = true;
  }

  /// Starts the relay's thread, which may outlive the caller during a write. The thread inherits the
  /// caller's blocked signals.
  static std::shared_ptr<Relay> start(int from, std::function<void(std::string_view)> write) {
    auto relay = std::make_shared<Relay>(from, std::move(write));
    std::thread([relay] { relay->run(); }).detach();
    return relay;
  }

  /// Waits until all text is written. Returns false if this process is asked to stop before that.
  bool finish(const sigset_t& set) {
    constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 2'000'000};
    for (ended = true; !done;) {
      siginfo_t info{};
      const int number = ::sigtimedwait(&set, &info, &kLook);
      if (number == SIGTSTP) {
        ::raise(SIGSTOP);
      } else if (number > 0 && number != SIGCHLD) {
        return false;
      }
    }
    return true;
  }
};

void write_to_error(std::string_view text) {
  static_cast<void>(write_all(STDERR_FILENO, std::as_bytes(std::span(text))));
}

/// Returns true for the exit codes with which a rank ends only after it has printed the reason.
bool is_explained(int code) {
  return code == exit_code::kBadInput || code == exit_code::kFailure || code == exit_code::kStopped ||
         code == exit_code::kWatchdog;
}

}  // namespace

LauncherEnd run_launcher(const std::vector<std::string>& command, const Environment& variables,
                         const LauncherLimit& limit) {
  std::fflush(nullptr);
  const sigset_t set = awaited();
  sigset_t before;
  sigset_t blocked = set;
  sigaddset(&blocked, SIGPIPE);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  // If this process has inherited that SIGCHLD is ignored, a child's end would give neither a signal nor a status.
  // So the default action is set.
  struct sigaction child_action {};
  struct sigaction child_action_before {};
  child_action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &child_action, &child_action_before);
  const pid_t parent = ::getpid();
  std::array<int, 2> errors{-1, -1};
  if (::pipe2(errors.data(), O_CLOEXEC) != 0) {
    errors = {-1, -1};  // no pipe: the BannerFilter is not used
  }
  std::array<int, 2> output{-1, -1};
  const int use = ::fcntl(STDOUT_FILENO, F_GETFL);
  if (!limit.output || use < 0 || (use & O_ACCMODE) == O_RDONLY || ::isatty(STDOUT_FILENO) == 1 ||
      ::pipe2(output.data(), O_CLOEXEC) != 0) {
    output = {-1, -1};
  }
  const pid_t child = ::fork();
  if (child == 0) {
    become(command, variables, parent, before, errors[1], output[1]);
  }
  const int reason = errno;
  int stopped_by = 0;
  int status = 0;
  bool ended_here = false;
  for (const int end : {errors[1], output[1]}) {
    if (end >= 0) {
      ::close(end);
    }
  }
  const auto filter = std::make_shared<BannerFilter>(write_to_error);
  const auto lost = std::make_shared<std::atomic<bool>>(false);
  const auto spoken = std::make_shared<std::atomic<bool>>(errors[0] < 0);
  std::shared_ptr<Relay> passed_errors;
  std::shared_ptr<Relay> passed_output;
  if (child > 0) {
    ::setpgid(child, child);  // parent and child both set the group, because either may run first
    if (errors[0] >= 0) {
      passed_errors = Relay::start(errors[0], [filter, spoken](std::string_view text) {
        *spoken = true;
        filter->write(text);
      });
    }
    if (output[0] >= 0) {
      passed_output = Relay::start(output[0], [lost](std::string_view text) {
        if (const int why = *lost ? 0 : write_all(STDOUT_FILENO, std::as_bytes(std::span(text))); why != 0) {
          *lost = true;
          write_to_error(
              concat("lockstep: standard output cannot be written: ", std::strerror(why), "; the run goes on\n"));
        }
      });
    }
    LauncherWatch watch(child, command.front(), limit);
    status = wait_and_pass_on(child, set, stopped_by, watch, ended_here);
  }
  const int code = ended_here          ? (stopped_by != 0 ? 128 + stopped_by : exit_code::kWatchdog)
                   : WIFEXITED(status) ? WEXITSTATUS(status)
                                       : 128 + WTERMSIG(status);
  if (passed_output) {
    static_cast<void>(passed_output->finish(set));
  }
  if (passed_errors && passed_errors->finish(set)) {
    filter->finish(!is_explained(code));
  }
  ::sigaction(SIGCHLD, &child_action_before, nullptr);
  sigaddset(&before, SIGPIPE);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  require<StateError>(child > 0, "no process can be started for ", command.front(),
                      ", expected room for one more (ulimit -u): ", std::strerror(reason));
  return {code == 128 + SIGUSR1 && stopped_by != 0 ? 128 + stopped_by : code, stopped_by != 0, *lost,
          code != 0 && stopped_by == 0 && !is_explained(code) && !ended_here && !*spoken};
}

std::string find_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) {
      return file;
    }
  }
  return {};
}

int ask_in_a_child(const std::function<int()>& number, int seconds) {
  std::array<int, 2> ends{};
  require<StateError>(::pipe(ends.data()) == 0,
                      "a pipe cannot be opened, expected room for two more files (ulimit -n): ", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) {
    const int reason = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw StateError(
        concat("a process cannot be started, expected room for one more (ulimit -u): ", std::strerror(reason)));
  }
  if (child == 0) {
    int answer = 0;
    try {
      answer = number();
    } catch (...) {
      answer = 0;
    }
    const bool written = ::write(ends[1], &answer, sizeof answer) == sizeof answer;
    std::_Exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  constexpr int kMs = 1000;
  pollfd waiting{.fd = ends[0], .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, seconds * kMs);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    ::kill(child, SIGKILL);  // does not wait for the child's end, because a driver that hangs may keep the child alive
    ::close(ends[0]);
    throw StateError(concat("looking for GPUs takes longer than ", seconds, " s: expected an answer of the driver"));
  }
  int answer = 0;
  const bool answered = ::read(ends[0], &answer, sizeof answer) == sizeof answer;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return answered ? answer : 0;
}

}  // namespace lockstep::comm::detail
