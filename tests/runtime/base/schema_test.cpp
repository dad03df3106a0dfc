// Tests Schema, which describes the options of a program: values of every kind, ranges, and the list of the options
// that a user has set.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

enum class Colour : unsigned char { red, green };

struct Fields {
  bool fast = false;
  int count = 3;
  std::uint64_t seed = 7;
  double rate = 1e-4;
  std::string name = "a";
  std::optional<double> decay;
  std::vector<std::int64_t> sizes{1, 2};
  Colour colour = Colour::red;
};

void describe(Schema& schema, Fields& f) {
  schema.group("First");
  schema.add("fast", f.fast, "quickly").taken_back_by("slow");
  schema.add("count", f.count, "how many").at_least(1).at_most(9);
  schema.add("seed", f.seed, "of chance");
  schema.group("Second");
  schema.add("rate", f.rate, "of learning").above(0);
  schema.add("name", f.name, "what it is called").one_of({"a", "b", "c"}).of_this_start();
  schema.add("decay", f.decay, "of weights").fraction();
  schema.add("hidden_sizes", f.sizes, "of layers");
  schema.choice<Colour>("colour", f.colour, {{"red", Colour::red}, {"green", Colour::green}}, "of cars");
}

class SchemaTest : public ::testing::Test {
 protected:
  SchemaTest() { describe(schema_, fields_); }
  void read(const char* name, const std::string& text) { schema_.find(name)->read(text); }
  std::string refusal(const char* name, const std::string& text) {
    return error_of<UsageError>([&] {
      read(name, text);
      schema_.check();
    });
  }
  Fields fields_;
  Schema schema_;
};

TEST_F(SchemaTest, KeepsDefaultsAndGroupsInTheOrderOfTheDescription) {
  std::string all;
  for (const Option& option : schema_.options()) {
    all += option.group + " " + option.spelled() + " " + option.type + " [" + option.first + "]\n";
  }
  EXPECT_EQ(all,
            "First --fast  [false]\nFirst --count INT [3]\nFirst --seed UINT [7]\nSecond --rate FLOAT [0.0001]\n"
            "Second --name a|b|c [a]\nSecond --decay FLOAT []\nSecond --hidden-sizes INT [1,2]\n"
            "Second --colour red|green [red]\n");
  EXPECT_EQ(schema_.find("fast")->negated(), "--slow");
  EXPECT_EQ(schema_.find("slow"), nullptr);
  schema_.check();
}

TEST_F(SchemaTest, ReadsEveryKindAndKnowsWhatWasChosen) {
  EXPECT_TRUE(schema_.given().empty());
  read("fast", "true");
  read("count", "3");  // given() lists an option that was set, even to its default
  read("seed", "18446744073709551615");
  read("rate", "2.5e-3");
  read("name", "c");
  read("decay", "0.25");
  read("hidden_sizes", "[4, 5,6]");
  read("colour", "green");
  schema_.check();
  EXPECT_TRUE(fields_.fast);
  EXPECT_EQ(fields_.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(fields_.rate, 0.0025);
  EXPECT_EQ(fields_.decay, 0.25);
  EXPECT_EQ(fields_.sizes, (std::vector<std::int64_t>{4, 5, 6}));
  EXPECT_EQ(fields_.colour, Colour::green);
  // Reading the options that given() returns must give the same values.
  const auto chosen = schema_.given();
  Fields again;
  Schema repeated;
  describe(repeated, again);
  for (const auto& [name, text] : chosen) {
    repeated.find(name)->read(text);
  }
  EXPECT_EQ(repeated.given(), chosen);
  EXPECT_EQ(again.sizes, fields_.sizes);
  EXPECT_EQ(again.rate, fields_.rate);
  EXPECT_EQ(chosen.size(), 8U);
  EXPECT_EQ(schema_.given(/*kept_only=*/true).count("name"), 0U);
  read("hidden_sizes", "");
  EXPECT_TRUE(fields_.sizes.empty());
}

TEST_F(SchemaTest, RefusesWithNameValueAndWhatWasExpected) {
  EXPECT_EQ(refusal("count", "0"), "--count is 0, expected at least 1");
  EXPECT_EQ(refusal("count", "10"), "--count is 10, expected at most 9");
  read("count", "4");
  for (const char* text : {"", "x", "3.5", "99999999999", "1 ", "0x2", "+-3", "+"}) {
    EXPECT_EQ(refusal("count", text), std::string("--count is '") + text + "', expected a whole decimal number");
  }
  EXPECT_EQ(fields_.count, 4) << "a refused value changes nothing";
  EXPECT_EQ(refusal("seed", "-1"), "--seed is '-1', expected a whole decimal number of at least 0");
  EXPECT_EQ(refusal("rate", "nan"), "--rate is nan, expected above 0");
  EXPECT_EQ(refusal("rate", "inf"), "--rate is inf, expected above 0");
  read("rate", "1");
  EXPECT_EQ(refusal("decay", "1"), "--decay is 1, expected 0 <= value < 1");
  read("decay", "0");
  EXPECT_EQ(refusal("name", "d"), "--name is 'd', expected a, b or c");
  read("name", "a");
  EXPECT_EQ(refusal("colour", "blue"), "--colour is 'blue', expected red|green");
  EXPECT_EQ(refusal("hidden_sizes", "1,x"), "--hidden-sizes is '1,x', expected numbers with commas between them");
  EXPECT_THROW(schema_.add("count", fields_.count, "twice"), StateError);
}

}  // namespace
}  // namespace lockstep::testing
