#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::nn {

/// The text of one or several files, concatenated and cut in two: the last tenth is for validation.
struct TextFiles {
  std::int64_t files = 0;
  std::string train;
  std::string validation;
};

/// Reads a text. If `path` is a file, that file is read, whatever its name. If `path` is a folder, all files with one
/// of `endings` in it and in the folders below are read, in the order of their paths. Names that begin with a dot and
/// build trees (folders with a CMakeCache.txt) are skipped. shown: the path as error texts name it. Throws DataError
/// when `path` does not exist, when no file has such an ending, or when the files have more than 4 GiB together. Throws
/// FileError where the system is the reason.
[[nodiscard]] TextFiles read_text(const std::string& path, const std::string& shown,
                                  const std::vector<std::string>& endings = {".md", ".txt", ".hpp", ".cpp"});

}  // namespace lockstep::nn
