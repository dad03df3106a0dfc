#include <lockstep/comm/launch/detail/node_heartbeat.hpp>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <random>
#include <sstream>
#include <utility>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

namespace {

constexpr std::size_t kMostAddresses = 8;  ///< largest number of addresses that are used for a node
constexpr int kMostAtOnce = 1000;          ///< largest number of datagrams that one call of listen() reads
constexpr std::size_t kMostNamed = 8;      ///< largest number of ranks that a message lists by number
constexpr std::array<char, 8> kMagic{'l', 's', '-', 'w', 'o', 'r', 'd', '1'};

/// Header of a datagram; the datagram's text follows. Numbers are in the host's byte order, which is equal on all ranks
/// because all ranks run one build (Session compares the builds).
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t key = 0;
  std::int64_t sent_ns = 0;  ///< time of sending by the sender's clock; shows which heartbeat is newer
  std::int32_t node = 0;
  std::int32_t shutdown = 0;
};
static_assert(sizeof(Header) == 32);

/// Data that a rank sends to all others before the first heartbeat.
struct NodeAddresses {
  int node = -1;
  int port = 0;
  std::uint64_t key = 0;
  std::string host;
  std::vector<std::string> addresses;
};

std::string text_of(const NodeAddresses& from) {
  std::string text = concat(from.node, ' ', from.port, ' ', from.key, '\n', from.host, '\n');
  for (const std::string& address : from.addresses) {
    text += concat(address, '\n');
  }
  return text;
}

NodeAddresses parse(const std::string& text) {
  NodeAddresses found;
  std::istringstream in(text);
  std::string numbers;
  std::getline(in, numbers);
  std::istringstream of_rank(numbers);
  of_rank >> found.node >> found.port >> found.key;
  if (of_rank.fail()) {
    return {};
  }
  std::getline(in, found.host);
  for (std::string line; std::getline(in, line);) {
    found.addresses.push_back(line);
  }
  return found;
}

/// Formats ranks: "rank 4", "ranks 4 to 7", "ranks 0, 2, 4", "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 3 more".
std::string names_of(const std::vector<int>& ranks) {
  if (ranks.size() == 1) {
    return concat("rank ", ranks[0]);
  }
  if (ranks.size() > 2 && ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size())) {
    return concat("ranks ", ranks.front(), " to ", ranks.back());
  }
  std::string text = "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += concat(i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() > kMostNamed ? concat(text, " and ", ranks.size() - kMostNamed, " more") : text;
}

/// Joins as many of `lines` as fit into `most` bytes, and says how many are left out.
std::string fitting(const std::vector<std::string>& lines, std::size_t most) {
  constexpr std::size_t kForCount = 24;  // number of bytes for "\nand 1000000 more ranks"
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (text.size() + lines[i].size() + 1 + kForCount > most) {
      return i == 0 ? lines[0].substr(0, most) : concat(text, "\nand ", lines.size() - i, " more ranks");
    }
    text += concat(i == 0 ? "" : "\n", lines[i]);
  }
  return text;
}

/// Offset of the port in a socket address, the same for IPv4 and IPv6.
constexpr std::size_t kPortAt = offsetof(sockaddr_in, sin_port);
static_assert(kPortAt == offsetof(sockaddr_in6, sin6_port));

/// Returns the numeric addresses at which other hosts may reach this host, IPv4 first. If there is none, returns
/// the loopback addresses. Leaves out link-local IPv6 addresses, because their scope has no meaning on another host.
std::vector<std::string> own_addresses() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return {};
  }
  std::vector<std::string> v4;
  std::vector<std::string> v6;
  std::vector<std::string> loopback;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    const int family = at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 ? AF_UNSPEC : at->ifa_addr->sa_family;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text{};
    if ((family != AF_INET && family != AF_INET6) ||
        ::getnameinfo(at->ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    const std::string_view name(text.data());
    if (name.find('%') == std::string_view::npos) {  // leaves out link-local addresses, which have a scope after '%'
      (name.starts_with("127.") || name == "::1" ? loopback : family == AF_INET ? v4 : v6).emplace_back(name);
    }
  }
  ::freeifaddrs(all);
  v4.insert(v4.end(), v6.begin(), v6.end());
  std::vector<std::string>& found = v4.empty() ? loopback : v4;
  found.resize(std::min(found.size(), kMostAddresses));
  return found;
}

