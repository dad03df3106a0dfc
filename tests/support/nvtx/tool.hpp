#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

/// A profiling tool for tests, like Nsight Systems. The tool is a library (tool.cpp) that NVTX loads if
/// NVTX_INJECTION64_PATH names the library. It records the events that a program sends to NVTX, without allocating
/// memory. If LOCKSTEP_RANGES is set, the tool writes the ranges to the file $LOCKSTEP_RANGES.PID when the process with
/// the number PID ends.
namespace lockstep::testing {

struct ToolEvent {
  enum class What : int { enter, leave, mark };
  What what = What::enter;
  int name = -1;  ///< index into ToolRecord::name; -1: a `leave`, or an event without a registered string
  std::uint32_t category = 0;
  std::uint32_t colour = 0;
  std::int64_t number = 0;   ///< payload of the event; 0: none
  std::uint64_t thread = 0;  ///< thread that called NVTX
};

struct ToolRecord {
  static constexpr int kMostEvents = 1 << 18;
  static constexpr int kMostNames = 1 << 15;
  static constexpr int kMostCategories = 64;
  static constexpr int kLength = 96;
  std::atomic<int> domains{0};
  char domain[kLength] = {};
  std::atomic<int> names{0};
  char name[kMostNames][kLength] = {};
  char category[kMostCategories][kLength] = {};
  std::atomic<int> events{0};
  ToolEvent event[kMostEvents];
  std::atomic<int> faults{0};  ///< number of calls that name another domain, or for which the record has no room
};

/// Returns the record of this process's tool; nullptr when no tool was loaded.
inline const ToolRecord* tool_record() {
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (library == nullptr) {
    return nullptr;
  }
  const auto get = reinterpret_cast<const ToolRecord* (*)()>(dlsym(library, "lockstep_tool_record"));
  dlclose(library);  // NVTX keeps the library open
  return get != nullptr ? get() : nullptr;
}

/// True if this process was started with a tool.
inline bool wants_tool() {
  return std::getenv("NVTX_INJECTION64_PATH") != nullptr;
}

/// Returns the name of an event, or "".
inline std::string name_of(const ToolRecord& record, const ToolEvent& event) {
  return event.name >= 0 ? record.name[event.name] : "";
}

/// Returns the ranges that a thread has reported from event `from` on, one line each: the name of the range, indented
/// by two blanks for each range around it. A mark's line ends in " !". A leave without its enter, and a range that is
/// open at the end, have a line that says so.
inline std::vector<std::string> ranges_of_thread(const ToolRecord& record, int from, std::uint64_t thread) {
  std::vector<std::string> lines;
  std::size_t depth = 0;
  for (int i = from; i < record.events; ++i) {
    const ToolEvent& event = record.event[i];
    if (event.thread != thread) {
      continue;
    }
    if (event.what == ToolEvent::What::leave) {
      if (depth == 0) {
        lines.emplace_back("a range ends that was not begun");
      } else {
        --depth;
      }
      continue;
    }
    lines.push_back(std::string(2 * depth, ' ') + name_of(record, event) +
                    (event.what == ToolEvent::What::mark ? " !" : ""));
    depth += event.what == ToolEvent::What::enter ? 1 : 0;
  }
  if (depth != 0) {
    lines.push_back(std::to_string(depth) + " ranges are open");
  }
  return lines;
}

}  // namespace lockstep::testing
