#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::bench {

using JsonField = std::pair<std::string, std::variant<std::string, std::int64_t, double>>;

/// A file with one JSON object a line: results that jq, pandas and a text editor read alike.
class JsonLines {
 public:
  explicit JsonLines(const std::string& path);  ///< DataError when it cannot be written
  void write(const std::vector<JsonField>& fields);
  void close();  ///< DataError when not everything was written

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace lockstep::bench
