// The input has a byte (the length of a window less 1), a 16-bit number (the size of the vocabulary less 1) and a file
// of token ids.
#include <cstddef>
#include <cstdint>
#include <limits>

#include <lockstep/nn/data/token_files.hpp>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

/// Returns the id that the `width` bytes at `offset` hold.
std::int64_t id_at(const std::string& bytes, std::size_t offset, std::size_t width) {
  std::int64_t id = 0;
  for (std::size_t i = width; i > 0; --i) {
    id = id * 256 + static_cast<unsigned char>(bytes[offset + i - 1]);
  }
  return id;
}

}  // namespace

void tokens(Input input) {
  Cursor cursor(input);
  const std::int64_t length = 1 + cursor.byte();
  const std::int64_t vocabulary = 1 + cursor.word();
  const std::string bytes = text_of(cursor.rest());
  folder().put("file.bin", bytes);
  const std::string path = folder() / "file.bin";
  std::int64_t size = 0;
  if (!accepts<DataError>([&] { size = nn::TokenFile(path).size(); })) {
    return;
  }
  // The header's count covers all bytes of the file after it, so the ids are the last bytes.
  const std::size_t header = bytes.size() >= 1024 && (id_at(bytes, 0, 4) == 20240520 || id_at(bytes, 0, 4) == 20240801)
                                 ? std::size_t{1024}
                                 : 0;
  const auto count = static_cast<std::size_t>(size);
  const std::size_t width = (bytes.size() - header) / count;
  check(size >= 1 && (width == 2 || width == 4) && header + count * width == bytes.size(), size, " tokens of ",
        bytes.size(), " bytes");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
  std::vector<std::int32_t> next(ids.size());
  const std::vector<std::span<std::byte>> out{std::as_writable_bytes(std::span(ids)),
                                              std::as_writable_bytes(std::span(next))};
  (void)accepts<DataError>([&] {
    std::vector<nn::TokenFile> files;
    files.emplace_back(path);
    const nn::TokenWindows windows("input", std::move(files), length, vocabulary);
    for (std::int64_t window = 0; window < windows.size(); ++window) {
      windows.read_sample(window, out);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::size_t at = header + (static_cast<std::size_t>(window * length) + i) * width;
        check(ids[i] == id_at(bytes, at, width) && next[i] == id_at(bytes, at + width, width), "token ", i,
              " of window ", window);
        check(ids[i] < vocabulary && next[i] < vocabulary, "ids beyond the vocabulary");
      }
    }
  });
}

}  // namespace lockstep::fuzz
