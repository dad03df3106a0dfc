#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// Returns a text with the options of `app` that replace `unknown`, arguments that `app` does not take. Such arguments
/// may be other spellings of the app's options (for "batch_size=256" returns "--batch-size 256"), or options of PyTorch
/// Lightning, Lightly Train and torchrun (for "--precision bf16-mixed" returns "--dtype bf16"). An argument's value
/// follows a '=' or is the next argument. Returns an empty text if no replacement is known for any argument.
/// docs/coming_from.md lists the replacements.
[[nodiscard]] std::string spelled_here(const CLI::App& app, const std::vector<std::string>& unknown);

/// Returns the app's option that differs by few characters from `unknown` ("--epochs" for "--epoch"), or an empty text.
[[nodiscard]] std::string nearest_option(const CLI::App& app, const std::string& unknown);

}  // namespace lockstep::cli
