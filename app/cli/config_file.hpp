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
/// An option on the command line takes precedence over the file, also over options of the file that exclude this
/// option: --pad takes precedence over crop-scale.
///
/// Training programs also have `--recipe NAME`. A recipe is a file of the same form, named after the run that the file
/// describes. NAME.toml is searched in ../share/lockstep/recipes relative to the program's folder, then where the
/// installation keeps such files (CMake's DATADIR). A NAME with a '/' is a path. The command line and the file of
/// --config take precedence over the recipe, and the file of --config may name the recipe.
namespace lockstep::cli {

/// Names and contents of the files that --config and --recipe name. Without --config, `name` is empty.
struct ConfigFile {
  std::string name{};
  std::string text{};
  std::string recipe{};  ///< path of the recipe's file; empty: no recipe was asked for
  std::string recipe_text{};
};

/// Says whether a program takes --recipe.
enum class Recipes : unsigned char { no, yes };

/// Reads the file of the last --config on the command line. With Recipes::yes, also reads the file of the recipe. The
/// last --recipe names the recipe; without --recipe, the file of --config may name it. Throws DataError if a file
/// cannot be read. Throws UsageError for --config or --recipe without a name, and for an unknown recipe; this error
/// lists the known recipes.
[[nodiscard]] ConfigFile read_config_file(int argc, const char* const* argv, Recipes recipes = Recipes::no);

/// Calls the overload without `Session` on rank 0, and returns its result on all ranks. Collective. An error is printed
/// once.
[[nodiscard]] ConfigFile read_config_file(lockstep::comm::Session& session, int argc, const char* const* argv,
                                          Recipes recipes = Recipes::no);

/// One key of a file, with its value in the form that the command line takes.
struct ConfigValue {
  std::string key;
  std::string value;  ///< for example "[1,3]", "resnet32", "true" or "1.0" (not "1", if the file says 1.0)
  int line = 0;
};

/// Returns the keys in `text`, the contents of the file `name`, in the order of the file. Throws a DataError that names
/// file and line for text that is not TOML; for values other than quoted text, numbers, true, false and lists of these;
/// and for values with a zero byte, which would end a path.
[[nodiscard]] std::vector<ConfigValue> parse_config(const std::string& name, const std::string& text);
[[nodiscard]] inline std::vector<ConfigValue> parse_config(const ConfigFile& config) {
  return parse_config(config.name, config.text);
}

}  // namespace lockstep::cli
