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

inline constexpr std::chrono::seconds kSend{10};  ///< for a rank to take a message; a stopped one has room for many

/// What one rank knows of the others, from its start to its end. What the caller's threads and the watching thread both
/// use is under `mutex`. Only the watching thread reads sockets, and on rank 0 only it writes.
struct Meeting {
  explicit Meeting(const RendezvousOptions& o) : options(o), started(Clock::now()) {}
  virtual ~Meeting() = default;  ///< that of a derived class calls end() first
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Returns when all ranks have come, with the watching thread running. Throws RendezvousError.
  virtual void meet() = 0;
  /// Tells rank 0, which may be this one: gather and a text, bye, abort and a code.
  virtual void say(Kind kind, const std::string& text, int code) = 0;

  const RendezvousOptions options;
  const Clock::time_point started;
  std::string address;
  Wake wake;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::string lost;                                ///< who ended too early; or empty
  bool ended = false;                              ///< all ranks have called finish()
  bool aborted = false;                            ///< the others know of this rank's abort()
  std::optional<std::vector<std::string>> answer;  ///< of a gather

  std::mutex callbacks_mutex;
  std::map<std::uint64_t, std::function<void()>> callbacks;
  std::uint64_t last_key = 0;
  bool gave_word = false;  ///< of the thread that meets

  std::thread thread;

  [[nodiscard]] std::string place() const;
  [[nodiscard]] std::string with_origin() const;
  [[nodiscard]] std::uint64_t job() const { return std::hash<std::string>()(options.job); }
  [[nodiscard]] Clock::time_point deadline() const { return after(options.timeout_s); }
  /// When a rank says for whom it waits; the deadline where it never does.
  [[nodiscard]] Clock::time_point word() const;
  /// Says it, once that time has come.
  template <class Text>
  void give_word(Text&& whom) {
    if (options.on_wait && !gave_word && Clock::now() >= after(options.word_after_s)) {
      gave_word = true;
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

  void tell_lost(const std::string& text);
  void heard_abort(int rank, int code);
  /// Ends the watching thread.
  void end();

 private:
  [[nodiscard]] Clock::time_point after(double seconds) const {
    return started + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
};

/// The meeting of rank 0, to which the others connect, and that of another rank.
[[nodiscard]] std::unique_ptr<Meeting> make_first_rank(const RendezvousOptions& options);
[[nodiscard]] std::unique_ptr<Meeting> make_other_rank(const RendezvousOptions& options);

}  // namespace lockstep::comm::detail::rendezvous
