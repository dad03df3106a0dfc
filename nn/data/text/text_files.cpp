#include <lockstep/nn/data/text/text_files.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;  // most bytes of a text, which is held in memory

bool passed_over(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.path().filename().string().starts_with('.') ||
         (entry.is_directory(ignored) && fs::exists(entry.path() / "CMakeCache.txt", ignored));
}

/// Returns the files below `folder` that have one of the endings `endings`, sorted by their paths.
std::vector<std::string> files_below(const std::string& folder, const std::vector<std::string>& endings) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (passed_over(*entry)) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored) &&
               std::find(endings.begin(), endings.end(), entry->path().extension().string()) != endings.end()) {
      files.push_back(entry->path().string());
    }
  }
  require<FileError>(!error, folder, ": cannot be read: ", error.message(),
                     "; expected a folder that this user may read");
  std::sort(files.begin(), files.end());
  return files;
}

/// Formats endings for an error text, like "*.md, *.txt or *.cpp".
std::string listed(const std::vector<std::string>& endings) {
  std::string text;
  for (std::size_t i = 0; i < endings.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == endings.size() ? " or " : ", ", '*', endings[i]);
  }
  return text;
}

}  // namespace

TextFiles read_text(const std::string& path, const std::string& shown, const std::vector<std::string>& endings) {
  std::error_code ignored;
  require<DataError>(fs::exists(path, ignored), shown,
                     ": there is no such file or folder, expected a text or a folder of texts");
  std::vector<std::string> files{path};
  if (fs::is_directory(path, ignored)) {
    files = files_below(path, endings);
    require<DataError>(!files.empty(), shown, ": the folder holds no file ", listed(endings),
                       ", expected at least one");
  }
  TextFiles text{.files = static_cast<std::int64_t>(files.size())};
  for (const std::string& file : files) {
    text.train += read_file(file, kMostBytes - text.train.size());
  }
  const std::size_t cut = text.train.size() - text.train.size() / 10;
  text.validation = text.train.substr(cut);
  text.train.resize(cut);
  return text;
}

}  // namespace lockstep::nn
