// The function that libFuzzer calls with each input. It calls the reader that LOCKSTEP_FUZZ_READER names.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/readers.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::LOCKSTEP_FUZZ_READER({data, size});
  return 0;
}
