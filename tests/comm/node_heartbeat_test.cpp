// Tests the heartbeats between nodes over the loopback device, and when a silent node is named.
// tests/launch/silent_host.sh tests complete jobs.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/launch/detail/node_heartbeat.hpp>
#include <lockstep/comm/launch/detail/rank_watch.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::comm::detail {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::size_t kHeader = 32;

/// Returns `count` nodes with the hosts a, b, c, .. and one rank each. They have each other's addresses.
std::vector<std::unique_ptr<NodeHeartbeat>> nodes(int count) {
  std::vector<std::unique_ptr<NodeHeartbeat>> made;
  std::vector<std::string> address_texts;
  for (int node = 0; node < count; ++node) {
    made.push_back(
        std::make_unique<NodeHeartbeat>(HeartbeatPlace{.rank = node,
                                                       .node = node,
                                                       .nodes = count,
                                                       .listens = true,
                                                       .host = std::string(1, static_cast<char>('a' + node))}));
    address_texts.push_back(made.back()->address_text());
  }
  for (const auto& one : made) {
    one->set_addresses(address_texts);
  }
  return made;
}

/// Receives heartbeats, without letting the node's clock advance, until `node` has received a heartbeat of its
/// predecessor in the ring. Returns the text of node.silent().
std::string named(NodeHeartbeat& node, std::int64_t now_ns) {
  for (int i = 0; i < 500; ++i) {
    node.listen(now_ns);
    if (std::string text = node.silent(0); !text.empty()) {
      return text;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "no heartbeat has come";
  return {};
}

/// Receives heartbeats until one that contains `part` has come.
void hears(NodeHeartbeat& node, std::int64_t now_ns, const std::string& part) {
  for (int i = 0; i < 500 && node.silent(0).find(part) == std::string::npos; ++i) {
    node.listen(now_ns);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  testing::expect_holds(node.silent(0), part);
}

/// Returns the port in a node's address text.
int port_of(const std::string& address_text) {
  std::istringstream in(address_text);
  int node = -1;
  int port = 0;
  in >> node >> port;
  EXPECT_GT(port, 0) << address_text;
  return port;
}

/// A UDP socket that belongs to no node, like that of another process on this machine.
class OtherSocket {
 public:
  OtherSocket() {
    sockaddr_in here = at(0);
    socklen_t length = sizeof here;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&here), length), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &length), 0);
    port_ = ntohs(here.sin_port);
  }
  ~OtherSocket() { ::close(socket_); }
  OtherSocket(const OtherSocket&) = delete;
  OtherSocket& operator=(const OtherSocket&) = delete;

  /// Returns the address text of a node whose socket is this one.
  [[nodiscard]] std::string address_text(int node, std::uint64_t key) const {
    return concat(node, ' ', port_, ' ', key, "\nother\n127.0.0.1\n");
  }
  void send(std::string_view bytes, int port) const {
    const sockaddr_in to = at(port);
    EXPECT_EQ(::sendto(socket_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(bytes.size()));
  }
  [[nodiscard]] std::string receive() const {
    std::array<char, 65536> bytes{};
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    const ssize_t length = ::recv(socket_, bytes.data(), bytes.size(), 0);
    EXPECT_GE(length, 0) << "no datagram has come";
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }

 private:
  static sockaddr_in at(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  int socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
};

TEST(NodeHeartbeat, ANodeHearsTheOneBeforeIt) {
  const auto ring = nodes(3);
  ring[0]->send_heartbeat({"rank 0: computing step 7, 1 of 3 buckets enqueued, for 2 s"});
  ring[1]->send_heartbeat({"rank 1: reading the batch of step 8, for 0 s"});
  ring[2]->send_heartbeat({"rank 2: waiting for the gradients of step 7, for 1 s"});
  EXPECT_EQ(named(*ring[1], kSecond),
            "no word from host a (rank 0) for 0 s: the host, its network or its rank hangs; its last word: rank 0: "
            "computing step 7, 1 of 3 buckets enqueued, for 2 s");
  testing::expect_holds(named(*ring[2], kSecond), "host b (rank 1) for 0 s");
  testing::expect_holds(named(*ring[0], kSecond), "host c (rank 2) for 0 s");
}

TEST(NodeHeartbeat, SilenceIsMeasuredAndEndsWithAHeartbeat) {
  const auto ring = nodes(2);
  ring[0]->send_heartbeat({"rank 0: computing step 7"});
  static_cast<void>(named(*ring[1], kSecond));
  for (int second = 2; second <= 41; ++second) {
    ring[1]->listen(second * kSecond);
  }
  EXPECT_EQ(ring[1]->silent(40.5), "");
  testing::expect_holds(ring[1]->silent(39.5), "no word from host a (rank 0) for 40 s: ");
  ring[0]->send_heartbeat({"rank 0: computing step 8"});
  hears(*ring[1], 42 * kSecond, "computing step 8");
  EXPECT_EQ(ring[1]->silent(2), "");
}

/// A batch system may stop a complete job, and its ranks may continue at different moments. Time in which this process
/// was stopped must not count as silence of another node.
TEST(NodeHeartbeat, TimeInWhichThisProcessDoesNotLookIsNoSilence) {
  const auto ring = nodes(2);
  ring[0]->send_heartbeat({"rank 0: computing step 7"});
  static_cast<void>(named(*ring[1], kSecond));
  ring[1]->listen(3600 * kSecond);
  EXPECT_EQ(ring[1]->silent(NodeHeartbeat::kLongestLook + 0.1), "");
  testing::expect_holds(ring[1]->silent(NodeHeartbeat::kLongestLook), " for 2 s: ");
  ring[1]->listen(1800 * kSecond);  // a clock that runs backwards has no effect
  testing::expect_holds(ring[1]->silent(NodeHeartbeat::kLongestLook), " for 2 s: ");
}

TEST(NodeHeartbeat, ANodeThatWasNeverHeardIsNotNamed) {
  const auto ring = nodes(2);
  for (int second = 1; second <= 1000; ++second) {
    ring[1]->listen(second * kSecond);
  }
  EXPECT_EQ(ring[1]->silent(0), "");
}

TEST(NodeHeartbeat, ANodeThatHasShutDownIsNotNamed) {
  const auto ring = nodes(2);
  ring[0]->send_heartbeat({"rank 0: computing step 7"});
  static_cast<void>(named(*ring[1], kSecond));
  ring[0]->send_shutdown();
  for (int i = 0; i < 500 && !ring[1]->silent(0).empty(); ++i) {
    ring[1]->listen(kSecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(ring[1]->silent(0), "");
  ring[0]->send_heartbeat({"rank 0: writing a report"});  // another rank of the node is still active
  hears(*ring[1], kSecond, "writing a report");
}

TEST(NodeHeartbeat, ALateHeartbeatChangesNothing) {
  const OtherSocket next;
  NodeHeartbeat first({.rank = 0, .node = 0, .nodes = 2, .listens = true, .host = "a"});
  NodeHeartbeat second({.rank = 1, .node = 1, .nodes = 2, .listens = true, .host = "b"});
  const std::string own = first.address_text();
  second.set_addresses({own, second.address_text()});
  first.set_addresses({own, next.address_text(1, 0)});
  first.send_heartbeat({"rank 0: computing step 7"});
  const std::string old = next.receive();
  first.send_heartbeat({"rank 0: computing step 8"});
  const int port = port_of(second.address_text());
  next.send(next.receive(), port);
  hears(second, kSecond, "computing step 8");
  next.send(old, port);
  for (int i = 0; i < 20; ++i) {
    second.listen(kSecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  testing::expect_holds(second.silent(0), "computing step 8");
}

/// The address text of rank 0 contains the key of the job. Heartbeats with the key of another job must be dropped, even
/// if they come to the right port.
TEST(NodeHeartbeat, HeartbeatsOfAnotherJobAreDropped) {
  const auto ring = nodes(2);
  NodeHeartbeat other({.rank = 0, .node = 0, .nodes = 2, .listens = true, .host = "x"});
  other.set_addresses({other.address_text(), ring[1]->address_text()});
  for (int i = 0; i < 20; ++i) {
    other.send_heartbeat({"rank 0: computing step 99"});
    ring[1]->listen(kSecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(ring[1]->silent(0), "");
  ring[0]->send_heartbeat({"rank 0: computing step 7"});
  testing::expect_holds(named(*ring[1], kSecond), "computing step 7");
}

TEST(NodeHeartbeat, GarbageIsDropped) {
  const OtherSocket other;
  NodeHeartbeat first({.rank = 0, .node = 0, .nodes = 3, .listens = true, .host = "a"});
  NodeHeartbeat second({.rank = 1, .node = 1, .nodes = 3, .listens = true, .host = "b"});
  const std::string own = first.address_text();
  second.set_addresses({own, second.address_text(), "2 0 0\nc\n"});
  first.set_addresses({own, other.address_text(1, 0), "2 0 0\nc\n"});
  first.send_heartbeat({"rank 0: computing step 7"});
  const std::string real = other.receive();
  ASSERT_GT(real.size(), kHeader);
  const int port = port_of(second.address_text());

  std::mt19937 random(1);
  const auto letter = [&] { return static_cast<char>(random() & 0xff); };
  for (int i = 0; i < 500; ++i) {
    std::string bytes(random() % 1500, '\0');
    for (char& c : bytes) {
      c = letter();
    }
    if (i % 2 == 0 && bytes.size() > 8) {  // half of the datagrams begin like a heartbeat
      bytes.replace(0, 8, real, 0, 8);
    }
    other.send(bytes, port);
    second.listen(kSecond);
  }
  for (std::size_t length = 0; length < kHeader; ++length) {
    other.send(real.substr(0, length), port);
    second.listen(kSecond);
  }
  const auto changed = [&](std::size_t at) {
    std::string bytes = real;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return bytes;
  };
  for (std::size_t at = 0; at < 16; ++at) {  // changes a byte of the magic number or of the key
    other.send(changed(at), port);
  }
  for (std::size_t at = 24; at < 28; ++at) {  // changes a byte of the node's number
    other.send(changed(at), port);
  }
  other.send(real + std::string(NodeHeartbeat::kMostBytes, 'x'), port);
  for (int i = 0; i < 20; ++i) {
    second.listen(kSecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(second.silent(0), "");

  other.send(real, port);
  testing::expect_holds(named(second, kSecond), "computing step 7");
  // The text of a heartbeat may contain any bytes. It must be printed on one line, with control characters escaped.
  for (int i = 0; i < 200; ++i) {
    std::string bytes = real.substr(0, kHeader);
    for (std::size_t left = random() % (NodeHeartbeat::kMostBytes - kHeader); left > 0; --left) {
      bytes += letter();
    }
    other.send(bytes, port);
    second.listen(kSecond);
    ASSERT_EQ(second.silent(0).find('\n'), std::string::npos);
  }
}

TEST(NodeHeartbeat, LongTablesAreCut) {
  const OtherSocket next;
  NodeHeartbeat first({.rank = 0, .node = 0, .nodes = 2, .listens = true, .host = "a"});
  const std::string own = first.address_text();
  first.set_addresses({own, next.address_text(1, 0)});
  std::vector<std::string> lines;
  for (int rank = 0; rank < 40; ++rank) {
    lines.push_back(concat("rank ", rank, ": ", std::string(100, 'x')));
  }
  first.send_heartbeat(lines);
  std::string bytes = next.receive();
  EXPECT_LE(bytes.size(), NodeHeartbeat::kMostBytes);
  EXPECT_GT(bytes.size(), NodeHeartbeat::kMostBytes - 150);
  const std::string text = bytes.substr(kHeader);
  EXPECT_EQ(text.find("rank 0: xxx"), 0U);
  const auto kept = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  EXPECT_GT(kept, 5);
  EXPECT_TRUE(text.ends_with(concat(std::string(100, 'x'), "\nand ", 40 - kept, " more ranks"))) << text;
  first.send_heartbeat({std::string(5000, 'y')});
  bytes = next.receive();
  EXPECT_EQ(bytes.size(), NodeHeartbeat::kMostBytes);
  first.send_heartbeat({});
  EXPECT_EQ(next.receive().size(), kHeader);
}

TEST(NodeHeartbeat, RanksOfANodeAreNamed) {
  struct Case {
    std::vector<int> node_of_rank;
    const char* text;
  };
  for (const Case& c : {Case{{1, 1, 1, 1, 0, 0, 0, 0},
                             "host a (ranks 4 to 7) for 0 s: the host, its network or all its "
                             "ranks hang; its last word: rank 4: x; rank 5: y"},
                        Case{{1, 0, 1, 0}, "host a (ranks 1, 3) for "}, Case{{1, 0}, "host a (rank 1) for "},
                        Case{{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0},
                             "host a (ranks 1, 3, 5, 7, 9, 11, 13, 15 and 4 more) for "}}) {
    std::vector<std::unique_ptr<NodeHeartbeat>> all;
    std::vector<std::string> address_texts;
    std::array<NodeHeartbeat*, 2> listeners{};
    for (std::size_t rank = 0; rank < c.node_of_rank.size(); ++rank) {
      const int node = c.node_of_rank[rank];
      NodeHeartbeat*& listener = listeners.at(static_cast<std::size_t>(node));
      all.push_back(std::make_unique<NodeHeartbeat>(HeartbeatPlace{.rank = static_cast<int>(rank),
                                                                   .node = node,
                                                                   .nodes = 2,
                                                                   .listens = listener == nullptr,
                                                                   .host = node == 0 ? "a" : "b"}));
      listener = listener == nullptr ? all.back().get() : listener;
      address_texts.push_back(all.back()->address_text());
    }
    for (const auto& one : all) {
      one->set_addresses(address_texts);
    }
    const auto speaker = c.node_of_rank.size() - 1;  // the last rank of node 0 sends the heartbeat
    ASSERT_EQ(c.node_of_rank[speaker], 0);
    all[speaker]->send_heartbeat({"rank 4: x", "rank 5: y"});
    testing::expect_holds(named(*listeners[1], kSecond), c.text);
  }
}

/// Ranks without a watchdog or without sockets have an empty address text, or one without a port. Heartbeats must not
/// be sent to them.
TEST(NodeHeartbeat, RanksWithoutHeartbeatsAreLeftOut) {
  NodeHeartbeat first({.rank = 0, .node = 0, .nodes = 2, .listens = true, .host = "a"});
  NodeHeartbeat second({.rank = 1, .node = 1, .nodes = 2, .listens = true, .host = "b"});
  for (const char* missing : {"", "1 0 0\nb\n", "what", "1 70000 0\nb\n127.0.0.1\n", "1 9 0\nb\nno address\n"}) {
    first.set_addresses({first.address_text(), missing});
    first.send_heartbeat({"rank 0: computing step 7"});
    first.send_shutdown();
  }
  second.set_addresses({"", second.address_text()});  // rank 0's address text with the key is missing
  second.send_heartbeat({"rank 1: computing step 7"});
  second.listen(kSecond);
  EXPECT_EQ(second.silent(0), "");
}

/// The watchdog's thread sends heartbeats while the rank does other work, until end_heartbeat().
TEST(WatchdogHandler, SendsOnTheWatchdogsThreadUntilTheEnd) {
  auto ring = nodes(2);
  WatchdogHandler end(1000, 0, std::nullopt);
  end.start_heartbeat(std::move(ring[0]), 1);
  Watchdog watchdog(
      1, [](const std::string&) {}, [&](const Watchdog::Look& found) { end.look(found); });
  watchdog.report_after(0);
  watchdog.pause("computing step 7");
  hears(*ring[1], kSecond, "no word from host a (rank 0) for 0 s: ");
  hears(*ring[1], kSecond, "; its last word: rank 0: computing step 7");
  end.end_heartbeat();
  for (int i = 0; i < 200; ++i) {  // 2 s, in which two heartbeats would be sent
    ring[1]->listen(kSecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(ring[1]->silent(0), "");
  end.end_heartbeat();
}

}  // namespace
}  // namespace lockstep::comm::detail
