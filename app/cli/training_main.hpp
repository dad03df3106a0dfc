#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/app/stop_signals.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/rank_context.hpp>
#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "app/cli/config_file.hpp"
#include "app/cli/launch_options.hpp"

namespace lockstep::cli {

/// The result of parsing: options, or a text to print (--help, --version) instead of a run.
template <class Options>
struct Parsed {
  Options options;
  std::string text;
};

/// Sets `policy` so that restarts continue from the last checkpoint or from copies in memory
/// (app/memory_checkpoints.hpp). The folder of the copies exists as long as the job.
void keep_for_restarts(comm::RestartPolicy& policy, const nn::TrainingOptions& options);

/// The main() of a training program. Starts the ranks if no launcher did, reads the same options on every rank, gives
/// each rank its device, and calls `body`, which trains and returns the exit code. Options must have the members
/// `launch` (LaunchOptions) and `training` (nn::TrainingOptions). For a wrong option, `parse` throws a UsageError that
/// names this option.
template <class Options>
int training_main(int argc, char** argv,
                  const std::function<Parsed<Options>(int, const char* const*, const ConfigFile&)>& parse,
                  const std::function<int(comm::Session&, comm::RankContext&, const Options&)>& body) {
  nn::watch_stop_signals();
  const auto train = [&](comm::Session& session, int count, char** arguments) {
    Parsed<Options> parsed;
    const ConfigFile config = read_config_file(session, count, arguments, Recipes::yes);
    session.agree([&] { parsed = parse(count, arguments, config); });
    comm::require_same_on_all_ranks(session.control(), comm::arguments_text(count, arguments));
    if (!parsed.text.empty()) {
      std::cout << (session.rank() == 0 ? parsed.text : "") << std::flush;
      return exit_code::kFinished;
    }
    parsed.options.training.restarts = parsed.options.launch.max_restarts;
    const Options& options = parsed.options;
    comm::RanksRequest ranks = ranks_request(options.launch);
    comm::require_ranks_as_requested(session, ranks);
    if (const std::string& fewer = session.launch().attempt.devices; !fewer.empty()) {
      ranks.devices = parse_devices(fewer);
    }
    const auto doing = [&](const char* what) {
      if (session.watchdog() != nullptr) {
        session.watchdog()->begin(what);
      }
    };
    doing("opening the device");
    comm::RankContext place(session, ranks.devices,
                            nn::rank_context_options(options.training, options.launch.bind == "gpu"));
    doing("opening model and data");
    return body(session, place, options);
  };
  const auto run = [&](comm::Session& session, int count, char** arguments) {
    try {
      return train(session, count, arguments);
    } catch (...) {
      nn::ignore_stop_signals();
      throw;
    }
  };
  const auto request = [&]() -> std::optional<comm::RanksRequest> {
    const Parsed<Options> parsed = parse(argc, argv, read_config_file(argc, argv, Recipes::yes));
    if (!parsed.text.empty()) {
      return std::nullopt;
    }
    comm::RanksRequest ranks = ranks_request(parsed.options.launch);
    if (const std::int64_t all = parsed.options.training.trainer.step.virtual_ranks; all > 0) {
      ranks.restart.fits = [all](int count) { return all % count == 0; };
    }
    ranks.prints_result = !parsed.options.training.evaluate.empty() || parsed.options.training.dry_run;
    ranks.watchdog_s = parsed.options.training.watchdog;
    keep_for_restarts(ranks.restart, parsed.options.training);
    return ranks;
  };
  const auto watchdog_s = [&] {
    try {
      return parse(argc, argv, read_config_file(argc, argv, Recipes::yes)).options.training.watchdog;
    } catch (const Error&) {  // `run` reports the error
      return nn::TrainingOptions().watchdog;
    }
  };
  return comm::run_program(argc, argv, run, request, watchdog_s);
}

}  // namespace lockstep::cli
