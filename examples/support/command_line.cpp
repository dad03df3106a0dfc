#include "command_line.hpp"

#include <CLI/CLI.hpp>

#include <lockstep/runtime/error.hpp>
#include <lockstep/runtime/version.hpp>

namespace examples {

using lockstep::UsageError;

std::string parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  app.set_version_flag("--version", lockstep::build_description());
  try {
    app.parse(argc, argv);
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

}  // namespace examples
