#include "app/cli/config_file.hpp"

#include <algorithm>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

/// Reads the input as options in TOML or, if it begins with '{', as the config.json of a run.
void config(Input input) {
  const std::string text = text_of(input);
  const bool of_run = text.starts_with('{');
  const cli::ConfigFile file{of_run ? "run.json" : "run.toml", text};
  std::vector<cli::ConfigValue> values;
  if (!accepts<DataError>([&] { values = cli::parse_config(file); })) {
    return;
  }
  const auto lines = 1 + std::count(file.text.begin(), file.text.end(), '\n');
  int before = 0;
  for (const cli::ConfigValue& value : values) {
    check((of_run || value.line >= before) && value.line >= 1 && value.line <= lines, "line ", value.line, " of ",
          lines);
    before = value.line;
    check(value.value.find('\0') == std::string::npos, "a zero byte in a value");
  }
}

}  // namespace lockstep::fuzz
