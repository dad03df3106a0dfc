// A reader with planted faults. control.sh checks that the replay program finds all of them.
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

void planted(Input input) {
  const std::string text = text_of(input);
  const bool read = accepts<DataError>([&] {
    require<DataError>(text.starts_with("good") || text.size() > 4, "refused, as it should be");
    if (text.starts_with("undocumented")) {
      throw UsageError("an error of another kind");
    }
    if (text.starts_with("foreign")) {
      throw std::out_of_range("from the standard library");
    }
    if (text.starts_with("slow")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    if (text.starts_with("large")) {
      const std::string memory(std::size_t{400} << 20, 'x');
      check(memory.back() == 'x', "lost bytes");
    }
  });
  check(!read || !text.starts_with("wrong"), "a property that does not hold");
}

}  // namespace lockstep::fuzz
