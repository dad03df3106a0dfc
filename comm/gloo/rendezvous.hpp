#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace detail::rendezvous {
struct Meeting;
}

/// The ranks could not meet. told(): rank 0, or another rank of this host, throws and prints the same text, so this
/// rank need not print it.
class RendezvousError : public Error {
 public:
  explicit RendezvousError(const std::string& message, bool told = false) : Error(message), told_(told) {}
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
  [[nodiscard]] bool told() const noexcept { return told_; }

 private:
  bool told_;
};

struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  std::string host{};     ///< of rank 0: a name or an IPv4 or IPv6 address
  int port = 0;           ///< at which rank 0 listens, 1 to 65535
  std::string origin{};   ///< where host and port are from, for messages: "MASTER_ADDR=a, MASTER_PORT=1"; or empty
  std::string job{};      ///< the same on all ranks; a process of another job is turned away
  int local_rank = 0;     ///< among the ranks of its host; only the first, and rank 1, say that nobody answers
  bool one_host = false;  ///< all ranks are on rank 0's host: it listens at the address of `host` only
  double timeout_s = 60;  ///< for all ranks to come, from this rank's start on
  /// Called once, if it is given, when ranks are still missing after word_after_s: "waiting for ranks 1, 3 of 4 at a:1,
  /// 55 s more". By rank 0 on a thread of the rendezvous; where rank 0 does not answer, by the ranks that would say so.
  std::function<void(const std::string& text)> on_wait{};
  double word_after_s = 5;
  /// Called on a thread of the rendezvous when rank `rank` has called abort(code). Not given: as if it had ended.
  std::function<void(int rank, int code)> on_abort{};
};

/// The ranks of a job meet over TCP, without MPI, and know of each other's end from then on. Rank 0 listens, the others
/// connect to it and keep the connection; each rank has a thread that watches. Nothing here is encrypted or checked for
/// who sends it: the network must be trusted, as with MPI.
///
/// A rank whose process ends without finish() is lost: within milliseconds, or 25 s when its host or the network is
/// gone, all others know, and the whole job has failed.
class Rendezvous {
 public:
  /// Collective. Returns when all ranks have come. RendezvousError, at most a few seconds after timeout_s (rank 0's,
  /// once it has answered), naming host, port and the ranks that have not come; at once for a port in use, a host that
  /// is no address, ranks that differ in `size` or in the version of this protocol, two processes of one rank, and a
  /// rank that has come and ended. UsageError for options that cannot be.
  explicit Rendezvous(const RendezvousOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// The numeric address of this host that other ranks reach: the one that reaches rank 0; on rank 0 the one that a
  /// rank of another host has reached, if there is one. A loopback address only where nothing else is known.
  [[nodiscard]] const std::string& address() const;

  /// Collective, one thread at a time. Every rank's text, in rank order. PeerError when a rank is lost. UsageError for
  /// more than kMostBytes.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text);
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  /// "rank 1 (host a, pid 12) has ended" when the job has failed; empty when not. Waits up to so many seconds for it.
  [[nodiscard]] std::string why_lost(double wait_s = 0) const;
  /// `lost` is called once when the job has failed, on the rendezvous' thread, or here when it has already. It must not
  /// block or throw. Returns a key for forget(), after which it is not called any more.
  [[nodiscard]] std::uint64_t when_lost(std::function<void()> lost);
  void forget(std::uint64_t key) noexcept;

  /// Collective: returns when all ranks have called it; nothing may be called afterwards. PeerError when a rank is
  /// lost.
  void finish();
  /// Tells all ranks that this one ends the job with `code`. Waits up to 10 s for rank 0 to take it, which is at once
  /// unless it is stopped, and up to 2 s for the others to be told. The caller then ends its process.
  void abort(int code) noexcept;

 private:
  std::unique_ptr<detail::rendezvous::Meeting> meeting_;
};

}  // namespace lockstep::comm
