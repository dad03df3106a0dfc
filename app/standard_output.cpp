#include <lockstep/app/standard_output.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <iostream>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::nn {

namespace {

constexpr std::size_t kMost = std::size_t{4} << 20;
constexpr std::size_t kPiece = std::size_t{64} << 10;  // largest number of bytes of one write
using Seconds = std::chrono::duration<double>;

}  // namespace

struct StandardOutput::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;  ///< text that is not yet given to the system
  /// Number of bytes of `waiting` that may be written now: whole lines or flushed text, so that no error cuts a line.
  std::size_t ready = 0;
  bool writing = false;  ///< true while the thread writes
  bool full = false;     ///< true: text was dropped, and a line must say so
  bool over = false;
  int reason = 0;  ///< errno of a failed write; 0: no write failed

  [[nodiscard]] bool idle() const { return waiting.empty() && !writing; }

  void add(std::string_view text) {
    const std::lock_guard lock(mutex);
    if (reason != 0) {
      return;
    }
    if (waiting.size() + text.size() > kMost) {
      full = true;
      return;
    }
    if (full) {
      waiting += "\n(lines were left out here, which nobody read)\n";
      full = false;
    }
    waiting += text;
    if (const std::size_t end = text.rfind('\n'); end != std::string_view::npos) {
      ready = waiting.size() - (text.size() - end - 1);
    }
  }

  void flush() {
    {
      const std::lock_guard lock(mutex);
      ready = waiting.size();
    }
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return over || ready > 0; });
      if (ready == 0) {
        return;
      }
      const std::string text = waiting.substr(0, std::min(ready, kPiece));  // at most one piece; the other text waits
      waiting.erase(0, text.size());
      ready -= text.size();
      writing = true;
      lock.unlock();
      const int failure = write_all(STDOUT_FILENO, std::as_bytes(std::span(text)));
      lock.lock();
      writing = false;
      if (failure != 0) {
        reason = failure;
        waiting.clear();
        ready = 0;
        const std::string line =
            concat("lockstep: standard output cannot be written: ", std::strerror(failure), "; the run goes on\n");
        static_cast<void>(write_all(STDERR_FILENO, std::as_bytes(std::span(line))));
      }
      changed.notify_all();
    }
  }
};

/// The buffer to which std::cout writes.
class StandardOutput::Buffer final : public std::streambuf {
 public:
  explicit Buffer(Shared& shared) : shared_(shared) {}

 protected:
  int_type overflow(int_type c) override {
    if (!traits_type::eq_int_type(c, traits_type::eof())) {
      const char letter = traits_type::to_char_type(c);
      shared_.add({&letter, 1});
    }
    return traits_type::not_eof(c);
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    shared_.add({text, static_cast<std::size_t>(count)});
    return count;
  }
  int sync() override {
    shared_.flush();
    return 0;
  }

 private:
  Shared& shared_;
};

StandardOutput::StandardOutput() : shared_(std::make_shared<Shared>()), buffer_(std::make_unique<Buffer>(*shared_)) {
  std::cout.flush();
  // Blocks all signals in the thread, so that the main thread handles them. A write() to a pipe without a reader then
  // fails with EPIPE, because SIGPIPE is blocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  helper_thread([shared = shared_] { shared->run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  before_ = std::cout.rdbuf(buffer_.get());
}

void StandardOutput::finish(double seconds, const std::function<bool()>& give_up) {
  constexpr Seconds kLook(0.05);
  const auto end = std::chrono::steady_clock::now() + Seconds(seconds);
  shared_->flush();
  std::unique_lock lock(shared_->mutex);
  while (!shared_->idle() && std::chrono::steady_clock::now() < end && !give_up()) {
    shared_->changed.wait_for(lock, kLook);
  }
}

StandardOutput::~StandardOutput() {
  std::cout.rdbuf(before_);
  finish(1, [] { return false; });
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->over = true;
  }
  shared_->changed.notify_all();
}

bool StandardOutput::failed() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->reason != 0;
}

}  // namespace lockstep::nn
