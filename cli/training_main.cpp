#include "cli/training_main.hpp"

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::cli {

std::string last_checkpoint(const std::string& out) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  try {
    return read_file(find_folder(out + "/last") + "/state.json", kMostBytes);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace lockstep::cli
