#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

#include <gtest/gtest.h>

/// Each function calls `look` with damaged copies of a file's bytes, one after the other. It stops after the first call
/// that fails the test.
namespace lockstep::testing {

inline void for_each_flipped_bit(const std::string& good, const std::function<void(const std::string& bytes)>& look) {
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
      look(bytes);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "bit " << bit << " of byte " << at;
    }
  }
}

/// Calls `look` with the bytes cut to every shorter length. Then calls it with longer copies: the bytes followed by
/// zeros, and the bytes followed by a copy of their beginning.
inline void for_each_other_length(const std::string& good, const std::function<void(const std::string& bytes)>& look) {
  for (std::size_t size = 0; size < good.size(); ++size) {
    look(good.substr(0, size));
    ASSERT_FALSE(::testing::Test::HasFailure()) << size << " bytes";
  }
  for (const std::size_t more : {1U, 7U, 64U, 5000U}) {
    look(good + std::string(more, '\0'));
    look(good + good.substr(0, std::min(more, good.size())));
  }
}

}  // namespace lockstep::testing
