// The input begins with a byte. If the byte is odd, the pickle (a 16-bit length and that number of bytes) and the bytes
// of storage "0" follow, and this reader puts both into a valid archive. If the byte's second bit is set, the archive
// has zip64 numbers. If the byte is even, the rest of the input is the file.
#include <lockstep/runtime/files/torch_file.hpp>

#include <algorithm>
#include <optional>
#include <vector>

#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/fuzz/support.hpp"
#include "tests/support/torch_files.hpp"

namespace lockstep::fuzz {

namespace {

namespace files = lockstep::testing::torch;

/// Checks each element of every tensor against the file's bytes at the offset that the tensor's entry and strides give.
void check_layout(const TensorFile& file, const std::string& whole) {
  for (const TensorEntry& entry : file.entries()) {
    std::vector<std::byte> bytes(entry.bytes);
    file.read(entry, bytes);
    std::uint64_t numel = 1;
    for (const std::int64_t extent : entry.shape) {
      numel *= static_cast<std::uint64_t>(extent);
    }
    check(numel == 0 ? entry.bytes == 0 : entry.bytes % numel == 0, "tensor ", entry.name, " has ", entry.bytes,
          " bytes");
    const std::uint64_t element = numel == 0 ? 0 : entry.bytes / numel;
    for (std::uint64_t i = 0; i < numel; ++i) {
      std::uint64_t rest = i;
      std::uint64_t at = 0;
      std::uint64_t stride = 1;
      for (std::size_t axis = entry.shape.size(); axis-- > 0;) {
        const auto extent = static_cast<std::uint64_t>(entry.shape[axis]);
        at += rest % extent * (entry.strides.empty() ? stride : static_cast<std::uint64_t>(entry.strides[axis]));
        rest /= extent;
        stride *= extent;
      }
      const std::uint64_t place = entry.offset + at * element;
      check(place + element <= whole.size(), "tensor ", entry.name, " lies beyond the file");
      check(std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(i * element),
                       bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * element),
                       reinterpret_cast<const std::byte*>(whole.data()) + place),
            "tensor ", entry.name, " is not what the file holds");
    }
    check(file.find(entry.name) == &entry, "tensor ", entry.name, " is not found");
    std::vector<std::byte> more(entry.bytes + 1);
    check(!accepts<DataError>([&] { file.read(entry, more); }), "reads beyond the tensor");
  }
}

/// Checks that the file's tensors can be written as safetensors.
void check_names(const TensorFile& file) {
  std::vector<std::vector<std::byte>> data;
  std::vector<SafetensorsTensor> tensors;
  for (const TensorEntry& entry : file.entries()) {
    if (entry.type()) {
      file.read(entry, data.emplace_back(entry.bytes));
      tensors.push_back({.name = entry.name, .dtype = *entry.type(), .shape = entry.shape, .data = {}, .fill = {}});
    }
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    tensors[i].data = data[i];
  }
  const std::string path = folder() / "again.safetensors";
  if (accepts<DataError>([&] { write_safetensors(path, tensors); })) {
    check(SafetensorsFile(path).entries().size() == tensors.size(), "another number of tensors");
  } else {
    check(file.find("__metadata__") != nullptr, "cannot be written");
  }
}

}  // namespace

void torch(Input input) {
  Cursor cursor(input);
  std::string whole;
  const unsigned form = cursor.byte();
  if (form % 2 == 1) {
    const std::string pickle = text_of(cursor.piece());
    whole = files::zip(files::records(pickle, {text_of(cursor.rest())}), (form & 2U) != 0);
  } else {
    whole = text_of(cursor.rest());
  }
  folder().clear();
  folder().put("a.pth", whole);
  std::optional<TorchFile> file;
  if (accepts<DataError>([&] { file.emplace(folder() / "a.pth"); })) {
    check_layout(*file, whole);
    check_names(*file);
  }
}

}  // namespace lockstep::fuzz
