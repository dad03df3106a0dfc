#include <lockstep/runtime/base/fnv1a.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::testing {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Values that the authors of the hash, Fowler, Noll and Vo, give for its 64 bits.
TEST(Fnv1a, IsThatOfItsAuthors) {
  EXPECT_EQ(fnv1a(bytes_of("")), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a(bytes_of("a")), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(fnv1a(bytes_of("foobar")), 0x85944171f73967e8ULL);
}

TEST(Fnv1a, GoesOnFromAHash) {
  EXPECT_EQ(fnv1a(bytes_of("bar"), fnv1a(bytes_of("foo"))), 0x85944171f73967e8ULL);
}

TEST(Fnv1a, TakesBytesAbove127AsTheyAre) {
  EXPECT_EQ(fnv1a(bytes_of("\xff")), 0xaf64724c8602eb6eULL);
}

}  // namespace
}  // namespace lockstep::testing
