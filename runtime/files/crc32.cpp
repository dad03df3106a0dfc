#include <lockstep/runtime/files/crc32.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <zlib.h>

namespace lockstep {

std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(kChunkBytes, bytes)));
  uLong crc = ::crc32_z(0, nullptr, 0);
  for (std::uint64_t done = 0; done < bytes;) {
    const auto part =
        std::span(chunk).first(static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), bytes - done)));
    file.read(offset + done, part);
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(part.data()), part.size());
    done += part.size();
  }
  return static_cast<std::uint32_t>(crc);
}

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  // A null pointer, which an empty span may have, asks zlib for the first value.
  return bytes.empty() ? before
                       : static_cast<std::uint32_t>(
                             ::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace lockstep
