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
  std::string host{};     ///< rank 0's host: a name or an IPv4 or IPv6 address
  int port = 0;           ///< port at which rank 0 listens, 1 to 65535
  std::string origin{};   ///< source of host and port for messages: "MASTER_ADDR=a, MASTER_PORT=1"; or empty
  std::string job{};      ///< equal on all ranks; rank 0 refuses a process of another job
  int local_rank = 0;     ///< on its host; only local rank 0 and rank 1 report that rank 0 does not answer
  bool one_host = false;  ///< all ranks are on rank 0's host: rank 0 listens only at the address of `host`
  double timeout_s = 60;  ///< time for all ranks to connect, from this rank's start
  /// If set, called once when ranks are still missing after word_after_s: "waiting for ranks 1, 3 of 4 at a:1, 55 s
  /// more". Rank 0 calls it on a thread of the rendezvous; while rank 0 does not answer, the ranks that report this
  /// call it.
  std::function<void(const std::string& text)> on_wait{};
  double word_after_s = 5;
  /// Called on a thread of the rendezvous when rank `rank` has called abort(code). Not set: the rank counts as lost.
  std::function<void(int rank, int code)> on_abort{};
};

/// Lets the ranks of a job meet over TCP, without MPI, and tells each of them when another rank ends. Rank 0 listens,
/// the others connect to it and keep the connection; each rank has a thread that watches. Nothing is encrypted and no
/// sender is authenticated: the network must be trusted, as with MPI.
///
/// A rank whose process ends without finish() is lost. All other ranks learn this within milliseconds, or in 25 s when
/// its host or the network is gone; the whole job has then failed.
class Rendezvous {
 public:
  /// Collective. Returns when all ranks have connected. RendezvousError, with host, port and the missing ranks, at most
  /// a few seconds after timeout_s (rank 0's timeout once rank 0 has answered). RendezvousError at once for a port in
  /// use, a host that is no address, ranks that differ in `size` or in the version of this protocol, two processes of
  /// one rank, and a rank that has connected and ended. UsageError for invalid options.
  explicit Rendezvous(const RendezvousOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// Returns the numeric address of this host at which other ranks reach it: the address of the connection to rank 0;
  /// on rank 0 the address that a rank of another host has reached, if there is one. A loopback address only if no
  /// other is known.
  [[nodiscard]] const std::string& address() const;

  /// Returns every rank's text, in rank order. Collective; one thread at a time calls it. PeerError when a rank is
  /// lost. UsageError for more than kMostBytes.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text);
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  /// Returns "rank 1 (host a, pid 12) has ended" when the job has failed, else "". Waits up to wait_s for a failure.
  [[nodiscard]] std::string why_lost(double wait_s = 0) const;
  /// `lost` is called once when the job has failed, on the rendezvous' thread, or in this call if the job has failed
  /// before. It must not block or throw. Returns a key for forget(), after which `lost` is not called any more.
  [[nodiscard]] std::uint64_t when_lost(std::function<void()> lost);
  void forget(std::uint64_t key) noexcept;

  /// Collective: returns when all ranks have called it; no function may be called afterwards. PeerError when a rank is
  /// lost.
  void finish();
  /// Tells all ranks that this rank ends the job with `code`. Waits up to 10 s until rank 0 has received the message
  /// (at once, unless rank 0 is stopped), and up to 2 s until the others are told. The caller then ends its process.
  void abort(int code) noexcept;

 private:
  std::unique_ptr<detail::rendezvous::Meeting> meeting_;
};

}  // namespace lockstep::comm
