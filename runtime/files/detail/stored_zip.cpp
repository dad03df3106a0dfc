#include <lockstep/runtime/files/detail/stored_zip.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep {

namespace {

constexpr std::uint64_t kMostDirectory = std::uint64_t{16} << 20;
// Sizes of the format's fixed parts in bytes, and the marks with which the parts begin.
constexpr std::uint64_t kEnd = 22;
constexpr std::uint64_t kLocator64 = 20;
constexpr std::uint64_t kEnd64 = 56;
constexpr std::uint64_t kEntry = 46;
constexpr std::uint64_t kLocal = 30;
constexpr std::uint32_t kEndMark = 0x06054b50;
constexpr std::uint32_t kLocator64Mark = 0x07064b50;
constexpr std::uint32_t kEnd64Mark = 0x06064b50;
constexpr std::uint32_t kEntryMark = 0x02014b50;
constexpr std::uint32_t kLocalMark = 0x04034b50;
constexpr std::uint32_t kIn64 = 0xffffffff;  // value of a 32-bit field whose number is in zip64's extra field

/// Reads bytes [offset, offset + count) of a file. The caller has checked that the file has these bytes.
std::string bytes_at(const InputFile& file, std::uint64_t offset, std::uint64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  file.read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Reads a little-endian number of `count` bytes at position `at`. The caller has checked that `bytes` is long enough.
std::uint64_t number(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}
std::uint32_t word(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint32_t>(number(bytes, at, 4));
}

struct Directory {
  std::uint64_t entries = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

Directory find_directory(const InputFile& file) {
  const std::string& path = file.path();
  require<DataError>(file.size() >= kEnd, path, ": ", file.size(), " bytes, expected at least ", kEnd,
                     " of a zip archive");
  std::uint64_t end = file.size() - kEnd;  // end of the archive's directory
  const std::string last = bytes_at(file, end, kEnd);
  require<DataError>(word(last, 0) == kEndMark && number(last, 20, 2) == 0, path,
                     ": ends without the directory of a zip archive, expected one: the file is cut off or damaged");
  Directory directory{.entries = number(last, 10, 2), .begin = word(last, 16), .bytes = word(last, 12)};
  const std::string locator = end >= kLocator64 ? bytes_at(file, end - kLocator64, kLocator64) : "";
  if (!locator.empty() && word(locator, 0) == kLocator64Mark) {
    end = number(locator, 8, 8);
    require<DataError>(end <= file.size() - kEnd - kLocator64 && file.size() - kEnd - kLocator64 - end >= kEnd64, path,
                       ": the zip64 directory ends at byte ", end, ", expected an end within the file: it is damaged");
    const std::string end64 = bytes_at(file, end, kEnd64);
    require<DataError>(word(end64, 0) == kEnd64Mark, path, ": the end of the zip64 directory is not at byte ", end,
                       ", expected it there: the file is damaged");
    directory = {.entries = number(end64, 32, 8), .begin = number(end64, 48, 8), .bytes = number(end64, 40, 8)};
  }
  require<DataError>(directory.begin <= end && directory.bytes <= end - directory.begin, path, ": zip directory of ",
                     directory.bytes, " bytes from byte ", directory.begin, " on, expected it within the first ", end,
                     " bytes");
  require<DataError>(directory.bytes <= kMostDirectory, path, ": zip directory of ", directory.bytes,
                     " bytes, expected at most ", kMostDirectory);
  require<DataError>(directory.entries <= directory.bytes / kEntry, path, ": ", directory.entries,
                     " records, expected at most ", directory.bytes / kEntry, " in a zip directory of ",
                     directory.bytes, " bytes");
  return directory;
}

/// Reads those numbers of an entry that do not fit 32 bits. The entry's extra field holds them in the order of the
/// format.
class Extra64 {
 public:
  explicit Extra64(std::string_view extra) {
    while (extra.size() >= 4) {
      const auto bytes = static_cast<std::size_t>(number(extra, 2, 2));
      if (bytes > extra.size() - 4) {
        return;
      }
      if (number(extra, 0, 2) == 1) {
        rest_ = extra.substr(4, bytes);
        return;
      }
      extra.remove_prefix(4 + bytes);
    }
  }
  /// Returns `given`, an entry's 32-bit field, or the extra field's number if `given` is kIn64 (nullopt if missing).
  [[nodiscard]] std::optional<std::uint64_t> of(std::uint32_t given) {
    if (given != kIn64) {
      return given;
    }
    if (rest_.size() < 8) {
      return std::nullopt;
    }
    const std::uint64_t value = number(rest_, 0, 8);
    rest_.remove_prefix(8);
    return value;
  }

 private:
  std::string_view rest_;
};

/// A record of the directory, with the offset of its local header in the file.
struct Listed {
  ZipRecord record;
  std::uint64_t header = 0;
};

/// Removes the first entry from `rest`, the unread part of a zip directory, and returns the entry.
Listed take_entry(std::string_view& rest, const std::string& path) {
  require<DataError>(rest.size() >= kEntry && word(rest, 0) == kEntryMark, path,
                     ": damaged zip directory, expected an entry where ", rest.size(), " bytes are left");
  const auto name_bytes = static_cast<std::size_t>(number(rest, 28, 2));
  const auto extra_bytes = static_cast<std::size_t>(number(rest, 30, 2));
  const std::size_t bytes = kEntry + name_bytes + extra_bytes + static_cast<std::size_t>(number(rest, 32, 2));
  require<DataError>(bytes <= rest.size(), path, ": damaged zip directory, an entry of ", bytes,
                     " bytes, expected at most the ", rest.size(), " bytes that are left");
  Listed listed;
  listed.record = {.name = std::string(rest.substr(kEntry, name_bytes)),
                   .crc32 = word(rest, 16),
                   .method = static_cast<unsigned>(number(rest, 10, 2)),
                   .encrypted = (number(rest, 8, 2) & 1U) != 0};
  Extra64 extra(rest.substr(kEntry + name_bytes, extra_bytes));
  const auto whole = extra.of(word(rest, 24));
  const auto stored = extra.of(word(rest, 20));
  const auto header = extra.of(word(rest, 42));
  require<DataError>(whole && stored && header && (listed.record.method != 0 || *whole == *stored), path, ": record ",
                     printable(listed.record.name),
                     ": damaged sizes in the zip directory, expected all of them and equal ones where it is stored");
  listed.record.bytes = *stored;
  listed.header = *header;
  rest.remove_prefix(bytes);
  return listed;
}

/// Returns the offset of a record's data in the file. The data follow the record's local header, which repeats the
/// record's name. `end` is the offset at which the data of all records end.
std::uint64_t data_of(const InputFile& file, const Listed& listed, std::uint64_t end) {
  const std::string& name = listed.record.name;
  const auto fail = [&](const char* what) {
    throw DataError(concat(file.path(), ": record ", printable(name), ": ", what));
  };
  if (listed.header > end || kLocal + name.size() > end - listed.header) {
    fail("lies outside of the zip archive");
  }
  const std::string local = bytes_at(file, listed.header, kLocal + name.size());
  if (word(local, 0) != kLocalMark || number(local, 26, 2) != name.size() || local.substr(kLocal) != name) {
    fail("another name in front of its data, or none: the zip archive is damaged");
  }
  const std::uint64_t data = listed.header + kLocal + name.size() + number(local, 28, 2);
  if (data > end || listed.record.bytes > end - data) {
    fail("lies outside of the zip archive");
  }
  return data;
}

}  // namespace

std::vector<ZipRecord> read_zip_directory(const InputFile& file) {
  const std::string& path = file.path();
  const Directory directory = find_directory(file);
  const std::string text = bytes_at(file, directory.begin, directory.bytes);
  std::string_view rest = text;
  std::vector<Listed> listed;
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    Listed& entry = listed.emplace_back(take_entry(rest, path));
    require<DataError>(names.insert(entry.record.name).second, path, ": record ", printable(entry.record.name),
                       " stands twice in the zip directory, expected each record once");
    entry.record.offset = data_of(file, entry, directory.begin);
  }
  require<DataError>(rest.empty(), path, ": ", rest.size(),
                     " bytes after the last entry of the zip directory, expected none");
  std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) { return a.header < b.header; });
  std::vector<ZipRecord> records;
  std::uint64_t end = 0;
  for (Listed& entry : listed) {
    require<DataError>(entry.header >= end, path, ": record ", printable(entry.record.name),
                       " overlaps the one in front of it, expected each record apart");
    end = entry.record.offset + entry.record.bytes;
    records.push_back(std::move(entry.record));
  }
  return records;
}

void require_valid(const InputFile& file, const ZipRecord& record) {
  const std::string what = concat(file.path(), ": record ", printable(record.name));
  require<DataError>(record.method == 0 && !record.encrypted, what,
                     record.encrypted ? ": is encrypted" : ": is compressed",
                     ", expected a stored one, as torch.save writes them");
  const std::uint32_t crc = crc32_of(file, record.offset, record.bytes);
  require<DataError>(crc == record.crc32, what, ": CRC-32 ", crc, ", expected ", record.crc32,
                     record.crc32 == 0 ? " (0 where torch was told to write none)" : "", ": the file is damaged");
}

}  // namespace lockstep
