#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// Returns what to write here instead of arguments that the app does not know. It knows other spellings of the app's
/// own options ("batch_size=256": "--batch-size 256"), and words of PyTorch Lightning, Lightly Train and torchrun
/// ("--precision bf16-mixed": "--dtype bf16") for options that the app has. An argument's value follows its '=' or is
/// the next argument. Empty if none of the arguments is known. More words: docs/coming_from.md.
[[nodiscard]] std::string spelled_here(const CLI::App& app, const std::vector<std::string>& unknown);

/// Returns the app's option that differs by few characters from an unknown one ("--epoch 3": "--epochs"), or empty.
[[nodiscard]] std::string nearest_option(const CLI::App& app, const std::string& unknown);

}  // namespace lockstep::cli
