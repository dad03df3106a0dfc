#include <lockstep/comm/gloo/detail/tcp.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

namespace {

constexpr std::chrono::seconds kAttempt{3};
// With these settings of keep-alive probes, the end of a remote host is noticed after 10 + 3 * 5 s.
constexpr int kIdleSeconds = 10;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 3;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// Result of resolve(): the addresses of a host. If there is no address, `problem` is the reason.
struct Resolved {
  Addresses list{};
  std::string problem{};
  bool hopeless = false;
};

std::string reason(int number) {
  std::string text = std::strerror(number);
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  return text;
}

/// Returns true if `host` can only be a numeric address, and not a name.
bool is_numeric(const std::string& host) {
  return host.find(':') != std::string::npos || host.find_first_not_of("0123456789.") == std::string::npos;
}

Resolved resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const std::string service = concat(port);
  const int rc = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &list);
  if (rc != 0) {
    const int number = errno;
    const bool of_machine = rc == EAI_SYSTEM || rc == EAI_MEMORY;
    return {.problem = concat("the name has no address: ", rc == EAI_SYSTEM ? reason(number) : ::gai_strerror(rc)),
            .hopeless = is_numeric(host) && !of_machine && rc != EAI_AGAIN};
  }
  return {.list = Addresses(list)};
}

void set_option(int socket, int level, int name, int value) {
  // A failure is ignored, because the connection works without the option, too.
  ::setsockopt(socket, level, name, &value, sizeof value);
}

void set_up(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, (kIdleSeconds + kProbes * kProbeSeconds) * 1000);
}

/// Waits until `socket` is ready for one of `events`. Returns false if the deadline has passed.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    if (ready > 0) {
      return true;
    }
    if ((ready < 0 && errno != EINTR) || Clock::now() >= deadline) {
      return false;
    }
  }
}

/// Returns the address of this end of a connection if `get` is getsockname(), and of the other end if `get` is
/// getpeername().
template <class Get>
sockaddr_storage end_of(int socket, Get&& get) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  get(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

std::string shown(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text.data(), text.size());
    } else {
      ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    }
  }
  return text.data();
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = other.release();
  }
  return *this;
}

void Descriptor::reset() noexcept {
  if (number_ >= 0) {
    ::close(number_);
  }
  number_ = -1;
}

Connected connect_to(const std::string& host, int port, Clock::time_point deadline) {
  const Resolved resolved = resolve(host, port, 0);
  Connected result{.problem = resolved.problem, .hopeless = resolved.hopeless};
  for (const addrinfo* at = resolved.list.get(); at != nullptr; at = at->ai_next) {
    Descriptor made(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int problem = made.is_open() ? 0 : errno;
    if (problem == 0 && ::connect(made.get(), at->ai_addr, at->ai_addrlen) != 0) {
      problem = errno;
      if (problem == EINPROGRESS) {
        problem = ETIMEDOUT;
        socklen_t length = sizeof problem;
        if (wait_for(made.get(), POLLOUT, std::min(deadline, Clock::now() + kAttempt))) {
          ::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
        }
      }
    }
    if (problem == 0 && is_self_connection(made.get())) {
      problem = ECONNREFUSED;
      const linger none{.l_onoff = 1, .l_linger = 0};  // without this option, the port would stay in use for a minute
      ::setsockopt(made.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    if (problem == 0) {
      set_up(made.get());
      return {.socket = std::move(made)};
    }
    result.problem = reason(problem);
  }
  return result;
}

Listening listen_at(const std::string& host, int port) {
  const Resolved resolved = resolve(host, port, AI_PASSIVE);
  Listening result{.problem = resolved.problem};
  // If `host` is empty, IPv6 is tried first: a socket at an IPv6 address then takes IPv4 connections, too.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* at = resolved.list.get(); at != nullptr; at = at->ai_next) {
      if (host.empty() ? at->ai_family != family : family != AF_INET6) {
        continue;
      }
      Descriptor made(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (made.is_open()) {
        set_option(made.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // allows the port although old connections linger
        if (at->ai_family == AF_INET6) {
          set_option(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, host.empty() ? 0 : 1);
        }
        if (::bind(made.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(made.get(), SOMAXCONN) == 0) {
          return {.socket = std::move(made)};
        }
      }
      result.problem = reason(errno);
    }
  }
  return result;
}

Descriptor accept_from(int listener) {
  Descriptor made(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (made.is_open()) {
    set_up(made.get());
  }
  return made;
}

std::string own_address(int socket) {
  return shown(end_of(socket, ::getsockname));
}

std::string peer_address(int socket) {
  return shown(end_of(socket, ::getpeername));
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1";
}

bool is_self_connection(int socket) {
  const sockaddr_storage own = end_of(socket, ::getsockname);
  const sockaddr_storage peer = end_of(socket, ::getpeername);
  return std::memcmp(&own, &peer, sizeof own) == 0;
}

bool send_all(int socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLOUT, deadline)) {
        return false;
      }
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool receive_more(int socket, std::string& to) {
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t got = ::recv(socket, part.data(), part.size(), 0);
    if (got > 0) {
      to.append(part.data(), static_cast<std::size_t>(got));
      return true;
    }
    if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    }
    if (errno == EAGAIN) {
      return true;
    }
  }
}

bool wait_readable(int socket, Clock::time_point deadline) {
  return wait_for(socket, POLLIN, deadline);
}

Wake::Wake() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require<StateError>(event_.is_open(), "an eventfd cannot be opened, expected room for one more file (ulimit -n): ",
                      std::strerror(errno));
}

void Wake::give() const noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void Wake::take() const noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
}

}  // namespace lockstep::comm::detail
