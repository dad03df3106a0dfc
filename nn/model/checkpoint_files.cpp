#include <lockstep/nn/model/checkpoint_files.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

namespace {

/// Returns the size of a file in bytes, and its CRC-32.
std::pair<std::int64_t, std::int64_t> checksum_of(const std::string& path) {
  const InputFile file(path);
  return {static_cast<std::int64_t>(file.size()), std::int64_t{crc32_of(file, 0, file.size())}};
}

/// Throws DataError unless `name` is a plain file name. Returns a text for errors that names the file `list` and its
/// entry `name`.
std::string require_plain(const std::string& name, const std::string& list) {
  std::string source = concat(list, ": ", printable(name));
  require<DataError>(name.find('/') == std::string::npos, source,
                     " has a / in its name, expected the name of a file in the folder");
  return source;
}

}  // namespace

std::string checksums_text(const std::string& folder, const std::vector<std::string>& names) {
  Json::Object files;
  for (const std::string& name : names) {
    const auto [bytes, crc32] = checksum_of(concat(folder, '/', name));
    files[name] = Json::Object{{"bytes", bytes}, {"crc32", crc32}};
  }
  return Json(Json::Object{{"files", files}}).text(2) + "\n";
}

std::vector<std::string> listed_files(const std::string& folder) {
  const std::string list = folder + "/" + kChecksumsFile;
  std::vector<std::string> names;
  if (file_exists(list)) {
    for (const auto& [name, entry] : read_json(list).get<Json::Object>("files", list)) {
      require_plain(name, list);
      names.push_back(name);
    }
  }
  return names;
}

void require_checksums(const std::string& folder, const std::vector<std::string>& names) {
  const std::string list = folder + "/" + kChecksumsFile;
  if (!file_exists(list)) {
    return;
  }
  const Json json = read_json(list);
  for (const auto& [name, entry] : json.get<Json::Object>("files", list)) {
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
      continue;
    }
    const std::string source = require_plain(name, list);
    const std::string path = concat(folder, '/', name);
    const auto bytes = entry.get<std::int64_t>("bytes", source);
    const auto crc32 = entry.get<std::int64_t>("crc32", source);
    const auto [found_bytes, found_crc32] = checksum_of(path);
    require<DataError>(found_bytes == bytes && found_crc32 == crc32, path, ": ", found_bytes, " bytes with CRC-32 ",
                       found_crc32, ", expected ", bytes, " with ", crc32, " (", kChecksumsFile,
                       "): the file is damaged, or that of another checkpoint");
  }
}

}  // namespace lockstep::nn
