#pragma once

#include <string>
#include <vector>

namespace lockstep::comm {
class Session;
}

/// Functions for `--config FILE`: options of a program in a TOML file, by their names without dashes:
///
///   devices = [1, 3]      # an integer, a list or text, as --devices takes them
///   model = "resnet32"
///   epochs = 20
///   nesterov = true
///
/// A file whose name ends with ".json" is the config.json of a run, and repeats the run with the same options.
///
/// An option on the command line takes precedence over the file, also over options of the file that it excludes: --pad
/// takes precedence over crop-scale.
///
/// `--recipe NAME` of training programs reads such a file, which is named after the run that it describes. NAME.toml is
/// searched in ../share/lockstep/recipes next to the program's folder, then where the installation keeps such files
/// (CMake's DATADIR). A NAME with a '/' is a path. The command line and --config take precedence over the recipe, and
/// --config may name the recipe.
namespace lockstep::cli {

/// The contents of the files of --config and --recipe. An empty name means that no file was asked for.
struct ConfigFile {
  std::string name{};
  std::string text{};
  std::string recipe{};  ///< path of the recipe's file; empty: no recipe was asked for
  std::string recipe_text{};
};

/// Says whether a program takes --recipe.
enum class Recipes : unsigned char { no, yes };

/// Reads the file of the last --config on a command line, and the file of the last --recipe. DataError if a file cannot
/// be read. UsageError for --config or --recipe without a name, and for a name that no recipe has; the error lists the
/// known recipes.
[[nodiscard]] ConfigFile read_config_file(int argc, const char* const* argv, Recipes recipes = Recipes::no);

/// Runs read_config_file() for a program of several ranks: rank 0 reads, and all ranks get its texts. Collective. An
/// error is printed once.
[[nodiscard]] ConfigFile read_config_file(lockstep::comm::Session& session, int argc, const char* const* argv,
                                          Recipes recipes = Recipes::no);

/// One key of a file, with its value in the form that the command line takes.
struct ConfigValue {
  std::string key;
  std::string value;  ///< "[1, 3]", "resnet32", "true", "1.0": numbers in the file's form
  int line = 0;
};

/// Returns the keys in the order of the file. DataError, which names file and line, for text that is not TOML; for
/// values other than quoted text, numbers, true, false and lists of these; and for text with a zero byte, which would
/// end a path.
[[nodiscard]] std::vector<ConfigValue> parse_config(const std::string& name, const std::string& text);
[[nodiscard]] inline std::vector<ConfigValue> parse_config(const ConfigFile& config) {
  return parse_config(config.name, config.text);
}

}  // namespace lockstep::cli
