#include <lockstep/comm/gloo/rendezvous.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include <lockstep/comm/gloo/detail/tcp.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::comm {

namespace {

using detail::Clock;
using detail::Descriptor;

constexpr std::string_view kMagic = "lockstep";
constexpr std::string_view kAnswers = "LOCKSTEP";  ///< rank 0's: no rank takes what it said itself for an answer
constexpr std::uint32_t kVersion = 1;              ///< of everything below that travels
constexpr int kNoRank = -1;
constexpr int kPrinted = 1;                       ///< the code of a refusal that rank 0 reports too
constexpr std::chrono::milliseconds kAgain{100};  ///< between two attempts to connect
constexpr std::chrono::seconds kHello{5};         ///< for a connection to say who it is
constexpr std::chrono::seconds kSend{10};         ///< for a rank to take a message; a stopped one has room for many
constexpr std::chrono::seconds kTold{2};          ///< for others to be told of an abort
constexpr std::chrono::seconds kVerdict{5};       ///< for rank 0's verdict, beyond its time
constexpr std::size_t kMostStrangers = 64;        ///< connections that have not said who they are
constexpr std::size_t kMostText = 4096;

/// A stranger's text, as errors may show it on a terminal.
std::string shown(std::string_view text) {
  std::string result(text);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

/// The first message of a rank. Numbers are as this machine has them: a rank of another byte order has another version.
struct Hello {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint64_t job = 0;
  std::array<char, 64> host{};  ///< ends with a zero
};
static_assert(sizeof(Hello) == 96);

/// Rank 0's first message.
struct Answer {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t left_s = 0;  ///< of rank 0's time, rounded up
};
static_assert(sizeof(Answer) == 16);

enum class Kind : std::uint32_t {
  met = 1,   ///< from rank 0: all ranks have come
  refused,   ///< from rank 0: the ranks cannot meet; the text says why
  gather,    ///< to rank 0: this rank's text
  gathered,  ///< from rank 0: length and bytes of every rank's text
  bye,       ///< to rank 0: finish()
  end,       ///< from rank 0: all have said bye
  lost,      ///< from rank 0: the text says who
  abort,     ///< to rank 0, and from it to all: rank and code
};

struct Header {
  Kind kind = Kind::met;
  std::int32_t rank = kNoRank;
  std::int32_t code = 0;
  std::uint32_t none = 0;
  std::uint64_t bytes = 0;  ///< that follow
};
static_assert(sizeof(Header) == 24);

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// The T at the front of `in`; nothing while it has not come as a whole.
template <class T>
std::optional<T> front_of(std::string_view in) {
  if (in.size() < sizeof(T)) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  return value;
}

/// front_of(), and takes it out of `in`.
template <class T>
std::optional<T> take(std::string& in) {
  const std::optional<T> value = front_of<T>(in);
  in.erase(0, value ? sizeof(T) : 0);
  return value;
}

struct Message {
  Header header{};
  std::string text{};
};

std::string message(Kind kind, std::string_view text = {}, int rank = kNoRank, int code = 0) {
  const Header header{.kind = kind, .rank = rank, .code = code, .bytes = text.size()};
  return std::string(bytes_of(header)).append(text);
}

/// What has come from one end of a connection.
class Inbox {
 public:
  explicit Inbox(std::size_t most) : most_(most) {}
  std::string bytes;

  /// The next message, or nothing yet; `broken` for one that is larger than any may be.
  [[nodiscard]] std::optional<Message> next(bool& broken) {
    const std::optional<Header> header = front_of<Header>(bytes);
    broken = header && header->bytes > most_;
    if (!header || broken || bytes.size() < sizeof(Header) + header->bytes) {
      return std::nullopt;
    }
    Message found{.header = *header, .text = bytes.substr(sizeof(Header), header->bytes)};
    bytes.erase(0, sizeof(Header) + found.header.bytes);
    return found;
  }

 private:
  std::size_t most_;
};

std::string packed(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    all.append(bytes_of(std::uint64_t{text.size()})).append(text);
  }
  return all;
}

/// packed() again; nothing when it is not that of so many texts.
std::optional<std::vector<std::string>> unpacked(std::string_view all, int size) {
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) {
    const std::optional<std::uint64_t> length = front_of<std::uint64_t>(all);
    if (!length || *length > all.size() - sizeof *length) {
      return std::nullopt;
    }
    texts.emplace_back(all.substr(sizeof *length, *length));
    all.remove_prefix(sizeof *length + *length);
  }
  return all.empty() ? std::optional(std::move(texts)) : std::nullopt;
}

