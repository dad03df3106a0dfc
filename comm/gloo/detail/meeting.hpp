#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <lockstep/comm/gloo/detail/rendezvous_messages.hpp>
#include <lockstep/comm/gloo/detail/tcp.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm::detail::rendezvous {

/// Time limit for sending one message. A send takes that long only if the receiver reads nothing and the system's
/// buffers are full.
inline constexpr std::chrono::seconds kSend{10};

/// State of one rank's rendezvous, from its start to its end. `mutex` guards the members that the caller's threads
/// share with the watching thread. After meet(), only the watching thread reads sockets and, on rank 0, writes to them.
struct Meeting {
  explicit Meeting(const RendezvousOptions& o) : options(o), started(Clock::now()) {}
  virtual ~Meeting() = default;  ///< a derived class must call end() first in its own destructor
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Starts the watching thread, and returns after all ranks have connected. Throws RendezvousError if they cannot.
  virtual void meet() = 0;
  /// Sends a message to rank 0, which may be this rank. `kind` is gather (with `text`), shutdown, or abort (`code`).
  virtual void send_to_rank_0(Kind kind, const std::string& text, int code) = 0;

  const RendezvousOptions options;
  const Clock::time_point started;
  std::string address;
  Wake wake;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::string lost;      ///< description of the first rank that ended too early; empty if there is none
  bool ended = false;    ///< true after all ranks have called finish()
  bool aborted = false;  ///< true after all ranks were told that this rank called abort()
  std::optional<std::vector<std::string>> answer;  ///< result of a gather: the texts of all ranks

  std::mutex callbacks_mutex;
  std::map<std::uint64_t, std::function<void()>> callbacks;
  std::uint64_t last_key = 0;
  bool reported_wait = false;  ///< true after the call of on_wait(); used only by the thread that calls on_wait()

  std::thread thread;

  [[nodiscard]] std::string place() const;
  [[nodiscard]] std::string with_origin() const;
  [[nodiscard]] std::uint64_t job() const { return std::hash<std::string>()(options.job); }
  [[nodiscard]] Clock::time_point deadline() const { return after(options.timeout_s); }
  /// Returns the time at which this rank will call on_wait(). Returns the deadline if on_wait() will not be called.
  [[nodiscard]] Clock::time_point report_time() const;
  /// Calls on_wait() if word_after_s has passed and on_wait() was not called before. whom() names the missing ranks.
  template <class Text>
  void report_wait(Text&& whom) {
    if (options.on_wait && !reported_wait && Clock::now() >= after(options.word_after_s)) {
      reported_wait = true;
      const auto left = std::chrono::ceil<std::chrono::seconds>(deadline() - Clock::now()).count();
      options.on_wait(concat("waiting for ", whom(), ", ", std::max<std::int64_t>(left, 0), " s more", with_origin()));
    }
  }

  template <class Change>
  void change(Change&& what) {
    const std::lock_guard lock(mutex);
    what();
    changed.notify_all();
  }

  void report_lost(const std::string& text);
  void received_abort(int rank, int code);
  /// Stops the watching thread and joins it.
  void end();

 private:
  [[nodiscard]] Clock::time_point after(double seconds) const {
    return started + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
};

/// make_first_rank() makes the Meeting of rank 0, to which all other ranks connect. make_other_rank() makes the Meeting
/// of any other rank.
[[nodiscard]] std::unique_ptr<Meeting> make_first_rank(const RendezvousOptions& options);
[[nodiscard]] std::unique_ptr<Meeting> make_other_rank(const RendezvousOptions& options);

}  // namespace lockstep::comm::detail::rendezvous
