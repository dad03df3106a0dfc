#pragma once

#include <string>
#include <vector>

/// Manifest of a checkpoint: the files in the folder of a saved state, and the checksums that show that they belong
/// together. Names and formats of the files do not change between versions.
namespace lockstep::nn {

inline constexpr const char* kModelFile = "model.safetensors";  ///< parameters, and running statistics of evaluation
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";  ///< all other states (ParameterSet::states())
/// Moving average (EMA) of the weights, if there is one, as a model file that load_model() and other programs can read.
inline constexpr const char* kAverageFile = "ema.safetensors";
inline constexpr const char* kStateFile = "state.json";  ///< identity and progress of a run
/// Size and CRC-32 (the CRC-32 of zlib, gzip and PNG) of each of the other files. A check detects changed bits, and
/// files of different checkpoints in one folder.
inline constexpr const char* kChecksumsFile = "checksums.json";

struct CheckpointFile {
  const char* name;
  bool is_model = false;   ///< true: load_model() can read the file
  bool of_resume = false;  ///< true: a resume needs the file
};
inline constexpr CheckpointFile kCheckpointFiles[] = {{kModelFile, true, true},
                                                      {kOptimizerFile, false, true},
                                                      {kAverageFile, true},
                                                      {kStateFile, false, true},
                                                      {kChecksumsFile}};

/// Returns the text of checksums.json for the files `names` of the folder. Throws DataError when a file cannot be read.
[[nodiscard]] std::string checksums_text(const std::string& folder, const std::vector<std::string>& names);

/// Returns the file names in the folder's checksums.json; an empty list if there is no such file.
[[nodiscard]] std::vector<std::string> listed_files(const std::string& folder);

/// Checks the files `names`, or all files in checksums.json if `names` is empty. Throws DataError, which names the
/// file, if its size or checksum differs. Other programs write folders without checksums, so a folder without
/// checksums.json is accepted, and so is a file that checksums.json does not list.
void require_checksums(const std::string& folder, const std::vector<std::string>& names = {});

}  // namespace lockstep::nn
