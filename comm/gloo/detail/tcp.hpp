#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::comm::detail {

using Clock = std::chrono::steady_clock;

/// A file descriptor that the destructor closes; -1: none.
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

/// Result of connecting.
struct Connected {
  Descriptor socket{};
  std::string problem{};  ///< reason for having no socket: "connection refused"
  bool hopeless = false;  ///< another attempt would fail in the same way
};

/// Tries each address of `host` once, each for at most 3 s and not beyond the deadline. The socket does not block. Only
/// a host that is neither a name nor an address, such as 10.0.0.300, is hopeless: a name may get its address later.
[[nodiscard]] Connected connect_to(const std::string& host, int port, Clock::time_point deadline);

/// Result of listen_at(). It listens at the first address of `host` that this machine has or, for an empty host, at all
/// addresses of the machine, IPv6 and IPv4.
struct Listening {
  Descriptor socket{};
  std::string problem{};  ///< reason for having no socket
};
[[nodiscard]] Listening listen_at(const std::string& host, int port);

/// Accepts a waiting connection, or returns none. The connection does not block.
[[nodiscard]] Descriptor accept_from(int listener);

/// The numeric addresses of both ends of a connection ("10.0.0.1", "fd00::1"); IPv4 inside IPv6 is shown as IPv4.
[[nodiscard]] std::string own_address(int socket);
[[nodiscard]] std::string peer_address(int socket);
/// True when only processes of one host reach each other at this numeric address.
[[nodiscard]] bool is_loopback(std::string_view address);
/// True when both ends are one socket: when nobody listens at a port, the kernel may choose it as the caller's own
/// port. connect_to() treats such a connection as refused.
[[nodiscard]] bool is_self_connection(int socket);

/// Sends all bytes. False when the other end is gone or the deadline has passed. No SIGPIPE.
[[nodiscard]] bool send_all(int socket, std::string_view bytes, Clock::time_point deadline);

/// Appends the bytes that have arrived. False when the other end has closed the connection, or it is broken.
[[nodiscard]] bool receive_more(int socket, std::string& to);

/// Waits until the socket can be read; false when the deadline has passed.
[[nodiscard]] bool wait_readable(int socket, Clock::time_point deadline);

/// An event that one thread signals to another, as a descriptor for poll().
class Wake {
 public:
  Wake();  ///< StateError when there are no more descriptors
  void give() const noexcept;
  void take() const noexcept;
  [[nodiscard]] int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

}  // namespace lockstep::comm::detail
