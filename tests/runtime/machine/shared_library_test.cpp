#include <lockstep/runtime/machine/shared_library.hpp>

#include <optional>
#include <utility>

#include <dlfcn.h>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

const std::string kPlugin = LOCKSTEP_TEST_PLUGIN;
constexpr const char* kMissing = "liblockstep-no-such-library.so.7";

bool is_loaded() {
  void* handle = ::dlopen(kPlugin.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) {
    ::dlclose(handle);
  }
  return handle != nullptr;
}

int call(const SharedLibrary& library) {
  int (*answer)(int) = nullptr;
  library.get(answer, "lockstep_test_answer");
  return answer(40);
}

// This test must run before the next test, which leaves the library loaded.
TEST(SharedLibrary, GoesWithItsOwner) {
  EXPECT_FALSE(is_loaded());
  {
    SharedLibrary first({kPlugin});
    const SharedLibrary owner = std::move(first);
    EXPECT_TRUE(is_loaded());
    EXPECT_EQ(call(owner), 42);
  }
  EXPECT_FALSE(is_loaded());
}

TEST(SharedLibrary, StaysWhereItsOwnerSaysSo) {
  std::optional<SharedLibrary> library(std::in_place, std::vector{kPlugin}, Unload::never);
  EXPECT_EQ(call(*library), 42);
  library.reset();
  EXPECT_TRUE(is_loaded());
}

TEST(SharedLibrary, TakesTheFirstNameThatCanBeOpened) {
  EXPECT_EQ(SharedLibrary({kPlugin, kMissing}).name(), kPlugin);
  const SharedLibrary second({kMissing, kPlugin});
  EXPECT_EQ(second.name(), kPlugin);
  EXPECT_EQ(call(second), 42);
}

TEST(SharedLibrary, AFunctionThatIsNotThere) {
  const SharedLibrary library({kPlugin});
  int (*answer)(int) = nullptr;
  library.find(answer, "lockstep_test_answer");
  EXPECT_NE(answer, nullptr);
  library.find(answer, "lockstep_test_question");
  EXPECT_EQ(answer, nullptr);
  EXPECT_EQ(error_of<UnsupportedError>([&] { library.get(answer, "lockstep_test_question"); }),
            kPlugin + " has no function lockstep_test_question, expected another version of the library");
}

TEST(SharedLibrary, WhatWasTriedIsSaid) {
  const std::string text = error_of<UnsupportedError>([] { SharedLibrary({kMissing, "/no/such/folder/lib.so"}); });
  EXPECT_TRUE(text.starts_with(std::string(kMissing) + ": ")) << text;
  EXPECT_NE(text.find("; /no/such/folder/lib.so: "), std::string::npos) << text;
  EXPECT_NE(text.find("No such file"), std::string::npos) << text;
  // If a file is no library, the error must name the file.
  EXPECT_EQ(error_of<UnsupportedError>([] { SharedLibrary({"/proc/self/status"}); }).rfind("/proc/self/status", 0), 0U);
  EXPECT_EQ(error_of<UsageError>([] { SharedLibrary({}); }), "shared library: no name is given, expected at least one");
  EXPECT_EQ(error_of<UsageError>([] { SharedLibrary({""}); }),
            "shared library: a name is empty, expected that of a file");
}

}  // namespace
}  // namespace lockstep::testing
