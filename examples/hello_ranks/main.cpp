// hello_ranks: prints the host, the local rank and the device of every rank, and checks the all-reduced sum of the
// ranks. Run it first on a new machine: mpirun -np 8 ./hello_ranks, or ./hello_ranks --devices cpu:8

#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/processors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/launch_options.hpp"

namespace {

using namespace lockstep;

std::string text_of(const comm::RankDevice& placed, int threads) {
  if (placed.device == Device::cpu()) {
    return concat("cpu, ", threads, threads == 1 ? " thread" : " threads");
  }
  return concat(to_string(list_gpus().at(static_cast<std::size_t>(placed.device.index))),
                placed.note.empty() ? "" : "  (", placed.note, placed.note.empty() ? "" : ")");
}

/// The options of the command line, or a text to print instead of running the program (--help, --version).
struct Parsed {
  lockstep::cli::LaunchOptions launch;
  comm::RanksRequest ranks;
  std::string text;
};

Parsed parse(int argc, const char* const* argv, const lockstep::cli::ConfigFile& config) {
  lockstep::cli::LaunchOptions launch;
  lockstep::Schema schema;
  lockstep::cli::describe(schema, launch);
  const std::string text = lockstep::cli::parse_command_line(
      {"hello_ranks", "Prints every rank's host and device, and checks one all-reduce.\n", ""}, schema, argc, argv,
      config);
  if (!text.empty()) {
    return {.text = text};
  }
  return {.launch = launch, .ranks = lockstep::cli::ranks_request(launch)};
}

std::int64_t sum_over_mpi(comm::Session& session) {
  std::vector<std::int64_t> sum{session.rank()};
  session.grad().all_reduce(session.communication_stream(), {std::span(sum), Shape{1}});
  session.communication_stream().synchronize();
  return sum[0];
}

std::int64_t sum_over_nccl(comm::Session& session, const comm::RankDevice& placed) {
  std::vector<std::int64_t> sum{session.rank()};
  const TensorView host{std::span(sum), Shape{1}};
  CudaContext context(placed.device);
  const Tensor data = Tensor::empty(context, Shape{1}, DType::i64);
  comm::GpuRanks ranks(session, placed);
  Event there(placed.device);
  copy(context, host, data);
  context.stream().record(there);
  ranks.communication_stream().wait(there);
  ranks.grad().all_reduce(ranks.communication_stream(), data);
  comm::wait(ranks.communication_stream(), there, ranks.grad());
  copy(context, data, host);
  context.synchronize();
  return sum[0];
}

int run(comm::Session& session, int argc, char** argv) {
  Parsed parsed;
  const lockstep::cli::ConfigFile config = lockstep::cli::read_config_file(session, argc, argv);
  session.agree([&] { parsed = parse(argc, argv, config); });
  comm::require_same_on_all_ranks(session.control(), comm::arguments_text(argc, argv));
  if (!parsed.text.empty()) {
    if (session.rank() == 0) {
      std::printf("%s", parsed.text.c_str());
    }
    return exit_code::kFinished;
  }
  comm::require_ranks_as_requested(session, parsed.ranks);
  const comm::RankDevice placed = comm::place_rank(session, parsed.ranks.devices);
  if (session.rank() == 0 && placed.device == Device::cpu() && !placed.note.empty()) {
    std::printf("%s\n", placed.note.c_str());
  }
  const int threads = comm::compute_threads(comm::cpu_share(session)).count;
  std::string line;
  session.agree([&] {  // if the driver fails on some rank, rank 0 prints one line about that rank
    const std::string why = lockstep::cli::bind_rank(parsed.launch, placed.device);
    line = concat("rank ", session.rank(), " of ", session.size(), "  ", session.host(), "  local ",
                  session.local_rank(), " of ", session.local_size(), "  ", text_of(placed, threads), "  processors ",
                  ProcessorSet::of_process().text(), why.empty() ? "" : " (", why, why.empty() ? "" : ")");
  });
  const std::vector<std::string> lines = comm::all_gather_text(session.control(), line);

  const bool over_nccl = placed.device != Device::cpu() && comm::has_nccl();
  const std::int64_t sum = over_nccl ? sum_over_nccl(session, placed) : sum_over_mpi(session);
  const std::int64_t expected = std::int64_t{session.size()} * (session.size() - 1) / 2;
  session.agree([&] {
    require<StateError>(sum == expected, "the sum of all rank numbers over ", over_nccl ? "NCCL" : "MPI", " is ", sum,
                        ", expected ", expected);
  });

  if (session.rank() == 0) {
    std::printf("%s\n%s on %s, %s\n%s\n", build_description().c_str(), counted(session.size(), "rank").c_str(),
                counted(session.nodes(), "node").c_str(), session.description().c_str(),
                session.launch().description().c_str());
    for (const std::string& text : lines) {
      std::printf("%s\n", text.c_str());
    }
    std::printf("all-reduced sum of the ranks: %lld, as expected%s\n", static_cast<long long>(sum),
                over_nccl ? " (over NCCL)" : "");
  }
  return exit_code::kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run, [&]() -> std::optional<lockstep::comm::RanksRequest> {
    const Parsed parsed = parse(argc, argv, lockstep::cli::read_config_file(argc, argv));
    return parsed.text.empty() ? std::optional(parsed.ranks) : std::nullopt;
  });
}
