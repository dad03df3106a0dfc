#pragma once

#include <functional>
#include <optional>
#include <string>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/app/run_folder.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/rank_context.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// Data that the parts of a training program share: the ranks, this rank's context, the watchdog, the options, and the
/// files of the run.
struct RunSite {
  RunSite(comm::Session& ranks_of_job, comm::RankContext& own_place, const TrainingOptions& given)
      : session(ranks_of_job),
        place(own_place),
        first(session.rank() == 0),
        options(given),
        watchdog(session.watchdog()) {
    if (watchdog == nullptr && options.watchdog > 0) {
      watchdog = &own_watchdog.emplace(session, options.watchdog);
    }
    if (watchdog != nullptr && options.stall_report) {
      watchdog->report_after(*options.stall_report);
    }
  }
  void doing(const char* what) const noexcept {
    if (watchdog != nullptr) {
      watchdog->begin(what);
    }
  }
  [[nodiscard]] Ranks ranks() const {
    return {place.grad(), session.control(), place.communication_stream(), watchdog,
            place.on_gpu() ? nullptr : &session.inline_ops()};
  }

  /// Calls `find` on rank 0 and returns its text on every rank. Collective. Throws the errors of Session::agree().
  [[nodiscard]] std::string text_of_first(const std::function<std::string()>& find) const {
    std::string text;
    session.agree([&] { text = first ? find() : ""; });
    return comm::broadcast_text(session.control(), text);
  }
  [[nodiscard]] double number_of_first(double number) const {
    return comm::all_gather_value(session.control(), number).front();
  }

  comm::Session& session;
  comm::RankContext& place;
  bool first;               ///< true on rank 0
  TrainingOptions options;  ///< the given options; StartingPoint changes `resume`, `init`, `evaluate` and `overwrite`
  RunFolder files;          ///< files of the run, which rank 0 opens
  std::optional<comm::Watchdog> own_watchdog;
  comm::Watchdog* watchdog;  ///< watchdog of the session, else own_watchdog; nullptr: the options want no watchdog
};

}  // namespace lockstep::nn::detail