/// Opens an IPv6 socket that also takes IPv4. If the kernel has no IPv6, opens an IPv4 socket. Returns -1 if both fail.
int open_socket() {
  constexpr int kKind = SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  const int both = ::socket(AF_INET6, kKind, 0);
  const int no = 0;
  if (both >= 0 && ::setsockopt(both, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0) {
    return both;
  }
  if (both >= 0) {
    ::close(both);
  }
  return ::socket(AF_INET, kKind, 0);
}

/// Returns the address family of `socket`; AF_UNSPEC if there is no socket.
int family_of(int socket) {
  int family = AF_UNSPEC;
  socklen_t length = sizeof family;
  return ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &length) == 0 ? family : AF_UNSPEC;
}

}  // namespace

struct NodeHeartbeat::Target {
  sockaddr_storage address{};
  socklen_t length = 0;

  /// Makes a target for a socket of `family`. `length` is 0 if such a socket cannot reach the address.
  Target(int family, const std::string& numeric, int port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_V4MAPPED;  // V4MAPPED: an IPv6 socket gets ::ffff:10.0.0.1 for 10.0.0.1
    hints.ai_family = family;
    addrinfo* found = nullptr;
    if (::getaddrinfo(numeric.c_str(), nullptr, &hints, &found) == 0) {
      length = found->ai_addrlen;
      std::memcpy(&address, found->ai_addr, length);
      const std::uint16_t of_network = htons(static_cast<std::uint16_t>(port));
      std::memcpy(reinterpret_cast<char*>(&address) + kPortAt, &of_network, sizeof of_network);
      ::freeaddrinfo(found);
    }
  }
};

NodeHeartbeat::NodeHeartbeat(HeartbeatPlace place) : place_(std::move(place)), socket_(open_socket()) {
  if (place_.rank == 0) {
    try {
      std::random_device device;
      key_ = std::uint64_t{device()} << 32 | device();
    } catch (const std::exception&) {
      key_ = 0;  // without random numbers there is no key, and without a key no heartbeats
    }
  }
  // An address of zeros means any address of this machine, in IPv4 as in IPv6.
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family_of(socket_));
  socklen_t length = any.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (!place_.listens || ::bind(socket_, reinterpret_cast<sockaddr*>(&any), length) != 0 ||
      ::getsockname(socket_, reinterpret_cast<sockaddr*>(&any), &length) != 0) {
    return;
  }
  std::uint16_t port = 0;
  std::memcpy(&port, reinterpret_cast<const char*>(&any) + kPortAt, sizeof port);
  port_ = ntohs(port);
}

NodeHeartbeat::~NodeHeartbeat() {
  if (socket_ >= 0) {
    ::close(socket_);
  }
}

std::string NodeHeartbeat::address_text() const {
  NodeAddresses own{.node = place_.node, .port = port_, .key = key_, .host = place_.host, .addresses = {}};
  std::replace(own.host.begin(), own.host.end(), '\n', ' ');
  if (port_ > 0) {
    own.addresses = own_addresses();
  }
  return text_of(own);
}

