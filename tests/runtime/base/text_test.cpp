#include <lockstep/runtime/base/text.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::testing {
namespace {

TEST(Text, PrintableIsOneShortLine) {
  EXPECT_EQ(printable("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_EQ(printable("\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80"), "'\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80'");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "'\\xc2\\x9b2J'")
      << "terminals obey U+009B as ESC [";
  EXPECT_EQ(printable("\xff\xc3"), "'\\xff\\xc3'");
  EXPECT_EQ(printable("\xed\xa0\x80\xc0\xaf"), "'\\xed\\xa0\\x80\\xc0\\xaf'") << "a surrogate, a long form";
  EXPECT_LE(printable(std::string(100'000, 'x')).size(), 210U);
}

TEST(Text, DisplayedIsAllOfIt) {
  EXPECT_EQ(displayed("options 'x': \"1\"\x1b[2J\n"), "options 'x': \"1\"\\x1b[2J\\x0a");
  EXPECT_EQ(displayed(""), "");
  EXPECT_EQ(displayed(std::string(1000, 'x')), std::string(1000, 'x'));
}

TEST(Text, OfUtf8HasItsBytesAndWhereOtherBytesWere) {
  EXPECT_EQ(utf8_text("a\n\x1b\\\x7f \xc3\xa9\xf0\x9f\x98\x80"), "a\n\x1b\\\x7f \xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(utf8_text("a\xff\xc3"), "a\\xff\\xc3");
  EXPECT_EQ(utf8_text("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(utf8_text(std::string("\0", 1)), std::string("\0", 1));
  EXPECT_EQ(utf8_text(""), "");
}

TEST(Text, DistanceInCharacters) {
  const std::map<std::string, std::size_t> from_kitten{
      {"kitten", 0}, {"sitting", 3}, {"", 6}, {"kitte", 1}, {"xkitten", 1}};
  for (const auto& [text, away] : from_kitten) {
    EXPECT_EQ(edit_distance("kitten", text), away) << text;
    EXPECT_EQ(edit_distance(text, "kitten"), away) << text;
  }
}

TEST(Text, Joined) {
  EXPECT_EQ(joined(std::vector<int>{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(joined(std::vector<int>{}, ", "), "");
  const std::map<std::string, std::size_t> sizes{{"a", 1}, {"b", 2}};
  EXPECT_EQ(joined(sizes, " and ", [](const auto& one) { return one.first + "!"; }), "a! and b!");
}

}  // namespace
}  // namespace lockstep::testing
