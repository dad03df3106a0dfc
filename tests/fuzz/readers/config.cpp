#include "app/cli/config_file.hpp"

#include <algorithm>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

void config(Input input) {
  const cli::ConfigFile file{"run.toml", text_of(input)};
  std::vector<cli::ConfigValue> values;
  if (!accepts<DataError>([&] { values = cli::parse_config(file); })) {
    return;
  }
  const auto lines = 1 + std::count(file.text.begin(), file.text.end(), '\n');
  int before = 0;
  for (const cli::ConfigValue& value : values) {
    check(value.line >= before && value.line >= 1 && value.line <= lines, "line ", value.line, " of ", lines);
    before = value.line;
    check(value.value.find('\0') == std::string::npos, "a zero byte in a value");
  }
}

}  // namespace lockstep::fuzz
