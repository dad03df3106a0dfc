#include <lockstep/runtime/base/error.hpp>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/version.hpp>

namespace lockstep {
namespace {

/// Shows whether a part of a message was formatted.
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
  try {
    require<ShapeError>(false, "relu: rank is ", 3, ", expected ", Counted{&formatted});
    FAIL() << "no exception";
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "relu: rank is 3, expected counted");
  }
  EXPECT_EQ(formatted, 1);
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
  for (const char* part : {"; cuda o", ", nccl o", ", cudnn o", ", mpi o", ", onednn o"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace lockstep
