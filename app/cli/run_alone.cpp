#include "app/cli/run_alone.hpp"

#include <CLI/CLI.hpp>

#include <lockstep/comm/launch/run_alone.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

#include "app/cli/command_line.hpp"

namespace lockstep::cli {

int run_alone(CLI::App& app, int argc, const char* const* argv, const std::function<int()>& body) noexcept {
  return comm::run_alone([&] {
    app.set_version_flag("--version", build_description());
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {
      wrap_descriptions(app);
      return app.exit(e);
    } catch (const CLI::ParseError& e) {
      throw UsageError(concat(e.what(), "; see --help"));
    }
    return body();
  });
}

}  // namespace lockstep::cli
