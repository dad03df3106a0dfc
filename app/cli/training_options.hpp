#pragma once

#include <optional>
#include <string>

#include <lockstep/app/training_options.hpp>

namespace CLI {
class App;
}

/// The options that every training program has.
namespace lockstep::cli {

/// Adds all of nn::TrainingOptions except model and data, in the groups Training, Ranks and Results. The values in
/// `options` are the defaults. nn::require_training_options() checks what was read.
void add_training_options(CLI::App& app, nn::TrainingOptions& options);

/// An option that is on, off or auto.
void add_switch(CLI::App& app, const std::string& name, nn::Switch& value, const std::string& text,
                const std::string& group);

}  // namespace lockstep::cli
