#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// Exit codes of every lockstep program. Error::code() returns one of them.
namespace exit_code {
inline constexpr int kFinished = 0;
inline constexpr int kBadInput = 2;   ///< an option, a file or a value that the user gave
inline constexpr int kFailure = 3;    ///< something broke while running
inline constexpr int kStopped = 75;   ///< stopped by a signal, a checkpoint was written: resumable
inline constexpr int kWatchdog = 76;  ///< a rank stopped making progress
}  // namespace exit_code

/// Base of all exceptions of lockstep. The text names the value and the expected one. Callers add their context (layer,
/// rank) with annotate() and rethrow the same object.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message), text_(message) {}

  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  /// Puts "context: " in front of the text.
  void annotate(const std::string& context) { text_ = context + ": " + text_; }
  /// Exit code of a program whose main() gets this error.
  [[nodiscard]] virtual int code() const noexcept { return exit_code::kFailure; }

 private:
  std::string text_;
};

/// Wrong input of the user: an option, a setting, a combination.
class UsageError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
};

/// A file is missing, damaged or of the wrong kind. The text names file, offset or record, and what was expected.
class DataError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
};

/// A device that does not exist or cannot be used, or tensors on different devices in one call.
class DeviceError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
};

class ShapeError : public Error {
  using Error::Error;
};  ///< rank, size, stride or alignment of a tensor
class DTypeError : public Error {
  using Error::Error;
};  ///< element type of a tensor
class StateError : public Error {
  using Error::Error;
};  ///< calls in an order that the object does not allow
class UnsupportedError : public Error {
  using Error::Error;
};  ///< no implementation for this op, device or option
class OutOfMemory : public Error {
  using Error::Error;
};  ///< requested, in use, limit and device are in the text
class CudaError : public Error {
  using Error::Error;
};
class NcclError : public Error {
  using Error::Error;
};
class MpiError : public Error {
  using Error::Error;
};
class PeerError : public Error {
  using Error::Error;
};  ///< another rank failed; its own message was printed

/// Joins its arguments with operator<<, always in the C locale, whatever locale the host program has set: "1000",
/// "0.5". Cold: compiled for size and away from the calling code, which halves the size of the library.
template <class... Parts>
[[nodiscard, gnu::cold, gnu::noinline]] std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

namespace detail {
template <class E, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Parts&... parts) {
  throw E(concat(parts...));
}
}  // namespace detail

/// Throws E with the joined parts unless ok. The parts are formatted only on failure, so a check that passes allocates
/// nothing.
///   require<ShapeError>(x.shape == y.shape, "relu: x is ", x.shape, ", y is ", y.shape);
template <class E, class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    detail::fail<E>(parts...);
  }
}

}  // namespace lockstep
