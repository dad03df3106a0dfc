#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// One tensor of a file. Minimum, maximum and mean count finite values only, in f64; they are empty if there is
/// no finite value, and for types that lockstep-info cannot read (F8_E4M3, C64, ...).
struct TensorFacts {
  std::string name;
  std::string dtype;  ///< name of the type in safetensors: "F32"
  std::vector<std::int64_t> shape;
  std::int64_t values = 0;
  std::uint64_t bytes = 0;
  std::optional<double> least{};
  std::optional<double> most{};
  std::optional<double> mean{};
  std::optional<std::int64_t> non_finite{};  ///< number of NaN and infinities; empty if the type cannot be read
};

struct FileFacts {
  std::string path;
  std::string format;  ///< "safetensors", "torch" or "run"
  std::map<std::string, std::string> metadata{};
  std::vector<TensorFacts> tensors{};  ///< tensors of the file, ordered by name; numbers in names are compared by value
};

/// Reads the tensors of a file, a checkpoint or a run. From a checkpoint's folder, reads model.safetensors and, if it
/// exists, optimizer.safetensors, after checking their checksums. From a run's folder, reads the library choices in
/// config.json, as metadata. Host memory holds one tensor at a time. Throws the DataErrors of TensorFile, and DataError
/// for wrong checksums and for a folder that is neither a checkpoint nor a run.
[[nodiscard]] std::vector<FileFacts> read_tensors(const std::string& path);

/// Returns a table for each file, for people.
[[nodiscard]] std::string tensor_report(const std::vector<FileFacts>& files);
/// Returns the files as a JSON array; a value that is not known is null.
[[nodiscard]] Json tensor_json(const std::vector<FileFacts>& files);

}  // namespace lockstep::tools
