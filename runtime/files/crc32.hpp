#pragma once

#include <cstdint>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

/// The CRC-32 (that of zlib, gzip, zip and PNG) of bytes [offset, offset + bytes) of a file, read piece by piece.
/// DataError where the file is shorter.
[[nodiscard]] std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t bytes);

}  // namespace lockstep
