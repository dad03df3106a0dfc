#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::nn {

/// Text of one file, or of several files one after the other, cut in two parts: the last tenth is for validation.
struct TextFiles {
  std::int64_t files = 0;
  std::string train;
  std::string validation;
};

/// Reads a text. If `path` is a file, reads that file, whatever its name. If `path` is a folder, reads all files with
/// one of `endings` in the folder and in the folders below it, in the order of their paths. Skips names that begin with
/// a dot, and build trees (folders with a CMakeCache.txt). `shown` is the path for error texts. Throws DataError if
/// `path` does not exist, if no file has one of `endings`, or if the files have more than 4 GiB together. Throws
/// FileError if the system cannot read a file or folder.
[[nodiscard]] TextFiles read_text(const std::string& path, const std::string& shown,
                                  const std::vector<std::string>& endings = {".md", ".txt", ".hpp", ".cpp"});

}  // namespace lockstep::nn
