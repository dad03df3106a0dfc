#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/files.hpp"

namespace lockstep::testing {

/// Returns the token ids 0, 1, ... period - 1, 0, ...
inline std::vector<std::uint32_t> token_cycle(std::size_t tokens, std::uint32_t period) {
  std::vector<std::uint32_t> ids(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<std::uint32_t>(i) % period;
  }
  return ids;
}

inline void append_number(std::string& bytes, std::uint32_t value, int width) {
  for (int byte = 0; byte < width; ++byte) {
    bytes += static_cast<char>(value >> (8 * byte) & 0xffU);
  }
}

/// Returns the header of a token file of llm.c: 256 numbers of four bytes.
inline std::string token_header(std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
  std::string bytes;
  for (const std::uint32_t value : {magic, version, count}) {
    append_number(bytes, value, 4);
  }
  bytes.resize(1024);
  return bytes;
}

/// Writes a file of token ids, little-endian, byte by byte. magic: the number of llm.c's header, or 0 for nanoGPT's
/// files, which have no header.
inline void write_tokens(const std::string& path, std::uint32_t magic, const std::vector<std::uint32_t>& ids) {
  const bool wide = magic == 20240801;
  std::string bytes;
  if (magic != 0) {
    bytes = token_header(magic, wide ? 7 : 1, static_cast<std::uint32_t>(ids.size()));
  }
  for (const std::uint32_t id : ids) {
    append_number(bytes, id, wide ? 4 : 2);
  }
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  put_file(path, bytes);
}

}  // namespace lockstep::testing
