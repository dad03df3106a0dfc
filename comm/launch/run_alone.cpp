#include <lockstep/comm/launch/run_alone.hpp>

#include <exception>
#include <new>

#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/detail/process_start.hpp>
#include <lockstep/comm/launch/detail/standard_files.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

int run_alone(const std::function<int()>& body) noexcept {
  detail::start_process();
  try {
    const int code = body();
    detail::require_output_written();
    return code;
  } catch (const Error& e) {
    detail::print_error(-1, e.what());
    return e.code();
  } catch (const std::bad_alloc&) {
    detail::print_error(-1, detail::kOutOfHostMemory);
    return exit_code::kFailure;
  } catch (const std::exception& e) {
    detail::print_error(-1, e.what());
    return exit_code::kFailure;
  }
}

}  // namespace lockstep::comm
