#include <lockstep/nn/model/detail/checksums.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <zlib.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

struct Checksum {
  std::int64_t bytes = 0;
  std::int64_t crc32 = 0;
};

Checksum checksum_of(const std::string& path) {
  const InputFile file(path);
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, file.size())));
  uLong crc = ::crc32_z(0, nullptr, 0);
  for (std::uint64_t done = 0; done < file.size();) {
    const auto part =
        std::span(chunk).first(static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), file.size() - done)));
    file.read(done, part);
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(part.data()), part.size());
    done += part.size();
  }
  return {static_cast<std::int64_t>(file.size()), static_cast<std::int64_t>(crc)};
}

}  // namespace

std::string checksums_text(const std::string& folder, const std::vector<std::string>& names) {
  Json::Object files;
  for (const std::string& name : names) {
    const Checksum sum = checksum_of(concat(folder, '/', name));
    files[name] = Json::Object{{"bytes", sum.bytes}, {"crc32", sum.crc32}};
  }
  return Json(Json::Object{{"files", files}}).text(2) + "\n";
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
    const std::string source = concat(list, ": ", printable(name));
    require<DataError>(name.find('/') == std::string::npos, source, ": expected a plain name");
    const std::string path = concat(folder, '/', name);
    const auto bytes = entry.get<std::int64_t>("bytes", source);
    const auto crc32 = entry.get<std::int64_t>("crc32", source);
    const Checksum found = checksum_of(path);
    require<DataError>(found.bytes == bytes && found.crc32 == crc32, path, ": ", found.bytes, " bytes with CRC-32 ",
                       found.crc32, ", expected ", bytes, " with ", crc32, " (", kChecksumsFile,
                       "): the file is damaged, or that of another checkpoint");
  }
}

}  // namespace lockstep::nn
