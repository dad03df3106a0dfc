#pragma once

#include <string>
#include <vector>

namespace lockstep::nn {

/// Checksums tie the files of a folder together: FOLDER/checksums.json holds the size and the CRC-32 (that of zlib,
/// gzip and PNG) of each. They find a bit that has changed and files of two checkpoints in one folder.
inline constexpr const char* kChecksumsFile = "checksums.json";

/// The text of checksums.json for files that lie in the folder. DataError when one cannot be read.
[[nodiscard]] std::string checksums_text(const std::string& folder, const std::vector<std::string>& names);

/// DataError that names the file when it is not the one that was written: one of `names`, or any that checksums.json
/// lists where `names` is empty. A folder without checksums.json, and a file that is not listed, are taken as they are:
/// other programs write such.
void require_checksums(const std::string& folder, const std::vector<std::string>& names = {});

}  // namespace lockstep::nn
