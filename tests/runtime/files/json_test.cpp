#include <lockstep/runtime/files/json.hpp>

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/files.hpp"

namespace lockstep::testing {
namespace {

TEST(Json, TextIsSortedAndOfOneLine) {
  const Json json(Json::Object{{"step", 12},
                               {"epoch", std::int64_t{3}},
                               {"loss", 0.1},
                               {"text", "a \"b\"\n"},
                               {"on", true},
                               {"list", Json::Array{Json(), Json(1), Json(2.5)}}});
  EXPECT_EQ(json.text(), R"({"epoch":3,"list":[null,1,2.5],"loss":0.1,"on":true,"step":12,"text":"a \"b\"\n"})");
  EXPECT_EQ(parse_json(json.text(), "t"), json);
  EXPECT_EQ(parse_json(json.text(2), "t"), json);
}

TEST(Json, NumbersSurvive) {
  for (const double value : {0.1, 1.0 / 3.0, 1e-300, 5e-324, 1.7976931348623157e308, -0.0, 3.0, 123456789.125}) {
    const double back = parse_json(Json(value).text(), "t").as<double>("t");
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_EQ(parse_json(Json(value).text(), "t").as<std::uint64_t>("t"), value);
  }
  EXPECT_EQ(parse_json("-9223372036854775808", "t").as<std::int64_t>("t"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(Json(std::uint64_t{5}), Json(std::int64_t{5}));
  EXPECT_EQ(Json(std::numeric_limits<double>::quiet_NaN()).text(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).text(), "null");
  EXPECT_EQ(Json("\xff").text(), "\"\xef\xbf\xbd\"");
}

TEST(Json, MembersAreCheckedByNameAndKind) {
  const Json json = parse_json(R"({"a": "x", "b": -1, "c": 18446744073709551615, "d": 1.5, "e": 4294967296})", "t");
  EXPECT_EQ(json.get<std::string>("a", "state.json"), "x");
  EXPECT_EQ(json.get<int>("b", "state.json"), -1);
  EXPECT_EQ(json.get<double>("b", "state.json"), -1.0);
  EXPECT_TRUE(json.has("a"));
  EXPECT_FALSE(json.has("z"));
  EXPECT_FALSE(json.member("a", "t").has("a"));
  EXPECT_EQ(error_of<DataError>([&] { (void)json.get<int>("z", "state.json"); }),
            "state.json: 'z' is missing, expected this key");
  EXPECT_EQ(error_of<DataError>([&] { (void)json.get<std::int64_t>("a", "state.json"); }),
            "state.json: 'a' is a string, expected an integer");
  EXPECT_EQ(error_of<DataError>([&] { (void)json.get<std::int64_t>("d", "state.json"); }),
            "state.json: 'd' is a number, expected an integer");
  expect_holds(error_of<DataError>([&] { (void)json.get<std::int64_t>("c", "s"); }), "18446744073709551615");
  expect_holds(error_of<DataError>([&] { (void)json.get<std::uint64_t>("b", "s"); }), "is -1");
  expect_holds(error_of<DataError>([&] { (void)json.get<int>("e", "s"); }), "4294967296");
  expect_holds(error_of<DataError>([&] { (void)json.get<bool>("a", "s"); }), "expected true or false");
  expect_holds(error_of<DataError>([&] { (void)json.get<double>("a", "s"); }), "expected a number");
  expect_holds(error_of<DataError>([&] { (void)json.get<std::string>("b", "s"); }), "expected a string");
  expect_holds(error_of<DataError>([&] { (void)json.get<Json::Array>("b", "s"); }), "expected an array");
  expect_holds(error_of<DataError>([&] { (void)json.get<Json::Object>("b", "s"); }), "expected an object");
  expect_holds(error_of<DataError>([&] { (void)Json(1).member("b", "s"); }), "s is an integer, expected an object");
}

TEST(Json, BadTextIsRefused) {
  using std::string_literals::operator""s;
  const std::string cases[] = {
      "",
      " ",
      "{",
      "[1,]",
      "{\"a\":1,}",
      "{'a':1}",
      "{\"a\":1} x",
      "{\"a\":1}{}",
      "{\"a\":1}\0x"s,
      "\0"s,
      "nul",
      "NaN",
      "01",
      "1e999",
      "\"\xff\"",
      "\"\xc0\xaf\"",
      "\"\xed\xa0\x80\"",
      "\"\\ud800\"",
      "\"a\nb\"",
      "\xEF\xBB\xBF{}",
      "// x\n1",
  };
  for (const std::string& text : cases) {
    expect_holds(error_of<DataError>([&] { (void)parse_json(text, "x.json"); }), "x.json");
  }
  expect_holds(error_of<DataError>([] { (void)parse_json(R"({"a":1,"b":{"c":1,"c":2}})", "x"); }), "'c' stands twice");
  // The keys are equal after their escapes are resolved, so the object must be refused.
  expect_holds(error_of<DataError>([] { (void)parse_json(R"({"a":1,"\u0061":2})", "x"); }), "'a' stands twice");
  expect_holds(error_of<DataError>([] { (void)parse_json(R"({"\n":1,"\n":2})", "x"); }), "'\\x0a' stands twice");
}

TEST(Json, LimitsHold) {
  EXPECT_NO_THROW((void)parse_json("[[1]]", "x", {2, 3}));
  expect_holds(error_of<DataError>([] { (void)parse_json("[[[1]]]", "x", {2, 100}); }), "2 levels");
  expect_holds(error_of<DataError>([] {
                 (void)parse_json("[[1,2]]", "x", {2, 3});
               }),
               "too many JSON values, expected at most 3");
  expect_holds(error_of<DataError>([] { (void)parse_json(std::string(1'000'000, '['), "x"); }), "32 levels");
}

TEST(Json, FilesAreNamedInErrors) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.json";
  expect_holds(error_of<DataError>([&] { (void)read_json(path); }), path);
  write_file(path, "{\"a\":");
  expect_holds(error_of<DataError>([&] { (void)read_json(path); }), path);
  replace_file(path, "{\"a\":7}");
  EXPECT_EQ(read_json(path).get<int>("a", path), 7);
  EXPECT_EQ(count_entries(folder.path()), 1U);
}

}  // namespace
}  // namespace lockstep::testing
