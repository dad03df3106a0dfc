// Starts N processes with torchrun's variables on one host, as torchrun does, and waits for them:
// start_ranks [--without RANK]... [--lightning] [--grace SECONDS] N PROGRAM ARGUMENTS...
//   --without RANK    does not start rank RANK
//   --lightning       sets only the variables that PyTorch Lightning sets
//   --grace SECONDS   kills all ranks that still run SECONDS (default 30) after the first failure of a rank
// Prints a line like "ended: 0 3 137" with the exit code of each rank (128 + n after signal n). The line has "-" for a
// rank that was not started, and "killed" for a rank that start_ranks has killed. The exit code of start_ranks is that
// of the first rank that failed, 0 if no rank failed, or 98 for errors of start_ranks itself.

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <netinet/in.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

/// Returns a port at which no process listens at this moment.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::perror("start_ranks: no port");
    std::exit(98);
  }
  ::close(fd);
  return ntohs(address.sin_port);
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

[[noreturn]] void become(int rank, int size, bool lightning, char** command) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  set("LOCAL_RANK", std::to_string(rank));
  if (!lightning) {
    set("RANK", std::to_string(rank));
    set("LOCAL_WORLD_SIZE", std::to_string(size));
    set("GROUP_RANK", "0");
  }
  ::execvp(command[0], command);
  std::fprintf(stderr, "start_ranks: %s: %s\n", command[0], std::strerror(errno));
  std::_Exit(98);
}

}  // namespace

int main(int argc, char** argv) {
  std::set<int> without;
  bool lightning = false;
  double grace = 30;
  int at = 1;
  for (; at < argc && argv[at][0] == '-'; ++at) {
    if (std::strcmp(argv[at], "--lightning") == 0) {
      lightning = true;
    } else if (std::strcmp(argv[at], "--without") == 0 && at + 1 < argc) {
      without.insert(std::atoi(argv[++at]));
    } else if (std::strcmp(argv[at], "--grace") == 0 && at + 1 < argc) {
      grace = std::atof(argv[++at]);
    }
  }
  if (at + 1 >= argc) {
    std::fprintf(stderr, "start_ranks: expected N PROGRAM ...\n");
    return 98;
  }
  const int size = std::atoi(argv[at]);
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_ID",
                           "RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"}) {
    ::unsetenv(name);
  }
  if (std::getenv("MASTER_ADDR") == nullptr) {
    set("MASTER_ADDR", "localhost");
  }
  if (std::getenv("MASTER_PORT") == nullptr) {
    set("MASTER_PORT", std::to_string(free_port()));
  }
  set("WORLD_SIZE", std::to_string(size));

  std::vector<pid_t> processes(static_cast<std::size_t>(size), 0);
  std::vector<std::string> ends(static_cast<std::size_t>(size), "-");
  for (int r = 0; r < size; ++r) {
    if (without.count(r) == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        become(r, size, lightning, argv + at + 1);
      }
      processes[static_cast<std::size_t>(r)] = child;
    }
  }
  int code = 0;
  bool killed = false;
  Clock::time_point failed = Clock::time_point::max();
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended < 0) {
      break;  // all processes have ended
    }
    for (std::size_t r = 0; ended > 0 && r < processes.size(); ++r) {
      if (processes[r] == ended) {
        const int own = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        ends[r] = killed ? "killed" : std::to_string(own);
        if (own != 0 && failed == Clock::time_point::max()) {
          failed = Clock::now();
          code = own;
        }
        processes[r] = 0;
      }
    }
    if (!killed && failed != Clock::time_point::max() && Clock::now() - failed > std::chrono::duration<double>(grace)) {
      killed = true;
      for (const pid_t process : processes) {
        if (process > 0) {
          ::kill(process, SIGKILL);
        }
      }
    }
    if (ended == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::string line = "ended:";
  for (const std::string& end : ends) {
    line += " " + end;
  }
  std::printf("%s\n", line.c_str());
  return code;
}
