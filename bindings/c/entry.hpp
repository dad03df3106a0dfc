#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include <lockstep/lockstep.h>

namespace lockstep::c {

/// Status and text of an exception. The status is LOCKSTEP_ERR_INTERNAL if no other status fits the exception.
struct Failure {
  lockstep_status status;
  const char* text;  ///< valid as long as the exception
};
[[nodiscard]] Failure failure_of(const std::exception_ptr& error) noexcept;

/// Sets the text of lockstep_last_error() for the calling thread. The function allocates no memory, so that "out of
/// memory" can be reported. The end of a text that is too long is replaced by "...".
void set_last_error(std::string_view entry, std::string_view text) noexcept;
void clear_last_error() noexcept;
[[nodiscard]] const char* last_error() noexcept;

/// Returns the name of the entry (function of lockstep.h) that this thread is in, for example "lockstep_infer".
[[nodiscard]] const char* current_entry() noexcept;
void set_current_entry(const char* name) noexcept;

/// Marks that the calling thread is in a function of the host program. While an InCallback exists, entries that this
/// thread calls return LOCKSTEP_ERR_STATE.
class InCallback {
 public:
  InCallback() noexcept;
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
};
/// Throws StateError if the calling thread is in a callback (InCallback).
void require_outside_callback();

/// Runs body(), the body of the entry `name` of the C interface. Never throws: if body() throws, returns the status of
/// the exception and sets the text of lockstep_last_error().
template <class Body>
lockstep_status entry(const char* name, Body&& body) noexcept {
  clear_last_error();
  try {
    require_outside_callback();
    set_current_entry(name);
    std::forward<Body>(body)();
    clear_last_error();  // removes a text that a callback may have set although the call succeeded
    return LOCKSTEP_OK;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const Failure failure = failure_of(error);
    set_last_error(name, failure.text);
    return failure.status;
  }
}

}  // namespace lockstep::c
