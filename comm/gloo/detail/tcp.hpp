#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::comm::detail {

using Clock = std::chrono::steady_clock;

/// Owns a file descriptor; the destructor closes it. -1 means no descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  void reset() noexcept;
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// Result of connect_to().
struct Connected {
  Descriptor socket{};
  std::string problem{};  ///< reason if there is no socket: "connection refused"
  bool hopeless = false;  ///< true if another attempt would fail in the same way
};

/// Tries to connect to each address of `host`, for at most 3 s each and not beyond the deadline. Makes a socket that
/// does not block. `hopeless` is true only if `host` can be neither a name nor an address, such as 10.0.0.300. Other
/// failures may pass: an unknown name, for example, may get its address later.
[[nodiscard]] Connected connect_to(const std::string& host, int port, Clock::time_point deadline);

/// Result of listen_at(). listen_at() listens at the first address of `host` that this machine has. For an empty host,
/// it listens at all addresses of the machine, IPv6 and IPv4.
struct Listening {
  Descriptor socket{};
  std::string problem{};  ///< reason if there is no socket
};
[[nodiscard]] Listening listen_at(const std::string& host, int port);

/// Accepts a connection that waits at `listener`, and returns its socket, which does not block. Returns an empty
/// Descriptor if no connection waits.
[[nodiscard]] Descriptor accept_from(int listener);

/// own_address() returns the numeric address of this end of a connection ("10.0.0.1", "fd00::1"), and peer_address()
/// returns the address of the other end. An IPv4 address that is mapped into IPv6 is returned as IPv4.
[[nodiscard]] std::string own_address(int socket);
[[nodiscard]] std::string peer_address(int socket);
/// Returns true if only processes of the same host can reach this numeric address.
[[nodiscard]] bool is_loopback(std::string_view address);
/// Returns true if a socket is connected to itself. This happens if nobody listens at a port, and the kernel chooses
/// that port as the caller's own. connect_to() treats such a connection as refused.
[[nodiscard]] bool is_self_connection(int socket);

/// Sends all bytes. Returns false if the other end is gone or the deadline has passed. Never raises SIGPIPE.
[[nodiscard]] bool send_all(int socket, std::string_view bytes, Clock::time_point deadline);

/// Appends the bytes that have arrived to `to`. Returns false if the connection is broken or closed by the other end.
[[nodiscard]] bool receive_more(int socket, std::string& to);

/// Waits until the socket can be read. Returns false if the deadline has passed.
[[nodiscard]] bool wait_readable(int socket, Clock::time_point deadline);

/// A signal that wakes a thread from poll(): give(), called by another thread, makes the descriptor readable.
class Wake {
 public:
  Wake();  ///< throws StateError if the process can open no more descriptors
  void give() const noexcept;
  void take() const noexcept;
  [[nodiscard]] int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

}  // namespace lockstep::comm::detail
