#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

/// One record of a zip archive.
struct ZipRecord {
  std::string name;
  std::uint64_t offset = 0;  ///< offset of the record's data from the start of the file
  std::uint64_t bytes = 0;   ///< size of the record's data in the file
  std::uint32_t crc32 = 0;   ///< CRC-32 of the uncompressed bytes
  unsigned method = 0;       ///< compression method; 0: stored without compression
  bool encrypted = false;
};

/// Reads the directory of a zip archive (PKWARE's APPNOTE 6.3.10, with the 64-bit sizes of zip64). The result also
/// lists compressed records. Throws DataError, with the path, the record and the expected value, unless these rules
/// hold. The archive has one part, ends with the file and has no comment. The directory has at most 16 MiB and is at
/// its stated position. Each record has the same name in the directory and in its local header, and no name occurs
/// twice. The data of a record are before the directory and overlap no other record.
[[nodiscard]] std::vector<ZipRecord> read_zip_directory(const InputFile& file);

/// Throws DataError unless the record is stored without compression and its bytes have the checksum `record.crc32`.
void require_valid(const InputFile& file, const ZipRecord& record);

}  // namespace lockstep
