// Each line of the input is an argument of a training program.
#include <cmath>

#include <lockstep/app/options/training_options.hpp>
#include <lockstep/runtime/base/schema.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/launch_options.hpp"
#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

/// Checks that the options resolve to possible values for 1000 samples and two ranks.
void check_meaning(const nn::TrainingOptions& options) {
  const nn::ResolvedTraining resolved = nn::resolve(options, 1000, {.base = 0.1, .reference = 256}, 2, 1, {});
  check(resolved.total_steps >= 1 && resolved.total_steps <= std::int64_t{1} << 53, resolved.total_steps, " steps");
  check(std::isfinite(resolved.rules.learning_rate) && resolved.rules.learning_rate > 0, "learning rate ",
        resolved.rules.learning_rate);
  check(resolved.rules.global_batch >= 2 && resolved.rules.workers >= 0, "batch or workers");
  check(resolved.trainer.step.buckets.bucket_bytes >= 0, "bucket bytes ", resolved.trainer.step.buckets.bucket_bytes);
}

}  // namespace

void options(Input input) {
  std::vector<std::string> lines = lines_of(input);
  std::vector<const char*> arguments{"program"};
  for (const std::string& line : lines) {
    arguments.push_back(line.c_str());  // ends at a zero byte, as the system's arguments do
  }
  (void)accepts<UsageError>([&] {
    cli::LaunchOptions launch;
    nn::TrainingOptions training;
    Schema schema;
    cli::describe(schema, launch, cli::Restarts::yes);
    nn::describe(schema, training);
    const std::string text = cli::parse_command_line({"program", "about\n", "footer"}, schema,
                                                     static_cast<int>(arguments.size()), arguments.data(), {});
    if (!text.empty()) {
      return;
    }
    nn::require_training_options(training);
    (void)cli::ranks_request(launch);
    check_meaning(training);
  });
}

}  // namespace lockstep::fuzz
