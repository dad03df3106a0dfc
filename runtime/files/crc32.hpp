#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

/// Returns the CRC-32 (as in zlib, gzip, zip and PNG) of bytes [offset, offset + bytes) of a file, which is read in
/// pieces. Throws DataError if the file is shorter. libdeflate computes the CRC, or zlib in a build without libdeflate
/// (LOCKSTEP_LIBDEFLATE).
[[nodiscard]] std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t bytes);
/// Returns the CRC-32 of bytes in memory. `before` is the CRC-32 of the bytes that precede them in the same data.
[[nodiscard]] std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace lockstep
