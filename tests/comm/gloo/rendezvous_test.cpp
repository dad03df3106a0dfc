#include <lockstep/comm/gloo/rendezvous.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include <lockstep/comm/gloo/detail/tcp.hpp>

namespace lockstep::comm {
namespace {

using detail::Clock;
using std::chrono::milliseconds;

constexpr const char* kHere = "127.0.0.1";

int free_port() {
  const detail::Descriptor made(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(made.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(made.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

RendezvousOptions options(int rank, int size, int port, double timeout_s = 20) {
  return {.rank = rank,
          .size = size,
          .host = kHere,
          .port = port,
          .origin = "MASTER_ADDR=here",
          .one_host = true,
          .timeout_s = timeout_s};
}

/// The result of one rank: "" or the text of its error. The text begins with "told: " if the rank need not print it,
/// because another rank does.
struct Came {
  std::string text;
  double seconds = 0;
};

using Body = std::function<void(Rendezvous&)>;

Came come(const RendezvousOptions& as, const Body& body) {
  const auto begin = Clock::now();
  Came came;
  try {
    Rendezvous rendezvous(as);
    body(rendezvous);
  } catch (const RendezvousError& e) {
    EXPECT_EQ(e.code(), 2);
    came.text = (e.told() ? "told: " : "") + std::string(e.what());
  } catch (const PeerError& e) {
    came.text = std::string("peer: ") + e.what();
  }
  came.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return came;
}

/// Runs one thread for each of these ranks. Returns the ranks' results.
std::vector<Came> come_all(const std::vector<RendezvousOptions>& all, const Body& body) {
  std::vector<Came> came(all.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] { came[i] = come(all[i], body); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return came;
}

/// Waits until a process listens at the port, and connects to it without being a rank.
detail::Descriptor connect_soon(int port) {
  for (int i = 0; i < 200; ++i) {
    detail::Connected made = detail::connect_to(kHere, port, Clock::now() + milliseconds(1000));
    if (made.socket.is_open()) {
      return std::move(made.socket);
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  ADD_FAILURE() << "nobody listens at port " << port;
  return {};
}

/// The first message of a rank to rank 0. In these tests a socket that is no rank sends it.
struct Hello {
  char magic[8] = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};
  std::uint32_t version = 1;
  std::int32_t rank = 1, size = 2, pid = 7;
  std::uint64_t job = std::hash<std::string>()("");
  char host[64] = "old";
};

void send_hello(const detail::Descriptor& socket, const Hello& hello) {
  EXPECT_TRUE(detail::send_all(socket.get(), {reinterpret_cast<const char*>(&hello), sizeof hello},
                               Clock::now() + std::chrono::seconds(1)));
}

/// Returns an address of this machine that is not a loopback address, or "" if there is none.
std::string outer_address() {
  ifaddrs* all = nullptr;
  std::string found;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
      std::array<char, INET_ADDRSTRLEN> text{};
      if (at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_UP) != 0) {
        sockaddr_in v4{};
        std::memcpy(&v4, at->ifa_addr, sizeof v4);
        ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
        found = detail::is_loopback(text.data()) ? found : text.data();
      }
    }
    ::freeifaddrs(all);
  }
  return found;
}

TEST(Rendezvous, RanksMeetInAnyOrderAndExchangeTexts) {
  for (const int size : {1, 2, 3, 8}) {
    const int port = free_port();
    std::vector<RendezvousOptions> all;
    for (int r = 0; r < size; ++r) {
      all.push_back(options(size - 1 - r, size, port));  // rank 0 comes last
    }
    const auto came = come_all(all, [&](Rendezvous& meeting) {
      EXPECT_EQ(meeting.size(), size);
      EXPECT_EQ(meeting.address(), size == 1 ? "" : kHere);
      for (const std::size_t length : {0, 1, 1000, 300000}) {
        if (length * static_cast<std::size_t>(size) > Rendezvous::kMostBytes) {
          break;
        }
        const auto texts = meeting.all_gather(std::string(length * static_cast<std::size_t>(meeting.rank()), 'x'));
        ASSERT_EQ(static_cast<int>(texts.size()), size);
        for (std::size_t r = 0; r < texts.size(); ++r) {
          EXPECT_EQ(texts[r], std::string(length * r, 'x'));
        }
      }
      EXPECT_EQ(meeting.why_lost(), "");
      meeting.finish();
    });
    for (const Came& one : came) {
      EXPECT_EQ(one.text, "");
    }
  }
}

TEST(Rendezvous, ALateRankIsWaitedFor) {
  const int port = free_port();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(700));
    EXPECT_EQ(come(options(0, 2, port), [](Rendezvous& m) { m.finish(); }).text, "");
  });
  const Came early = come(options(1, 2, port), [](Rendezvous& m) { m.finish(); });
  late.join();
  EXPECT_EQ(early.text, "");
  EXPECT_GE(early.seconds, 0.6);
}

TEST(Rendezvous, RanksThatDoNotComeAreNamedByRankZeroInTime) {
  const int port = free_port();
  const auto came = come_all({options(0, 4, port, 1), options(2, 4, port, 1)}, [](Rendezvous&) { FAIL(); });
  const std::string text =
      concat("ranks 1, 3 of 4 have not come to rank 0 at 127.0.0.1:", port, " within 1 s (MASTER_ADDR=here)");
  EXPECT_EQ(came[0].text, text);
  EXPECT_EQ(came[1].text, "told: " + text);
  EXPECT_LT(came[0].seconds, 4);
  EXPECT_LT(came[1].seconds, 5);
}

TEST(Rendezvous, NobodyAnswers) {
  const int port = free_port();
  const Came came = come(options(1, 2, port, 1), [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(came.text, concat("rank 0 of 2 does not answer at 127.0.0.1:", port,
                              " within 1 s, expected it to run there: connection refused (MASTER_ADDR=here)"));
  EXPECT_LT(came.seconds, 5);
}

/// If ranks are missing after word_after_s, rank 0 must print one note with their numbers. If rank 0 itself is missing,
/// rank 1 must print the note.
TEST(Rendezvous, RanksSayForWhomTheyWait) {
  const int port = free_port();
  std::mutex mutex;
  std::vector<std::string> notes;
  const auto asked = [&](int rank, int local_rank, double word_after_s) {
    RendezvousOptions made = options(rank, 4, port, 1.2);
    made.local_rank = local_rank;
    made.word_after_s = word_after_s;
    made.on_wait = [&, rank](const std::string& text) {
      const std::lock_guard lock(mutex);
      notes.push_back(concat(rank, ": ", text));
    };
    return made;
  };
  (void)come_all({asked(0, 0, 0.3), asked(2, 2, 0.3)}, [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(notes, std::vector<std::string>{
                       concat("0: waiting for ranks 1, 3 of 4 at 127.0.0.1:", port, ", 1 s more (MASTER_ADDR=here)")});
  notes.clear();
  (void)come_all({asked(1, 1, 0.3), asked(2, 2, 0.3)}, [](Rendezvous&) { FAIL(); });  // same host: only rank 1 prints
  EXPECT_EQ(notes, std::vector<std::string>{concat("1: waiting for rank 0 of 4 at 127.0.0.1:", port,
                                                   " (connection refused), 1 s more (MASTER_ADDR=here)")});
  notes.clear();
  (void)come_all({asked(0, 0, 5)}, [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(notes, std::vector<std::string>{}) << "the control: the time is over before";
  const auto met =
      come_all({asked(0, 0, 0), asked(1, 1, 1), asked(2, 2, 1), asked(3, 3, 1)}, [](Rendezvous& all) { all.finish(); });
  EXPECT_EQ(met[0].text, "");
  EXPECT_LE(notes.size(), 1U);
  // A process accepts connections at the port but sends nothing. The note of rank 1 must say this.
  notes.clear();
  const detail::Listening silent = detail::listen_at(kHere, port);
  (void)come(asked(1, 1, 0.3), [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(notes, std::vector<std::string>{concat("1: waiting for rank 0 of 4 at 127.0.0.1:", port,
                                                   " (connected, but nothing was said), 1 s more (MASTER_ADDR=here)")});
}

TEST(Rendezvous, AHostWithoutAnAddress) {
  RendezvousOptions nowhere = options(1, 2, 4711, 1);
  nowhere.host = "no-such-host.invalid";  // no error yet: the name may get an address later, e.g. when a pod starts
  EXPECT_EQ(come(nowhere, [](Rendezvous&) { FAIL(); })
                .text.find("rank 0 of 2 does not answer at no-such-host.invalid:4711 within 1 s, expected it to run "
                           "there: the name has no address"),
            0U);
  nowhere.rank = 0;
  EXPECT_NE(come(nowhere, [](Rendezvous&) { FAIL(); }).text.find("the name has no address"), std::string::npos);
  RendezvousOptions no_name = options(1, 2, 4711, 20);
  no_name.host = "10.0.0.300";
  const Came came = come(no_name, [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(came.text.find("rank 0's host '10.0.0.300': the name has no address"), 0U) << came.text;
  EXPECT_LT(came.seconds, 10);
}

/// On Debian a host's own name has the address 127.0.1.1, so a rank on rank 0's host connects to a loopback address.
/// address() of rank 0 must still return an address that other hosts can reach.
TEST(Rendezvous, ALoopbackAddressIsNotThatOfRankZeroForOthers) {
  const std::string outer = outer_address();
  if (outer.empty()) {
    GTEST_SKIP() << "this machine has no address but loopback";
  }
  for (const int last : {1, 2}) {  // both orders of arrival
    const int port = free_port();
    std::vector<RendezvousOptions> all{options(0, 3, port), options(1, 3, port), options(2, 3, port)};
    all[1].host = "127.0.1.1";
    all[2].host = outer;
    std::vector<std::thread> threads;
    for (RendezvousOptions& one : all) {
      one.one_host = false;
      threads.emplace_back([&] {
        std::this_thread::sleep_for(milliseconds(one.rank == last ? 400 : 0));
        const Came came = come(one, [&](Rendezvous& m) {
          EXPECT_EQ(m.address(), m.rank() == 1 ? kHere : outer);
          m.finish();
        });
        EXPECT_EQ(came.text, "");
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

/// If no process listens at a port, the system may choose this same port as the caller's own port. Then the connection
/// reaches its own socket. connect_to() must refuse such a connection.
TEST(Rendezvous, NobodyAnswersItself) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto call = [&](const detail::Descriptor& made) {
    return ::connect(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  };
  const auto made_at = [&](int port) {
    detail::Descriptor made(::socket(AF_INET, SOCK_STREAM, 0));
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    EXPECT_TRUE(port == 0 || ::bind(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // closes at once, without a TIME_WAIT state
    EXPECT_EQ(::setsockopt(made.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    return made;
  };
  int port = free_port();
  while (port % 2 != 0) {  // searches for an even port, because connect() mostly chooses even ports
    port = detail::listen_at(kHere, port - 1).socket.is_open() ? port - 1 : free_port();
  }
  {
    const detail::Descriptor itself = made_at(port);
    ASSERT_TRUE(call(itself));
    EXPECT_TRUE(detail::is_self_connection(itself.get()));
  }
  // Control: plain connect() calls do reach themselves, though rarely.
  constexpr int kMost = 100000;
  int calls = 0;
  for (bool reached = false; !reached && calls < kMost; ++calls) {
    const detail::Descriptor plain = made_at(0);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    reached = call(plain);
  }
  if (calls == kMost) {
    GTEST_SKIP() << "no call to port " << port << " came from there";
  }
  for (int i = 0; i < 30000; ++i) {
    ASSERT_FALSE(detail::connect_to(kHere, port, Clock::now() + milliseconds(1000)).socket.is_open()) << i;
  }
  const detail::Listening other = detail::listen_at(kHere, port);
  EXPECT_TRUE(other.socket.is_open()) << other.problem;
  EXPECT_FALSE(detail::is_self_connection(connect_soon(port).get()));
}

TEST(Rendezvous, APortThatIsTaken) {
  const int port = free_port();
  const detail::Listening other = detail::listen_at(kHere, port);
  ASSERT_TRUE(other.socket.is_open());
  const Came came = come(options(0, 2, port), [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(came.text, concat("rank 0 cannot listen at 127.0.0.1:", port,
                              ": address already in use; expected a free port (MASTER_ADDR=here)"));
  EXPECT_LT(came.seconds, 2);
}

TEST(Rendezvous, SomethingElseAnswers) {
  for (const std::string_view answer : {"HTTP/1.1 400 Bad Request\r\n", "lockstep, another rank"}) {
    const int port = free_port();
    const detail::Listening other = detail::listen_at(kHere, port);
    std::thread server([&] {
      EXPECT_TRUE(detail::wait_readable(other.socket.get(), Clock::now() + std::chrono::seconds(5)));
      const detail::Descriptor made = detail::accept_from(other.socket.get());
      EXPECT_TRUE(detail::send_all(made.get(), answer, Clock::now() + std::chrono::seconds(1)));
      std::this_thread::sleep_for(milliseconds(300));
    });
    const Came came = come(options(1, 2, port, 5), [](Rendezvous&) { FAIL(); });
    server.join();
    EXPECT_EQ(came.text,
              concat("127.0.0.1:", port, " is another program, expected rank 0 of lockstep there (MASTER_ADDR=here)"));
    EXPECT_LT(came.seconds, 3);
  }
}

TEST(Rendezvous, PendingConnectionsDoNotHinderTheJob) {
  const int port = free_port();
  std::thread first([&] { EXPECT_EQ(come(options(0, 2, port), [](Rendezvous& m) { m.finish(); }).text, ""); });
  const detail::Descriptor silent = connect_soon(port);
  const detail::Descriptor loud = connect_soon(port);
  EXPECT_TRUE(detail::send_all(loud.get(), std::string(5000, 'z'), Clock::now() + std::chrono::seconds(1)));
  const detail::Descriptor half = connect_soon(port);
  EXPECT_TRUE(detail::send_all(half.get(), "lockstep", Clock::now() + std::chrono::seconds(1)));
  connect_soon(port).reset();
  RendezvousOptions of_another_job = options(1, 2, port);
  of_another_job.job = "other";
  EXPECT_EQ(come(of_another_job, [](Rendezvous&) { FAIL(); }).text,
            concat("127.0.0.1:", port, " is where ranks of another job meet"));
  EXPECT_EQ(come(options(1, 2, port), [](Rendezvous& m) { m.finish(); }).text, "");
  first.join();
}

TEST(Rendezvous, AnotherVersion) {
  const int port = free_port();
  std::string text;
  std::thread first([&] { text = come(options(0, 2, port), [](Rendezvous&) { FAIL(); }).text; });
  Hello hello;
  hello.version = 99;
  std::strcpy(hello.host, "ol\x1b[d");
  hello.job += 1;
  const detail::Descriptor of_another_job = connect_soon(port);
  send_hello(of_another_job, hello);
  std::string answer;
  EXPECT_TRUE(detail::wait_readable(of_another_job.get(), Clock::now() + std::chrono::seconds(5)));
  EXPECT_TRUE(detail::receive_more(of_another_job.get(), answer));
  std::this_thread::sleep_for(milliseconds(100));
  hello.job -= 1;
  hello.pid = 8;
  const detail::Descriptor other = connect_soon(port);
  send_hello(other, hello);
  first.join();
  EXPECT_EQ(
      text,
      "ranks of different versions of lockstep: rank 1 (host ol?[d, pid 8) has version 99 of the rendezvous, rank "
      "0 has 1");
}

TEST(Rendezvous, ARankThatEndsBeforeAllCameIsNamedAtOnce) {
  const int port = free_port();
  std::vector<Came> came;
  std::thread others([&] { came = come_all({options(0, 4, port), options(2, 4, port)}, [](Rendezvous&) { FAIL(); }); });
  detail::Descriptor ends = connect_soon(port);
  Hello hello;
  hello.size = 4;
  send_hello(ends, hello);
  std::string answer;
  EXPECT_TRUE(detail::wait_readable(ends.get(), Clock::now() + std::chrono::seconds(5)));
  EXPECT_TRUE(detail::receive_more(ends.get(), answer));
  std::this_thread::sleep_for(milliseconds(500));  // gives rank 2 time to connect
  ends.reset();
  others.join();
  const std::string text = "rank 1 (host old, pid 7) has ended before all ranks came (MASTER_ADDR=here)";
  EXPECT_EQ(came[0].text, text);
  EXPECT_EQ(came[1].text, "told: " + text);
  EXPECT_LT(came[0].seconds, 5);
  EXPECT_LT(came[1].seconds, 5);
}

TEST(Rendezvous, RanksThatDoNotAgree) {
  {
    const int port = free_port();
    const auto came = come_all({options(0, 2, port), options(1, 3, port)}, [](Rendezvous&) { FAIL(); });
    EXPECT_NE(came[0].text.find("says that there are 3 ranks, rank 0 says 2"), std::string::npos) << came[0].text;
    EXPECT_EQ(came[1].text, "told: " + came[0].text);
  }
  const int port = free_port();
  const auto twice =
      come_all({options(0, 3, port), options(1, 3, port), options(1, 3, port)}, [](Rendezvous&) { FAIL(); });
  EXPECT_EQ(twice[0].text.find("two processes are rank 1: pid "), 0U) << twice[0].text;
  EXPECT_EQ(twice[1].text, "told: " + twice[0].text);
  EXPECT_EQ(twice[2].text, "told: " + twice[0].text);
}

TEST(Rendezvous, ARankThatEndsIsKnownToAll) {
  for (const int leaves : {0, 1}) {
    const int port = free_port();
    std::atomic<int> calls = 0;
    const auto came = come_all({options(0, 3, port), options(1, 3, port), options(2, 3, port)}, [&](Rendezvous& m) {
      const auto key = m.when_lost([&] { ++calls; });
      const auto forgotten = m.when_lost([] { FAIL(); });
      m.forget(forgotten);
      static_cast<void>(m.all_gather("all wait for it"));  // no rank leaves before all ranks are here
      if (m.rank() == leaves) {
        m.forget(key);
        return;
      }
      const std::string who = m.why_lost(10);
      EXPECT_EQ(who.find(concat("rank ", leaves, " (")), 0U) << who;
      EXPECT_NE(who.find(") has ended"), std::string::npos) << who;
      bool called = false;
      static_cast<void>(m.when_lost([&] { called = true; }));
      EXPECT_TRUE(called);
      if (m.rank() == 2) {
        static_cast<void>(m.all_gather("who is here?"));
      } else {
        m.finish();
      }
    });
    EXPECT_EQ(calls, 2);
    for (int r = 0; r < 3; ++r) {
      const Came& one = came[static_cast<std::size_t>(r)];
      EXPECT_EQ(one.text.find(concat("peer: rank ", leaves)), r == leaves ? std::string::npos : 0U) << one.text;
      EXPECT_LT(one.seconds, 5);
    }
  }
}

TEST(Rendezvous, AnAbortReachesAll) {
  for (const int aborts : {0, 2}) {
    const int port = free_port();
    std::atomic<int> heard = 0;
    std::vector<RendezvousOptions> all{options(0, 3, port), options(1, 3, port), options(2, 3, port)};
    all[1].on_abort = [&](int rank, int code) {
      EXPECT_EQ(rank, aborts);
      EXPECT_EQ(code, 76);
      heard = 1;
    };
    const auto came = come_all(all, [&](Rendezvous& m) {
      static_cast<void>(m.all_gather(""));
      if (m.rank() == aborts) {
        const auto begin = Clock::now();
        m.abort(76);
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
        return;
      }
      while (m.rank() == 1 && heard == 0) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      if (m.rank() != 1) {
        EXPECT_EQ(m.why_lost(10), concat("rank ", aborts, " gave up with code 76"));
      }
    });
    for (const Came& one : came) {
      EXPECT_EQ(one.text, "");
    }
  }
}

TEST(Rendezvous, WhatRanksMayNotAskFor) {
  EXPECT_THROW(Rendezvous(options(2, 2, 1)), UsageError);
  EXPECT_THROW(Rendezvous(options(-1, 2, 1)), UsageError);
  EXPECT_THROW(Rendezvous(options(0, 0, 1)), UsageError);
  EXPECT_THROW(Rendezvous(options(0, 2, 0)), UsageError);
  EXPECT_THROW(Rendezvous(options(0, 2, 65536)), UsageError);
  EXPECT_THROW(Rendezvous(options(0, 2, 1, 0)), UsageError);
  RendezvousOptions nowhere = options(0, 2, 1);
  nowhere.host = "";
  EXPECT_THROW(Rendezvous{nowhere}, UsageError);
  Rendezvous alone(options(0, 1, 0));
  EXPECT_THROW((void)alone.all_gather(std::string(Rendezvous::kMostBytes + 1, 'x')), UsageError);
}

TEST(Rendezvous, OverIpv6) {
  const int port = free_port();
  std::vector<RendezvousOptions> all{options(0, 2, port, 5), options(1, 2, port, 5)};
  for (RendezvousOptions& one : all) {
    one.host = "::1";
  }
  if (!detail::listen_at("::1", free_port()).socket.is_open()) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  for (const bool one_host : {true, false}) {
    all[0].one_host = one_host;
    for (const Came& one : come_all(all, [](Rendezvous& m) {
           EXPECT_EQ(m.address(), "::1");
           m.finish();
         })) {
      EXPECT_EQ(one.text, "");
    }
  }
  // Without one_host, rank 0 listens at all addresses, with IPv6 sockets. The address of an IPv4 peer must still be
  // shown as IPv4.
  all[0].host = kHere;
  all[1].host = kHere;
  for (const Came& one : come_all(all, [](Rendezvous& m) {
         EXPECT_EQ(m.address(), kHere);
         m.finish();
       })) {
    EXPECT_EQ(one.text, "");
  }
}

}  // namespace
}  // namespace lockstep::comm
