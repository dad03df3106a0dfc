#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

/// One record of a zip archive.
struct ZipRecord {
  std::string name;
  std::uint64_t offset = 0;  ///< offset of the first byte from the start of the file
  std::uint64_t bytes = 0;   ///< bytes in the file
  std::uint32_t crc32 = 0;   ///< CRC-32 of the uncompressed bytes
  unsigned method = 0;       ///< 0: stored
  bool encrypted = false;
};

/// Reads the directory of a zip archive (PKWARE's APPNOTE 6.3.10, with the 64-bit sizes of zip64) that ends with the
/// file, has no comment and lies in one part. Nothing in it is trusted: the directory has at most 16 MiB and lies at
/// its stated place; each record has the same name in the directory and in front of its data, lies before the directory
/// and overlaps no other; no name occurs twice. Any violation is a DataError with path, record and what was expected.
/// Compressed records are listed.
[[nodiscard]] std::vector<ZipRecord> read_zip_directory(const InputFile& file);

/// DataError unless a record is stored without compression and its bytes have its checksum.
void require_sound(const InputFile& file, const ZipRecord& record);

}  // namespace lockstep
