#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include <lockstep/comm/launch/detail/standard_files.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

/// Installs a signal handler that prints the reason before a bus error ends the process. Such an error means that a
/// page of a mapped file cannot be read.
inline void say_why_of_bus_errors() noexcept {
  struct sigaction action {};
  if (::sigaction(SIGBUS, nullptr, &action) != 0) {
    return;
  }
  // Replaces the handler of UCX, which Open MPI 5 loads before main(). UCX's handler would print its own stack, but not
  // the reason. Other handlers, such as a sanitizer's, stay.
  Dl_info library{};
  if (action.sa_handler != SIG_DFL && (::dladdr(reinterpret_cast<void*>(action.sa_sigaction), &library) == 0 ||
                                       std::strstr(library.dli_fname, "libucs.so") == nullptr)) {
    return;
  }
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  action.sa_sigaction = [](int number, siginfo_t* info, void* /*context*/) {
    if (info->si_code != BUS_ADRERR) {
      ::raise(number);  // the default action follows when this handler returns
      return;
    }
    static constexpr char kText[] =
        "lockstep: error: a page of a mapped file cannot be read (SIGBUS): the file has become shorter during the run, "
        "its disk fails, or /dev/shm is full\n";
    static_cast<void>(::write(STDERR_FILENO, kText, sizeof kText - 1) < 0);
    ::_exit(exit_code::kFailure);
  };
  ::sigaction(SIGBUS, &action, nullptr);
}

/// Sets up a process before it has another thread, MPI or CUDA. Sets the environment variable
/// CUDA_DEVICE_MAX_CONNECTIONS to 32 unless it is already set: a GPU has 32 hardware queues for a process, but CUDA
/// uses 8 by default. With 8 queues, two streams may share a queue, and a stream that waits then holds up the other
/// stream.
inline void start_process() noexcept {
  open_standard_files();
  say_why_of_bus_errors();
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace lockstep::comm::detail