std::string host_name() {
  std::array<char, 64> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// "rank 2", "ranks 2, 3", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more".
std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    text += concat(i == 0 ? " " : ", ", ranks[i]);
  }
  return ranks.size() <= kMost ? text : concat(text, " and ", ranks.size() - kMost, " more");
}

/// A connection as rank 0 has it.
struct Member {
  Descriptor socket{};
  Inbox inbox{Rendezvous::kMostBytes};
  Clock::time_point since{};
  std::string who{};  ///< "rank 1 (host a, pid 12)"
  std::string host{};
  int pid = 0;
  std::optional<std::string> text{};  ///< of a gather that is under way
  bool bye = false;
};

void check(const RendezvousOptions& o) {
  require<UsageError>(o.size >= 1 && o.rank >= 0 && o.rank < o.size, "rendezvous: rank ", o.rank, " of ", o.size,
                      ", expected 0 <= rank < size");
  require<UsageError>(o.size == 1 || !o.host.empty(), "rendezvous: no host, expected that of rank 0");
  require<UsageError>(o.size == 1 || (o.port >= 1 && o.port <= 65535), "rendezvous: port is ", o.port,
                      ", expected 1 to 65535");
  require<UsageError>(o.timeout_s > 0 && o.timeout_s <= 1e6, "rendezvous: timeout_s is ", o.timeout_s,
                      ", expected above 0 and at most 1e6");
  require<UsageError>(o.word_after_s >= 0 && o.word_after_s <= 1e6, "rendezvous: word_after_s is ", o.word_after_s,
                      ", expected 0 to 1e6");
}

}  // namespace

/// Shared: what the caller's threads and the watching thread both use is under `mutex`. Only the watching thread reads
/// sockets, and on rank 0 only it writes.
struct Rendezvous::Impl {
  explicit Impl(const RendezvousOptions& o) : options(o), started(Clock::now()) {}

  const RendezvousOptions options;
  const Clock::time_point started;
  std::string address;
  detail::Wake wake;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool met = false;
  std::string refused;                             ///< why the ranks cannot meet; or empty
  std::string lost;                                ///< who ended too early; or empty
  bool ended = false;                              ///< all ranks have called finish()
  bool aborted = false;                            ///< the others know of this rank's abort()
  std::optional<std::vector<std::string>> answer;  ///< of a gather
  // Rank 0's requests to its thread.
  std::optional<std::string> own_text;
  bool own_bye = false;
  std::optional<int> own_abort;

  std::mutex callbacks_mutex;
  std::map<std::uint64_t, std::function<void()>> callbacks;
  std::uint64_t last_key = 0;
  bool gave_word = false;  ///< of the thread that meets

  // Rank 0.
  Descriptor listener;
  std::vector<Member> strangers;
  std::map<int, Member> members;  ///< by rank
  // Other ranks.
  Descriptor server;
  Inbox inbox{0};
  Clock::time_point verdict{};  ///< by when rank 0 has said whether all have met
  std::mutex send_mutex;

  std::thread thread;

