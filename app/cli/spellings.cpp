#include "app/cli/spellings.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/text.hpp>

namespace lockstep::cli {
namespace {

struct Word {
  std::string_view theirs;  ///< word of another tool, without leading dashes, each '_' written as '-'
  std::string_view ours;
};

constexpr std::array<Word, 28> kOptions{{{"accelerator", "--devices"},
                                         {"accumulate-grad-batches", "--accumulate"},
                                         {"auto-select-gpus", "--devices usable:N"},
                                         {"ckpt-path", "--resume"},
                                         {"default-root-dir", "--out"},
                                         {"gpus", "--devices"},
                                         {"gradient-clip-val", "--clip-norm"},
                                         {"learning-rate", "--lr"},
                                         {"log-every-n-steps", "--log-every"},
                                         {"max-epochs", "--epochs"},
                                         {"max-steps", "--steps"},
                                         {"nnodes", "--nodes"},
                                         {"nproc-per-node", "--devices"},
                                         {"num-epochs", "--epochs"},
                                         {"num-gpus", "--devices"},
                                         {"num-nodes", "--nodes"},
                                         {"num-workers", "--workers"},
                                         {"optim-args.lr", "--lr"},
                                         {"optim-args.weight-decay", "--weight-decay"},
                                         {"precision", "--dtype"},
                                         {"pretrained", "--init"},
                                         {"process-group-backend", "--backend"},
                                         {"resume-from-checkpoint", "--resume"},
                                         {"resume-interrupted", "--resume"},
                                         {"sync-batchnorm", "--sync-batch-norm"},
                                         {"train-batch-size", "--batch-size"},
                                         {"wd", "--weight-decay"},
                                         {"weights", "--init"}}};

/// A value that another tool gives to an option, and the value that `option` of this program takes instead.
struct ValueWord {
  std::string_view option;
  std::string_view theirs;
  std::string_view ours;
};
constexpr std::array<ValueWord, 11> kValues{{{"--devices", "cuda", "gpu"},
                                             {"--dtype", "32", "fp32"},
                                             {"--dtype", "32-true", "fp32"},
                                             {"--dtype", "64", "f64"},
                                             {"--dtype", "64-true", "f64"},
                                             {"--dtype", "16", "fp16"},
                                             {"--dtype", "16-mixed", "fp16"},
                                             {"--dtype", "bf16-mixed", "bf16"},
                                             {"--resume", "last", "auto"},
                                             {"--resume", "true", "auto"},
                                             {"--resume", "True", "auto"}}};

/// Returns the option's name in `argument`: without leading dashes, '=' and value, and with each '_' written as '-'.
std::string plain(const std::string& argument) {
  std::string name = argument.substr(0, argument.find('='));
  name.erase(0, name.find_first_not_of('-'));
  std::ranges::replace(name, '_', '-');
  return name;
}

/// Returns the app's option for `name`, sometimes with a value ("--devices usable:N"). Empty if there is no option.
std::string option_of(const CLI::App& app, const std::string& name) {
  const auto* const word = std::ranges::find(kOptions, name, &Word::theirs);
  const std::string option = word != kOptions.end() ? std::string(word->ours) : "--" + name;
  return !name.empty() && app.get_option_no_throw(option.substr(0, option.find(' '))) != nullptr ? option : "";
}

std::string value_of(const std::string& option, const std::string& value) {
  for (const ValueWord& word : kValues) {
    if (word.option == option && word.theirs == value) {
      return std::string(word.ours);
    }
  }
  return value;
}

}  // namespace

std::string spelled_here(const CLI::App& app, const std::vector<std::string>& unknown) {
  std::string here;
  // PyTorch Lightning has two options: --accelerator for the kind of devices, and another option for their number. Here
  // --devices sets both.
  std::string kind;
  const bool counted = std::ranges::any_of(unknown, [&](const std::string& argument) {
    const std::string name = plain(argument);
    return name != "accelerator" && option_of(app, name) == "--devices";
  });
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    const std::size_t equals = unknown[i].find('=');
    const std::string name = plain(unknown[i]);
    const std::string option = option_of(app, name);
    if (option.empty() || (equals == std::string::npos && !unknown[i].starts_with('-'))) {
      continue;  // the app has no such option, or the word has neither dashes nor '=' and may be anything
    }
    if (name == "accelerator" && counted) {
      kind = equals != std::string::npos ? unknown[i].substr(equals + 1) : i + 1 < unknown.size() ? unknown[++i] : "";
      continue;
    }
    here += (here.empty() ? "" : " ") + option;
    if (option.find(' ') != std::string::npos || app.get_option_no_throw(option)->get_items_expected_max() == 0) {
      continue;  // `option` already contains its value, or it is a flag
    }
    if (equals != std::string::npos) {
      here += " " + value_of(option, unknown[i].substr(equals + 1));
    } else if (i + 1 < unknown.size() && !unknown[i + 1].starts_with('-')) {
      here += " " + value_of(option, unknown[++i]);
    }
  }
  const std::size_t devices = here.find("--devices ");
  return kind == "cpu" && devices != std::string::npos ? here.insert(devices + 10, "cpu:") : here;
}

std::string nearest_option(const CLI::App& app, const std::string& unknown) {
  const std::string name = plain(unknown);
  std::string nearest;
  std::size_t least = (name.size() + 1) / 3 + 1;  // about a third of the characters may differ
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) {
      if (const std::size_t away = edit_distance(name, known); name.size() > 2 && away < least) {
        least = away;
        nearest = "--" + known;
      }
    }
  }
  return nearest;
}

}  // namespace lockstep::cli
