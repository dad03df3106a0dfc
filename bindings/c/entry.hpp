#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include <lockstep/lockstep.h>

namespace lockstep::c {

/// The status and the text of an exception. An exception of no known kind is LOCKSTEP_ERR_INTERNAL.
struct Failure {
  lockstep_status status;
  const char* text;  ///< valid as long as the exception
};
[[nodiscard]] Failure failure_of(const std::exception_ptr& error) noexcept;

/// Sets the text of lockstep_last_error() for this thread. The text has fixed memory, so that "out of memory" can be
/// reported. A text that is too long ends in "...".
void set_last_error(std::string_view entry, std::string_view text) noexcept;
void clear_last_error() noexcept;
[[nodiscard]] const char* last_error() noexcept;

/// Returns the name of the entry that this thread is in, e.g. "lockstep_infer".
[[nodiscard]] const char* current_entry() noexcept;
void set_current_entry(const char* name) noexcept;

/// Marks that this thread is in a function of the host program. While an InCallback lives, calls of lockstep return
/// LOCKSTEP_ERR_STATE.
class InCallback {
 public:
  InCallback() noexcept;
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
};
/// Throws StateError while this thread is in a callback.
void require_outside_callback();

/// Runs the body of an entry of the interface. Never throws: if body() throws, returns the status of the failure and
/// sets the text of lockstep_last_error().
template <class Body>
lockstep_status entry(const char* name, Body&& body) noexcept {
  clear_last_error();
  try {
    require_outside_callback();
    set_current_entry(name);
    std::forward<Body>(body)();
    clear_last_error();  // a callback may have set the text, although the call succeeded
    return LOCKSTEP_OK;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const Failure failure = failure_of(error);
    set_last_error(name, failure.text);
    return failure.status;
  }
}

}  // namespace lockstep::c
