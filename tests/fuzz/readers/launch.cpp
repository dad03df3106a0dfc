// The input has two bytes, the rank and the size that MPI is to report, and then an environment in lines NAME=VALUE.
#include <lockstep/comm/launch/launch.hpp>

#include <optional>

#include <lockstep/comm/launch/self_start.hpp>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

void check_place(const comm::Launch& launch) {
  check(launch.size >= 1 && launch.rank >= 0 && launch.rank < launch.size, "rank ", launch.rank, " of ", launch.size);
  check(!launch.local_rank || *launch.local_rank >= 0, "a negative local rank");
  check(!launch.local_rank || !launch.local_size ||
            (*launch.local_rank < *launch.local_size && *launch.local_size <= launch.size),
        "a local rank that cannot be");
  check(!launch.node || !launch.nodes || (*launch.node < *launch.nodes && *launch.nodes <= launch.size),
        "a node that cannot be");
  check(launch.description().starts_with("started "), "no description");
}

/// Checks how a program would start its ranks, for each kind of request.
void check_start(const comm::Environment& environment) {
  for (const char* devices : {"auto", "cpu:3", "2", "0,1", "usable:2"}) {
    for (const int nodes : {0, 2}) {
      const comm::RanksRequest request{.devices = DeviceRequest::parse(devices), .nodes = nodes};
      (void)accepts<UsageError>([&] {
        const auto start = comm::plan_self_start(request, environment, {.count_gpus = [] { return 4; }, .cores = 2});
        check(!start || (!start->arguments.empty() && start->arguments.size() < 1000), "a strange command");
      });
    }
  }
}

}  // namespace

void launch(Input input) {
  Cursor cursor(input);
  const int first = cursor.byte();
  const int size = cursor.byte() + 1;
  const int rank = first % size;
  comm::Environment environment;
  for (const std::string& line : lines_of(cursor.rest())) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos && line.find('\0') == std::string::npos) {
      environment.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  const int likely = comm::likely_rank(environment);
  check(likely >= -1, "a rank below -1");
  check_start(environment);
  std::optional<comm::Launch> found;
  if (!accepts<UsageError>([&] { found = comm::detect_launch(environment); })) {
    return;
  }
  check_place(*found);
  check(found->source != comm::LaunchSource::mpi || likely == found->rank, "likely rank ", likely, ", rank ",
        found->rank);
  const comm::Backends have{.mpi = first % 2 == 0, .gloo = true};
  for (const comm::Backend backend : {comm::Backend::automatic, comm::Backend::mpi, comm::Backend::gloo}) {
    (void)accepts<UsageError>([&] {
      if (comm::meet_by_gloo(*found, environment, backend, have)) {
        const comm::MeetingPlace place = comm::meeting_place(environment);
        check(place.port >= 1 && place.port <= 65535 && !place.host.empty(), "a place that cannot be");
      }
    });
  }
  (void)accepts<UsageError>([&] {
    const comm::Launch confirmed = comm::confirm_launch(*found, environment, rank, size, "a library");
    check(confirmed.rank == rank && confirmed.size == size, "MPI's rank is not taken");
    check_place(confirmed);
  });
}

}  // namespace lockstep::fuzz
