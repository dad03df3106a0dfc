#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::nn {

/// A text of one file or several, one behind the other, cut in two: the last tenth is for validation.
struct TextFiles {
  std::int64_t files = 0;
  std::string train;
  std::string validation;
};

/// A file, whatever its name; or a folder and the folders in it: all files with one of these endings, in the order of
/// their paths. Names that begin with a dot and build trees (folders with a CMakeCache.txt) are passed over. `shown`:
/// what errors call the path. DataError when nothing is there, no file has such an ending, or all of them have more
/// than 4 GiB; FileError where the system is the reason.
[[nodiscard]] TextFiles read_text(const std::string& path, const std::string& shown,
                                  const std::vector<std::string>& endings = {".md", ".txt", ".hpp", ".cpp"});

}  // namespace lockstep::nn
