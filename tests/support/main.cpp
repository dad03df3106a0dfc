// The main function of tests. --file=NAME runs the tests of NAME_test.cpp, for programs of several files
// (lockstep_add_test_room). A filter of GoogleTest takes precedence.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <string_view>

namespace {

/// Returns a filter with the tests that `file` holds. Prints an error and returns "" in three cases: `file` holds no
/// test, a test belongs to no *_test.cpp (so no entry of ctest would run it), or two tests have one name.
std::string tests_of(const std::string& file) {
  const std::string end = "/" + file + "_test.cpp";
  std::string filter;
  std::set<std::string> names;
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string name = std::string(suite.name()) + "." + test.name();
      const std::string_view place = test.file();
      if (!place.ends_with("_test.cpp") || !names.insert(name).second) {
        std::fprintf(stderr, "%s: test %s: expected one test of this name, in a file NAME_test.cpp\n", test.file(),
                     name.c_str());
        return "";
      }
      if (place.ends_with(end)) {
        filter += (filter.empty() ? "" : ":") + name;
      }
    }
  }
  if (filter.empty()) {
    std::fprintf(stderr, "--file=%s: expected a file NAME_test.cpp of this program that holds tests\n", file.c_str());
  }
  return filter;
}

}  // namespace

// Weak, because a test program with its own main() may link this file for one of its templates.
[[gnu::weak]] int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view option = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(option) && ::testing::GTEST_FLAG(filter) == "*") {
      const std::string filter = tests_of(std::string(argument.substr(option.size())));
      if (filter.empty()) {
        return 2;
      }
      ::testing::GTEST_FLAG(filter) = filter;
    }
  }
  return RUN_ALL_TESTS();
}
