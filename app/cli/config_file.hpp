#pragma once

#include <string>
#include <vector>

namespace lockstep::comm {
class Session;
}

/// `--config FILE`: options of a program in a TOML file, by their names without dashes:
///
///   devices = [1, 3]      # an integer, a list or text, as --devices takes them
///   model = "resnet32"
///   epochs = 20
///   nesterov = true
///
/// A name that ends with ".json" is the config.json of a run: the options that it was given, for a run that repeats it.
///
/// An option on the command line takes precedence over the file, also over what excludes it: --pad over crop-scale.
///
/// `--recipe NAME` of training programs: such a file under the name of the run that it describes, NAME.toml in
/// ../share/lockstep/recipes beside the program's folder, else where the installation keeps such files (CMake's
/// DATADIR), or a path (with a '/'). The command line and --config, which may name a recipe, too, take precedence over
/// it.
namespace lockstep::cli {

/// The content of a file. Empty name: no file was asked for.
struct ConfigFile {
  std::string name{};
  std::string text{};
  std::string recipe{};  ///< path of the recipe's file; empty: none was asked for
  std::string recipe_text{};
};

/// Whether a program has recipes.
enum class Recipes : unsigned char { no, yes };

/// Reads the file of the last --config on a command line, and that of the last --recipe. DataError when it cannot be
/// read, UsageError for --config or --recipe without a name, and for a name that no recipe has, with those that are
/// there.
[[nodiscard]] ConfigFile read_config_file(int argc, const char* const* argv, Recipes recipes = Recipes::no);

/// The same for a program of several ranks: rank 0 reads, and all ranks get its text. Collective; an error is printed
/// once.
[[nodiscard]] ConfigFile read_config_file(lockstep::comm::Session& session, int argc, const char* const* argv,
                                          Recipes recipes = Recipes::no);

/// One key of a file, in the form of the command line.
struct ConfigValue {
  std::string key;
  std::string value;  ///< "[1, 3]", "resnet32", "true", "1.0": numbers as the file writes them
  int line = 0;
};

/// The keys in the order of the file. DataError naming file and line for text that is not TOML, for values that are
/// neither text in quotes, nor numbers, true or false, nor lists of these, and for text with a zero byte, which would
/// end a path.
[[nodiscard]] std::vector<ConfigValue> parse_config(const std::string& name, const std::string& text);
[[nodiscard]] inline std::vector<ConfigValue> parse_config(const ConfigFile& config) {
  return parse_config(config.name, config.text);
}

}  // namespace lockstep::cli
