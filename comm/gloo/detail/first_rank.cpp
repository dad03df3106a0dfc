#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <poll.h>

#include <lockstep/comm/gloo/detail/meeting.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::comm::detail::rendezvous {

namespace {

constexpr std::chrono::seconds kHello{5};  ///< time in which a new connection must send its Hello message
/// Limit for connections without a Hello message: kMostPending plus the number of ranks.
constexpr std::size_t kMostPending = 64;

/// Formats a list of ranks: "rank 2", "ranks 2, 3", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more".
std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    text += concat(i == 0 ? " " : ", ", ranks[i]);
  }
  return ranks.size() <= kMost ? text : concat(text, " and ", ranks.size() - kMost, " more");
}

/// A connection to rank 0, and the rank at its other end.
struct Member {
  Descriptor socket{};
  Inbox inbox{Rendezvous::kMostBytes};
  Clock::time_point since{};
  std::string who{};  ///< name for messages: "rank 1 (host a, pid 12)"
  std::string host{};
  int pid = 0;
  std::optional<std::string> text{};  ///< text that the rank sent for the gather under way
  bool shut_down = false;
};

class FirstRank final : public Meeting {
 public:
  using Meeting::Meeting;
  ~FirstRank() override { end(); }

  void meet() override {
    Listening listening = listen_at(options.one_host ? options.host : "", options.port);
    require<RendezvousError>(listening.socket.is_open(), "rank 0 cannot listen at ",
                             options.one_host ? place() : concat("port ", options.port), ": ", listening.problem,
                             "; expected a free port", with_origin());
    listener_ = std::move(listening.socket);
    members_.try_emplace(0);
    thread = helper_thread([this] { serve(); });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return met_ || !refused_.empty(); });
    require<RendezvousError>(met_, refused_);
  }

  /// Queues a message from rank 0 to itself. The watching thread handles the message.
  void send_to_rank_0(Kind kind, const std::string& text, int code) override {
    change([&] { own_messages_.push_back({.header = {.kind = kind, .code = code}, .text = text}); });
    wake.give();
  }

 private:
  void send_to(Member& member, const std::string& text) {
    if (member.socket.is_open() && !send_all(member.socket.get(), text, Clock::now() + kSend)) {
      member_gone(member);
    }
  }

  /// Sends `text` on a connection that does not belong to a rank yet. Ignores a failure, because the job loses no rank.
  static void send_to_pending(Member& pending, std::string_view text) {
    static_cast<void>(send_all(pending.socket.get(), text, Clock::now() + kSend));
  }

  void send_to_all(const std::string& text) {
    for (auto& [rank, member] : members_) {
      send_to(member, text);
    }
  }

  void member_gone(Member& member) {
    member.socket.reset();
    const std::string text = concat(member.who, " has ended");
    if (!met_) {
      refuse_all(concat(text, " before all ranks came", with_origin()));
      return;
    }
    bool tell = false;
    change([&] { tell = lost.empty() && !ended; });
    if (!member.shut_down && tell) {
      report_lost(text);
      send_to_all(message(Kind::lost, text));
    }
  }

  /// Ends the rendezvous with the error `text`, and sends `text` to all members. Only the first call has an effect.
  void refuse_all(const std::string& text) {
    bool first = false;
    change([&] {
      first = refused_.empty();
      refused_ = first ? text : refused_;
    });
    if (first) {
      send_to_all(message(Kind::refused, text, 0, kPrinted));
    }
  }

  /// Makes `pending` a member or refuses it, depending on its Hello message. Returns true if this message is not
  /// complete.
  bool handshake(Member& pending) {
    const std::optional<Hello> hello = take<Hello>(pending.inbox.bytes);
    if (!hello) {
      return pending.inbox.bytes.size() <= sizeof(Hello);
    }
    if (std::string_view(hello->magic.data(), hello->magic.size()) != kMagic) {
      return false;
    }
    const auto left = std::chrono::ceil<std::chrono::seconds>(deadline() - Clock::now()).count();
    Answer reply{.version = kVersion, .left_s = static_cast<std::uint32_t>(std::max<std::int64_t>(left, 0))};
    std::copy(kAnswers.begin(), kAnswers.end(), reply.magic.begin());
    send_to_pending(pending, bytes_of(reply));
    const std::string host = shown({hello->host.data(), ::strnlen(hello->host.data(), hello->host.size() - 1)});
    pending.who = concat("rank ", hello->rank, " (host ", host, ", pid ", hello->pid, ")");
    pending.host = host;
    pending.pid = hello->pid;
    const auto fail = [&](const std::string& text) {
      send_to_pending(pending, message(Kind::refused, text, 0, kPrinted));
      refuse_all(text);
      return false;
    };
    if (hello->job != job()) {  // `job` has the same offset in every version of Hello
      send_to_pending(pending, message(Kind::refused, concat(place(), " is where ranks of another job meet")));
      return false;
    }
    if (hello->version != kVersion) {
      return fail(concat("ranks of different versions of lockstep: ", pending.who, " has version ", hello->version,
                         " of the rendezvous, rank 0 has ", kVersion));
    }
    if (hello->size != options.size || hello->rank < 1 || hello->rank >= options.size) {
      return fail(concat("the ranks do not agree: ", pending.who, " says that there are ", hello->size,
                         " ranks, rank 0 says ", options.size));
    }
    if (const auto there = members_.find(hello->rank); there != members_.end() && there->second.socket.is_open()) {
      return fail(concat("two processes are rank ", hello->rank, ": pid ", there->second.pid, " on host ",
                         there->second.host, " and pid ", hello->pid, " on host ", host));
    }
    const std::string own = own_address(pending.socket.get());
    // A host may resolve its own name to 127.0.1.1, which ranks on other hosts cannot reach.
    const bool of_another_host = own != peer_address(pending.socket.get());
    if (address.empty() || (!is_loopback(own) && (of_another_host || is_loopback(address)))) {
      address = own;
    }
    members_[hello->rank] = std::move(pending);
    if (missing_ranks().empty()) {
      listener_.reset();
      change([&] { met_ = true; });
      send_to_all(message(Kind::met));
    }
    return false;
  }

  /// Returns the ranks that are not connected to rank 0.
  [[nodiscard]] std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int r = 1; r < options.size; ++r) {
      const auto found = members_.find(r);
      if (found == members_.end() || !found->second.socket.is_open()) {
        missing.push_back(r);
      }
    }
    return missing;
  }

  void check_meeting() {
    if (met_ || !refused_.empty()) {
      return;
    }
    if (Clock::now() < deadline()) {
      report_wait([&] { return concat(names_of(missing_ranks()), " of ", options.size, " at ", place()); });
      return;
    }
    const std::vector<int> missing = missing_ranks();
    refuse_all(concat(names_of(missing), " of ", options.size, missing.size() == 1 ? " has" : " have",
                      " not come to rank 0 at ", place(), " within ", options.timeout_s, " s", with_origin()));
  }

  void receive_from(int rank, Member& member) {
    bool broken = !receive_more(member.socket.get(), member.inbox.bytes);
    while (!broken) {
      const std::optional<Message> received = member.inbox.next(broken);
      if (!received) {
        break;
      }
      broken = !handle(rank, member, *received);
    }
    if (broken) {
      member_gone(member);
    }
  }

  /// Handles a message of a member. Returns false for a message that no rank may send to rank 0.
  bool handle(int rank, Member& member, const Message& received) {
    if (received.header.kind == Kind::gather) {
      member.text = received.text;
    } else if (received.header.kind == Kind::shutdown) {
      member.shut_down = true;
    } else if (received.header.kind == Kind::abort) {
      send_to_all(message(Kind::abort, {}, rank, received.header.code));
      received_abort(rank, received.header.code);
    } else {
      return false;
    }
    return true;
  }

  /// Handles the queued messages from rank 0 to itself. Then answers a gather or a shutdown that all ranks have sent.
  void answer_all() {
    std::vector<Message> own;
    change([&] { own.swap(own_messages_); });
    for (const Message& received : own) {
      handle(0, members_[0], received);
    }
    const auto every = [&](auto&& has) {
      return std::all_of(members_.begin(), members_.end(), [&](auto& entry) { return has(entry.second); });
    };
    if (every([](const Member& m) { return m.text.has_value(); })) {
      std::vector<std::string> texts;
      for (auto& [rank, member] : members_) {
        texts.push_back(*std::exchange(member.text, std::nullopt));
      }
      send_to_all(message(Kind::gathered, packed(texts)));
      change([&] { answer = std::move(texts); });
    }
    if (every([](const Member& m) { return m.shut_down; })) {
      send_to_all(message(Kind::end));
      change([&] { ended = true; });
    }
  }

  void serve() {
    for (;;) {
      std::vector<pollfd> waiting{{.fd = wake.descriptor(), .events = POLLIN, .revents = 0},
                                  {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      std::vector<int> ranks;
      for (auto& [rank, member] : members_) {
        waiting.push_back({.fd = member.socket.get(), .events = POLLIN, .revents = 0});
        ranks.push_back(rank);
      }
      for (const Member& pending : pending_) {
        waiting.push_back({.fd = pending.socket.get(), .events = POLLIN, .revents = 0});
      }
      const std::size_t known = ranks.size();
      const std::size_t unknown = pending_.size();
      ::poll(waiting.data(), waiting.size(), met_ ? -1 : 100);
      wake.take();
      {
        const std::lock_guard lock(mutex);
        if (stop) {
          return;
        }
      }
      for (std::size_t i = 0; i < known; ++i) {
        if (Member& member = members_[ranks[i]]; waiting[2 + i].revents != 0 && member.socket.is_open()) {
          receive_from(ranks[i], member);
        }
      }
      for (std::size_t i = 0; i < unknown; ++i) {
        Member& pending = pending_[i];
        const bool readable = waiting[2 + known + i].revents != 0;
        const bool there = !readable || receive_more(pending.socket.get(), pending.inbox.bytes);
        if (!there || (readable && !handshake(pending)) || Clock::now() > pending.since + kHello) {
          pending.socket.reset();
        }
      }
      std::erase_if(pending_, [](const Member& pending) { return !pending.socket.is_open(); });
      if (waiting[1].revents != 0 && listener_.is_open()) {
        Descriptor made = accept_from(listener_.get());
        if (made.is_open() && pending_.size() < kMostPending + static_cast<std::size_t>(options.size)) {
          pending_.push_back({.socket = std::move(made), .since = Clock::now()});
        }
      }
      check_meeting();
      if (met_) {
        pending_.clear();
        answer_all();
      }
      const std::lock_guard lock(mutex);
      if (ended) {
        return;
      }
    }
  }

  Descriptor listener_;
  std::vector<Member> pending_;
  std::map<int, Member> members_;  ///< members by rank; rank 0's own member has no connection
  // `mutex` guards the following three members.
  bool met_ = false;
  std::string refused_;                ///< reason why the ranks cannot meet; empty if there is none
  std::vector<Message> own_messages_;  ///< queued messages from rank 0 to itself
};

}  // namespace

std::unique_ptr<Meeting> make_first_rank(const RendezvousOptions& options) {
  return std::make_unique<FirstRank>(options);
}

}  // namespace lockstep::comm::detail::rendezvous
