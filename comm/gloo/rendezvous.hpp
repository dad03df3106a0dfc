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

/// The ranks could not meet. If told() is true, rank 0 or another rank of this host throws and prints the same text, so
/// this rank need not print it.
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
  std::string host{};     ///< host of rank 0: a name, or an IPv4 or IPv6 address
  int port = 0;           ///< port on which rank 0 listens, 1 to 65535
  std::string origin{};   ///< origin of host and port for messages: "MASTER_ADDR=a, MASTER_PORT=1"; may be empty
  std::string job{};      ///< name of the job, equal on all ranks; rank 0 refuses a process of another job
  int local_rank = 0;     ///< rank's number on its host; only rank 1 and a host's first rank report a silent rank 0
  bool one_host = false;  ///< true if all ranks are on rank 0's host; then rank 0 listens only at the address of `host`
  double timeout_s = 60;  ///< seconds after this rank's start by which all ranks must have connected
  /// Called once if ranks are missing after word_after_s, with "waiting for ranks 1, 3 of 4 at a:1, 55 s more". Rank 0
  /// calls on_wait on a thread of the rendezvous. If rank 0 is silent, rank 1 and the first rank of each host call
  /// on_wait in the constructor.
  std::function<void(const std::string& text)> on_wait{};
  double word_after_s = 5;
  /// Called on a thread of the rendezvous after rank `rank` has called abort(code). Without on_abort, rank `rank`
  /// counts as lost.
  std::function<void(int rank, int code)> on_abort{};
};

/// Lets the ranks of a job meet over TCP, without MPI, and tells all ranks if a rank ends. Rank 0 listens; the other
/// ranks connect to rank 0 and keep the connection. Each rank has a watching thread. Nothing is encrypted, and no
/// sender is authenticated, so the network must be trusted, as with MPI.
///
/// A rank whose process ends without finish() is lost, and the whole job has failed. All other ranks learn this within
/// milliseconds, or in 25 s if the lost rank's host or the network is gone.
class Rendezvous {
 public:
  /// Lets the ranks meet. Collective; returns after all ranks have connected. If ranks are missing after timeout_s,
  /// throws RendezvousError with host, port and the missing ranks, at most a few seconds later. As soon as rank 0 has
  /// answered a rank, that rank uses rank 0's timeout_s in place of its own value. Throws RendezvousError at once if
  /// the port is in use, if `host` is neither a name nor an address, if ranks differ in `size` or in the version of
  /// this protocol, if two processes have the same rank, or if a rank has connected and then ended. Throws UsageError
  /// for invalid options.
  explicit Rendezvous(const RendezvousOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// Returns the numeric address at which other ranks reach this host: the address of the connection to rank 0. On rank
  /// 0, an address that a rank on another host has reached is preferred. The result is loopback only if no other
  /// address is known.
  [[nodiscard]] const std::string& address() const;

  /// Sends `text` to all ranks, and returns every rank's text, in rank order. Collective; only one thread at a time may
  /// call all_gather(). Throws PeerError if a rank is lost, UsageError for a text of more than kMostBytes.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text);
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  /// Returns "rank 1 (host a, pid 12) has ended" if the job has failed, otherwise "". Waits up to wait_s for a failure.
  [[nodiscard]] std::string why_lost(double wait_s = 0) const;
  /// Registers `lost`, which is called once if the job fails, on the rendezvous' thread. If the job has failed before,
  /// this call itself calls `lost`. `lost` must not block or throw. Returns a key for forget(); after forget(), `lost`
  /// is not called any more.
  [[nodiscard]] std::uint64_t when_lost(std::function<void()> lost);
  void forget(std::uint64_t key) noexcept;

  /// Waits until all ranks have called finish(). No other function may be called afterwards. Collective. Throws
  /// PeerError if a rank is lost.
  void finish();
  /// Tells all ranks that this rank ends the job with `code`. Waits until rank 0 has received the message, which may
  /// take up to 10 s if rank 0's process is stopped. Then waits up to 2 s until the other ranks are told. Afterwards
  /// the caller must end its process.
  void abort(int code) noexcept;

 private:
  std::unique_ptr<detail::rendezvous::Meeting> meeting_;
};

}  // namespace lockstep::comm
