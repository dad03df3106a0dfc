#pragma once

#include <string>
#include <vector>

/// Manifest of a checkpoint: the files in the folder of a saved state, and checksums that show whether the files belong
/// together. Names and formats of the files do not change between versions.
namespace lockstep::nn {

inline constexpr const char* kModelFile = "model.safetensors";  ///< parameters, and running statistics for evaluation
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";  ///< states of optimizer and training
/// Moving average (EMA) of the weights, if there is one. load_model() and other programs can read this file as a model.
inline constexpr const char* kAverageFile = "ema.safetensors";
inline constexpr const char* kStateFile = "state.json";  ///< identity and progress of a run
/// Sizes and CRC-32 (with the polynomial of zlib, gzip and PNG) of all other files of the checkpoint. With them,
/// require_checksums() detects changed bits and files that come from different checkpoints.
inline constexpr const char* kChecksumsFile = "checksums.json";

struct CheckpointFile {
  const char* name;
  bool is_model = false;   ///< true: load_model() can read the file
  bool of_resume = false;  ///< true: resuming a run needs the file
};
inline constexpr CheckpointFile kCheckpointFiles[] = {{kModelFile, true, true},
                                                      {kOptimizerFile, false, true},
                                                      {kAverageFile, true},
                                                      {kStateFile, false, true},
                                                      {kChecksumsFile}};

/// Returns the text of checksums.json for the files `names` in `folder`. Throws DataError if a file cannot be read.
[[nodiscard]] std::string checksums_text(const std::string& folder, const std::vector<std::string>& names);

/// Returns the file names in the checksums.json of `folder`, or an empty list if the folder has no checksums.json.
[[nodiscard]] std::vector<std::string> listed_files(const std::string& folder);

/// Compares the files `names` with checksums.json, or all files that checksums.json lists if `names` is empty. Throws
/// DataError, which names the file, if the size or the checksum of a file differs. Accepts a folder without
/// checksums.json and files that checksums.json does not list, because other programs write no checksums.
void require_checksums(const std::string& folder, const std::vector<std::string>& names = {});

}  // namespace lockstep::nn
