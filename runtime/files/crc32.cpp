#include <lockstep/runtime/files/crc32.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#if LOCKSTEP_HAS_LIBDEFLATE
#include <libdeflate.h>
#else
#include <zlib.h>
#endif

namespace lockstep {

std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(kChunkBytes, bytes)));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < bytes;) {
    const auto part =
        std::span(chunk).first(static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), bytes - done)));
    file.read(offset + done, part);
    crc = crc32_of(part, crc);
    done += part.size();
  }
  return crc;
}

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  // An empty span may have a null pointer. For a null pointer, libdeflate and zlib return the CRC's initial value
  // instead of `before`.
  if (bytes.empty()) {
    return before;
  }
#if LOCKSTEP_HAS_LIBDEFLATE
  return ::libdeflate_crc32(before, bytes.data(), bytes.size());
#else
  return static_cast<std::uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
#endif
}

}  // namespace lockstep
