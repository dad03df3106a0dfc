#include <lockstep/runtime/base/error.hpp>

#include <locale>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/version.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

/// Counts how often a part of a message is formatted.
struct Counted {
  int* formatted;
  friend std::ostream& operator<<(std::ostream& out, const Counted& c) {
    ++*c.formatted;
    return out << "counted";
  }
};

TEST(Error, RequireFormatsOnlyOnFailure) {
  int formatted = 0;
  require<ShapeError>(true, "never ", Counted{&formatted});
  EXPECT_EQ(formatted, 0);
  EXPECT_EQ(error_of<ShapeError>(
                [&] { require<ShapeError>(false, "relu: rank is ", 3, ", expected ", Counted{&formatted}); }),
            "relu: rank is 3, expected counted");
  EXPECT_EQ(formatted, 1);
}

/// A locale that a host program may have set. It formats a number as 1.000.000,5, which must not change lockstep's
/// texts.
struct Grouping : std::numpunct<char> {
  [[nodiscard]] char do_decimal_point() const override { return ','; }
  [[nodiscard]] char do_thousands_sep() const override { return '.'; }
  [[nodiscard]] std::string do_grouping() const override { return "\3"; }
};

TEST(Error, NumbersDoNotFollowTheLocaleOfTheHostProgram) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  std::ostringstream of_host;
  of_host << 1000000;
  const std::string text = concat(1000000, ' ', 0.5);
  std::locale::global(before);
  EXPECT_EQ(of_host.str(), "1.000.000") << "the control";
  EXPECT_EQ(text, "1000000 0.5");
}

TEST(Error, AnnotateKeepsTheKindAndGoesInFront) {
  try {
    try {
      throw DataError("file x, offset 3: short");
    } catch (Error& error) {
      error.annotate("layer conv1");
      error.annotate("rank 2");
      throw;
    }
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "rank 2: layer conv1: file x, offset 3: short");
  }
}

TEST(Error, ExitCodes) {
  EXPECT_EQ(UsageError("").code(), 2);
  EXPECT_EQ(DataError("").code(), 2);
  EXPECT_EQ(DeviceError("").code(), 2);
  EXPECT_EQ(ShapeError("").code(), 3);
  EXPECT_EQ(DTypeError("").code(), 3);
  EXPECT_EQ(StateError("").code(), 3);
  EXPECT_EQ(UnsupportedError("").code(), 3);
  EXPECT_EQ(OutOfMemory("").code(), 3);
  EXPECT_EQ(CudaError("").code(), 3);
  EXPECT_EQ(NcclError("").code(), 3);
  EXPECT_EQ(MpiError("").code(), 3);
  EXPECT_EQ(PeerError("").code(), 3);
}

TEST(Version, SaysWhatTheBuildHas) {
  EXPECT_EQ(version(), "0.1.0");
  const std::string text = build_description();
  EXPECT_EQ(text.rfind("lockstep 0.1.0 (", 0), 0U) << text;
  for (const char* part : {"; cuda o", ", nccl o", ", cudnn o", ", mpi o", ", gloo o", ", onednn o"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace lockstep::testing
