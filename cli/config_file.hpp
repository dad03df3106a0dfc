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
/// What the command line says too is taken from there.
namespace lockstep::cli {

/// A file as it was read. No name: none was asked for.
struct ConfigFile {
  std::string name{};
  std::string text{};
};

/// The file that the last --config of a command line names. DataError when it cannot be read, UsageError for --config
/// without a name.
[[nodiscard]] ConfigFile read_config_file(int argc, const char* const* argv);

/// The same for a program of several ranks: rank 0 reads, all get what it has read. Collective; a failure is said once.
[[nodiscard]] ConfigFile read_config_file(lockstep::comm::Session& session, int argc, const char* const* argv);

/// One key of a file, as a command line would say it.
struct ConfigValue {
  std::string key;
  std::string value;  ///< "[1, 3]", "resnet32", "true", "1.0": numbers as they were written
  int line = 0;
};

/// In the order of the file. DataError naming file and line for what is no TOML, for tables, dates and lists of lists.
[[nodiscard]] std::vector<ConfigValue> parse_config(const ConfigFile& config);

}  // namespace lockstep::cli
