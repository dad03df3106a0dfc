// The input begins with a byte. If the byte is odd, the header (a 16-bit length and that number of bytes) and the data
// follow, and this reader makes a file of them. If it is even, the rest of the input is the file.
#include <lockstep/runtime/files/safetensors.hpp>

#include <algorithm>
#include <optional>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

/// Makes a file of a header and data: puts the header's length before them.
std::string with_length(Input header, Input data) {
  std::string file;
  for (unsigned i = 0; i < 8; ++i) {
    file += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  }
  return file + text_of(header) + text_of(data);
}

std::vector<std::byte> bytes_of(const SafetensorsFile& file, const TensorEntry& entry) {
  std::vector<std::byte> bytes(entry.bytes);
  file.read(entry, bytes);
  return bytes;
}

/// Checks that the tensors follow each other to the end of the file and hold its bytes.
void check_layout(const SafetensorsFile& file, const std::string& whole) {
  std::uint64_t end = whole.size();
  for (auto entry = file.entries().rbegin(); entry != file.entries().rend(); ++entry) {
    check(entry->offset + entry->bytes == end, "tensor ", entry->name, " ends at ", entry->offset + entry->bytes);
    end = entry->offset;
    const std::vector<std::byte> bytes = bytes_of(file, *entry);
    check(std::equal(bytes.begin(), bytes.end(), reinterpret_cast<const std::byte*>(whole.data()) + entry->offset),
          "tensor ", entry->name, " is not what the file holds");
    check(file.find(entry->name) == &*entry, "tensor ", entry->name, " is not found");
    std::vector<std::byte> more(entry->bytes + 1);
    check(!accepts<DataError>([&] { file.read(*entry, more); }), "reads beyond the tensor");
  }
}

/// Checks that the file, written again and read, has the same tensors and texts.
void check_round_trip(const SafetensorsFile& file) {
  std::vector<std::vector<std::byte>> data;
  std::vector<SafetensorsTensor> tensors;
  for (const TensorEntry& entry : file.entries()) {
    if (!entry.type()) {
      return;
    }
    data.push_back(bytes_of(file, entry));
    tensors.push_back({.name = entry.name, .dtype = *entry.type(), .shape = entry.shape, .data = {}, .fill = {}});
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    tensors[i].data = data[i];
  }
  const std::string path = folder() / "again.safetensors";
  write_safetensors(path, tensors, file.metadata());
  const SafetensorsFile again(path);
  check(again.metadata() == file.metadata() && again.entries().size() == tensors.size(), "another header");
  for (const TensorEntry& entry : file.entries()) {
    const TensorEntry* other = again.find(entry.name);
    check(other != nullptr && other->dtype == entry.dtype && other->shape == entry.shape &&
              bytes_of(again, *other) == bytes_of(file, entry),
          "tensor ", entry.name, " differs");
  }
}

}  // namespace

void safetensors(Input input) {
  Cursor cursor(input);
  std::string whole;
  if (cursor.byte() % 2 == 1) {
    const Input header = cursor.piece();
    whole = with_length(header, cursor.rest());
  } else {
    whole = text_of(cursor.rest());
  }
  folder().clear();
  folder().put("a.safetensors", whole);
  std::optional<SafetensorsFile> file;
  if (accepts<DataError>([&] { file.emplace(folder() / "a.safetensors"); })) {
    check_layout(*file, whole);
    check_round_trip(*file);
  }
}

}  // namespace lockstep::fuzz