  [[nodiscard]] std::string place() const {
    const bool v6 = options.host.find(':') != std::string::npos;
    return concat(v6 ? "[" : "", options.host, v6 ? "]:" : ":", options.port);
  }
  [[nodiscard]] std::string with_origin() const {
    return options.origin.empty() ? "" : concat(" (", options.origin, ")");
  }
  [[nodiscard]] std::uint64_t job() const { return std::hash<std::string>()(options.job); }
  [[nodiscard]] Clock::time_point after(double seconds) const {
    return started + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  [[nodiscard]] Clock::time_point deadline() const { return after(options.timeout_s); }
  /// When a rank says for whom it waits; the deadline where it never does.
  [[nodiscard]] Clock::time_point word() const {
    return std::min(options.on_wait && !gave_word ? after(options.word_after_s) : deadline(), deadline());
  }
  /// Says it, once that time has come.
  template <class Text>
  void give_word(Text&& whom) {
    if (options.on_wait && !gave_word && Clock::now() >= after(options.word_after_s)) {
      gave_word = true;
      const auto left = std::chrono::ceil<std::chrono::seconds>(deadline() - Clock::now()).count();
      options.on_wait(concat("waiting for ", whom(), ", ", std::max<std::int64_t>(left, 0), " s more", with_origin()));
    }
  }

  template <class Change>
  void change(Change&& what) {
    const std::lock_guard lock(mutex);
    what();
    changed.notify_all();
  }

  void tell_lost(const std::string& text) {
    bool first = false;
    change([&] {
      first = lost.empty() && !ended;
      lost = first ? text : lost;
    });
    const std::lock_guard lock(callbacks_mutex);
    if (first) {
      for (const auto& [key, callback] : std::exchange(callbacks, {})) {
        callback();
      }
    }
  }

  void heard_abort(int rank, int code) {
    if (rank == options.rank) {
      change([&] { aborted = true; });
    } else if (options.on_abort) {
      options.on_abort(rank, code);
    } else {
      tell_lost(concat("rank ", rank, " gave up with code ", code));
    }
  }

  // ---- rank 0

  void send_to(Member& member, const std::string& text) {
    if (member.socket.is_open() && !detail::send_all(member.socket.get(), text, Clock::now() + kSend)) {
      member_gone(member);
    }
  }

  /// To a connection that is no member yet, so that nobody is lost with it.
  static void tell_stranger(Member& stranger, std::string_view text) {
    static_cast<void>(detail::send_all(stranger.socket.get(), text, Clock::now() + kSend));
  }

  void send_to_all(const std::string& text) {
    for (auto& [rank, member] : members) {
      send_to(member, text);
    }
  }

  void member_gone(Member& member) {
    member.socket.reset();
    const std::string text = concat(member.who, " has ended");
    if (!met) {
      refuse_all(concat(text, " before all ranks came", with_origin()));
      return;
    }
    bool tell = false;
    change([&] { tell = lost.empty() && !ended; });
    if (!member.bye && tell) {
      tell_lost(text);
      send_to_all(message(Kind::lost, text));
    }
  }

  /// Ends the meeting; only the first reason counts.
  void refuse_all(const std::string& text) {
    bool first = false;
    change([&] {
      first = refused.empty();
      refused = first ? text : refused;
    });
    if (first) {
      send_to_all(message(Kind::refused, text, 0, kPrinted));
    }
  }

  /// Takes a stranger that has said who it is, or turns it away. False: it is done with.
  bool welcome(Member& stranger) {
    const std::optional<Hello> hello = take<Hello>(stranger.inbox.bytes);
    if (!hello) {
      return stranger.inbox.bytes.size() <= sizeof(Hello);
    }
    if (std::string_view(hello->magic.data(), hello->magic.size()) != kMagic) {
      return false;
    }
    const auto left = std::chrono::ceil<std::chrono::seconds>(deadline() - Clock::now()).count();
    Answer greeting{.version = kVersion, .left_s = static_cast<std::uint32_t>(std::max<std::int64_t>(left, 0))};
    std::copy(kAnswers.begin(), kAnswers.end(), greeting.magic.begin());
    tell_stranger(stranger, bytes_of(greeting));
    const std::string host = shown({hello->host.data(), ::strnlen(hello->host.data(), hello->host.size() - 1)});
    stranger.who = concat("rank ", hello->rank, " (host ", host, ", pid ", hello->pid, ")");
    stranger.host = host;
    stranger.pid = hello->pid;
    const auto fail = [&](const std::string& text) {
      tell_stranger(stranger, message(Kind::refused, text, 0, kPrinted));
      refuse_all(text);
      return false;
    };
    if (hello->job != job()) {  // this job goes on; every version says its job here
      tell_stranger(stranger, message(Kind::refused, concat(place(), " is where ranks of another job meet")));
      return false;
    }
    if (hello->version != kVersion) {
      return fail(concat("ranks of different versions of lockstep: ", stranger.who, " has version ", hello->version,
                         " of the rendezvous, rank 0 has ", kVersion));
    }
    if (hello->size != options.size || hello->rank < 1 || hello->rank >= options.size) {
      return fail(concat("the ranks do not agree: ", stranger.who, " says that there are ", hello->size,
                         " ranks, rank 0 says ", options.size));
    }
    if (const auto there = members.find(hello->rank); there != members.end() && there->second.socket.is_open()) {
      return fail(concat("two processes are rank ", hello->rank, ": pid ", there->second.pid, " on host ",
                         there->second.host, " and pid ", hello->pid, " on host ", host));
    }
    const std::string own = detail::own_address(stranger.socket.get());
    // A host may have its own name at 127.0.1.1, which ranks of other hosts do not reach.
    const bool of_another_host = own != detail::peer_address(stranger.socket.get());
    if (address.empty() || (!detail::is_loopback(own) && (of_another_host || detail::is_loopback(address)))) {
      address = own;
    }
    members[hello->rank] = std::move(stranger);
    if (std::count_if(members.begin(), members.end(), [](auto& m) { return m.second.socket.is_open(); }) ==
        options.size - 1) {
      listener.reset();
      change([&] { met = true; });
      send_to_all(message(Kind::met));
    }
    return false;
  }

  /// The ranks that have not come.
  [[nodiscard]] std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int r = 1; r < options.size; ++r) {
      const auto found = members.find(r);
      if (found == members.end() || !found->second.socket.is_open()) {
        missing.push_back(r);
      }
    }
    return missing;
  }

  void check_meeting() {
    if (met || !refused.empty()) {
      return;
    }
    if (Clock::now() < deadline()) {
      give_word([&] { return concat(names_of(missing_ranks()), " of ", options.size, " at ", place()); });
      return;
    }
    const std::vector<int> missing = missing_ranks();
    refuse_all(concat(names_of(missing), " of ", options.size, missing.size() == 1 ? " has" : " have",
                      " not come to rank 0 at ", place(), " within ", options.timeout_s, " s", with_origin()));
  }

  void heard_member(int rank, Member& member) {
    if (!detail::receive_more(member.socket.get(), member.inbox.bytes)) {
      member_gone(member);
      return;
    }
    bool broken = false;
    while (const std::optional<Message> said = member.inbox.next(broken)) {
      if (said->header.kind == Kind::gather) {
        member.text = said->text;
      } else if (said->header.kind == Kind::bye) {
        member.bye = true;
      } else if (said->header.kind == Kind::abort) {
        send_to_all(message(Kind::abort, {}, rank, said->header.code));
        heard_abort(rank, said->header.code);
      } else {
        broken = true;
        break;
      }
    }
    if (broken) {
      member_gone(member);
    }
  }

  /// What rank 0's callers asked for, and what is complete now.
  void answer_all(std::optional<std::string>& text, bool& bye) {
    std::optional<int> code;
    change([&] {
      if (own_text) {
        text = std::exchange(own_text, std::nullopt);
      }
      bye = bye || own_bye;
      code = std::exchange(own_abort, std::nullopt);
    });
    if (code) {
      send_to_all(message(Kind::abort, {}, 0, *code));
      heard_abort(0, *code);
    }
    const auto every = [&](auto&& has) {
      return std::all_of(members.begin(), members.end(), [&](auto& entry) { return has(entry.second); });
    };
    if (text && every([](const Member& m) { return m.text.has_value(); })) {
      std::vector<std::string> texts{*std::exchange(text, std::nullopt)};
      for (auto& [rank, member] : members) {
        texts.push_back(*std::exchange(member.text, std::nullopt));
      }
      send_to_all(message(Kind::gathered, packed(texts)));
      change([&] { answer = std::move(texts); });
    }
    if (bye && every([](const Member& m) { return m.bye; })) {
      send_to_all(message(Kind::end));
      change([&] { ended = true; });
    }
  }

  void serve() {
    std::optional<std::string> text;
    bool bye = false;
    for (;;) {
      std::vector<pollfd> waiting{{.fd = wake.descriptor(), .events = POLLIN, .revents = 0},
                                  {.fd = listener.get(), .events = POLLIN, .revents = 0}};
      std::vector<int> ranks;
      for (auto& [rank, member] : members) {
        waiting.push_back({.fd = member.socket.get(), .events = POLLIN, .revents = 0});
        ranks.push_back(rank);
      }
      for (const Member& stranger : strangers) {
        waiting.push_back({.fd = stranger.socket.get(), .events = POLLIN, .revents = 0});
      }
      const std::size_t known = ranks.size();
      const std::size_t unknown = strangers.size();
      ::poll(waiting.data(), waiting.size(), met ? -1 : 100);
      wake.take();
      {
        const std::lock_guard lock(mutex);
        if (stop) {
          return;
        }
      }
      for (std::size_t i = 0; i < known; ++i) {
        if (Member& member = members[ranks[i]]; waiting[2 + i].revents != 0 && member.socket.is_open()) {
          heard_member(ranks[i], member);
        }
      }
      for (std::size_t i = 0; i < unknown; ++i) {
        Member& stranger = strangers[i];
        const bool heard = waiting[2 + known + i].revents != 0;
        const bool there = !heard || detail::receive_more(stranger.socket.get(), stranger.inbox.bytes);
        if (!there || (heard && !welcome(stranger)) || Clock::now() > stranger.since + kHello) {
          stranger.socket.reset();
        }
      }
      std::erase_if(strangers, [](const Member& stranger) { return !stranger.socket.is_open(); });
      if (waiting[1].revents != 0 && listener.is_open()) {
        Descriptor made = detail::accept_from(listener.get());
        if (made.is_open() && strangers.size() < kMostStrangers + static_cast<std::size_t>(options.size)) {
          strangers.push_back({.socket = std::move(made), .since = Clock::now()});
        }
      }
      check_meeting();
      if (met) {
        strangers.clear();
        answer_all(text, bye);
      }
      const std::lock_guard lock(mutex);
      if (ended) {
        return;
      }
    }
  }

  void meet_as_first() {
    detail::Listening listening = detail::listen_at(options.one_host ? options.host : "", options.port);
    require<RendezvousError>(listening.socket.is_open(), "rank 0 cannot listen at ",
                             options.one_host ? place() : concat("port ", options.port), ": ", listening.problem,
                             with_origin());
    listener = std::move(listening.socket);
    thread = helper_thread([this] { serve(); });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return met || !refused.empty(); });
    require<RendezvousError>(met, refused);
  }

  // ---- the other ranks

  /// On rank 0's host rank 0 is the first, and it is the one that is missing; on others the first says so.
  [[nodiscard]] bool speaks() const { return options.local_rank == 0 || options.rank == 1; }

  void give_word_of(const std::string& problem) {
    if (speaks()) {
      give_word([&] { return concat("rank 0 of ", options.size, " at ", place(), " (", problem, ")"); });
    }
  }

  /// wait_readable() until the deadline, with a word in between.
  bool wait_for_answer(int socket, const std::string& problem) {
    if (detail::wait_readable(socket, word())) {
      return true;
    }
    give_word_of(problem);
    return detail::wait_readable(socket, deadline());
  }

  /// Connects until rank 0 answers. Throws when it cannot.
  void call() {
    Hello hello{.version = kVersion, .rank = options.rank, .size = options.size, .pid = ::getpid(), .job = job()};
    std::copy(kMagic.begin(), kMagic.end(), hello.magic.begin());
    const std::string name = host_name();
    std::copy_n(name.begin(), std::min(name.size(), hello.host.size() - 1), hello.host.begin());
    std::string problem;
    do {
      detail::Connected made = detail::connect_to(options.host, options.port, deadline());
      problem = made.problem;
      require<RendezvousError>(!made.hopeless, "rank 0's host '", options.host, "': ", problem, with_origin());
      if (made.socket.is_open()) {
        problem = "connected, but nothing was said";
        std::string& in = inbox.bytes;
        in.clear();
        bool there = detail::send_all(made.socket.get(), bytes_of(hello), deadline());
        while (there && in.size() < sizeof(Answer) && wait_for_answer(made.socket.get(), problem)) {
          there = detail::receive_more(made.socket.get(), in);
          require<RendezvousError>(kAnswers.starts_with(std::string_view(in).substr(0, kAnswers.size())), place(),
                                   " answers, but is not rank 0 of lockstep", with_origin());
        }
        if (const std::optional<Answer> answered = take<Answer>(in)) {
          verdict = Clock::now() + std::chrono::seconds(answered->left_s) + kVerdict;
          address = detail::own_address(made.socket.get());
          server = std::move(made.socket);
          return;
        }
      }
      give_word_of(problem);
      std::this_thread::sleep_for(kAgain);
    } while (Clock::now() < deadline());
    throw RendezvousError(concat("rank 0 of ", options.size, " does not answer at ", place(), " within ",
                                 options.timeout_s, " s: ", problem, with_origin()));
  }

  void meet_as_other() {
    inbox = Inbox((Rendezvous::kMostBytes + sizeof(std::uint64_t)) * static_cast<std::size_t>(options.size));
    call();
    for (;;) {
      bool broken = false;
      if (const std::optional<Message> said = inbox.next(broken)) {
        require<RendezvousError>(said->header.kind == Kind::met || said->header.kind == Kind::refused, place(),
                                 " says what rank 0 never says");
        if (said->header.kind == Kind::refused) {
          throw RendezvousError(shown(said->text.substr(0, kMostText)), said->header.code == kPrinted);
        }
        break;
      }
      const bool heard =
          !broken && detail::wait_readable(server.get(), verdict) && detail::receive_more(server.get(), inbox.bytes);
      require<RendezvousError>(heard, "rank 0 at ", place(), " has ended, or says nothing, before all ranks came",
                               with_origin());
    }
    met = true;
    thread = helper_thread([this] { watch(); });
  }

  void heard_first(const Message& said) {
    switch (said.header.kind) {
      case Kind::gathered: {
        std::optional<std::vector<std::string>> texts = unpacked(said.text, options.size);
        if (!texts) {
          tell_lost("rank 0 sent what is no answer");
        } else {
          change([&] { answer = std::move(texts); });
        }
        break;
      }
      case Kind::lost:
        tell_lost(shown(said.text.substr(0, kMostText)));
        break;
      case Kind::abort:
        heard_abort(said.header.rank, said.header.code);
        break;
      case Kind::end:
        change([&] { ended = true; });
        break;
      default:
        tell_lost("rank 0 sent what it never sends");
    }
  }

  void watch() {
    bool open = true;
    for (;;) {
      bool broken = false;
      while (const std::optional<Message> said = inbox.next(broken)) {
        heard_first(*said);
      }
      if (broken) {
        open = false;
      }
      if (!open) {
        tell_lost(concat("rank 0 (", place(), ") has ended"));
      }
      {
        const std::lock_guard lock(mutex);
        if (stop || ended) {
          return;
        }
      }
      std::array<pollfd, 2> waiting{{{.fd = wake.descriptor(), .events = POLLIN, .revents = 0},
                                     {.fd = open ? server.get() : -1, .events = POLLIN, .revents = 0}}};
      ::poll(waiting.data(), waiting.size(), -1);
      wake.take();
      open = open && (waiting[1].revents == 0 || detail::receive_more(server.get(), inbox.bytes));
    }
  }

  // ---- both

  /// Tells rank 0, or rank 0's own thread by `request`.
  template <class Request>
  void say(const std::string& text, Request&& request) {
    if (options.rank == 0) {
      change(request);
      wake.give();
      return;
    }
    const std::lock_guard lock(send_mutex);
    // A connection that is broken is noticed by the thread.
    static_cast<void>(detail::send_all(server.get(), text, Clock::now() + kSend));
  }
};

