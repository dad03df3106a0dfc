#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::comm::detail {

using Clock = std::chrono::steady_clock;

/// A file descriptor that is closed with it; -1: none.
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

/// What connecting came to.
struct Connected {
  Descriptor socket{};
  std::string problem{};  ///< why there is none: "connection refused"
  bool hopeless = false;  ///< another attempt would end in the same way
};

/// One attempt at each address of `host`, each for at most 3 s and not beyond the deadline. The socket does not block.
/// Hopeless is only a host that is no name and no address, such as 10.0.0.300: a name may get its address later.
[[nodiscard]] Connected connect_to(const std::string& host, int port, Clock::time_point deadline);

/// Listens at the first address of `host` that this machine has, or, without a host, at all addresses of the machine,
/// IPv6 and IPv4.
struct Listening {
  Descriptor socket{};
  std::string problem{};  ///< why there is none
};
[[nodiscard]] Listening listen_at(const std::string& host, int port);

/// A connection that waits, or nothing. It does not block.
[[nodiscard]] Descriptor accept_from(int listener);

/// The numeric addresses of both ends of a connection ("10.0.0.1", "fd00::1"); IPv4 inside IPv6 is shown as IPv4.
[[nodiscard]] std::string own_address(int socket);
[[nodiscard]] std::string peer_address(int socket);
/// Whether only processes of one host reach each other at this numeric address.
[[nodiscard]] bool is_loopback(std::string_view address);
/// Whether both ends are one socket: the kernel may take the port that is called as the caller's own where nobody
/// listens. connect_to() takes such a connection for a refusal.
[[nodiscard]] bool has_called_itself(int socket);

/// Sends all of it. False when the other end is gone or the deadline has passed. No SIGPIPE.
[[nodiscard]] bool send_all(int socket, std::string_view bytes, Clock::time_point deadline);

/// Appends what has come. False when the other end has closed the connection or it is broken.
[[nodiscard]] bool receive_more(int socket, std::string& to);

/// Waits until the socket can be read; false when the deadline has passed.
[[nodiscard]] bool wait_readable(int socket, Clock::time_point deadline);

/// An event that one thread gives another, as a descriptor for poll().
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
