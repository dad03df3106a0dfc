#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include <lockstep/comm/gloo/detail/meeting.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::comm::detail::rendezvous {

namespace {

constexpr std::chrono::milliseconds kAgain{100};  ///< pause between two attempts to connect
constexpr std::chrono::seconds kVerdict{5};       ///< time for rank 0's result, after its deadline

class OtherRank final : public Meeting {
 public:
  using Meeting::Meeting;
  ~OtherRank() override { end(); }

  void meet() override {
    inbox_ = Inbox((Rendezvous::kMostBytes + sizeof(std::uint64_t)) * static_cast<std::size_t>(options.size));
    call();
    for (;;) {
      bool broken = false;
      if (const std::optional<Message> said = inbox_.next(broken)) {
        require<RendezvousError>(said->header.kind == Kind::met || said->header.kind == Kind::refused, place(),
                                 " says what rank 0 never says");
        if (said->header.kind == Kind::refused) {
          throw RendezvousError(shown(said->text.substr(0, kMostText)), said->header.code == kPrinted);
        }
        break;
      }
      const bool heard = !broken && wait_readable(server_.get(), verdict_) && receive_more(server_.get(), inbox_.bytes);
      require<RendezvousError>(heard, "rank 0 at ", place(), " has ended, or says nothing, before all ranks came",
                               with_origin());
    }
    thread = helper_thread([this] { watch(); });
  }

  void say(Kind kind, const std::string& text, int code) override {
    const std::lock_guard lock(send_mutex_);
    // The watching thread notices a broken connection.
    static_cast<void>(send_all(server_.get(), message(kind, text, options.rank, code), Clock::now() + kSend));
  }

 private:
  /// Reports that rank 0 is missing: on rank 0's host rank 1 does this, on other hosts local rank 0.
  void give_word_of(const std::string& problem) {
    if (options.local_rank == 0 || options.rank == 1) {
      give_word([&] { return concat("rank 0 of ", options.size, " at ", place(), " (", problem, ")"); });
    }
  }

  /// Waits until the deadline for data, and reports the problem when report_time() has passed.
  bool wait_for_answer(int socket, const std::string& problem) {
    if (wait_readable(socket, word())) {
      return true;
    }
    give_word_of(problem);
    return wait_readable(socket, deadline());
  }

  /// Connects until rank 0 answers. RendezvousError when the deadline passes first.
  void call() {
    Hello hello{.version = kVersion, .rank = options.rank, .size = options.size, .pid = ::getpid(), .job = job()};
    std::copy(kMagic.begin(), kMagic.end(), hello.magic.begin());
    if (::gethostname(hello.host.data(), hello.host.size() - 1) != 0) {
      hello.host = {"unknown"};
    }
    std::string problem;
    do {
      Connected made = connect_to(options.host, options.port, deadline());
      problem = made.problem;
      require<RendezvousError>(!made.hopeless, "rank 0's host '", options.host, "': ", problem, with_origin());
      if (made.socket.is_open()) {
        problem = "connected, but nothing was said";
        std::string& in = inbox_.bytes;
        in.clear();
        bool there = send_all(made.socket.get(), bytes_of(hello), deadline());
        while (there && in.size() < sizeof(Answer) && wait_for_answer(made.socket.get(), problem)) {
          there = receive_more(made.socket.get(), in);
          require<RendezvousError>(kAnswers.starts_with(std::string_view(in).substr(0, kAnswers.size())), place(),
                                   " answers, but is not rank 0 of lockstep", with_origin());
        }
        if (const std::optional<Answer> answered = take<Answer>(in)) {
          verdict_ = Clock::now() + std::chrono::seconds(answered->left_s) + kVerdict;
          address = own_address(made.socket.get());
          server_ = std::move(made.socket);
          return;
        }
      }
      give_word_of(problem);
      std::this_thread::sleep_for(kAgain);
    } while (Clock::now() < deadline());
    throw RendezvousError(concat("rank 0 of ", options.size, " does not answer at ", place(), " within ",
                                 options.timeout_s, " s: ", problem, with_origin()));
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
      while (const std::optional<Message> said = inbox_.next(broken)) {
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
                                     {.fd = open ? server_.get() : -1, .events = POLLIN, .revents = 0}}};
      ::poll(waiting.data(), waiting.size(), -1);
      wake.take();
      open = open && (waiting[1].revents == 0 || receive_more(server_.get(), inbox_.bytes));
    }
  }

  Descriptor server_;
  Inbox inbox_{0};
  Clock::time_point verdict_{};  ///< time by which rank 0 must say whether all ranks have met
  std::mutex send_mutex_;
};

}  // namespace

std::unique_ptr<Meeting> make_other_rank(const RendezvousOptions& options) {
  return std::make_unique<OtherRank>(options);
}

}  // namespace lockstep::comm::detail::rendezvous
