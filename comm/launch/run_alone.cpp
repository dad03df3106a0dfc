#include <lockstep/comm/launch/run_alone.hpp>

#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/detail/process_start.hpp>
#include <lockstep/comm/launch/detail/standard_files.hpp>

namespace lockstep::comm {

int run_alone(const std::function<int()>& body) noexcept {
  detail::start_process();
  try {
    const int code = body();
    detail::require_output_written();
    return code;
  } catch (...) {
    const detail::Failure failure = detail::handled_failure();
    detail::print_error(-1, failure.text);
    return failure.code;
  }
}

}  // namespace lockstep::comm
