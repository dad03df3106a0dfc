#include "tools/lockstep_cost/pcie.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>

#include <lockstep/runtime/error.hpp>

namespace lockstep_cost {
namespace {

constexpr double kRates[] = {2.5, 5, 8, 16, 32, 64};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int PcieLink::generation() const {
  return static_cast<int>(std::find(std::begin(kRates), std::end(kRates), gt_per_s) - std::begin(kRates)) + 1;
}

double PcieLink::bytes_per_s() const {
  const double share = gt_per_s < 8 ? 8.0 / 10 : (gt_per_s < 64 ? 128.0 / 130 : 242.0 / 256);
  return gt_per_s * 1e9 * lanes * share / 8;
}

std::string PcieLink::text() const {
  return lockstep::concat("PCIe ", generation(), ".0 x", lanes);
}

std::optional<PcieLink> parse_pcie(const std::string& speed, const std::string& width) {
  PcieLink link;
  std::istringstream speed_in(speed);
  speed_in.imbue(std::locale::classic());
  std::istringstream width_in(width);
  std::string unit;
  if (!(speed_in >> link.gt_per_s >> unit) || unit != "GT/s" || !(width_in >> link.lanes)) {
    return std::nullopt;
  }
  const bool known = std::find(std::begin(kRates), std::end(kRates), link.gt_per_s) != std::end(kRates);
  if (!known || link.lanes < 1 || link.lanes > 32) {
    return std::nullopt;
  }
  return link;
}

std::optional<PcieLink> pcie_link(const std::string& pci, const std::string& sysfs) {
  std::string name = pci;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string folder = lockstep::concat(sysfs, "/bus/pci/devices/", name, "/");
  return parse_pcie(first_line(folder + "max_link_speed"), first_line(folder + "max_link_width"));
}

}  // namespace lockstep_cost
