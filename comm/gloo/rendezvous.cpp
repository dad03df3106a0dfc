#include <lockstep/comm/gloo/rendezvous.hpp>

#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include <lockstep/comm/gloo/detail/meeting.hpp>

namespace lockstep::comm {

namespace {

using detail::rendezvous::Kind;

constexpr std::chrono::seconds kTold{2};  ///< longest wait in abort() until the other ranks were told

const RendezvousOptions& checked(const RendezvousOptions& o) {
  require<UsageError>(o.size >= 1 && o.rank >= 0 && o.rank < o.size, "rendezvous: rank ", o.rank, " of ", o.size,
                      ", expected 0 <= rank < size");
  require<UsageError>(o.size == 1 || !o.host.empty(), "rendezvous: host is empty, expected that of rank 0");
  require<UsageError>(o.size == 1 || (o.port >= 1 && o.port <= 65535), "rendezvous: port is ", o.port,
                      ", expected 1 to 65535");
  require<UsageError>(o.timeout_s > 0 && o.timeout_s <= 1e6, "rendezvous: timeout_s is ", o.timeout_s,
                      ", expected above 0 and at most 1e6");
  require<UsageError>(o.word_after_s >= 0 && o.word_after_s <= 1e6, "rendezvous: word_after_s is ", o.word_after_s,
                      ", expected 0 to 1e6");
  return o;
}

}  // namespace

Rendezvous::Rendezvous(const RendezvousOptions& options)
    : meeting_((options.rank == 0 ? detail::rendezvous::make_first_rank
                                  : detail::rendezvous::make_other_rank)(checked(options))) {
  if (options.size > 1) {
    meeting_->meet();
  }
}

Rendezvous::~Rendezvous() = default;

int Rendezvous::rank() const {
  return meeting_->options.rank;
}

int Rendezvous::size() const {
  return meeting_->options.size;
}

const std::string& Rendezvous::address() const {
  return meeting_->address;
}

std::vector<std::string> Rendezvous::all_gather(const std::string& text) {
  require<UsageError>(text.size() <= kMostBytes, "rendezvous: a text of ", text.size(), " bytes, expected at most ",
                      kMostBytes);
  if (size() == 1) {
    return {text};
  }
  meeting_->send_to_rank_0(Kind::gather, text, 0);
  std::unique_lock lock(meeting_->mutex);
  meeting_->changed.wait(lock, [&] { return meeting_->answer || !meeting_->lost.empty(); });
  require<PeerError>(meeting_->answer.has_value(), meeting_->lost);
  return *std::exchange(meeting_->answer, std::nullopt);
}

std::string Rendezvous::why_lost(double wait_s) const {
  std::unique_lock lock(meeting_->mutex);
  meeting_->changed.wait_for(lock, std::chrono::duration<double>(wait_s), [&] { return !meeting_->lost.empty(); });
  return meeting_->lost;
}

std::uint64_t Rendezvous::when_lost(std::function<void()> lost) {
  const std::lock_guard lock(meeting_->callbacks_mutex);
  const std::uint64_t key = ++meeting_->last_key;
  if (why_lost().empty()) {
    meeting_->callbacks.emplace(key, std::move(lost));
  } else {
    lost();
  }
  return key;
}

void Rendezvous::forget(std::uint64_t key) noexcept {
  const std::lock_guard lock(meeting_->callbacks_mutex);
  meeting_->callbacks.erase(key);
}

void Rendezvous::finish() {
  if (size() == 1) {
    return;
  }
  meeting_->send_to_rank_0(Kind::shutdown, {}, 0);
  std::unique_lock lock(meeting_->mutex);
  meeting_->changed.wait(lock, [&] { return meeting_->ended || !meeting_->lost.empty(); });
  require<PeerError>(meeting_->ended, meeting_->lost);
}

void Rendezvous::abort(int code) noexcept {
  if (size() == 1) {
    return;
  }
  try {
    meeting_->send_to_rank_0(Kind::abort, {}, code);
    std::unique_lock lock(meeting_->mutex);
    // If rank 0 has ended, this wait lasts for kTold. This does no harm, because all ranks notice the end of rank 0.
    meeting_->changed.wait_for(lock, kTold, [&] { return meeting_->aborted || meeting_->ended; });
  } catch (...) {  // ignores an error: the process ends, and the other ranks notice its end
  }
}

}  // namespace lockstep::comm
