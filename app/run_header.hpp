#pragma once

#include <optional>
#include <ostream>
#include <string>

#include <lockstep/app/training_program.hpp>
#include <lockstep/comm/launch/rank_context.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/plan/choice_verifier.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/runtime/context/memory_summary.hpp>

/// Functions that print, on rank 0, the lines that a training program shows before it trains.
namespace lockstep::nn {

/// Prints ranks, devices, model, data, batch, optimizer, memory, gradient buckets and warnings, one or two lines each.
void print_header(std::ostream& out, const TrainingOptions& options, const TrainingInputs& inputs,
                  const ResolvedTraining& resolved, comm::Session& session, const comm::RankContext& place,
                  Trainer& trainer);
void print_choices(std::ostream& out, const ChoiceReport& report, const std::string& file);
void print_verified(std::ostream& out, const ChoiceVerifier& verifier);
/// Prints the point at which the run continues, then its differences to the earlier run, one line each.
void print_resumed(std::ostream& out, const std::string& from, const RunProgress& progress,
                   const std::string& differences);

/// Returns the memory in use, for information only. Returns no value if the system does not report it.
[[nodiscard]] std::optional<MemorySummary> memory_now(Context& context);

}  // namespace lockstep::nn
