#pragma once

#include <exception>
#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::testing {

/// The text of the E that f throws, on one line; a test failure and "" when it throws none.
template <class E, class F>
std::string error_of(F&& f, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  try {
    f();
  } catch (const E& error) {
    const std::string text = error.what();
    if (text.find('\n') != std::string::npos) {
      ADD_FAILURE_AT(file, line) << "more than one line: " << text;
    }
    return text;
  } catch (const std::exception& error) {
    ADD_FAILURE_AT(file, line) << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE_AT(file, line) << "nothing was thrown";
  return "";
}

/// One text or several: "a", {"a", "b"}.
struct Texts {
  // NOLINTBEGIN(google-explicit-constructor)
  Texts(const char* text) : all{text} {}
  Texts(const std::string& text) : all{text} {}
  Texts(std::initializer_list<std::string> texts) : all(texts) {}
  // NOLINTEND(google-explicit-constructor)
  std::vector<std::string> all;
};

/// EXPECTs that the text holds all of the parts.
inline void expect_holds(const std::string& text, const Texts& parts, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  for (const std::string& part : parts.all) {
    if (text.find(part) == std::string::npos) {
      ADD_FAILURE_AT(file, line) << "'" << text << "' does not hold '" << part << "'";
    }
  }
}
/// EXPECTs that the text holds none of the parts.
inline void expect_lacks(const std::string& text, const Texts& parts, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  for (const std::string& part : parts.all) {
    if (text.find(part) != std::string::npos) {
      ADD_FAILURE_AT(file, line) << "'" << text << "' holds '" << part << "'";
    }
  }
}

}  // namespace lockstep::testing
