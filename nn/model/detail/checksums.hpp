#pragma once

#include <string>
#include <vector>

namespace lockstep::nn {

/// Checksums tie the files of a folder together: FOLDER/checksums.json holds the size and the CRC-32 (that of zlib,
/// gzip and PNG) of each. They detect changed bits, and files of different checkpoints in one folder.
inline constexpr const char* kChecksumsFile = "checksums.json";

/// The text of checksums.json for these files of the folder. DataError when one cannot be read.
[[nodiscard]] std::string checksums_text(const std::string& folder, const std::vector<std::string>& names);

/// The plain names in the folder's checksums.json; none where there is no such file.
[[nodiscard]] std::vector<std::string> listed_files(const std::string& folder);

/// Checks the files `names`, or all files in checksums.json when `names` is empty. DataError naming the file whose size
/// or checksum differs. A folder without checksums.json, and a file that it does not list, are accepted, since other
/// programs write such folders.
void require_checksums(const std::string& folder, const std::vector<std::string>& names = {});

}  // namespace lockstep::nn
