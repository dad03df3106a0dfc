#pragma once

#include <string>
#include <vector>

/// The manifest of a checkpoint: the files that the folder of a saved state is made of, and what ties them together.
/// Names and forms of files do not change between versions.
namespace lockstep::nn {

inline constexpr const char* kModelFile = "model.safetensors";          ///< parameters, statistics of evaluations
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";  ///< all other states (ParameterSet::states())
/// The moving average of the weights, where there is one: a model file of its own, for load_model() and other programs.
inline constexpr const char* kAverageFile = "ema.safetensors";
inline constexpr const char* kStateFile = "state.json";  ///< identity and progress of a run
/// The size and the CRC-32 (that of zlib, gzip and PNG) of each of the others. Checksums detect changed bits, and files
/// of different checkpoints in one folder.
inline constexpr const char* kChecksumsFile = "checksums.json";

struct CheckpointFile {
  const char* name;
  bool is_model = false;   ///< load_model() reads the file
  bool of_resume = false;  ///< a run does not go on without the file
};
inline constexpr CheckpointFile kCheckpointFiles[] = {{kModelFile, true, true},
                                                      {kOptimizerFile, false, true},
                                                      {kAverageFile, true},
                                                      {kStateFile, false, true},
                                                      {kChecksumsFile}};

/// The text of checksums.json for these files of the folder. DataError when one cannot be read.
[[nodiscard]] std::string checksums_text(const std::string& folder, const std::vector<std::string>& names);

/// The plain names in the folder's checksums.json; none where there is no such file.
[[nodiscard]] std::vector<std::string> listed_files(const std::string& folder);

/// Checks the files `names`, or all files in checksums.json when `names` is empty. DataError naming the file whose size
/// or checksum differs. A folder without checksums.json, and a file that checksums.json does not list, are accepted,
/// since other programs write such folders.
void require_checksums(const std::string& folder, const std::vector<std::string>& names = {});

}  // namespace lockstep::nn