Rendezvous::Rendezvous(const RendezvousOptions& options) : impl_(std::make_unique<Impl>(options)) {
  check(options);
  if (options.size == 1) {
    impl_->met = true;
    return;
  }
  try {
    if (options.rank == 0) {
      impl_->meet_as_first();
    } else {
      impl_->meet_as_other();
    }
  } catch (...) {
    impl_->change([&] { impl_->stop = true; });
    impl_->wake.give();
    if (impl_->thread.joinable()) {
      impl_->thread.join();
    }
    throw;
  }
}

Rendezvous::~Rendezvous() {
  impl_->change([&] { impl_->stop = true; });
  impl_->wake.give();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

int Rendezvous::rank() const {
  return impl_->options.rank;
}

int Rendezvous::size() const {
  return impl_->options.size;
}

const std::string& Rendezvous::address() const {
  return impl_->address;
}

std::vector<std::string> Rendezvous::all_gather(const std::string& text) {
  require<UsageError>(text.size() <= kMostBytes, "rendezvous: a text of ", text.size(), " bytes, expected at most ",
                      kMostBytes);
  if (size() == 1) {
    return {text};
  }
  impl_->say(message(Kind::gather, text), [&] { impl_->own_text = text; });
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return impl_->answer || !impl_->lost.empty(); });
  require<PeerError>(impl_->answer.has_value(), impl_->lost);
  return *std::exchange(impl_->answer, std::nullopt);
}

