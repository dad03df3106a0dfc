#include "command_line.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

namespace lockstep::cli {

namespace {

bool given(const std::string& option, const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == option || argument.starts_with(option + "=");
  });
}

/// The command line, and what only the file says behind it.
std::vector<std::string> arguments_with(const ConfigFile& config, const CLI::App& app, int argc,
                                        const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::vector<std::string> own = arguments;
  for (const ConfigValue& entry : config.name.empty() ? std::vector<ConfigValue>() : parse_config(config)) {
    const std::string option = "--" + entry.key;
    require<UsageError>(app.get_option_no_throw(option) != nullptr && entry.key != "config", config.name, ":",
                        entry.line, ": ", entry.key, " is no option (--help lists them, here they have no dashes)");
    if (!given(option, own)) {
      arguments.push_back(option + "=" + entry.value);
    }
  }
  return arguments;
}

}  // namespace

void prepare(CLI::App& app, const std::string& footer) {
  app.footer(footer);
  app.option_defaults()->always_capture_default();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.get_formatter()->column_width(32);
}

std::string parse_command_line(CLI::App& app, int argc, const char* const* argv, const ConfigFile& config) {
  app.set_version_flag("--version", lockstep::build_description());
  std::string config_name;  // read_config_file() has seen to it
  app.add_option("--config", config_name,
                 "TOML file with options: key = value, without dashes; what is given here wins")
      ->type_name("FILE");
  try {
    std::vector<std::string> arguments = arguments_with(config, app, argc, argv);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::CallForVersion&) {
    return lockstep::build_description() + "\n";
  } catch (const CLI::ExtrasError&) {  // whose own text names them from last to first
    std::string unknown;
    for (const std::string& argument : app.remaining()) {
      unknown += " " + argument;
    }
    throw UsageError("unknown on the command line:" + unknown + " (--help lists the options)");
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + " (--help lists the options)");
  }
  return {};
}

}  // namespace lockstep::cli
