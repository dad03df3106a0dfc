#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include <lockstep/lockstep.h>

namespace lockstep::c {

/// The status of an exception: the one table of kinds. Anything that is none of ours is LOCKSTEP_ERR_INTERNAL.
struct Failure {
  lockstep_status status;
  const char* text;  ///< lives as long as the exception
};
[[nodiscard]] Failure failure_of(const std::exception_ptr& error) noexcept;

/// lockstep_last_error() of this thread: fixed memory, so that running out of memory can be told. Longer texts end in
/// "...".
void set_last_error(std::string_view entry, std::string_view text) noexcept;
void clear_last_error() noexcept;
[[nodiscard]] const char* last_error() noexcept;

/// The entry that this thread is in, "lockstep_infer".
[[nodiscard]] const char* current_entry() noexcept;
void set_current_entry(const char* name) noexcept;

/// While one lives, this thread is in a function of the host program: its calls of lockstep are LOCKSTEP_ERR_STATE.
class InCallback {
 public:
  InCallback() noexcept;
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
};
/// StateError in a callback.
void require_outside_callback();

/// Every entry of the interface is a call of this: nothing is thrown across it, whatever body() does, and a failure is
/// a status and the text of lockstep_last_error().
template <class Body>
lockstep_status entry(const char* name, Body&& body) noexcept {
  clear_last_error();
  try {
    require_outside_callback();
    set_current_entry(name);
    std::forward<Body>(body)();
    clear_last_error();  // a callback may have failed, and the host program may have gone on
    return LOCKSTEP_OK;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const Failure failure = failure_of(error);
    set_last_error(name, failure.text);
    return failure.status;
  }
}

}  // namespace lockstep::c
