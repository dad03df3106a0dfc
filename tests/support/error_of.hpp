#pragma once

#include <concepts>
#include <exception>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::testing {

/// Returns the text of the E that f throws, on one line. If f throws no E, the test fails and the text is "".
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

/// A list of texts. A single text converts to it: "a" or {"a", "b"}.
struct Texts {
  // NOLINTBEGIN(google-explicit-constructor)
  template <std::convertible_to<std::string> Text>
  Texts(const Text& text) : all{text} {}
  Texts(std::initializer_list<std::string> texts) : all(texts) {}
  // NOLINTEND(google-explicit-constructor)
  std::vector<std::string> all;
};

/// Expects that the text holds all of the parts.
inline void expect_holds(const std::string& text, const Texts& parts, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  for (const std::string& part : parts.all) {
    if (text.find(part) == std::string::npos) {
      ADD_FAILURE_AT(file, line) << "'" << text << "' does not hold '" << part << "'";
    }
  }
}
/// Expects that the text holds none of the parts.
inline void expect_lacks(const std::string& text, const Texts& parts, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  for (const std::string& part : parts.all) {
    if (text.find(part) != std::string::npos) {
      ADD_FAILURE_AT(file, line) << "'" << text << "' holds '" << part << "'";
    }
  }
}

/// Expects that f throws an E whose text holds all parts.
template <class E, class F>
void expect_error(F&& f, const std::vector<std::string>& parts, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const std::string text = error_of<E>(f, file, line);
  for (const std::string& part : parts) {
    expect_holds(text, part, file, line);
  }
}

/// Returns `given` with one member changed, for calls that must refuse the change. Example: with(view,
/// &TensorView::device, Device::cuda(0)).
template <class T, class Member>
[[nodiscard]] T with(std::type_identity_t<T> given, Member T::*member, const std::type_identity_t<Member>& value) {
  given.*member = value;
  return given;
}

}  // namespace lockstep::testing
