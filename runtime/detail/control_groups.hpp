#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::detail {

/// Calls f(version2, folder) for each control group of this process in which `controller` ("cpu", "memory") may have a
/// limit, and for all parents of these groups. `version2` is true for version 2 of control groups, false for version 1.
/// Inside a container a group's own folder may be invisible, while the folders of its parents are visible.
template <class F>
void visit_control_groups(const std::string& root, std::string_view controller, F f) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // lines: "0::/path", "9:memory:/path", "4:cpu,memory:/path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = concat(',', line.substr(first + 1, second - first - 1), ',');
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(concat(',', controller, ',')) == std::string::npos) {
      continue;
    }
    const std::string mount = concat(root, "/sys/fs/cgroup", version2 ? "" : concat('/', controller));
    std::string group = line.substr(second + 1);
    while (true) {
      f(version2, mount + (group == "/" ? "" : group));
      if (group.empty() || group == "/") {
        break;
      }
      group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
  }
}

}  // namespace lockstep::detail
