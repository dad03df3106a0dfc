// Tests bindings/c/entry.hpp, where all exceptions are caught, with kinds of errors that no known call throws.
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/c/entry.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::c {
namespace {

template <class E>
lockstep_status status_of(const E& error) {
  return entry("lockstep_test", [&] { throw error; });
}

TEST(Entry, EveryKindHasItsStatus) {
  EXPECT_EQ(status_of(UsageError("x")), LOCKSTEP_ERR_INVALID);
  EXPECT_EQ(status_of(ShapeError("x")), LOCKSTEP_ERR_SHAPE);
  EXPECT_EQ(status_of(DTypeError("x")), LOCKSTEP_ERR_DTYPE);
  EXPECT_EQ(status_of(DeviceError("x")), LOCKSTEP_ERR_DEVICE);
  EXPECT_EQ(status_of(UnsupportedError("x")), LOCKSTEP_ERR_UNSUPPORTED);
  EXPECT_EQ(status_of(StateError("x")), LOCKSTEP_ERR_STATE);
  EXPECT_EQ(status_of(OutOfMemory("x")), LOCKSTEP_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(std::bad_alloc()), LOCKSTEP_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(FileError("x")), LOCKSTEP_ERR_IO);
  EXPECT_EQ(status_of(DataError("x")), LOCKSTEP_ERR_FORMAT);
  EXPECT_EQ(status_of(CudaError("x")), LOCKSTEP_ERR_CUDA);
  EXPECT_EQ(status_of(NcclError("x")), LOCKSTEP_ERR_NCCL);
  EXPECT_EQ(status_of(MpiError("x")), LOCKSTEP_ERR_MPI);
  EXPECT_EQ(status_of(PeerError("x")), LOCKSTEP_ERR_PEER);
}

TEST(Entry, WhatIsNoneOfOursIsInternal) {
  EXPECT_EQ(status_of(std::logic_error("of the standard library")), LOCKSTEP_ERR_INTERNAL);
  EXPECT_STREQ(last_error(), "lockstep_test: of the standard library");
  EXPECT_EQ(status_of(Error("of no kind")), LOCKSTEP_ERR_INTERNAL);
  EXPECT_EQ(status_of(42), LOCKSTEP_ERR_INTERNAL);
  EXPECT_STREQ(last_error(), "lockstep_test: something that is no std::exception was thrown");
  struct Foreign {};
  EXPECT_EQ(status_of(Foreign{}), LOCKSTEP_ERR_INTERNAL);
  EXPECT_EQ(entry("lockstep_test", [] {}), LOCKSTEP_OK);
  EXPECT_STREQ(last_error(), "");
}

TEST(Entry, IsRefusedInACallback) {
  bool ran = false;
  {
    const InCallback outer;
    { const InCallback inner; }
    EXPECT_EQ(entry("lockstep_test", [&] { ran = true; }), LOCKSTEP_ERR_STATE);
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(entry("lockstep_test", [&] { ran = true; }), LOCKSTEP_OK);
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace lockstep::c
