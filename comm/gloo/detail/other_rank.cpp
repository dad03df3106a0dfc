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
constexpr std::chrono::seconds kResult{5};        ///< time after rank 0's deadline in which rank 0's result must arrive

class OtherRank final : public Meeting {
 public:
  using Meeting::Meeting;
  ~OtherRank() override { end(); }

  void meet() override {
    inbox_ = Inbox((Rendezvous::kMostBytes + sizeof(std::uint64_t)) * static_cast<std::size_t>(options.size));
    connect();
    for (;;) {
      bool broken = false;
      if (const std::optional<Message> received = inbox_.next(broken)) {
        require<RendezvousError>(received->header.kind == Kind::met || received->header.kind == Kind::refused, place(),
                                 " sends a message that rank 0 never sends, expected rank 0 of this lockstep");
        if (received->header.kind == Kind::refused) {
          throw RendezvousError(shown(received->text.substr(0, kMostText)), received->header.code == kPrinted);
        }
        break;
      }
      const bool more =
          !broken && wait_readable(server_.get(), result_deadline_) && receive_more(server_.get(), inbox_.bytes);
      require<RendezvousError>(more, "rank 0 at ", place(),
                               " has ended, or says nothing, before all ranks came, expected it to wait for them",
                               with_origin());
    }
    thread = helper_thread([this] { watch(); });
  }

  void send_to_rank_0(Kind kind, const std::string& text, int code) override {
    const std::lock_guard lock(send_mutex_);
    // Ignores a failure, because the watching thread notices a broken connection.
    static_cast<void>(send_all(server_.get(), message(kind, text, options.rank, code), Clock::now() + kSend));
  }

 private:
  /// Reports that rank 0 is missing. Only rank 1 and the ranks with local_rank 0 report this, not every rank of a host.
  void report_problem(const std::string& problem) {
    if (options.local_rank == 0 || options.rank == 1) {
      report_wait([&] { return concat("rank 0 of ", options.size, " at ", place(), " (", problem, ")"); });
    }
  }

  /// Waits until `socket` has data. Reports `problem` if no data has come by report_time(). Returns false at the
  /// deadline.
  bool wait_for_answer(int socket, const std::string& problem) {
    if (wait_readable(socket, report_time())) {
      return true;
    }
    report_problem(problem);
    return wait_readable(socket, deadline());
  }

  /// Connects repeatedly until rank 0 answers. Throws RendezvousError if the deadline passes first.
  void connect() {
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
                                   " is another program, expected rank 0 of lockstep there", with_origin());
        }
        if (const std::optional<Answer> answered = take<Answer>(in)) {
          result_deadline_ = Clock::now() + std::chrono::seconds(answered->left_s) + kResult;
          address = own_address(made.socket.get());
          server_ = std::move(made.socket);
          return;
        }
      }
      report_problem(problem);
      std::this_thread::sleep_for(kAgain);
    } while (Clock::now() < deadline());
    throw RendezvousError(concat("rank 0 of ", options.size, " does not answer at ", place(), " within ",
                                 options.timeout_s, " s, expected it to run there: ", problem, with_origin()));
  }

  void handle(const Message& received) {
    switch (received.header.kind) {
      case Kind::gathered: {
        std::optional<std::vector<std::string>> texts = unpacked(received.text, options.size);
        if (!texts) {
          report_lost("rank 0 sent what is no answer");
        } else {
          change([&] { answer = std::move(texts); });
        }
        break;
      }
      case Kind::lost:
        report_lost(shown(received.text.substr(0, kMostText)));
        break;
      case Kind::abort:
        received_abort(received.header.rank, received.header.code);
        break;
      case Kind::end:
        change([&] { ended = true; });
        break;
      default:
        report_lost("rank 0 sent what it never sends");
    }
  }

  void watch() {
    bool open = true;
    for (;;) {
      bool broken = false;
      while (const std::optional<Message> received = inbox_.next(broken)) {
        handle(*received);
      }
      if (broken) {
        open = false;
      }
      if (!open) {
        report_lost(concat("rank 0 (", place(), ") has ended"));
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
  Clock::time_point result_deadline_{};  ///< time until which rank 0 must say whether all ranks have met
  std::mutex send_mutex_;
};

}  // namespace

std::unique_ptr<Meeting> make_other_rank(const RendezvousOptions& options) {
  return std::make_unique<OtherRank>(options);
}

}  // namespace lockstep::comm::detail::rendezvous
