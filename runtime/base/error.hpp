#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace lockstep {

/// Exit codes of all lockstep programs. Error::code() returns one of these codes.
namespace exit_code {
inline constexpr int kFinished = 0;
inline constexpr int kBadInput = 2;   ///< the user gave a wrong option, file or value
inline constexpr int kFailure = 3;    ///< an operation failed while the program ran
inline constexpr int kStopped = 75;   ///< a signal stopped the run; its checkpoint can be resumed
inline constexpr int kWatchdog = 76;  ///< a rank stopped making progress
}  // namespace exit_code

/// Base class of all exceptions of lockstep. The text names the wrong value and the expected value. Callers add their
/// context (layer, rank) with annotate() and rethrow the same object.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message), text_(message) {}

  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  /// Puts "context: " in front of the text.
  void annotate(const std::string& context) { text_ = context + ": " + text_; }
  /// Returns the exit code of a program whose main() catches this error.
  [[nodiscard]] virtual int code() const noexcept { return exit_code::kFailure; }

 private:
  std::string text_;
};

/// The user gave a wrong option, a wrong setting or a wrong combination of options.
class UsageError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
};

/// A file is missing, damaged or of the wrong kind. The text names the file, the offset or record, and the expected
/// content.
class DataError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
};

/// A device does not exist or cannot be used, or the tensors of one call are on different devices.
class DeviceError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int code() const noexcept override { return exit_code::kBadInput; }
};

class ShapeError : public Error {
  using Error::Error;
};  ///< ShapeError: a tensor has a wrong rank, size, stride or alignment
class DTypeError : public Error {
  using Error::Error;
};  ///< DTypeError: a tensor has a wrong element type
class StateError : public Error {
  using Error::Error;
};  ///< StateError: calls came in an order that the object does not allow
class UnsupportedError : public Error {
  using Error::Error;
};  ///< UnsupportedError: an op, device or option has no implementation
class OutOfMemory : public Error {
  using Error::Error;
};  ///< OutOfMemory: the text has the requested bytes, the bytes in use, the limit and the device
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
};  ///< PeerError: another rank failed, and that rank printed its own message

namespace detail {
/// The type as which a part of a text is passed on: string literals of all lengths as const char*, so that texts of the
/// same kinds of parts share one function; numbers as they are; other types by reference.
template <class T>
using Part =
    std::conditional_t<std::is_array_v<T>, const char*, std::conditional_t<std::is_arithmetic_v<T>, T, const T&>>;

template <class... Parts>
[[nodiscard, gnu::cold, gnu::noinline]] std::string join(Parts... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

template <class E, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(Parts... parts) {
  throw E(join<Parts...>(parts...));
}
}  // namespace detail

/// Joins its arguments with operator<< in the C locale ("1000", "0.5"); the host program's locale has no effect. The
/// attribute `cold` of join() makes the compiler optimise for size, which halves the size of liblockstep.
template <class... Parts>
[[nodiscard, gnu::always_inline]] inline std::string concat(const Parts&... parts) {
  return detail::join<detail::Part<Parts>...>(parts...);
}

/// Throws E with the text concat(parts...) unless `ok` is true. The parts are formatted only on failure, so a
/// successful check allocates nothing.
///   require<ShapeError>(x.shape == y.shape, "relu: x is ", x.shape, ", y is ", y.shape);
template <class E, class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    detail::fail<E, detail::Part<Parts>...>(parts...);
  }
}

}  // namespace lockstep
