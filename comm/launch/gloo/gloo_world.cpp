#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <gloo/config.h>

#include <lockstep/comm/gloo/gloo_communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>
#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/detail/world.hpp>
#include <lockstep/comm/launch/session.hpp>

namespace lockstep::comm::detail {
namespace {

/// A waiting rank prints for which ranks it waits, after this many seconds or after half of its time limit if that is
/// shorter.
constexpr double kReportAfter = 5;

/// Returns a text that is equal in all processes of this host, and different on other hosts. The kernel's boot ID does
/// not suffice, because the containers of a machine have the same boot ID; their host names differ.
std::string this_host() {
  std::array<char, 256> name{};
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return ::gethostname(name.data(), name.size() - 1) == 0 ? concat(name.data(), ' ', boot) : boot;
}

std::shared_ptr<Rendezvous> meet(const Launch& launch, const MeetingPlace& place) {
  try {
    return std::make_shared<Rendezvous>(RendezvousOptions{
        .rank = launch.rank,
        .size = launch.size,
        .host = place.host,
        .port = place.port,
        .origin = place.origin,
        .job = place.job,
        .local_rank = launch.local_rank.value_or(0),
        .one_host = launch.local_size.value_or(0) == launch.size,
        .timeout_s = place.timeout_s,
        .on_wait = [rank = launch.rank](const std::string& text) { write_note(rank, text); },
        .word_after_s = std::min(kReportAfter, place.timeout_s / 2),
        .on_abort = [](int /*rank*/, int code) { std::_Exit(code); },
    });
  } catch (RendezvousError& e) {
    e.annotate("launch");
    if (e.told()) {
      throw AgreedFailure(e.what(), e.code());
    }
    throw;
  }
}

class GlooWorld final : public World {
 public:
  GlooWorld(const Launch& launch, const MeetingPlace& place) : rendezvous_(meet(launch, place)) {
    rank = launch.rank;
    size = launch.size;
    const std::vector<std::string> hosts = rendezvous_->all_gather(this_host());
    const std::string& own = hosts.at(static_cast<std::size_t>(rank));
    local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank, own));
    local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
    nodes = 0;
    for (auto host = hosts.begin(); host != hosts.end(); ++host) {
      if (std::find(hosts.begin(), host, *host) == host) {  // true for the lowest rank of each node
        node = *host == own ? nodes : node;
        ++nodes;
      }
    }
    description = concat("gloo ", GLOO_VERSION_MAJOR, '.', GLOO_VERSION_MINOR, '.', GLOO_VERSION_PATCH);
  }

  std::unique_ptr<Communicator> communicator() override { return make_gloo_communicator(rendezvous_); }
  Stream* serial() override { return nullptr; }
  void finalise() override { rendezvous_->finish(); }
  [[noreturn]] void abort(int code) noexcept override {
    rendezvous_->abort(code);
    std::_Exit(code);
  }

 private:
  std::shared_ptr<Rendezvous> rendezvous_;
};

}  // namespace

std::unique_ptr<World> make_gloo_world(const Launch& launch, const MeetingPlace& place) {
  return std::make_unique<GlooWorld>(launch, place);
}

}  // namespace lockstep::comm::detail
