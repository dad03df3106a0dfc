#include <lockstep/runtime/machine/device.hpp>

#include <charconv>
#include <ostream>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

Device Device::parse(std::string_view text) {
  if (text == "cpu") {
    return cpu();
  }
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (kind == "cuda" || kind == "gpu") {
    if (colon == std::string_view::npos) {
      return cuda(0);
    }
    const std::string_view digits = text.substr(colon + 1);
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0 && digits.front() != '-') {
      return cuda(index);
    }
  }
  throw UsageError(concat("device is '", text, "', expected cpu, gpu, gpu:N, cuda or cuda:N"));
}

std::string to_string(const Device& device) {
  return device.kind == DeviceKind::cpu ? std::string("cpu") : "cuda:" + std::to_string(device.index);
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << to_string(device);
}

}  // namespace lockstep
