#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// One tensor of a file. Minimum, maximum and mean are those of its finite values, in f64; without a finite value, and
/// for types whose numbers nothing here knows (F8_E4M3, C64, ...), they are empty.
struct TensorFacts {
  std::string name;
  std::string dtype;  ///< as safetensors has it: "F32"
  std::vector<std::int64_t> shape;
  std::int64_t values = 0;
  std::uint64_t bytes = 0;
  std::optional<double> least{};
  std::optional<double> most{};
  std::optional<double> mean{};
  std::optional<std::int64_t> non_finite{};  ///< NaN and infinities; empty where nothing knows the type's numbers
};

struct FileFacts {
  std::string path;
  std::string format;  ///< "safetensors", "torch" or "run"
  std::map<std::string, std::string> metadata{};
  std::vector<TensorFacts> tensors{};  ///< in the order of their names, numbers in them by their value
};

/// Reads a file of tensors, or of a checkpoint's folder model.safetensors and, where it is there,
/// optimizer.safetensors, after a look at their checksums. Host memory holds one tensor at a time. Of a run's folder
/// what config.json says of library choices, as metadata. DataError as TensorFile's, for other checksums, and for a
/// folder without either.
[[nodiscard]] std::vector<FileFacts> read_tensors(const std::string& path);

/// A table a file, for people.
[[nodiscard]] std::string tensor_report(const std::vector<FileFacts>& files);
/// An array of files; null is what is not known.
[[nodiscard]] Json tensor_json(const std::vector<FileFacts>& files);

}  // namespace lockstep::tools