void NodeHeartbeat::set_addresses(const std::vector<std::string>& address_texts) {
  const int before = (place_.node + place_.nodes - 1) % place_.nodes;
  const int after = (place_.node + 1) % place_.nodes;
  std::vector<int> ranks;
  std::string host;
  NodeAddresses next;
  for (std::size_t rank = 0; rank < address_texts.size(); ++rank) {
    const NodeAddresses one = parse(address_texts[rank]);
    if (rank == 0) {
      key_ = one.key;
    }
    if (one.node == before) {
      ranks.push_back(static_cast<int>(rank));
      host = one.host;
    }
    if (one.node == after && one.port > 0) {
      next = one;
    }
  }
  // Leaves out addresses of the next node that this host has, too (such as the address of a container bridge), because
  // datagrams to such an address come back to this host. But if the next node is on this machine, keeps all its
  // addresses.
  const std::vector<std::string> own = own_addresses();
  const auto is_own = [&](const std::string& address) {
    return std::find(own.begin(), own.end(), address) != own.end();
  };
  const bool here = std::all_of(next.addresses.begin(), next.addresses.end(), is_own);
  next_.clear();
  for (const std::string& address : next.addresses) {
    const Target target(family_of(socket_), address, next.port);
    if (target.length > 0 && (here || !is_own(address))) {
      next_.push_back(target);
    }
  }
  previous_ = ranks.empty() ? std::string() : concat("host ", host, " (", names_of(ranks), ')');
  one_previous_ = ranks.size() == 1;
}

void NodeHeartbeat::send_heartbeat(const std::vector<std::string>& lines) {
  send(fitting(lines, kMostBytes - sizeof(Header)), false);
}

void NodeHeartbeat::send_shutdown() {
  send({}, true);
}

void NodeHeartbeat::send(std::string_view text, bool shuts_down) {
  if (key_ == 0) {
    return;
  }
  const Header header{.key = key_, .sent_ns = Progress::now_ns(), .node = place_.node, .shutdown = shuts_down ? 1 : 0};
  std::string datagram(reinterpret_cast<const char*>(&header), sizeof header);
  datagram += text;
  for (const Target& to : next_) {
    static_cast<void>(::sendto(socket_, datagram.data(), datagram.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                               reinterpret_cast<const sockaddr*>(&to.address), to.length));
  }
}

bool NodeHeartbeat::take(std::string_view datagram) {
  Header header;
  if (datagram.size() < sizeof header || datagram.size() > kMostBytes) {
    return false;
  }
  std::memcpy(&header, datagram.data(), sizeof header);
  if (header.magic != kMagic || header.key != key_ || header.node != (place_.node + place_.nodes - 1) % place_.nodes) {
    return false;
  }
  if (header.sent_ns >= sent_ns_) {
    sent_ns_ = header.sent_ns;
    shut_down_ = header.shutdown != 0;
    last_text_ = datagram.substr(sizeof header);
  }
  return true;
}

void NodeHeartbeat::listen(std::int64_t now_ns) {
  if (port_ == 0 || key_ == 0) {
    return;
  }
  const double passed =
      looked_ns_ == 0 ? 0 : std::clamp(1e-9 * static_cast<double>(now_ns - looked_ns_), 0.0, kLongestLook);
  looked_ns_ = now_ns;
  // One byte more than the longest heartbeat, so that a longer datagram is recognised.
  std::array<char, kMostBytes + 1> bytes{};
  bool heard = false;
  int read = 0;
  for (; read < kMostAtOnce; ++read) {
    const ssize_t length = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (length < 0) {
      break;  // no more datagrams, or an error that the next call meets again
    }
    heard = take({bytes.data(), static_cast<std::size_t>(length)}) || heard;
  }
  heard_ = heard_ || heard;
  // After kMostAtOnce datagrams, a heartbeat may be lost in the flood, so the time does not count as silence.
  silent_s_ = heard ? 0 : read < kMostAtOnce ? silent_s_ + passed : silent_s_;
}

std::string NodeHeartbeat::silent(double seconds) const {
  if (!heard_ || shut_down_ || previous_.empty() || silent_s_ < seconds) {
    return {};
  }
  std::string last = last_text_;
  for (std::size_t at = last.find('\n'); at != std::string::npos; at = last.find('\n', at)) {
    last.replace(at, 1, "; ");
  }
  return concat("no word from ", previous_, " for ", std::lround(silent_s_), " s: the host, its network or ",
                one_previous_ ? "its rank hangs" : "all its ranks hang", last.empty() ? "" : "; its last word: ", last);
}

}  // namespace lockstep::comm::detail
