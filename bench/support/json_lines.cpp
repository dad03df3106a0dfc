// The only file of the benchmarks that includes nlohmann-json: it is slow to compile.
#include "bench/support/json_lines.hpp"

#include <nlohmann/json.hpp>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::bench {

JsonLines::JsonLines(const std::string& path) : path_(path), file_(path) {
  require<DataError>(file_.good(), path, ": cannot be written");
}

void JsonLines::write(const std::vector<JsonField>& fields) {
  nlohmann::ordered_json line;
  for (const auto& [name, value] : fields) {
    std::visit([&, &key = name](const auto& v) { line[key] = v; }, value);
  }
  file_ << line.dump() << '\n' << std::flush;
}

void JsonLines::close() {
  file_.close();
  require<DataError>(!file_.fail(), path_, ": writing failed");
}

}  // namespace lockstep::bench
