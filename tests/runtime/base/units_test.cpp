#include <lockstep/runtime/base/units.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::testing {
namespace {

TEST(Units, ThreeDigitsAndAUnit) {
  EXPECT_EQ(bytes_text(8), "8 B");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(65536), "64 KiB");
  EXPECT_EQ(bytes_text(1500), "1.46 KiB");
  EXPECT_EQ(seconds_text(1.234e-6), "1.23 us");
  EXPECT_EQ(seconds_text(0.0123), "12.3 ms");
  EXPECT_EQ(seconds_text(9.999e-7), "1.00 us");
  EXPECT_EQ(rate_text(1.04e10), "10.4 GB/s");
  EXPECT_EQ(rate_text(0), "0.00 B/s");
  EXPECT_EQ(percent_text(0.0123), "1.2 %");
  EXPECT_EQ(percent_text(0.5), "50 %");
  EXPECT_EQ(digits(-std::nan(""), 2), "-");
}

TEST(Units, CountsHaveASingularForOneAlone) {
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(-1, "step"), "-1 steps");
  EXPECT_EQ(counted(1234567, "virtual rank"), "1234567 virtual ranks");
}

TEST(Units, ANumberIsAllOfItsText) {
  EXPECT_EQ(number_in<int>("12"), 12);
  EXPECT_EQ(number_in<int>("-3"), -3);
  EXPECT_EQ(number_in<double>("1e-3"), 1e-3);
  for (const char* text : {"", "x", "1x", " 1", "1 ", "+1", "1.5", "99999999999"}) {
    EXPECT_EQ(number_in<int>(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::testing