std::string Rendezvous::why_lost(double wait_s) const {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait_for(lock, std::chrono::duration<double>(wait_s), [&] { return !impl_->lost.empty(); });
  return impl_->lost;
}

std::uint64_t Rendezvous::when_lost(std::function<void()> lost) {
  const std::lock_guard lock(impl_->callbacks_mutex);
  const std::uint64_t key = ++impl_->last_key;
  if (why_lost().empty()) {
    impl_->callbacks.emplace(key, std::move(lost));
  } else {
    lost();
  }
  return key;
}

void Rendezvous::forget(std::uint64_t key) noexcept {
  const std::lock_guard lock(impl_->callbacks_mutex);
  impl_->callbacks.erase(key);
}

void Rendezvous::finish() {
  if (size() == 1) {
    return;
  }
  impl_->say(message(Kind::bye), [&] { impl_->own_bye = true; });
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return impl_->ended || !impl_->lost.empty(); });
  require<PeerError>(impl_->ended, impl_->lost);
}

void Rendezvous::abort(int code) noexcept {
  if (size() == 1) {
    return;
  }
  try {
    impl_->say(message(Kind::abort, {}, rank(), code), [&] { impl_->own_abort = code; });
    std::unique_lock lock(impl_->mutex);
    // A rank 0 that has ended tells nobody, but all have noticed that.
    impl_->changed.wait_for(lock, kTold, [&] { return impl_->aborted || impl_->ended; });
  } catch (...) {  // the process ends, which the others notice
  }
}

}  // namespace lockstep::comm
